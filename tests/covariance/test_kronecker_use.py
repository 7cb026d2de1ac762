"""EKFAC, and what holds for every Kronecker-factored Σ: roots, determinants, scales, priors, merging, hard data."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv

STRUCTURES = {
    "KFAC": dv.Kronecker(),
    "reduced, split": dv.Kronecker("reduce", split_damping=True),
    "EKFAC": dv.EigenKronecker(),
}
every = pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)


def draw(seed: int, *shape: int, dtype: Any = None) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def u(params: Any, x: Any) -> Any:
    """A sequence of three tokens, each by its own row of a table, two layers, a bias and a scale."""
    h = jnp.tanh(x["x"] @ params["w1"] + params["b"] + params["table"][x["tokens"]])
    return jnp.sum(jnp.sin(params["s"] * (h.mean(axis=0) @ params["w2"])))


def problem(n: int = 8, dtype: Any = None) -> tuple[Any, Any]:
    params = {
        "w1": draw(0, 2, 4, dtype=dtype),
        "b": draw(1, 4, dtype=dtype),
        "w2": draw(2, 4, 2, dtype=dtype),
        "table": draw(3, 5, 4, dtype=dtype),
        "s": draw(4, 2, dtype=dtype),
    }
    tokens = jnp.asarray(np.random.default_rng(5).integers(0, 5, (n, 3)))
    return params, {"x": draw(6, n, 3, 2, dtype=dtype), "tokens": tokens}


def dense_fisher(params: Any, data: Any) -> tuple[np.ndarray, list[slice]]:
    """The whole Fisher information by `jax.grad`, and where each leaf lies in it."""
    each = jax.vmap(jax.grad(u), (None, 0))(params, data)
    rows = np.concatenate([np.asarray(g).reshape(len(g), -1) for g in jax.tree.leaves(each)], axis=1)
    ends = np.cumsum([leaf.size for leaf in jax.tree.leaves(params)])
    return rows.T @ rows / len(rows), [
        slice(end - leaf.size, end) for end, leaf in zip(ends, jax.tree.leaves(params), strict=True)
    ]


def curvature_of(F: Any) -> np.ndarray:
    """C back from Σ = (C + d)⁻¹ / N."""
    sigma = np.asarray(F.inverse(damping=0.5).to_dense())
    return np.linalg.inv(sigma) / float(F.num_data) - 0.5 * np.eye(len(sigma))


def test_ekfac_is_never_further_from_the_truth_than_kfac(x64: None) -> None:
    for n in (3, 40):
        params, data = problem(n)
        truth, leaves = dense_fisher(params, data)
        kfac = curvature_of(dv.fisher(u, params, data, structure=dv.Kronecker()))
        ekfac = curvature_of(dv.fisher(u, params, data, structure=dv.EigenKronecker()))
        for own in leaves:
            far = np.linalg.norm(kfac[own, own] - truth[own, own])
            near = np.linalg.norm(ekfac[own, own] - truth[own, own])
            assert near <= far * (1 + 1e-9) + 1e-12
        assert np.linalg.norm(ekfac - truth) < 0.999 * np.linalg.norm(kfac - truth)


def test_ekfac_is_the_diagonal_in_kfacs_eigenbasis(x64: None) -> None:
    """Of one layer, from eigenvectors by NumPy: those of `Σ x xᵀ` and `Σ g gᵀ`."""
    n = 8
    x, w = draw(0, n, 3), draw(1, 3, 2)
    F = dv.fisher(lambda p, z: jnp.sum(jnp.sin(z @ p)), w, x, structure=dv.EigenKronecker())
    g = np.cos(np.asarray(x @ w))
    basis = np.kron(np.linalg.eigh(np.asarray(x.T @ x))[1], np.linalg.eigh(g.T @ g)[1])
    scores = np.einsum("ni,no->nio", np.asarray(x), g).reshape(n, -1)
    eigenvalues = np.mean((scores @ basis) ** 2, axis=0)
    expected = basis @ np.diag(1 / (n * (eigenvalues + 0.01) + 2.0)) @ basis.T
    found = F.inverse(damping=0.01, prior_precision=2.0).to_dense()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_small_leaves_without_a_product_are_dense_and_large_ones_diagonal(x64: None) -> None:
    params, data = problem()
    truth, leaves = dense_fisher(params, data)
    names = list(params := dict(sorted(params.items())))
    for structure, kind in ((dv.Kronecker(), "dense"), (dv.Kronecker(dense_up_to=3), "diagonal")):
        F = dv.fisher(u, params, data, structure=structure)
        assert F.structure.kinds(F.mean, F.layout)["b"] == kind
        own = leaves[names.index("b")]
        expected = truth[own, own] if kind == "dense" else np.diag(np.diag(truth)[own])
        np.testing.assert_allclose(curvature_of(F)[own, own], expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("structure", [dv.Kronecker(), dv.EigenKronecker()], ids=["KFAC", "EKFAC"])
def test_another_damping_takes_no_other_decomposition(
    structure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, data = problem()
    F = dv.fisher(u, params, data, structure=structure)
    first = F.inverse(damping=1e-3)

    def refuse(*_: Any) -> Any:
        raise AssertionError("decomposed again")

    monkeypatch.setattr(np.linalg, "eigh", refuse)
    monkeypatch.setattr(jnp.linalg, "eigh", refuse)
    assert float(F.inverse(damping=1e-2).logdet()) < float(first.logdet())


@every
def test_operations_agree_with_the_dense_matrix(structure: Any, x64: None) -> None:
    params, data = problem()
    sigma = dv.fisher(u, params, data, structure=structure).inverse(damping=0.1)
    dense = np.asarray(sigma.to_dense())
    size = sigma.layout.size
    vectors = draw(9, 3, size)
    np.testing.assert_allclose(sigma.matvec(vectors), vectors @ dense, rtol=1e-10, atol=1e-14)
    root = np.asarray(sigma.sqrt_matvec(jnp.eye(sigma.sqrt_columns)))
    np.testing.assert_allclose(root.T @ root, dense, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(sigma.logdet(), np.linalg.slogdet(dense)[1], rtol=1e-10)
    np.testing.assert_allclose(sigma.diagonal(), np.diag(dense), rtol=1e-10)
    assert sigma.sample(jax.random.key(0), (2, 3)).shape == (2, 3, size)


@every
def test_scale_multiplies_blocks(structure: Any, x64: None) -> None:
    params, data = problem()
    sigma = dv.fisher(u, params, data, structure=structure).inverse(damping=0.1)
    before = dv.block_variances(u, params, data, sigma)
    after = dv.block_variances(u, params, data, sigma.scale({"w1": 3.0, "table": 0.5}))
    factors = {"w1": 3.0, "table": 0.5}
    assert set(before) == set(params)
    for name, part in before.items():
        np.testing.assert_allclose(after[name], factors.get(name, 1.0) * part, rtol=1e-12)
    total = sum(before.values())
    np.testing.assert_allclose(dv.variance(u, params, data, sigma), total, rtol=1e-12)
    np.testing.assert_allclose(sigma.scale(2.0).to_dense(), 2 * sigma.to_dense(), rtol=1e-12)
    with pytest.raises(ValueError, match="nothing"):
        sigma.scale({"nothing": 1.0})


@every
def test_covariance_of_components(structure: Any, x64: None) -> None:
    params, data = problem()
    sigma = dv.fisher(u, params, data, structure=structure).inverse(damping=0.1)
    v = lambda p, z: jnp.stack([u(p, z), u(p, z) ** 2, jnp.sum(p["w1"])])
    found = np.asarray(dv.covariance(v, params, data, sigma))
    each = jax.vmap(jax.jacrev(v), (None, 0))(params, data)
    rows = np.concatenate([np.asarray(g).reshape(*g.shape[:2], -1) for g in jax.tree.leaves(each)], axis=2)
    expected = np.einsum("nkp,pq,nlq->nkl", rows, np.asarray(sigma.to_dense()), rows)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)
    diagonal = np.einsum("nkk->nk", expected)
    np.testing.assert_allclose(dv.variance(v, params, data, sigma), diagonal, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("structure", [dv.Kronecker(), dv.Kronecker("reduce")], ids=["expand", "reduce"])
def test_batches_workers_and_weights_add_up(structure: Any, x64: None) -> None:
    params, data = problem(9)
    whole = dv.fisher(u, params, data, structure=structure)
    expected = np.asarray(whole.inverse(damping=0.1).to_dense())
    parts = [jax.tree.map(lambda x, own=own: x[own], data) for own in (slice(0, 2), slice(2, 9))]
    first = dv.fisher(u, params, parts[0], structure=structure)
    rest = dv.fisher(u, params, parts[1], structure=structure)
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), data)
    weights = np.array([0.5, 1, 1, 1, 1, 1, 1, 1, 1, 0.5])
    for F in (
        first.merge(rest),
        first.update(u, params, parts[1]),
        dv.fisher(u, params, parts, structure=structure),
        dv.fisher(u, params, data, structure=structure, batch_size=4),
        dv.fisher(u, params, twice, structure=structure, weights=weights),
    ):
        np.testing.assert_allclose(F.inverse(damping=0.1).to_dense(), expected, rtol=1e-9, atol=1e-12)


def test_ekfac_reads_its_data_twice(x64: None) -> None:
    params, data = problem(9)
    parts = [jax.tree.map(lambda x, own=own: x[own], data) for own in (slice(0, 2), slice(2, 9))]
    whole = dv.fisher(u, params, data, structure=dv.EigenKronecker()).inverse(damping=0.1)
    apart = dv.fisher(u, params, parts, structure=dv.EigenKronecker()).inverse(damping=0.1)
    np.testing.assert_allclose(apart.to_dense(), whole.to_dense(), rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="second pass"):
        dv.fisher(u, params, iter(parts), structure=dv.EigenKronecker())


@every
def test_prior_is_not_divided_by_the_number_of_data(structure: Any, x64: None) -> None:
    params, data = problem()
    F = dv.fisher(u, params, data, structure=structure)
    n = float(F.num_data)
    by_prior = F.inverse(damping=0.0, prior_precision=0.1 * n)
    np.testing.assert_allclose(by_prior.to_dense(), F.inverse(damping=0.1).to_dense(), rtol=1e-9, atol=1e-12)
    some = F.inverse(damping=0.1, prior_precision={"s": 4.0}).to_dense()
    plain = F.inverse(damping=0.1).to_dense()
    own = slice(4, 6)
    np.testing.assert_allclose(
        np.linalg.inv(np.asarray(some)[own, own]),
        np.linalg.inv(np.asarray(plain)[own, own]) + 4 * np.eye(2),
        rtol=1e-8,
    )


def test_prior_by_parameter_where_it_can_be_held(x64: None) -> None:
    params, data = problem()
    F = dv.fisher(u, params, data, structure=dv.EigenKronecker())
    each = [jnp.asarray([1.0, 2.0, 3.0, 4.0]), *([jnp.asarray(0.5)] * 4)]
    found = np.asarray(F.inverse(damping=0.1, prior_precision=each).to_dense())[:4, :4]
    without = np.asarray(F.inverse(damping=0.1).to_dense())[:4, :4]
    np.testing.assert_allclose(
        np.linalg.inv(found), np.linalg.inv(without) + np.diag([1, 2, 3, 4]), rtol=1e-8
    )
    with pytest.raises(ValueError, match="'table' a number of its own"):
        F.inverse(prior_precision=[jnp.ones_like(leaf) for leaf in jax.tree.leaves(params)])


@every
@pytest.mark.parametrize("n", [1, 3, 40])
def test_hard_data_in_single_precision(structure: Any, n: int) -> None:
    """Duplicated, constant and zero features, rank far below P, down to 1e-12 of the largest eigenvalue."""
    w = {"w": draw(0, 6, 3, dtype=jnp.float32), "b": draw(1, 3, dtype=jnp.float32)}
    x = np.random.default_rng(2).standard_normal((n, 6)).astype(np.float32)
    x[:, 1] = x[:, 0]
    x[:, 2] = 0
    x[:, 3] = 1
    quantity = lambda p, z: jnp.sum(jnp.tanh(z @ p["w"] + p["b"]))
    F = dv.fisher(quantity, w, jnp.asarray(x), structure=structure)
    largest = np.linalg.eigvalsh(np.cov(x.T, bias=True)).max() + 1
    z = draw(3, 20, 6, dtype=jnp.float32)
    for share in (1e-3, 1e-6, 1e-9, 1e-12):
        sigma = F.inverse(damping=share * largest)
        v = np.asarray(dv.variance(quantity, w, z, sigma))
        assert np.all(np.isfinite(v))
        assert np.all(v >= 0)
        assert np.isfinite(float(sigma.logdet()))
        assert np.all(np.asarray(sigma.diagonal()) > 0)
    # A direction that the data never show has the damping's variance and no less.
    with jax.enable_x64(True):
        only = jnp.zeros(21).at[3 + 2 * 3].set(1.0)
        expected = 1 / (n * 1e-3)
        found = float(only @ F.inverse(damping=1e-3).matvec(only))
    if not getattr(structure, "split_damping", False):
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_single_precision_is_close_to_double() -> None:
    """At a damping of 1e-6 of the largest eigenvalue, where float32 eigenvalues would be all noise."""
    found = []
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64):
            params, data = problem(40, dtype)
            F = dv.fisher(u, params, data, structure=dv.EigenKronecker())
            found.append(np.asarray(dv.variance(u, params, data, F.inverse(damping=1e-5))))
    np.testing.assert_allclose(found[0], found[1], rtol=2e-2)


def test_singular_without_damping_is_an_error() -> None:
    w = jnp.ones((2, 1))
    F = dv.fisher(lambda p, z: jnp.sum(z @ p), w, jnp.asarray([[1.0, 0.0]]), structure=dv.Kronecker())
    with pytest.raises(ValueError, match="singular"):
        F.inverse(damping=0.0)


@every
def test_jit_grad_and_vmap_pass_through(structure: Any, x64: None) -> None:
    params, data = problem()
    F = dv.fisher(u, params, data, structure=structure)

    def total(damping: Any) -> Any:
        return jnp.sum(dv.variance(u, params, data, F.inverse(damping=damping)))

    plain = np.array([float(total(d)) for d in (0.05, 0.1, 0.2)])
    np.testing.assert_allclose(jax.jit(total)(0.1), plain[1], rtol=1e-10)
    np.testing.assert_allclose(jax.vmap(total)(jnp.array([0.05, 0.1, 0.2])), plain, rtol=1e-10)
    step = 1e-5
    slope = (float(total(0.1 + step)) - float(total(0.1 - step))) / (2 * step)
    np.testing.assert_allclose(jax.grad(total)(0.1), slope, rtol=1e-6)


def test_fit_and_inverse_inside_one_jit(x64: None) -> None:
    params, data = problem(40)

    def both(params: Any, data: Any) -> Any:
        F = dv.fisher(u, params, data, structure=dv.Kronecker())
        return dv.variance(u, params, data, F.inverse(damping=0.1))

    np.testing.assert_allclose(jax.jit(both)(params, data), both(params, data), rtol=1e-9)
