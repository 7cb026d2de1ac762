"""Noise estimated from residuals, against plain formulas over all residuals and against scikit-learn."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.decomposition import FactorAnalysis

from deltavariance import noise as dvn
from deltavariance.likelihood import FullCovariance, LowRankCovariance, gaussian_log_likelihood
from deltavariance.noise import estimate_noise


def f(params, x):
    return params * x


def zero(params, x):
    return jnp.zeros(params)


def data_of(residuals):
    """Data whose residuals under `zero` are these."""
    return np.zeros(len(residuals)), residuals


@pytest.fixture
def residuals():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(5, 5)) * np.array([0.1, 1.0, 10.0, 1.0, 1.0])[:, None]
    return rng.standard_t(5, size=(1000, 5)) @ mixing.T + 0.05 * np.arange(5)


def test_common_and_per_output(x64, residuals):
    found = estimate_noise(zero, 5, data_of(residuals), structure=dvn.Common(), batch_size=64)
    np.testing.assert_allclose(float(found), np.sqrt(np.mean(residuals**2)), rtol=1e-12)
    found = estimate_noise(zero, 5, data_of(residuals), structure=dvn.PerOutput(), batch_size=300)
    np.testing.assert_allclose(found.scale, np.sqrt(np.mean(residuals**2, 0)), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(found), found.scale)
    np.testing.assert_allclose(found.as_matrix(), np.diag(np.mean(residuals**2, 0)), rtol=1e-12)


def test_full_without_shrinkage_is_the_second_moment(x64, residuals):
    found = estimate_noise(zero, 5, data_of(residuals), structure=dvn.Full(shrinkage=0.0), batch_size=64)
    np.testing.assert_allclose(found.as_matrix(), residuals.T @ residuals / 1000, rtol=1e-10)
    spread = np.sqrt(np.mean(residuals**2, 0))
    rho = residuals.T @ residuals / 1000 / np.outer(spread, spread)
    np.testing.assert_allclose(found.largest_eigenvalue, np.linalg.eigvalsh(rho)[-1], rtol=1e-10)


def test_shrinkage_of_the_correlations_by_a_plain_loop(x64, residuals):
    few = residuals[:40]
    found = estimate_noise(zero, 5, data_of(few), structure=dvn.Full(), batch_size=16)
    z = few / np.sqrt(np.mean(few**2, 0))
    noise = signal = 0.0
    for i in range(5):
        for j in range(5):
            if i != j:
                products = z[:, i] * z[:, j]
                noise += np.var(products) / len(few)
                signal += np.mean(products) ** 2
    np.testing.assert_allclose(found.shrinkage, noise / signal, rtol=1e-10)
    assert 0 < found.shrinkage < 1
    matrix = few.T @ few / 40
    shrunk = (1 - found.shrinkage) * matrix + found.shrinkage * np.diag(np.diag(matrix))
    np.testing.assert_allclose(found.as_matrix(), shrunk, rtol=1e-10)


def test_more_outputs_than_examples_still_gives_a_density(x64):
    rng = np.random.default_rng(1)
    residuals = rng.normal(size=(20, 60)) + 2.0 * rng.normal(size=(20, 1))
    found = estimate_noise(zero, 60, data_of(residuals))
    assert isinstance(found.noise, FullCovariance)
    log_likelihood = gaussian_log_likelihood(zero, scale=found)
    assert np.isfinite(log_likelihood(60, (0.0, residuals[0])))


@pytest.mark.parametrize("structure", [dvn.Common(), dvn.PerOutput(), dvn.Full(), dvn.LowRank(2)])
def test_weights_count_examples(x64, residuals, structure):
    weights = np.random.default_rng(2).integers(0, 3, 200)
    few = residuals[:200]
    repeated = estimate_noise(
        zero, 5, data_of(np.repeat(few, weights, axis=0)), structure=structure, batch_size=300
    )
    masked = few.copy()
    masked[weights == 0] = np.nan  # what carries no weight is not looked at
    found = estimate_noise(zero, 5, data_of(masked), structure=structure, weights=weights, batch_size=300)
    assert found.num_data == weights.sum()
    np.testing.assert_allclose(found.as_matrix(), repeated.as_matrix(), rtol=1e-7)


@pytest.mark.parametrize("structure", [dvn.Common(), dvn.PerOutput(), dvn.Full(), dvn.LowRank(2)])
def test_batches_of_any_size_and_kind(x64, residuals, structure):
    whole = estimate_noise(zero, 5, data_of(residuals), structure=structure, batch_size=1000)
    cuts = [0, 300, 600, 990, 1000]
    parts = [data_of(residuals[a:b]) for a, b in pairwise(cuts)]
    weights = [np.ones(len(x)) for x, _ in parts]
    for batches in (parts, iter(parts)):
        found = estimate_noise(zero, 5, batches, structure=structure, weights=iter(weights))
        np.testing.assert_allclose(
            found.as_matrix(), whole.as_matrix(), rtol=1e-2 if found.shrinkage else 1e-9
        )
        np.testing.assert_allclose(found.scale, whole.scale, rtol=1e-9)


def test_degrees_of_freedom(x64):
    """An ordinary regression: σ̂² = RSS / (N - p), with one output and with several."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 4))
    truth = rng.normal(size=(4, 3))
    y = x @ truth + 0.5 * rng.normal(size=(50, 3))
    theta = np.linalg.lstsq(x, y)[0]
    linear = lambda params, x: x @ params
    rss = np.sum((y - x @ theta) ** 2, axis=0)
    found = estimate_noise(linear, theta, (x, y), structure=dvn.PerOutput(), num_parameters=theta.size)
    np.testing.assert_allclose(found.scale**2, rss / (50 - 4), rtol=1e-12)
    common = estimate_noise(linear, theta, (x, y), structure=dvn.Common(), num_parameters=theta.size)
    np.testing.assert_allclose(float(common) ** 2, rss.sum() / (150 - 12), rtol=1e-12)
    full = estimate_noise(linear, theta, (x, y), structure=dvn.Full(0.0), num_parameters=theta.size)
    np.testing.assert_allclose(full.as_matrix(), (y - x @ theta).T @ (y - x @ theta) / 46, rtol=1e-10)
    low = estimate_noise(linear, theta, (x, y), structure=dvn.LowRank(1), num_parameters=theta.size)
    np.testing.assert_allclose(jnp.diag(low.as_matrix()), rss / 46, rtol=1e-6)
    with pytest.raises(ValueError, match="no degree of freedom"):
        estimate_noise(linear, theta, (x, y), num_parameters=150)


