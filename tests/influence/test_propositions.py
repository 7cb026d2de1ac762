"""The paper's propositions, each with the rate at which its error falls, fitted over two decades or more.

The model throughout is an exponential distribution with rate e^θ, `log p(y | θ) = θ − y e^θ`: its weighted fit has the
closed form `θ(w) = log(Σw / Σwy)`, so that refits are exact, and θ enters nonlinearly everywhere.
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy import optimize, stats

import deltavariance as dv
from deltavariance import influence, resampling

pytestmark = pytest.mark.usefixtures("x64")

CASE = np.array([0.7])  # in double precision, which jnp would not give at import


def log_likelihood(theta: Array, y: Array) -> Array:
    return theta - y * jnp.exp(theta)


def u(theta: Array, z: Array) -> Array:
    """The chance that an event has not happened by time z: nothing that the model was fitted to."""
    return jnp.exp(-z * jnp.exp(theta))


def sample(size: int) -> np.ndarray:
    """Quantiles of a gamma distribution: data without randomness, for which the model is wrong."""
    return stats.gamma.ppf((np.arange(size) + 0.5) / size, 2.0)


def fitted(y: np.ndarray) -> Array:
    return -jnp.log(jnp.mean(jnp.asarray(y)))


def refit_on(y: np.ndarray) -> Callable[[Array], Array]:
    return lambda weights: jnp.log(jnp.sum(weights) / jnp.sum(weights * y))


def curvatures(y: np.ndarray) -> tuple[dv.Curvature, dv.Curvature]:
    theta = fitted(y)
    H = dv.hessian(log_likelihood, theta, jnp.asarray(y), structure=dv.Dense())
    F = dv.fisher(log_likelihood, theta, jnp.asarray(y), structure=dv.Dense())
    return H, F


def sandwich_variance(y: np.ndarray) -> float:
    """ΔᵀH⁻¹FH⁻¹Δ/N with Σ written out here, for one parameter."""
    theta = fitted(y)
    H = float(jnp.mean(jnp.asarray(y)) * jnp.exp(theta))
    F = float(jnp.mean((1 - jnp.asarray(y) * jnp.exp(theta)) ** 2))
    sigma = dv.as_covariance(theta, F / H**2 / len(y))
    return float(dv.variance(u, theta, CASE, sigma)[0])


def slope(x: np.ndarray, error: np.ndarray) -> float:
    """Of log error against log x, by least squares; x spans two decades at least."""
    assert max(x) / min(x) >= 100 * (1 - 1e-12)
    return float(np.polyfit(np.log(x), np.log(np.abs(error)), 1)[0])


def test_the_library_builds_this_sandwich() -> None:
    """mean-one scores, F and H by the library against the closed forms, and against the two readings below."""
    y = sample(40)
    H, F = curvatures(y)
    sigma = dv.sandwich(H, F, damping=0.0)
    np.testing.assert_allclose(dv.variance(u, fitted(y), CASE, sigma)[0], sandwich_variance(y), rtol=1e-10)


def test_leave_one_out_error_against_epsilon() -> None:
    """Claimed: V_ε = V + O(ε/N²)."""
    y, epsilons = sample(30), np.logspace(-4, 0, 7)
    v = [resampling.leave_one_out(refit_on(y), u, CASE, num_data=30, epsilon=e)[0] for e in epsilons]
    rate = slope(epsilons, np.array(v) - sandwich_variance(y))
    assert 0.95 <= rate <= 1.1
    np.testing.assert_allclose(v[0], sandwich_variance(y), rtol=2e-5)


def test_leave_one_out_error_against_the_number_of_data() -> None:
    """Claimed: V_1 = V + O(1/N²)."""
    sizes = np.array([10, 30, 100, 300, 1000])
    errors = [
        resampling.leave_one_out(refit_on(y), u, CASE, num_data=len(y))[0] - sandwich_variance(y)
        for y in map(sample, sizes)
    ]
    assert -2.2 <= slope(sizes, np.array(errors)) <= -1.9


def test_bootstrap_error_against_epsilon() -> None:
    """Claimed: O(ε). All 2¹⁰ sign patterns are refitted, so the variance over them is exact; signs being symmetric,
    what is seen is ε²."""
    y, epsilons = sample(10), np.logspace(-2.5, -0.5, 5)
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=10)))
    v = [np.var(resampling.resampled_values(refit_on(y), u, CASE, 1 + e * signs)) / e**2 for e in epsilons]
    assert 1.9 <= slope(epsilons, np.array(v) - sandwich_variance(y)) <= 2.1
    # And the limit has the factor 1, not ½: it is the sandwich itself.
    np.testing.assert_allclose(v[0], sandwich_variance(y), rtol=1e-4)


def test_bootstrap_error_against_the_number_of_data() -> None:
    """At fixed ε the error falls like N⁻² (the paper claims N^−2.5, which its own bound on ‖θ_r − θ̄‖² rules out).

    To see it below the noise of random weights, each pattern is used with both signs, and what the same patterns make
    of the linear approximation, whose variance is known exactly, is subtracted.
    """
    sizes, epsilon, repeats = np.array([10, 30, 100, 300, 1000]), 0.3, 20_000
    errors = []
    for size in sizes:
        y = sample(size)
        r = np.asarray(jax.random.rademacher(jax.random.key(size), (repeats, size), jnp.float64))
        theta = fitted(y)
        influences = influence.examples(u, theta, CASE, log_likelihood, y, curvatures(y)[0], damping=0.0)[0]
        linear = epsilon / size * r @ np.asarray(influences)
        values = [
            resampling.resampled_values(refit_on(y), u, CASE, 1 + s * epsilon * r, batch_size=4000)[:, 0]
            for s in (1, -1)
        ]
        both = np.concatenate(values)
        errors.append((np.var(both) - np.mean(linear**2)) / epsilon**2)
    assert -2.2 <= slope(sizes, np.array(errors)) <= -1.8


def retrained(y: np.ndarray, epsilon: float, target: float) -> float:
    """u after training with `ε/2N (u − target)²` added, by bisection on the gradient."""

    def gradient(theta: float) -> float:
        value, change = jax.value_and_grad(u)(theta, CASE[0])
        return float(np.mean(y) * np.exp(theta) - 1 + epsilon / len(y) * (value - target) * change)

    start = float(fitted(y))
    theta = optimize.brentq(gradient, start - 1.5, start + 1.5, xtol=1e-15, rtol=1e-15)
    return float(u(jnp.asarray(theta), CASE[0]))


def adversarial_error(size: int, epsilon: float, offset: float) -> float:
    y = sample(size)
    theta, H = fitted(y), curvatures(y)[0]
    here = float(u(theta, CASE[0]))
    predicted = influence.adversarial_shift(u, theta, CASE, H, offset=offset, epsilon=epsilon, damping=0.0)
    moved = retrained(y, epsilon, here + offset) - here
    assert np.sign(moved) == np.sign(offset) == np.sign(predicted[0])
    return moved - float(predicted[0])


def test_adversarial_offset() -> None:
    """Claimed: the shift is ε δ ΔᵀH⁻¹Δ/N + O(ε²/N²)."""
    epsilons = np.logspace(-2, 0, 5)
    rate = slope(epsilons, np.array([adversarial_error(20, e, 1.5) for e in epsilons]))
    assert 1.95 <= rate <= 2.1
    sizes = np.array([10, 30, 100, 300, 1000])
    rate = slope(sizes, np.array([adversarial_error(n, 1.0, 1.5) for n in sizes]))
    assert -2.15 <= rate <= -1.9


def test_adversarial_noise() -> None:
    """Claimed: E[shift²] = ε²σ²(ΔᵀH⁻¹Δ/N)² + O(ε³/N³), here with a skewed noise of two values."""
    y = sample(20)
    theta, H = fitted(y), curvatures(y)[0]
    here = float(u(theta, CASE[0]))
    noise, chance = np.array([2.0, -1.0]), np.array([1 / 3, 2 / 3])
    assert chance @ noise == pytest.approx(0)
    epsilons, errors = np.logspace(-2, 0, 5), []
    for e in epsilons:
        moved = np.array([retrained(y, e, here + d) - here for d in noise])
        predicted = influence.adversarial_noise(
            u, theta, CASE, H, noise=np.sqrt(chance @ noise**2), epsilon=e, damping=0.0
        )
        errors.append(chance @ moved**2 - float(predicted[0]))
    assert 2.9 <= slope(epsilons, np.array(errors)) <= 3.2


def test_mahalanobis_form() -> None:
    """ΔᵀF⁻¹Δ is the Mahalanobis distance in the explicit mean and covariance of the training gradients."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    w = jnp.asarray(np.linalg.lstsq(x, y, rcond=None)[0])
    score = lambda w, example: -0.5 * (example[1] - example[0] @ w) ** 2
    quantity = lambda w, z: jnp.stack([jnp.sin(z @ w), jnp.prod(w) * z[0]])
    z = rng.normal(size=(5, 3))
    F = dv.fisher(score, w, (x, y), structure=dv.Dense())
    gradients = np.asarray(jax.vmap(jax.grad(score), (None, 0))(w, (x, y)))
    np.testing.assert_allclose(gradients.mean(axis=0), 0.0, atol=1e-12)
    covariance = np.cov(gradients.T, ddof=0)
    delta = np.asarray(jax.vmap(jax.jacobian(quantity), (None, 0))(w, z))
    expected = np.einsum("nki,ij,nkj->nk", delta, np.linalg.inv(covariance), delta)
    np.testing.assert_allclose(influence.mahalanobis(quantity, w, z, F), expected, rtol=1e-9)
    # Its empirical level, against distances computed one by one.
    known = np.einsum("ni,ij,nj->n", gradients, np.linalg.inv(covariance), gradients)
    level = influence.mahalanobis_level(quantity, w, z, score, (x, y), F)
    np.testing.assert_allclose(level, (known[:, None, None] <= expected).mean(axis=0), atol=1e-12)


