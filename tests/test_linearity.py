"""Second-order terms against dense formulas, and the check of linearity on functions that are and are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

import deltavariance as dv
from deltavariance.linearity import check_linear, second_order

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(5, 5))
SIGMA = 0.1 * ROOT @ ROOT.T
PARAMS = {"a": RNG.normal(size=(2, 2)), "b": np.asarray(RNG.normal())}
Z = RNG.normal(size=(3, 2))


def u(params: dict[str, Array], z: Array) -> Array:
    hidden = jnp.tanh(params["a"] @ z)
    return jnp.stack([hidden @ hidden * params["b"], jnp.exp(params["b"] * z[0]), hidden[0]])


def dense(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """½ tr ΣH and ΔᵀΣΔ + ½ tr ΣHΣH, everything written out."""
    flat, unravel = ravel_pytree(PARAMS)
    gradient = np.asarray(jax.jacobian(lambda p: u(unravel(p), z))(flat))
    hessian = np.asarray(jax.hessian(lambda p: u(unravel(p), z))(flat))
    products = SIGMA @ hessian
    bias = 0.5 * np.trace(products, axis1=1, axis2=2)
    square = 0.5 * np.einsum("kij,kji->k", products, products)
    return bias, np.einsum("ki,ij,kj->k", gradient, SIGMA, gradient) + square


def test_second_order_is_the_dense_formula() -> None:
    sigma = dv.as_covariance(PARAMS, SIGMA)
    bias, v2 = second_order(u, PARAMS, Z, sigma)
    assert bias.shape == v2.shape == (3, 3)
    for index, z in enumerate(Z):
        expected_bias, expected = dense(z)
        np.testing.assert_allclose(bias[index], expected_bias, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(v2[index], expected, rtol=1e-9)


def test_random_directions_estimate_the_same() -> None:
    sigma = dv.as_covariance(PARAMS, SIGMA)
    exact, estimated = (
        second_order(u, PARAMS, Z, sigma, **k) for k in ({}, {"key": jax.random.key(0), "samples": 20_000})
    )
    np.testing.assert_allclose(estimated[0], exact[0], atol=0.03 * np.abs(exact[0]).max())
    np.testing.assert_allclose(estimated[1], exact[1], rtol=0.05)


def test_a_quadratic_is_exact_to_second_order() -> None:
    curvature = RNG.normal(size=(5, 5))
    quadratic = lambda p, z: z * p @ curvature @ p + p[0]
    mean = jnp.asarray(RNG.normal(size=5))
    sigma = dv.as_covariance(mean, SIGMA)
    bias, v2 = second_order(quadratic, mean, jnp.array([2.0]), sigma)
    draws = mean + np.random.default_rng(1).normal(size=(400_000, 5)) @ np.linalg.cholesky(SIGMA).T
    values = 2 * np.einsum("ni,ij,nj->n", draws, curvature, draws) + np.asarray(draws[:, 0])
    np.testing.assert_allclose(values.mean() - quadratic(mean, 2.0), bias[0], rtol=0.03)
    np.testing.assert_allclose(values.var(), v2[0], rtol=0.02)


def test_many_parameters_need_a_key() -> None:
    mean = jnp.zeros(3000)
    sigma = dv.as_covariance(mean, 1.0)
    square = lambda p, z: z * jnp.sum(p**2)
    with pytest.raises(ValueError, match=r"3,000 Hessian-vector products.*key="):
        second_order(square, mean, jnp.ones(1), sigma)
    # For a diagonal Hessian random signs are exact.
    bias, v2 = second_order(square, mean, jnp.ones(1), sigma, key=jax.random.key(0), samples=3)
    np.testing.assert_allclose([bias[0], v2[0]], [3000.0, 6000.0])


def test_a_linear_function_is_trusted() -> None:
    sigma = dv.as_covariance(PARAMS, SIGMA)
    linear = lambda p, z: jnp.stack([p["a"][0] @ z, 3 * p["b"]])
    report = check_linear(linear, PARAMS, Z, sigma, key=jax.random.key(0), samples=4000)
    assert report.trusted.shape == (3, 2)
    assert report.trusted.all()
    np.testing.assert_allclose(report.explained, 1.0, atol=1e-12)
    np.testing.assert_allclose(report.ratio, 1.0, atol=4 * (0.5 / 4000) ** 0.5)
    assert str(report).startswith("The linearisation can be trusted, to 10%")


def test_trust_ends_where_curvature_takes_over() -> None:
    bend = lambda p, z: p + z * p**2
    curvatures = jnp.array([0.0, 0.01, 1.0, 5.0])
    mean = jnp.asarray(0.0)
    sigma = dv.as_covariance(mean, 1.0)
    report = check_linear(bend, mean, curvatures, sigma, key=jax.random.key(1), samples=20_000)
    np.testing.assert_array_equal(report.trusted, [True, True, False, False])
    np.testing.assert_array_less(np.abs(report.bias - curvatures), 0.05 * (1 + curvatures))
    # Of the variance 1 + 2 z² the linear part is 1.
    np.testing.assert_allclose(report.explained, 1 / (1 + 2 * curvatures**2), atol=0.02)
    np.testing.assert_allclose(report.ratio, np.sqrt(1 + 2 * curvatures**2), rtol=0.05)
    assert "for 2 of 4 values" in str(report)


def test_a_quantity_that_does_not_vary_is_linear() -> None:
    sigma = dv.as_covariance(jnp.ones(2), 1.0)
    with pytest.warns(UserWarning, match="does not depend"):
        report = check_linear(lambda p, z: z, jnp.ones(2), jnp.ones(1), sigma, key=jax.random.key(0))
    assert report.trusted.all()
    assert float(report.ratio[0]) == 1.0
    with pytest.raises(ValueError, match="at least 2 samples"):
        check_linear(lambda p, z: p[0], jnp.ones(2), jnp.ones(1), sigma, key=jax.random.key(0), samples=1)
