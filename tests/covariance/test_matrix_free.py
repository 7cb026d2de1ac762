"""Products by conjugate gradients against dense matrices, and what the residual says."""

from typing import Any

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest

import deltavariance as dv

pytestmark = pytest.mark.usefixtures("x64")


def predict(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


@pytest.fixture
def case(x64: None) -> Any:
    keys = jax.random.split(jax.random.key(0), 5)
    params = {n: jax.random.normal(k, s) for n, k, s in zip("bvw", keys, [(4,), (4,), (3, 4)], strict=False)}
    return params, (jax.random.normal(keys[3], (30, 3)), jax.random.normal(keys[4], (30,)))


TIGHT = dv.MatrixFree(lineax.CG(rtol=1e-12, atol=0.0))


@pytest.mark.parametrize("kind", ["fisher", "hessian", "gauss_newton"])
def test_equals_dense(case: Any, kind: str) -> None:
    params, data = case
    ll = dv.gaussian_log_likelihood(predict, scale=0.7)
    weights = np.arange(30) % 3

    def curvature(structure: Any) -> Any:
        if kind == "gauss_newton":
            return dv.gauss_newton(ll, params, data[0], structure=structure, weights=weights)
        return getattr(dv, kind)(ll, params, data, structure=structure, weights=weights)

    damping = 20.0 if kind == "hessian" else 0.1
    free = curvature(TIGHT).inverse(damping, prior_precision=2.0)
    dense = curvature(dv.Dense()).inverse(damping, prior_precision=2.0)
    np.testing.assert_allclose(curvature(TIGHT).trace(), curvature(dv.Dense()).trace(), rtol=1e-10)
    np.testing.assert_allclose(free.to_dense(), dense.to_dense(), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(free.logdet(), dense.logdet(), rtol=1e-8)
    z = data[0][:4]
    np.testing.assert_allclose(
        dv.variance(predict, params, z, free), dv.variance(predict, params, z, dense), rtol=1e-8
    )
    parts, wanted = (dv.block_variances(predict, params, z, sigma) for sigma in (free, dense))
    for name in parts:
        np.testing.assert_allclose(parts[name], wanted[name], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(
        free.scale({"w": 4.0}).to_dense(), dense.scale({"w": 4.0}).to_dense(), rtol=1e-6, atol=1e-12
    )
    assert np.all(np.asarray(free.residual(jnp.eye(20)[:3])) < 1e-10)


def test_the_residual_tells_of_an_unfinished_solve(case: Any) -> None:
    params, data = case
    ll = dv.gaussian_log_likelihood(predict, scale=0.7)
    loose = dv.MatrixFree(lineax.CG(rtol=1e-12, atol=0.0, max_steps=2))
    sigma = dv.fisher(ll, params, data, structure=loose).inverse(1e-6)
    assert float(sigma.residual(jnp.ones(20))) > 1e-3


def test_an_indefinite_hessian_is_refused(case: Any) -> None:
    def ll(p: Any, x: Any) -> Any:
        return -0.5 * (3 * p["a"][0] ** 2 - p["a"][1] ** 2) + 0 * x

    H = dv.hessian(ll, {"a": jnp.zeros(2)}, jnp.ones(5), structure=dv.MatrixFree())
    with pytest.raises(ValueError, match="positive definite"):
        H.inverse(1e-3)
    np.testing.assert_allclose(H.inverse(2.0).to_dense(), np.diag([1 / 25, 1 / 5]), rtol=1e-6)
