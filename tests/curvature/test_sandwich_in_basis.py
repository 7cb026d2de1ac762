"""A sandwich in a Kronecker eigenbasis, against the basis and both diagonals made by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv

SCALE, DAMPING, PRIOR = 0.5, 0.03, 2.0


def f(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["v"]) @ p["w"]


@pytest.fixture
def model(x64: None) -> Any:
    rng = np.random.default_rng(0)
    params = {"v": jnp.asarray(rng.normal(size=(3, 4))), "w": jnp.asarray(rng.normal(size=(4, 1)))}
    x = rng.normal(size=(30, 3)) * np.array([1.0, 3.0, 0.3])
    y = np.asarray(f(params, jnp.asarray(x))) + rng.standard_t(3, size=(30, 1))
    return params, jnp.asarray(x), jnp.asarray(y), dv.gaussian_log_likelihood(f, scale=SCALE)


def basis_of(inputs: np.ndarray, cotangents: np.ndarray) -> np.ndarray:
    """`U_A ⊗ U_G` from the second moments of a weight's inputs and cotangents."""
    sides = [np.linalg.eigh(x.T @ x / len(x))[1] for x in (inputs, cotangents)]
    return np.kron(*sides)


def test_against_the_basis_by_hand(model: Any) -> None:
    params, x, y, ll = model
    G = dv.gauss_newton(ll, params, x, structure=dv.EigenKronecker())
    F = dv.fisher(ll, params, (x, y), structure=G.structure)
    sigma = dv.sandwich(G, F, damping=DAMPING, prior_precision=PRIOR)

    h = np.tanh(np.asarray(x @ params["v"]))
    slope = (1 - h**2) * np.asarray(params["w"])[:, 0] / SCALE
    residual = (np.asarray(y) - h @ np.asarray(params["w"])) / SCALE
    leaves = {
        "v": (np.asarray(x), slope, np.einsum("ni,no->nio", x, slope)),
        "w": (h, np.ones((30, 1)) / SCALE, h[:, :, None] / SCALE),
    }
    expected = np.zeros((16, 16))
    for (inputs, cotangents, jacobian), block in zip(
        leaves.values(), (slice(0, 12), slice(12, 16)), strict=True
    ):
        U = basis_of(inputs, cotangents)
        rotated = jacobian.reshape(30, -1) @ U
        bread = np.mean(rotated**2, axis=0) + DAMPING + PRIOR / 30
        meat = np.mean((residual * rotated) ** 2, axis=0)
        expected[block, block] = U @ np.diag(meat / bread**2 / 30) @ U.T
    np.testing.assert_allclose(sigma.to_dense(), expected, rtol=1e-8, atol=1e-12)
    rows = np.asarray(
        jax.vmap(lambda c: jax.flatten_util.ravel_pytree(jax.grad(lambda p: f(p, c)[0])(params))[0])(x[:4])
    )
    found = dv.variance(lambda p, c: f(p, c)[0], params, x[:4], sigma)
    np.testing.assert_allclose(found, np.einsum("np,pq,nq->n", rows, expected, rows), rtol=1e-8)


def test_another_basis_is_multiplied_out(model: Any) -> None:
    """Two fits with eigenbases of their own: the product of what each stands for."""
    params, x, y, ll = model
    G = dv.gauss_newton(ll, params, x, structure=dv.EigenKronecker())
    F = dv.fisher(ll, params, (x, y), structure=dv.EigenKronecker())
    bread = np.asarray(G.inverse(DAMPING).to_dense())
    meat = np.linalg.inv(np.asarray(F.inverse(1.0).to_dense())) / 30 - np.eye(16)
    found = dv.sandwich(G, F, damping=DAMPING).to_dense()
    np.testing.assert_allclose(found, 30 * bread @ meat @ bread, rtol=1e-6, atol=1e-10)
