"""Exact log-densities, normalising constants included, against scipy and other libraries."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from deltavariance.likelihood import (
    LowRankCovariance,
    bernoulli_log_likelihood,
    categorical_log_likelihood,
    distribution_log_likelihood,
    gaussian_log_likelihood,
    laplace_log_likelihood,
    poisson_log_likelihood,
    student_log_likelihood,
)

SHAPE = (2, 3)
SIZE = 6


def f(params, x):
    return params * x


@pytest.fixture
def case(x64):
    rng = np.random.default_rng(0)
    params, x, y = rng.normal(size=SHAPE), rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    root = rng.normal(size=(SIZE, SIZE)) + 2 * np.eye(SIZE)
    return jnp.asarray(params), jnp.asarray(x), jnp.asarray(y), params * x, root


def check(log_likelihood, params, example, wanted):
    np.testing.assert_allclose(log_likelihood(params, example), wanted, rtol=1e-12)


def test_gaussian_with_a_number(case):
    params, x, y, mean, _ = case
    check(gaussian_log_likelihood(f, scale=0.3), params, (x, y), stats.norm(mean, 0.3).logpdf(y).sum())


@pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 3), (1,)])
def test_gaussian_with_a_scale_per_output(case, shape):
    params, x, y, mean, _ = case
    scale = np.random.default_rng(1).uniform(0.5, 2.0, shape)
    check(gaussian_log_likelihood(f, scale=scale), params, (x, y), stats.norm(mean, scale).logpdf(y).sum())


def test_gaussian_with_a_covariance_and_with_any_root_of_it(case):
    params, x, y, mean, root = case
    covariance = root @ root.T
    wanted = stats.multivariate_normal(mean.ravel(), covariance).logpdf(np.ravel(y))
    check(gaussian_log_likelihood(f, covariance=covariance), params, (x, y), wanted)
    check(gaussian_log_likelihood(f, scale=root), params, (x, y), wanted)
    check(gaussian_log_likelihood(f, scale=np.linalg.cholesky(covariance)), params, (x, y), wanted)


def test_a_diagonal_matrix_means_the_same_as_its_vector(case):
    params, x, y, mean, _ = case
    scale = np.arange(1.0, 7.0)
    wanted = stats.norm(mean.ravel(), scale).logpdf(np.ravel(y)).sum()
    check(gaussian_log_likelihood(f, scale=np.diag(scale)), params, (x, y), wanted)
    check(gaussian_log_likelihood(f, scale=scale.reshape(SHAPE)), params, (x, y), wanted)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_gaussian_with_diagonal_plus_low_rank(case, rank):
    params, x, y, mean, _ = case
    rng = np.random.default_rng(2)
    diagonal, factor = rng.uniform(0.1, 1.0, SIZE), 3.0 * rng.normal(size=(SIZE, rank))
    wanted = stats.multivariate_normal(mean.ravel(), np.diag(diagonal) + factor @ factor.T).logpdf(
        np.ravel(y)
    )
    noise = LowRankCovariance(diagonal, factor)
    check(gaussian_log_likelihood(f, covariance=noise), params, (x, y), wanted)
    check(gaussian_log_likelihood(f, scale=noise), params, (x, y), wanted)


def test_low_rank_does_not_cancel_in_single_precision():
    factor = 300.0 * np.ones((50, 1), np.float32)
    residual = np.linspace(-1, 1, 50).astype(np.float32) + 200.0
    noise = LowRankCovariance(np.full(50, 0.01, np.float32), factor)
    dense = np.diag(np.full(50, 0.01)) + np.asarray(factor, np.float64) @ factor.T
    wanted = residual.astype(np.float64) @ np.linalg.solve(dense, residual.astype(np.float64))
    np.testing.assert_allclose(noise.quadratic(jnp.asarray(residual)), wanted, rtol=1e-3)


def test_gaussian_whose_scale_depends_on_inputs_or_parameters(case):
    params, x, y, mean, _ = case
    wanted = stats.norm(mean, np.exp(x)).logpdf(y).sum()
    check(gaussian_log_likelihood(f, scale=jnp.exp), params, (x, y), wanted)
    wanted = stats.norm(mean, np.exp(params + x)).logpdf(y).sum()
    learned = gaussian_log_likelihood(f, scale=lambda params, x: jnp.exp(params + x))
    check(learned, params, (x, y), wanted)
    # The normalising term is part of the gradient: without it a scale would grow for ever.
    slope = jax.grad(lambda p: learned(p, (x, p * x)))(params)
    np.testing.assert_allclose(slope, -1.0, rtol=1e-12)


def test_gaussian_whose_covariance_root_depends_on_inputs(case):
    params, x, y, mean, root = case
    wanted = stats.multivariate_normal(mean.ravel(), 4.0 * root @ root.T).logpdf(np.ravel(y))
    check(gaussian_log_likelihood(f, scale=lambda x: 2.0 * jnp.asarray(root)), params, (x, y), wanted)


@pytest.mark.parametrize("kind", ["scale", "covariance", "low rank"])
def test_missing_outputs_leave_the_marginal_density(case, kind):
    params, x, y, mean, root = case
    low = LowRankCovariance(np.ones(SIZE), root[:, :2])
    noise, covariance = {
        "scale": ({"scale": 0.5}, 0.25 * np.eye(SIZE)),
        "covariance": ({"covariance": root @ root.T}, root @ root.T),
        "low rank": ({"covariance": low}, np.eye(SIZE) + root[:, :2] @ root[:, :2].T),
    }[kind]
    seen = np.array([True, False, True, True, False, True])
    target = np.where(seen.reshape(SHAPE), y, np.nan)
    log_likelihood = gaussian_log_likelihood(f, allow_missing=True, **noise)
    marginal = stats.multivariate_normal(mean.ravel()[seen], covariance[np.ix_(seen, seen)])
    check(log_likelihood, params, (x, target), marginal.logpdf(np.ravel(y)[seen]))
    slope = jax.grad(log_likelihood)(params, (x, target))
    assert np.all(np.isfinite(slope))
    assert np.all(np.ravel(slope)[~seen] == 0)
    strict = gaussian_log_likelihood(f, **noise)
    assert np.isnan(strict(params, (x, target)))


def test_laplace_and_student(case):
    params, x, y, mean, _ = case
    check(laplace_log_likelihood(f, scale=0.7), params, (x, y), stats.laplace(mean, 0.7).logpdf(y).sum())
    scale = np.array([0.5, 1.0, 2.0])
    wanted = stats.t(3.5, mean, scale).logpdf(y).sum()
    check(student_log_likelihood(f, scale=scale, df=3.5), params, (x, y), wanted)


def test_categorical(case):
    params, x, _, logits, _ = case
    y = np.array([2, 0])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = stats.multinomial(1, p[0]).logpmf(np.eye(3)[2]) + stats.multinomial(1, p[1]).logpmf(np.eye(3)[0])
    log_likelihood = categorical_log_likelihood(f)
    check(log_likelihood, params, (x, y), wanted)
    check(log_likelihood, params, (x, np.eye(3)[y]), wanted)
    check(log_likelihood, params, (x, np.full((2, 3), 1 / 3)), np.log(p).mean(-1).sum())


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_outside_of_the_classes_is_not_some_other_class(case, label):
    params, x, _, _, _ = case
    assert np.isnan(categorical_log_likelihood(f)(params, (x, np.array([label, 0]))))


def test_bernoulli_and_poisson(case):
    params, x, _, eta, _ = case
    y = np.array([[0, 1, 1], [1, 0, 0]])
    check(
        bernoulli_log_likelihood(f), params, (x, y), stats.bernoulli(1 / (1 + np.exp(-eta))).logpmf(y).sum()
    )
    check(
        bernoulli_log_likelihood(f),
        params,
        (x, y == 1),
        stats.bernoulli(1 / (1 + np.exp(-eta))).logpmf(y).sum(),
    )
    counts = np.array([[0, 3, 7], [1, 0, 2]])
    check(poisson_log_likelihood(f), params, (x, counts), stats.poisson(np.exp(eta)).logpmf(counts).sum())
    assert np.isnan(poisson_log_likelihood(f)(params, (x, -counts)))
    assert np.isnan(bernoulli_log_likelihood(f)(params, (x, 2 * y)))


def test_confident_logits_stay_finite():
    assert bernoulli_log_likelihood(f)(jnp.array(200.0), (1.0, 0)) == -200.0
    assert categorical_log_likelihood(f)(jnp.array([0.0, 200.0]), (1.0, 0)) == -200.0


@pytest.mark.parametrize(
    "normal",
    [lambda p, x: dist.Normal(p * x, 0.3), lambda p, x: distrax.Normal(p * x, 0.3)],
    ids=["numpyro", "distrax"],
)
def test_a_distribution_of_another_library(case, normal):
    params, x, y, mean, _ = case
    log_likelihood = distribution_log_likelihood(normal)
    check(log_likelihood, params, (x, y), stats.norm(mean, 0.3).logpdf(y).sum())
    draw = log_likelihood.distribution(log_likelihood.predict(params, x)).sample(jax.random.key(0))
    assert draw.shape == SHAPE
    np.testing.assert_allclose(draw, mean, atol=2.0)
    batched = jax.jit(jax.vmap(log_likelihood, in_axes=(None, 0)))(
        params, (jnp.stack([x, x]), jnp.stack([y, y]))
    )
    np.testing.assert_allclose(batched, stats.norm(mean, 0.3).logpdf(y).sum(), rtol=1e-12)


def test_a_prediction_that_is_no_distribution():
    with pytest.raises(TypeError, match="has no method log_prob nor sample"):
        distribution_log_likelihood(f)(jnp.array(1.0), (1.0, 1.0))
    with pytest.raises(NotImplementedError, match="model_fisher"):
        distribution_log_likelihood(f).output_hessian_sqrt(dist.Normal(0.0, 1.0))


def test_low_precision_outputs_have_a_density_in_single_precision():
    log_likelihood = gaussian_log_likelihood(lambda params, x: (params * x).astype(jnp.bfloat16), scale=1e-3)
    value = log_likelihood(jnp.array(1.0), (1.0, 1.001))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, stats.norm(1.0, 1e-3).logpdf(1.001), rtol=1e-4)
