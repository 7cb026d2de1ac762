"""Hessians against jax.hessian, estimators against exact ones, and indefinite ones never inverted in silence."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv

pytestmark = pytest.mark.usefixtures("x64")


def log_likelihood(params: Any, example: Any) -> Any:
    x, y = example
    return -0.5 * jnp.sum((jnp.tanh(x @ params["w"] + params["b"]) @ params["v"] - y) ** 2) / 0.3**2


@pytest.fixture
def params(x64: None) -> Any:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        name: jax.random.normal(k, s) for name, k, s in zip("bvw", keys, [(4,), (4,), (3, 4)], strict=True)
    }


@pytest.fixture
def data(x64: None) -> Any:
    keys = jax.random.split(jax.random.key(1), 2)
    return jax.random.normal(keys[0], (23, 3)), jax.random.normal(keys[1], (23,))


def exact(params: Any, data: Any, weights: Any = None) -> np.ndarray:
    layout = [("b", (4,)), ("v", (4,)), ("w", (3, 4))]
    sizes = [4, 4, 12]
    w = np.ones(23) if weights is None else weights

    def loss(flat: Any) -> Any:
        cuts = jnp.split(flat, np.cumsum(sizes)[:-1])
        p = {name: jnp.reshape(part, shape) for (name, shape), part in zip(layout, cuts, strict=True)}
        return -sum(
            w[n] * log_likelihood(p, jax.tree.map(lambda x, n=n: x[n], data)) for n in range(23) if w[n]
        ) / sum(w)

    return np.asarray(jax.hessian(loss)(jnp.concatenate([jnp.ravel(params[k]) for k, _ in layout])))


def test_exact_structures(params: Any, data: Any) -> None:
    weights = np.arange(23) % 3
    expected = exact(params, data, weights)
    for batch_size in (None, 4):
        H = dv.hessian(log_likelihood, params, data, weights=weights, batch_size=batch_size)
        np.testing.assert_allclose(H.mean, expected, rtol=1e-9, atol=1e-9)
    assert float(H.num_data) == weights.sum()
    D = dv.hessian(log_likelihood, params, data, structure=dv.Diagonal(), weights=weights)
    np.testing.assert_allclose(D.diagonal(), np.diag(expected), rtol=1e-9)
    B = dv.hessian(log_likelihood, params, data, structure=dv.Block({"in": ["b", "w"]}), weights=weights)
    chosen = np.r_[0:4, 8:20]
    np.testing.assert_allclose(B.mean[0], expected[np.ix_(chosen, chosen)], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(B.mean[1], expected[4:8, 4:8], rtol=1e-9, atol=1e-9)
    V = dv.hessian(log_likelihood, params, data, where=lambda p: p["v"], weights=weights)
    np.testing.assert_allclose(V.mean, expected[4:8, 4:8], rtol=1e-9, atol=1e-9)


def test_a_row_left_out_may_hold_anything(params: Any, data: Any) -> None:
    x, y = data
    spoilt = (x.at[3].set(jnp.nan), y)
    mask = np.arange(23) != 3
    H = dv.hessian(log_likelihood, params, spoilt, mask=mask)
    np.testing.assert_allclose(H.mean, exact(params, data, mask.astype(float)), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="NaN"):
        dv.hessian(log_likelihood, params, spoilt)


def test_estimated_diagonal_and_its_error() -> None:
    size = 2100
    a = jnp.linspace(1.0, 2.0, size)

    def ll(p: Any, x: Any) -> Any:
        return -0.5 * jnp.sum(a * p["w"] ** 2) - 0.5 * jnp.sum(p["w"][:5] * x) ** 2

    x = jax.random.normal(jax.random.key(0), (40, 5))
    H = dv.hessian(ll, {"w": jnp.zeros(size)}, x, structure=dv.Diagonal(), key=jax.random.key(3), probes=32)
    expected = np.asarray(a).copy()
    expected[:5] += np.mean(np.asarray(x) ** 2, axis=0)
    error = np.asarray(H.standard_error[0])
    # Off the coupled block the estimator is exact; on it, within 6 of its own standard errors.
    np.testing.assert_allclose(H.diagonal()[5:], expected[5:], rtol=1e-10)
    assert np.all(np.abs(np.asarray(H.diagonal()) - expected)[:5] < 6 * error[:5])
    assert np.all(error[:5] > 0)


@pytest.mark.parametrize("structure", [dv.Dense(), dv.Block(), dv.Diagonal(), dv.LowRank(2)], ids=str)
def test_indefinite_is_never_inverted_in_silence(structure: Any) -> None:
    curvature = jnp.array([4.0, 1.0, -2.0])

    def ll(p: Any, x: Any) -> Any:
        return -0.5 * jnp.sum(curvature * p["w"] ** 2) + 0 * jnp.sum(x)

    params, data = {"w": jnp.zeros(3)}, jnp.ones((10, 1))
    H = dv.hessian(ll, params, data, structure=structure)
    found = H.definiteness(damping=0.5)
    assert found.negative == 1
    assert found.lowest == pytest.approx(-2.0)
    z = jnp.eye(3)
    np.testing.assert_allclose(found.share(lambda p, z: p["w"] @ z, params, z)[:, 0], [0, 0, 1], atol=1e-12)
    if isinstance(structure, dv.LowRank):
        return
    with pytest.warns(UserWarning, match=r"1 of 3 eigenvalues.*lowest -2.*rule Clip"):
        clipped = H.inverse(damping=0.5)
    np.testing.assert_allclose(clipped.diagonal(), [1 / 45, 1 / 15, 1 / 5], rtol=1e-10)
    with pytest.warns(UserWarning, match="Drop"):
        dropped = H.inverse(damping=0.5, indefinite=dv.Drop())
    np.testing.assert_allclose(dropped.diagonal(), [1 / 45, 1 / 15, 0], rtol=1e-10, atol=1e-15)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A prior that makes it positive definite leaves nothing to warn of, and the formula holds as it stands.
        sigma = H.inverse(damping=0.5, prior_precision=30.0)
    np.testing.assert_allclose(sigma.diagonal(), [1 / 75, 1 / 45, 1 / 15], rtol=1e-10)


def test_low_rank_of_a_low_rank_matrix_is_exact(params: Any, data: Any) -> None:
    F = dv.fisher(log_likelihood, params, jax.tree.map(lambda x: x[:6], data), structure=dv.LowRank(6))
    dense = dv.fisher(log_likelihood, params, jax.tree.map(lambda x: x[:6], data), structure=dv.Dense())
    np.testing.assert_allclose(F.trace(), dense.trace(), rtol=1e-9)
    sigma, truth = F.inverse(0.1, prior_precision=2.0), dense.inverse(0.1, prior_precision=2.0)
    np.testing.assert_allclose(sigma.to_dense(), truth.to_dense(), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(sigma.logdet(), truth.logdet(), rtol=1e-8)
    np.testing.assert_allclose(sigma.diagonal(), truth.diagonal(), rtol=1e-8)
    root = np.asarray(sigma.sqrt_matvec(jnp.eye(20)))
    np.testing.assert_allclose(root.T @ root, truth.to_dense(), rtol=1e-7, atol=1e-9)

    def u(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]

    z = data[0][:5]
    np.testing.assert_allclose(dv.variance(u, params, z, sigma), dv.variance(u, params, z, truth), rtol=1e-7)
    parts = dv.block_variances(u, params, z, sigma)
    wanted = dv.block_variances(u, params, z, truth)
    for name in parts:
        np.testing.assert_allclose(parts[name], wanted[name], rtol=1e-6, atol=1e-9)


def test_low_rank_leading_pairs_and_the_bound_on_the_tail(params: Any, data: Any) -> None:
    dense = dv.fisher(log_likelihood, params, data, structure=dv.Dense())
    values = np.linalg.eigvalsh(dense.mean)[::-1]
    F = dv.fisher(log_likelihood, params, data, structure=dv.LowRank(4))
    sigma, truth = F.inverse(0.05), dense.inverse(0.05)
    np.testing.assert_allclose(sigma.variances, 1 / (23 * (values[:4] + 0.05)), rtol=2e-3)
    np.testing.assert_allclose(sigma.tail, 1 / (23 * (values[4:].mean() + 0.05)), rtol=2e-2)
    rows = jax.random.normal(jax.random.key(9), (50, 20))
    full = np.einsum("np,pq,nq->n", rows, truth.to_dense(), rows)
    leading = np.einsum("nr,r->n", (rows @ sigma.vectors) ** 2, sigma.variances)
    assert np.all(full - leading <= np.asarray(sigma.tail_bound(rows)) * (1 + 1e-6))


def test_low_rank_hessian_by_products(params: Any, data: Any) -> None:
    H = dv.hessian(log_likelihood, params, data, structure=dv.LowRank(3, powers=12))
    values = np.linalg.eigvalsh(exact(params, data))
    leading = values[np.argsort(-np.abs(values))][:3]
    found = H.definiteness()
    np.testing.assert_allclose(found.spectra[0].values, leading, rtol=1e-6)


def test_swag_in_closed_form() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(7, 5))
    snapshots = [{"a": jnp.asarray(row[:2]), "b": jnp.asarray(row[2:])} for row in rows]
    centred = rows - rows.mean(0)
    expected = 0.5 * np.diag(rows.var(0)) + 0.5 * centred.T @ centred / 6
    sigma = dv.swag(snapshots)
    np.testing.assert_allclose(sigma.to_dense(), expected, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(sigma.diagonal(), np.diag(expected), rtol=1e-10)
    np.testing.assert_allclose(sigma.logdet(), np.linalg.slogdet(expected)[1], rtol=1e-9)
    root = np.asarray(sigma.sqrt_matvec(jnp.eye(sigma.sqrt_columns)))
    np.testing.assert_allclose(root.T @ root, expected, rtol=1e-9, atol=1e-14)
    z = jnp.asarray(rng.normal(size=(4, 5)))

    def u(p: Any, z: Any) -> Any:
        return z[:2] @ p["a"] + z[2:] @ p["b"]

    v = dv.variance(u, snapshots[0], z, sigma)
    np.testing.assert_allclose(v, np.einsum("np,pq,nq->n", z, expected, z), rtol=1e-10)
    np.testing.assert_allclose(sum(dv.block_variances(u, snapshots[0], z, sigma).values()), v, rtol=1e-10)
    np.testing.assert_allclose(
        sigma.scale({"a": 4.0}).to_dense()[:2, 2:], 2 * expected[:2, 2:], rtol=1e-9, atol=1e-14
    )
    last = centred[-3:]
    low = dv.swag(snapshots, rank=3).to_dense()
    np.testing.assert_allclose(low, 0.5 * np.diag(rows.var(0)) + 0.25 * last.T @ last, rtol=1e-9, atol=1e-14)