def test_missing_outputs_by_pairs(x64, residuals):
    gappy = np.where(np.random.default_rng(4).random(residuals.shape) < 0.3, np.nan, residuals)
    with pytest.raises(ValueError, match="allow_missing"):
        estimate_noise(zero, 5, data_of(gappy))
    found = estimate_noise(zero, 5, data_of(gappy), structure=dvn.PerOutput(), allow_missing=True)
    np.testing.assert_allclose(found.scale, np.sqrt(np.nanmean(gappy**2, 0)), rtol=1e-12)
    found = estimate_noise(zero, 5, data_of(gappy), structure=dvn.Full(0.0), allow_missing=True)
    pairs = np.nanmean(gappy[:, :, None] * gappy[:, None, :], axis=0)
    np.testing.assert_allclose(found.as_matrix(), pairs, rtol=1e-9)
    with pytest.raises(ValueError, match="complete targets"):
        estimate_noise(zero, 5, data_of(gappy), structure=dvn.LowRank(1), allow_missing=True)


def factor_residuals(size, num, rank=3, seed=5):
    rng = np.random.default_rng(seed)
    unit = 10.0 ** rng.uniform(-2, 2, size)  # outputs in different units
    factor = rng.normal(size=(size, rank)) * unit[:, None]
    own = unit**2 * rng.uniform(0.5, 2.0, size)
    sample = rng.normal(size=(num, rank)) @ factor.T + rng.normal(size=(num, size)) * np.sqrt(own)
    return sample, np.diag(own) + factor @ factor.T, unit


def test_low_rank_is_the_maximum_likelihood_of_factor_analysis(x64):
    sample, _, unit = factor_residuals(12, 400)
    sample = np.concatenate([sample, -sample])  # centred, as scikit-learn centres
    found = estimate_noise(zero, 12, data_of(sample), structure=dvn.LowRank(3, shrinkage=0.0), batch_size=128)
    assert isinstance(found.noise, LowRankCovariance)
    reference = FactorAnalysis(3, svd_method="lapack", tol=1e-10, max_iter=5000).fit(sample / unit)
    wanted = reference.get_covariance() * np.outer(unit, unit)
    scale = np.sqrt(np.diag(wanted))
    np.testing.assert_allclose(
        found.as_matrix() / np.outer(scale, scale), wanted / np.outer(scale, scale), atol=2e-4
    )


def test_low_rank_of_many_outputs_by_a_sketch(x64):
    """800 outputs, more than the sketch keeps rows: most of the diagonal comes from what it left out."""
    sample, truth, _ = factor_residuals(800, 1500)
    found = estimate_noise(zero, 800, data_of(sample), structure=dvn.LowRank(3), batch_size=500)
    assert found.shrinkage < 0.01
    scale = np.sqrt(np.diag(truth))
    gap = np.asarray(found.as_matrix()) / np.outer(scale, scale) - truth / np.outer(scale, scale)
    assert np.sqrt(np.mean(gap**2)) < 0.03
    np.testing.assert_allclose(
        found.largest_eigenvalue, np.linalg.eigvalsh(truth / np.outer(scale, scale))[-1], rtol=0.05
    )
    # The precision is what enters the likelihood: a draw has k in its quadratic form.
    log_likelihood = gaussian_log_likelihood(zero, scale=found)
    fresh = factor_residuals(800, 200, seed=5)[0]
    quadratic = np.mean(
        [float(log_likelihood.distribution(jnp.zeros(800)).noise.quadratic(r)) for r in jnp.asarray(fresh)]
    )
    np.testing.assert_allclose(quadratic / 800, 1.0, rtol=0.05)


