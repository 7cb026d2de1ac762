"""Noise models against brute force with scipy's densities, and at the ends of the parameter range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from deltavariance import metrics, tune

LAWS = {
    "laplace": lambda e, s: stats.laplace.logpdf(e, scale=np.sqrt(s / 2)),
    "gaussian": lambda e, s: stats.norm.logpdf(e, scale=np.sqrt(s)),
}


def simulated(rng, family, alpha, beta, n):
    nu = rng.gamma(1.5, size=n)
    unit = {
        "laplace": lambda: rng.laplace(size=n) / np.sqrt(2),
        "gaussian": lambda: rng.normal(size=n),
        "student": lambda: rng.standard_t(6, size=n) * np.sqrt(4 / 6),
    }[family]()
    return unit * np.sqrt(alpha + beta * nu), nu


def brute_force(law, e, nu):
    """The best log-likelihood over a grid of α and β with both axes, polished by Nelder and Mead."""
    scale = np.mean(e**2)
    grid = np.concatenate([[0.0], scale * 10.0 ** np.linspace(-4, 1, 41)])
    alpha, beta = np.meshgrid(grid, grid / nu.mean(), indexing="ij")
    s = alpha[..., None] + beta[..., None] * nu
    with np.errstate(all="ignore"):
        value = np.where((s > 0).all(-1), law(e, s).mean(-1), -np.inf)
    start = np.unravel_index(np.argmax(value), value.shape)
    polished = optimize.minimize(
        lambda x: -law(e, x[0] ** 2 + x[1] ** 2 * nu).mean(),
        np.sqrt([alpha[start], beta[start]]),
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-13, "maxiter": 4000},
    )
    return max(-polished.fun, value.max())


@pytest.mark.parametrize("family", ["laplace", "gaussian"])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.0, 1.0), (0.0, 2.0), (3.0, 0.0), (1e-3, 1.0), (1.0, 1e-3), (1e-8, 1e-6)]
)
def test_as_good_as_brute_force(family, alpha, beta, x64):
    rng = np.random.default_rng(int(7 * alpha + 3 * beta))
    e, nu = simulated(rng, family, alpha, beta, 300)
    model = tune.noise(e, nu, family)
    s = float(model.alpha) + float(model.beta) * nu
    ours = LAWS[family](e, s).mean()
    assert ours == pytest.approx(brute_force(LAWS[family], e, nu), abs=2e-9)
    assert float(metrics.log_likelihood(e, nu, model)) == pytest.approx(ours, abs=1e-12)


@pytest.mark.parametrize("family", ["laplace", "gaussian", "student"])
def test_recovers_the_truth(family):
    e, nu = simulated(np.random.default_rng(1), family, 0.5, 2.0, 40_000)
    model = tune.noise(e, nu, family)
    assert float(model.alpha) == pytest.approx(0.5, abs=0.1)
    assert float(model.beta) == pytest.approx(2.0, rel=0.06)
    if family == "student":
        assert isinstance(model.family, tune.Student)
        assert float(model.family.df) == pytest.approx(6.0, rel=0.15)


def test_ends_of_the_range_are_exact(x64):
    """Errors that shrink with ν have β = 0, errors proportional to √ν have α = 0, to the last digit."""
    nu = np.linspace(0.1, 2, 200)
    sign = np.where(np.arange(200) % 2, 1.0, -1.0)
    falling = tune.noise(sign / nu, nu)
    proportional = tune.noise(sign * np.sqrt(nu) * 3, nu)
    assert float(falling.beta) == 0
    assert float(falling.alpha) == pytest.approx(2 * np.mean(1 / nu) ** 2, rel=1e-12)
    assert float(proportional.alpha) == 0
    assert float(proportional.beta) == pytest.approx(2 * 9, rel=1e-12)


def test_quantities_do_not_touch_each_other(x64):
    rng = np.random.default_rng(2)
    pairs = [simulated(rng, "laplace", a, b, 150) for a, b in ((1, 1), (1e-9, 1e-7), (1e6, 0))]
    e, nu = (np.stack(x, axis=1).reshape(150, 3, 1) for x in zip(*pairs, strict=True))
    together = tune.noise(e, nu)
    assert together.alpha.shape == (3, 1)
    for j in range(3):
        alone = tune.noise(e[:, j, 0], nu[:, j, 0])
        np.testing.assert_allclose(together.alpha[j, 0], alone.alpha, rtol=1e-9)
        np.testing.assert_allclose(together.beta[j, 0], alone.beta, rtol=1e-9)


@pytest.mark.parametrize("family", ["laplace", "gaussian", tune.Student(5.0)])
def test_units_carry_over(family, x64):
    """Errors in other units: α with their square; ν in other units: β inversely."""
    e, nu = simulated(np.random.default_rng(3), "laplace", 1.0, 1.0, 200)
    one, other = tune.noise(e, nu, family), tune.noise(1e3 * e, 1e-4 * nu, family)
    np.testing.assert_allclose(other.alpha, 1e6 * one.alpha, rtol=1e-6)
    np.testing.assert_allclose(other.beta, 1e10 * one.beta, rtol=1e-6)


def test_weights_are_repetitions(x64):
    rng = np.random.default_rng(4)
    e, nu = simulated(rng, "laplace", 1.0, 1.0, 100)
    counts = rng.integers(0, 4, 100)
    weighted = tune.noise(e, nu, weights=counts)
    repeated = tune.noise(np.repeat(e, counts), np.repeat(nu, counts))
    np.testing.assert_allclose(weighted.alpha, repeated.alpha, rtol=1e-6)
    np.testing.assert_allclose(weighted.beta, repeated.beta, rtol=1e-6)


def test_own_aleatoric_variance(x64):
    rng = np.random.default_rng(5)
    own, nu = rng.gamma(1.0, size=20_000), rng.gamma(1.0, size=20_000)
    e = rng.normal(size=20_000) * np.sqrt(3 * own + 0.5 * nu)
    model = tune.noise(e, nu, "gaussian", aleatoric=own)
    assert float(model.alpha) == pytest.approx(3.0, rel=0.05)
    assert float(model.beta) == pytest.approx(0.5, rel=0.15)
    better = metrics.log_likelihood(e, nu, model, aleatoric=own)
    assert float(better) > float(metrics.log_likelihood(e, nu, tune.noise(e, nu, "gaussian"))) + 0.02


def test_constant_variance_goes_into_alpha(x64):
    e = np.random.default_rng(6).laplace(size=100)
    model = tune.noise(e, np.full(100, 3.0))
    assert float(model.beta) == 0
    assert float(model.alpha) == pytest.approx(2 * np.abs(e).mean() ** 2, rel=1e-12)


def test_zero_variances_and_tiny_units_in_single_precision():
    e, nu = simulated(np.random.default_rng(7), "laplace", 1.0, 1.0, 500)
    nu[:50] = 0
    plain = tune.noise(e, nu)
    tiny = tune.noise((1e-9 * e).astype(np.float32), (1e-18 * nu).astype(np.float32))
    np.testing.assert_allclose(tiny.alpha / 1e-18, plain.alpha, rtol=1e-2)
    np.testing.assert_allclose(tiny.beta, plain.beta, rtol=1e-2)
    zero = tune.noise(e, np.zeros(500))
    assert np.isfinite(float(zero.alpha))
    assert float(zero.beta) == 0


def test_inside_jit_and_vmap(x64):
    e, nu = simulated(np.random.default_rng(8), "laplace", 1.0, 1.0, 60)
    compiled = jax.jit(lambda e, v: tune.noise(e, v).alpha)(e, nu)
    mapped = jax.vmap(lambda c: tune.noise(c * e, nu).alpha)(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(compiled, tune.noise(e, nu).alpha, rtol=1e-6)
    np.testing.assert_allclose(mapped[1], 4 * mapped[0], rtol=1e-6)


def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="exactly zero"):
        tune.noise(np.zeros((5, 2)), np.ones((5, 2)))
    with pytest.raises(ValueError, match="'laplace'"):
        tune.noise(np.ones(5), np.ones(5), "cauchy")
    with pytest.raises(ValueError, match="`aleatoric` has shape"):
        tune.noise(np.ones(5), np.ones(5), aleatoric=np.ones(4))
