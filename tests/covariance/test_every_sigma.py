"""What every Σ must do, whatever it is made of: one matrix, seen from all sides."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.posterior import Posterior

pytestmark = pytest.mark.usefixtures("x64")


def predict(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def case() -> Any:
    keys = jax.random.split(jax.random.key(0), 5)
    params = {n: jax.random.normal(k, s) for n, k, s in zip("bvw", keys, [(4,), (4,), (3, 4)], strict=False)}
    return params, (jax.random.normal(keys[3], (30, 3)), jax.random.normal(keys[4], (30,)))


STRUCTURES = [
    dv.Diagonal(),
    dv.Block(),
    dv.Block({"in": ["b", "w"]}),
    dv.Dense(),
    dv.LowRank(5),
    dv.EigenKronecker(),
]


def sigmas(where: Any) -> Any:
    params, data = case()
    ll = dv.gaussian_log_likelihood(predict, scale=0.7)
    for structure in STRUCTURES:
        if where is not None and isinstance(structure, dv.Block) and structure.groups:
            continue
        yield dv.fisher(ll, params, data, structure=structure, where=where).inverse(0.1, prior_precision=1.0)
    H = dv.gauss_newton(ll, params, data[0], structure=dv.Dense(), where=where)
    yield dv.sandwich(H, dv.fisher(ll, params, data, structure=dv.Dense(), where=where), damping=0.1)
    yield dv.sandwich(H, dv.fisher(ll, params, data, structure=dv.EigenKronecker(), where=where), damping=0.1)
    noisy = [
        jax.tree.map(lambda x, k=k: x + 0.1 * np.random.default_rng(k).normal(size=x.shape), params)
        for k in range(6)
    ]
    yield dv.swag(noisy, where=where)


@pytest.mark.parametrize("where", [None, lambda p: {"w": p["w"], "v": p["v"]}], ids=["all", "two"])
def test_all_sides_agree(where: Any, tmp_path: Path) -> None:
    params, data = case()
    z = data[0][:3]
    for sigma in sigmas(where):
        matrix, size = np.asarray(sigma.to_dense()), sigma.layout.size
        assert matrix.shape == (size, size)
        close: Any = {"rtol": 1e-7, "atol": 1e-11}
        np.testing.assert_allclose(matrix, matrix.T, **close)
        np.testing.assert_allclose(sigma.diagonal(), np.diag(matrix), **close)
        root = np.asarray(sigma.sqrt_matvec(jnp.eye(sigma.sqrt_columns)))
        np.testing.assert_allclose(root.T @ root, matrix, **close)
        if np.linalg.cond(matrix) < 1e10:
            np.testing.assert_allclose(sigma.logdet(), np.linalg.slogdet(matrix)[1], rtol=1e-6)
        v = dv.variance(predict, params, z, sigma)
        rows = np.asarray(jax.jacobian(lambda q: jax.vmap(predict, (None, 0))(q, z))(params)["w"]).reshape(
            3, -1
        )
        assert v.shape == (3,)
        assert rows.shape == (3, 12)
        np.testing.assert_allclose(sum(dv.block_variances(predict, params, z, sigma).values()), v, rtol=1e-8)
        np.testing.assert_allclose(dv.covariance(predict, params, z, sigma)[:, 0, 0], v, rtol=1e-7)
        np.testing.assert_allclose(dv.variance(predict, params, z, sigma.scale(3.0)), 3 * v, rtol=1e-8)
        assert sigma.sample(jax.random.key(0), (2, 5)).shape == (2, 5, size)
        name = sigma.blocks[0]
        scaled = np.asarray(sigma.scale({name: 4.0}).to_dense())
        assert scaled[0, 0] == pytest.approx(4 * matrix[0, 0])
        Posterior(params, sigma).save(tmp_path / "posterior.safetensors")
        again = dv.load(tmp_path / "posterior.safetensors", params).sigma
        np.testing.assert_allclose(again.to_dense(), matrix, rtol=1e-12, atol=1e-15)