def test_independent_outputs_are_shrunk_to_independence(x64):
    sample = np.random.default_rng(6).normal(size=(300, 20))
    for structure in (dvn.Full(), dvn.LowRank(3)):
        assert estimate_noise(zero, 20, data_of(sample), structure=structure).shrinkage > 0.8


@pytest.mark.parametrize(("size", "kind"), [(1, dvn.Common), (5, dvn.Full), (600, dvn.LowRank)])
def test_default_structure(size, kind):
    sample = np.random.default_rng(7).normal(size=(64, size)).astype(np.float32)
    found = estimate_noise(zero, size, data_of(sample))
    wanted = {dvn.Common: float, dvn.Full: FullCovariance, dvn.LowRank: LowRankCovariance}[kind]
    assert isinstance(found.noise, wanted)
    assert np.isfinite(gaussian_log_likelihood(zero, scale=found)(size, (0.0, sample[0])))


def test_outputs_of_any_shape_and_examples_of_any_form():
    sample = np.random.default_rng(8).normal(size=(64, 2, 3)).astype(np.float32)
    found = estimate_noise(lambda p, x: jnp.zeros((2, 3)), 0, {"x": np.zeros(64), "y": sample})
    assert found.scale.shape == (2, 3)
    with pytest.raises(TypeError, match="not one number"):
        float(found)
    again = estimate_noise(
        lambda p, x: jnp.zeros((2, 3)), 0, {"a": np.zeros(64), "b": sample}, split=lambda e: (e["a"], e["b"])
    )
    np.testing.assert_array_equal(again.as_matrix(), found.as_matrix())


def test_bad_input():
    x = np.linspace(0, 1, 10)
    with pytest.raises(ValueError, match="exactly zero"):
        estimate_noise(f, jnp.array(1.0), (x.astype(np.float32), x.astype(np.float32)))
    broken = np.where(x > 0.9, np.nan, x)
    with pytest.raises(ValueError, match="1 residuals of batch 0"):
        estimate_noise(f, jnp.array(2.0), (x, broken))
    with pytest.raises(ValueError, match="no batch"):
        estimate_noise(f, jnp.array(2.0), iter([]))
    with pytest.raises(ValueError, match="no example"):
        estimate_noise(f, jnp.array(2.0), (x, x), weights=np.zeros(10))
    with pytest.raises(ValueError, match="shape"):
        estimate_noise(f, jnp.array(2.0), (x, x), weights=np.ones(9))


def traces(log_likelihood, params, x, y):
    """tr F and tr H by plain per-example differentiation."""

    def summed(p):
        return jax.vmap(log_likelihood, (None, 0))(p, (x, y))

    scores = jax.jit(jax.vmap(jax.grad(log_likelihood), (None, 0)))(params, (x, y)).reshape(len(x), -1)
    hessian = jax.jit(jax.hessian(lambda p: -summed(p).mean()))(params).reshape(params.size, params.size)
    return float(jnp.mean(jnp.sum(scores**2, axis=1))), float(jnp.trace(hessian))


def test_correlated_outputs_and_the_information_they_hold(x64):
    """The trap: 30 outputs share their noise, and an independent Gaussian counts their evidence 30 times."""
    rng = np.random.default_rng(9)
    size, num = 30, 800
    # Neighbours share noise over several outputs, as cells of a grid do, and all share a common part.
    distance = np.abs(np.arange(size)[:, None] - np.arange(size))
    covariance = 0.25 * (0.5 + 0.5 * np.exp(-distance / 5.0)) + 0.01 * np.eye(size)
    x = rng.normal(size=(num, 2))
    pattern = np.stack([np.ones(size), np.linspace(-1, 1, size)])
    truth = rng.normal(size=(2, 2))
    y = x @ truth @ pattern + rng.normal(size=(num, size)) @ np.linalg.cholesky(covariance).T

    def predict(params, x):
        return x @ params @ pattern

    # At the least-squares fit, where both traces are those of a trained model.
    params = jnp.asarray(np.linalg.lstsq(x, y @ np.linalg.pinv(pattern))[0])
    ratio, largest = {}, {}
    for name, structure in {
        "independent": dvn.PerOutput(),
        "full": dvn.Full(),
        "low rank": dvn.LowRank(6),
    }.items():
        found = estimate_noise(predict, params, (x, y), structure=structure)
        f_trace, h_trace = traces(gaussian_log_likelihood(predict, scale=found), params, x, y)
        ratio[name], largest[name] = f_trace / h_trace, found.largest_eigenvalue
    assert ratio["independent"] > 10
    # The largest eigenvalue of the correlations foretells it: no direction can overstate by more.
    assert ratio["independent"] < largest["full"] * 1.05
    np.testing.assert_allclose(ratio["full"], 1.0, rtol=0.1)
    np.testing.assert_allclose(ratio["low rank"], 1.0, rtol=0.2)
