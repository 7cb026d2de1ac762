"""Implicit delta, the last layer, the gradient and the constant against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.estimators import Constant, DeltaVariance, GradientNorm, ImplicitDelta, LastLayer

NOISE = 0.3


def regression(n=40, dtype=jnp.float64):
    kx, ky = jax.random.split(jax.random.key(0))
    x = jax.random.normal(kx, (n, 3), dtype)
    y = x @ jnp.array([1.0, -2.0, 0.5], dtype) + NOISE * jax.random.normal(ky, (n,), dtype)
    return x, y, jnp.linalg.lstsq(x, y)[0]


def newton(objective, start, steps=20):
    theta = start

    @jax.jit
    def step(theta):
        return theta - jnp.linalg.solve(jax.hessian(objective)(theta), jax.grad(objective)(theta))

    for _ in range(steps):
        theta = step(theta)
    return theta


@pytest.mark.parametrize("two_sided", [True, False])
def test_implicit_delta_of_a_linear_regression_is_exact(x64, two_sided):
    """Σ = σ²(XᵀX)⁻¹, with its N inside; a quadratic objective leaves no error of λ."""
    x, y, theta = regression()

    def refit(penalty):
        return newton(lambda p: jnp.sum((y - x @ p) ** 2) / (2 * NOISE**2) + penalty(p), theta, 2)

    z = jnp.array([[1.0, 0.0, 0.0], [0.5, -1.0, 2.0]])
    estimator = ImplicitDelta(theta, refit, strength=0.5, two_sided=two_sided)
    expected = NOISE**2 * np.einsum("ni,ij,nj->n", z, np.linalg.inv(x.T @ x), z)
    np.testing.assert_allclose(estimator.variance(lambda p, z: z @ p, z), expected, rtol=1e-6)
    both = estimator.variance(lambda p, z: jnp.stack([z @ p, -3 * (z @ p)]), z)
    np.testing.assert_allclose(both, np.stack([expected, 9 * expected], axis=1), rtol=1e-6)


def test_implicit_delta_approaches_the_hessian_delta_variance(x64):
    """Logistic regression, a nonlinear quantity: the error falls with the square of λ when two-sided."""
    x, y, _ = regression(200)
    labels = (y > 0).astype(x.dtype)

    def negative(p):
        return -jnp.sum(labels * jax.nn.log_sigmoid(x @ p) + (1 - labels) * jax.nn.log_sigmoid(-x @ p))

    theta = newton(lambda p: negative(p) + 0.5 * p @ p, jnp.zeros(3))
    refit = lambda penalty: newton(lambda p: negative(p) + 0.5 * p @ p + penalty(p), theta)
    u = lambda p, z: jax.nn.sigmoid(z @ p)
    z = jnp.array([[0.3, -0.2, 0.5]])
    hessian = jax.hessian(lambda p: negative(p) + 0.5 * p @ p)(theta)
    g = jax.grad(u)(theta, z[0])
    exact = g @ jnp.linalg.solve(hessian, g)
    errors = [
        abs(float(ImplicitDelta(theta, refit, strength=s).variance(u, z)[0] / exact - 1)) for s in (8.0, 2.0)
    ]
    assert errors[1] < 1e-2
    assert errors[1] < errors[0] / 8


def test_implicit_delta_says_when_the_refit_is_at_fault():
    wrong = ImplicitDelta(
        jnp.array(1.0), lambda penalty: 1.0 + jax.grad(penalty)(jnp.array(1.0)), strength=0.1
    )
    with pytest.raises(ValueError, match="rewarded for raising u lowered it"):
        wrong.variance(lambda p, z: p * z, jnp.ones(1))
    lost = ImplicitDelta(jnp.array(1.0), lambda penalty: jnp.array(jnp.nan), strength=0.1)
    with pytest.raises(ValueError, match="1 of 1 cases gave NaN"):
        lost.variance(lambda p, z: p * z, jnp.ones(1))


def test_the_last_layer_of_a_gaussian_model(x64):
    """With features h, Σ over the head is the inverse of Σ_i s_i s_iᵀ with scores s = h (y − f)/σ²."""
    x, y, _ = regression()
    params = {
        "body": jnp.array([[0.5, -1.0], [1.0, 0.3], [0.2, 0.9]], x.dtype),
        "head": jnp.array([1.0, -0.5], x.dtype),
    }
    features = lambda p, x: jnp.tanh(x @ p["body"])
    f = lambda p, x: features(p, x) @ p["head"]
    estimator = LastLayer(
        params,
        dv.gaussian_log_likelihood(f, scale=NOISE),
        (x, y),
        where=lambda p: p["head"],
        structure=dv.Dense(),
        damping=0.0,
    )
    h = np.asarray(features(params, x))
    scores = h * ((np.asarray(y) - h @ np.asarray(params["head"])) / NOISE**2)[:, None]
    sigma = np.linalg.inv(scores.T @ scores)
    expected = np.einsum("ni,ij,nj->n", h[:5], sigma, h[:5])
    np.testing.assert_allclose(estimator.variance(f, x[:5]), expected, rtol=1e-6)
    # The body is certain: a quantity of it alone has no variance.
    assert estimator.sigma.layout.names == ("head",)
    assert estimator.inference_cost(f) == 1 + 2 * 2 / 8


def test_the_last_layer_must_be_named():
    with pytest.raises(ValueError, match="where="):
        LastLayer({"w": jnp.ones(2)}, lambda p, e: 0.0, jnp.ones((3, 1)), where=None)


PARAMS = {"w": jnp.array([1.0, 2.0])}
Z = jnp.array([[1.0, 2.0], [3.0, -1.0]])


def u(p, z):
    return jnp.stack([z @ p["w"], jnp.prod(p["w"]), z[0]])


def test_gradient_norm_and_constant():
    norms = np.array([[5.0, 5.0, 0.0], [10.0, 5.0, 0.0]])
    np.testing.assert_allclose(GradientNorm(PARAMS).variance(u, Z), norms, rtol=1e-6)
    np.testing.assert_array_equal(Constant(PARAMS, 2.5).variance(u, Z), np.full((2, 3), 2.5))


def test_delta_variance_is_the_librarys_own():
    sigma = dv.as_covariance(PARAMS, 0.1)
    estimator = DeltaVariance(PARAMS, sigma)
    np.testing.assert_array_equal(estimator.variance(u, Z), dv.variance(u, PARAMS, Z, sigma))
    assert (estimator.training_cost, estimator.inference_cost(u), estimator.inference_cost(u, Z)) == (3, 3, 7)
    with pytest.raises(ValueError, match="another model"):
        DeltaVariance({"w": jnp.ones(3)}, sigma)
