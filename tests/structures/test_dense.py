"""Dense and block curvatures against matrices built by plain loops, and the closed form of linear regression."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv


def log_likelihood(params: Any, example: Any) -> Any:
    x, y = example
    return -0.5 * jnp.sum((jnp.tanh(x @ params["w"] + params["c"]["b"]) @ params["c"]["v"] - y) ** 2) / 0.3**2


def u(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["c"]["b"]) @ params["c"]["v"]


def make(seed: int = 0) -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(seed), 5)
    params = {
        "w": jax.random.normal(keys[0], (3, 4)),
        "c": {"b": jax.random.normal(keys[1], (4,)), "v": jax.random.normal(keys[2], (4, 2))},
    }
    return params, (jax.random.normal(keys[3], (23, 3)), jax.random.normal(keys[4], (23, 2)))


def scores(params: Any, data: Any) -> np.ndarray:
    """[N, P], leaves in the order c/b, c/v, w."""
    rows = [jax.grad(log_likelihood)(params, (x, y)) for x, y in zip(*data, strict=True)]
    return np.stack(
        [np.concatenate([np.ravel(r["c"]["b"]), np.ravel(r["c"]["v"]), np.ravel(r["w"])]) for r in rows]
    )


def gradients_of_u(params: Any, z: Any) -> np.ndarray:
    """[n, 2, P]."""
    rows = [jax.jacobian(u)(params, x) for x in z]
    return np.stack(
        [
            np.concatenate([np.reshape(g, (2, -1)) for g in (r["c"]["b"], r["c"]["v"], r["w"])], axis=1)
            for r in rows
        ]
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch_size", [None, 5])
def test_dense_is_the_mean_outer_product(batch_size: int | None) -> None:
    params, data = make()
    rows = scores(params, data)
    weights = np.arange(23) % 4
    F = dv.fisher(log_likelihood, params, data, structure=dv.Dense(), weights=weights, batch_size=batch_size)
    expected = np.einsum("n,np,nq->pq", weights, rows, rows) / weights.sum()
    np.testing.assert_allclose(F.mean, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(F.diagonal(), np.diag(expected), rtol=1e-10)
    sigma = F.inverse(damping=0.1, prior_precision=3.0)
    wanted = np.linalg.inv(weights.sum() * (expected + 0.1 * np.eye(24)) + 3.0 * np.eye(24))
    np.testing.assert_allclose(sigma.to_dense(), wanted, rtol=1e-9, atol=1e-12)
    z = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))
    delta = gradients_of_u(params, z)
    v = dv.variance(u, params, z, sigma)
    np.testing.assert_allclose(v, np.einsum("nkp,pq,nkq->nk", delta, wanted, delta), rtol=1e-9)
    parts = dv.block_variances(u, params, z, sigma)
    np.testing.assert_allclose(sum(parts.values()), v, rtol=1e-12)
    product = delta * (delta @ wanted)
    np.testing.assert_allclose(parts["c/v"], product[..., 4:12].sum(-1), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(
        dv.covariance(u, params, z, sigma), np.einsum("nkp,pq,nlq->nkl", delta, wanted, delta), rtol=1e-8
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("groups", "cuts"),
    [
        (None, {"c/b": (0, 4), "c/v": (4, 12), "w": (12, 24)}),
        ({"head": ["c"]}, {"head": (0, 12), "w": (12, 24)}),
        ({"all": ["c", "w"]}, {"all": (0, 24)}),
    ],
)
@pytest.mark.parametrize("prior", ["none", "number", "leaf", "parameter"])
def test_blocks_are_blocks_of_the_dense_matrix(groups: Any, cuts: Any, prior: str) -> None:
    params, data = make()
    dense = np.einsum("np,nq->pq", scores(params, data), scores(params, data)) / 23
    mask = np.zeros_like(dense)
    for start, stop in cuts.values():
        mask[start:stop, start:stop] = 1
    each = np.random.default_rng(1).uniform(1, 5, 24)
    given, tau = {
        "none": (None, np.zeros(24)),
        "number": (2.0, np.full(24, 2.0)),
        "leaf": ({"w": 2.0, "c/b": 7.0}, np.r_[np.full(4, 7.0), np.zeros(8), np.full(12, 2.0)]),
        "parameter": ([each[:4], each[4:12].reshape(4, 2), each[12:].reshape(3, 4)], each),
    }[prior]
    F = dv.fisher(log_likelihood, params, data, structure=dv.Block(groups))
    sigma = F.inverse(damping=0.2, prior_precision=given)
    wanted = np.linalg.inv(23 * (dense * mask + 0.2 * np.eye(24)) + np.diag(tau))
    np.testing.assert_allclose(sigma.to_dense(), wanted, rtol=1e-8, atol=1e-13)
    assert set(sigma.blocks) == set(cuts)
    z = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    delta = gradients_of_u(params, z)
    parts = dv.block_variances(u, params, z, sigma)
    for name, (start, stop) in cuts.items():
        d = delta[..., start:stop]
        expected = np.einsum("nkp,pq,nkq->nk", d, wanted[start:stop, start:stop], d)
        np.testing.assert_allclose(parts[name], expected, rtol=1e-8)
    if prior != "leaf":
        full = dv.fisher(log_likelihood, params, data, structure=dv.Dense()).inverse(
            0.2, prior_precision=given
        )
        if groups == {"all": ["c", "w"]}:
            np.testing.assert_allclose(full.to_dense(), wanted, rtol=1e-8, atol=1e-13)


@pytest.mark.usefixtures("x64")
def test_prior_by_group_name() -> None:
    params, data = make()
    F = dv.fisher(log_likelihood, params, data, structure=dv.Block({"head": ["c"]}))
    by_group = F.inverse(prior_precision={"head": 4.0, "w": 2.0})
    by_leaf = F.inverse(prior_precision={"c/b": 4.0, "c/v": 4.0, "w": 2.0})
    np.testing.assert_allclose(by_group.to_dense(), by_leaf.to_dense(), rtol=1e-8)


@pytest.mark.usefixtures("x64")
def test_bayesian_linear_regression_in_closed_form() -> None:
    rng = np.random.default_rng(0)
    x, noise, tau = rng.normal(size=(200, 6)), 0.7, 2.5
    y = x @ rng.normal(size=6) + noise * rng.normal(size=200)
    posterior = np.linalg.inv(x.T @ x / noise**2 + tau * np.eye(6))
    params = {"w": jnp.asarray(posterior @ x.T @ y / noise**2)}
    ll = dv.gaussian_log_likelihood(lambda p, x: x @ p["w"], scale=noise)
    z = jnp.asarray(rng.normal(size=(11, 6)))
    sigma = dv.hessian(ll, params, (x, y), structure=dv.Dense()).inverse(damping=0.0, prior_precision=tau)
    np.testing.assert_allclose(sigma.to_dense(), posterior, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(
        dv.variance(lambda p, x: x @ p["w"], params, z, sigma),
        np.einsum("np,pq,nq->n", z, posterior, z),
        rtol=1e-9,
    )


@pytest.mark.parametrize("structure", [dv.Dense(), dv.Block()], ids=["dense", "block"])
@pytest.mark.parametrize("power", [-2, -6, -12])
def test_float32_never_gives_nan_or_negative(structure: Any, power: int) -> None:
    """Duplicated, constant-zero and badly scaled features; and fewer examples than parameters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 12)).astype(np.float32) * np.logspace(-3, 3, 12, dtype=np.float32)
    x[:, 4], x[:, 5] = x[:, 3], 0.0
    ll = dv.gaussian_log_likelihood(lambda p, x: x @ p["w"] + p["b"], scale=1.0)
    params = {"w": jnp.zeros(12), "b": jnp.zeros(())}
    F = dv.fisher(ll, params, (x, rng.normal(size=9).astype(np.float32)), structure=structure)
    largest = float(F.trace())  # at least the largest eigenvalue, at most thirteen times it
    sigma = F.inverse(damping=largest * 10.0**power)
    z = jnp.asarray(rng.normal(size=(300, 12)) * np.logspace(-3, 3, 12), jnp.float32)
    v = dv.variance(lambda p, x: x @ p["w"] + p["b"], params, z, sigma)
    assert bool(jnp.all(jnp.isfinite(v)) and jnp.all(v >= 0))
    assert bool(jnp.all(sigma.diagonal() > 0))