def quadrature(function: Callable[[np.ndarray], np.ndarray], mean: float, variance: float) -> float:
    """The variance of a function of a normal variable, by Gauss and Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    values = function(mean + np.sqrt(variance) * nodes)
    weights = weights / weights.sum()
    return float(weights @ (values - weights @ values) ** 2)


def test_order_of_the_delta_approximation() -> None:
    """Claimed: Var[u] = ΔᵀΣΔ + O(N^−1.5) for normal θ with Σ = C/N; the odd term vanishes, and N⁻² is seen."""
    theta, sizes = jnp.asarray(0.3), np.array([10, 30, 100, 300, 1000, 3000])
    errors = [
        quadrature(lambda t: np.asarray(u(t, 0.7)), 0.3, 0.5 / n)
        - float(dv.variance(u, theta, CASE, dv.as_covariance(theta, 0.5 / n))[0])
        for n in sizes
    ]
    rate = slope(sizes, np.array(errors))
    assert rate <= -1.5
    assert -2.1 <= rate <= -1.9


def test_laplace_and_bernstein_von_mises() -> None:
    """With a well-specified model the posterior's variance of u is H⁻¹/N's, and F⁻¹/N's, up to O(N⁻²)."""
    sizes, by_hessian, by_fisher = np.array([10, 30, 100, 300, 1000]), [], []
    for n in sizes:
        # The mean and the mean square of the data are those of the exponential distribution, so that F = H = 1.
        y = stats.expon.ppf((np.arange(n) + 0.5) / n)
        y = y / y.mean()
        y = 1 + (y - 1) / y.std()
        theta, (H, F) = fitted(y), curvatures(y)
        grid = np.linspace(-12, 12, 20_001) / np.sqrt(n)
        posterior = np.exp(n * (grid - np.exp(grid) + 1))
        posterior /= posterior.sum()
        values = np.exp(-0.7 * np.exp(grid))
        actual = posterior @ (values - posterior @ values) ** 2
        by_hessian.append(float(dv.variance(u, theta, CASE, H.inverse(damping=0.0))[0]) - actual)
        by_fisher.append(float(dv.variance(u, theta, CASE, F.inverse(damping=0.0))[0]) - actual)
    assert -2.2 <= slope(sizes, np.array(by_hessian)) <= -1.8
    assert -2.2 <= slope(sizes, np.array(by_fisher)) <= -1.8