def test_one_example_is_enough() -> None:
    ll = dv.gaussian_log_likelihood(lambda p, x: x @ p["w"], scale=1.0)
    F = dv.fisher(ll, {"w": jnp.zeros(3)}, (jnp.ones((1, 3)), jnp.ones(1)), structure=dv.Dense())
    v = dv.variance(lambda p, x: x @ p["w"], {"w": jnp.zeros(3)}, jnp.eye(3), F.inverse(1e-3))
    assert bool(jnp.all(jnp.isfinite(v)) and jnp.all(v > 0))


def test_too_large_is_refused_with_bytes_and_advice() -> None:
    ll = dv.gaussian_log_likelihood(lambda p, x: x @ p["w"], scale=1.0)
    params, data = {"w": jnp.zeros(30_000)}, (jnp.ones((2, 30_000)), jnp.ones(2))
    with pytest.raises(MemoryError, match=r"3,600,000,000 bytes.*would fit.*EigenKronecker"):
        dv.fisher(ll, params, data, structure=dv.Dense())
    with pytest.raises(MemoryError, match="would fit"):
        dv.fisher(ll, params, data, structure=dv.Block())


def test_decomposition_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    params, data = make()
    F = dv.fisher(log_likelihood, params, data, structure=dv.Dense())
    calls = []
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda x: (calls.append(1), eigh(x))[1])
    for damping in (1e-3, 1e-2, 1.0):
        F.inverse(damping)
        F.inverse(damping, prior_precision=2.0, num_data=7)
    assert len(calls) == 1


def test_singular_without_damping_is_an_error_in_words() -> None:
    ll = dv.gaussian_log_likelihood(lambda p, x: x @ p["w"], scale=1.0)
    F = dv.fisher(ll, {"w": jnp.zeros(3)}, (jnp.zeros((4, 3)), jnp.ones(4)), structure=dv.Dense())
    with pytest.raises(ValueError, match="singular"):
        F.inverse(damping=0.0)


def test_groups_must_exist_and_be_disjoint() -> None:
    params, data = make()
    with pytest.raises(ValueError, match="no uncertain parameter is called that"):
        dv.fisher(log_likelihood, params, data, structure=dv.Block({"a": ["nothing"]}))
    with pytest.raises(ValueError, match="two groups"):
        dv.fisher(log_likelihood, params, data, structure=dv.Block({"a": ["c"], "b": ["c/b"]}))
