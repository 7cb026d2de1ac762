"""KFAC equals its definition, written out with NumPy from inputs and cotangents that the tracer has no part in."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.tracing import example_gradients
from tests import zoo
from tests.zoo import reference

KEY = jax.random.key(7)
DAMPING = 0.03


def draw(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def close(found: Any, expected: np.ndarray) -> None:
    """Equal up to 1e-10 of the largest entry: inverses err by that much whatever the size of an entry."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def by_probes(model: Callable[[Any, Any, Any], Any], params: Any, data: Any, probes: Any) -> tuple[Any, Any]:
    """Inputs that `model(params, case, probes) -> (value, inputs)` reports, and the gradients of its probes."""
    one = jax.grad(model, argnums=2, has_aux=True)
    cotangents, inputs = jax.vmap(one, (None, 0, None))(params, data, probes)
    return jax.tree.map(np.asarray, (inputs, cotangents))


def kfac(a: np.ndarray, g: np.ndarray, sharing: str) -> np.ndarray:
    """`[I·O, I·O]` from `a [n, T, I]` and `g [n, T, O]`, by plain loops and as the literature defines it."""
    n, t = a.shape[:2]
    if sharing == "reduce":
        a, g = a.mean(axis=1, keepdims=True), g.sum(axis=1, keepdims=True)
    left = np.zeros((a.shape[2], a.shape[2]))
    right = np.zeros((g.shape[2], g.shape[2]))
    for k in range(n):
        for s in range(a.shape[1]):
            left += np.outer(a[k, s], a[k, s]) / (n * a.shape[1])
            right += np.outer(g[k, s], g[k, s]) / n
    assert t >= a.shape[1]
    return np.kron(left, right)


def sequence(params: Any, x: Any, probes: Any) -> tuple[Any, Any]:
    """Two layers, each used at five positions that interact."""
    first = x @ params["w1"] + probes[0]
    h = jnp.tanh(first) + jnp.tanh(first).mean(axis=0)
    return jnp.sum(jnp.sin(h @ params["w2"] + probes[1])), [x, h]


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_curvature_and_its_inverse_are_kfac(sharing: Any, x64: None) -> None:
    n, t = 7, 5
    params = {"w1": draw(0, 3, 4), "w2": draw(1, 4, 2)}
    x = draw(2, n, t, 3)
    probes = [jnp.zeros((t, 4)), jnp.zeros((t, 2))]
    F = dv.fisher(lambda p, z: sequence(p, z, probes)[0], params, x, structure=dv.Kronecker(sharing))
    assert F.structure.kinds(F.mean, F.layout) == {"w1": "kronecker", "w2": "kronecker"}
    a, g = by_probes(sequence, params, x, probes)
    blocks = [kfac(a[k], g[k], sharing) for k in range(2)]
    sigma = np.asarray(F.inverse(damping=DAMPING).to_dense())
    expected = np.zeros((20, 20))
    expected[:12, :12] = np.linalg.inv(n * (blocks[0] + DAMPING * np.eye(12)))
    expected[12:, 12:] = np.linalg.inv(n * (blocks[1] + DAMPING * np.eye(8)))
    close(sigma, expected)
    np.testing.assert_allclose(F.diagonal(), np.concatenate([np.diag(b) for b in blocks]), rtol=1e-10)


def test_reused_weight_counts_each_use(x64: None) -> None:
    def model(params: Any, x: Any, probes: Any) -> tuple[Any, Any]:
        seen = []
        for step in range(4):
            seen.append(x)
            x = jnp.tanh(x @ params + probes[step])
        return jnp.sum(x**2), jnp.stack(seen)

    params, x, probes = draw(0, 3, 3), draw(1, 6, 3), jnp.zeros((4, 3))

    def rollout(p: Any, z: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda s, _: (jnp.tanh(s @ p), None), z, None, length=4)[0] ** 2)

    F = dv.fisher(rollout, params, x, structure=dv.Kronecker())
    a, g = by_probes(model, params, x, probes)
    expected = np.linalg.inv(6 * (kfac(a, g, "expand") + DAMPING * np.eye(9)))
    close(F.inverse(damping=DAMPING).to_dense(), expected)


def test_scanned_layers_have_factors_each(x64: None) -> None:
    def model(params: Any, x: Any, probes: Any) -> tuple[Any, Any]:
        seen = []
        for layer in range(3):
            seen.append(x)
            x = jnp.tanh(x @ params[layer] + probes[layer])
        return jnp.sum(x**2), jnp.stack(seen)

    params, x, probes = draw(0, 3, 2, 2), draw(1, 6, 2), jnp.zeros((3, 2))

    def stacked(p: Any, z: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda s, w: (jnp.tanh(s @ w), None), z, p)[0] ** 2)

    F = dv.fisher(stacked, params, x, structure=dv.Kronecker())
    a, g = by_probes(model, params, x, probes)
    expected = np.zeros((12, 12))
    for layer in range(3):
        own = slice(4 * layer, 4 * layer + 4)
        block = kfac(a[:, layer, None], g[:, layer, None], "expand")
        expected[own, own] = np.linalg.inv(6 * (block + DAMPING * np.eye(4)))
    close(F.inverse(damping=DAMPING).to_dense(), expected)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_convolution_is_kfac_over_its_patches(sharing: Any, x64: None) -> None:
    n = 4

    def model(params: Any, x: Any, probes: Any) -> tuple[Any, Any]:
        edges = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
        patches = jnp.stack([edges[i : i + 3, j : j + 3].ravel() for i in range(4) for j in range(5)])
        y = patches @ params.reshape(-1, 3) + probes
        return jnp.sum(jnp.sin(y) * jnp.arange(20)[:, None]), patches

    def convolution(p: Any, x: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x[None], p, (1, 1), "SAME", dimension_numbers=layout)[0]
        return jnp.sum(jnp.sin(y.reshape(20, 3)) * jnp.arange(20)[:, None])

    params, x = draw(0, 3, 3, 2, 3), draw(1, n, 4, 5, 2)
    F = dv.fisher(convolution, params, x, structure=dv.Kronecker(sharing))
    a, g = by_probes(model, params, x, jnp.zeros((20, 3)))
    expected = np.linalg.inv(n * (kfac(a, g, sharing) + DAMPING * np.eye(54)))
    close(F.inverse(damping=DAMPING).to_dense(), expected)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_table_is_frequencies_times_cotangents(sharing: Any, x64: None) -> None:
    n, t, rows, width = 6, 3, 5, 2
    numbers = jnp.asarray(np.random.default_rng(0).integers(0, rows - 1, (n, t)))
    params, mix = draw(1, rows, width), draw(2, t, width)

    def u(p: Any, z: Any) -> Any:
        return jnp.sum(jnp.sin(p[z]) * mix)

    F = dv.fisher(u, params, numbers, structure=dv.Kronecker(sharing))
    assert F.structure.kinds(F.mean, F.layout) == {"params": "rows"}
    a = np.eye(rows)[np.asarray(numbers)]
    g = np.cos(np.asarray(params)[np.asarray(numbers)]) * np.asarray(mix)
    # The last row is never picked: its variance is the damping's alone.
    expected = np.linalg.inv(n * (kfac(a, g, "expand") + DAMPING * np.eye(rows * width)))
    close(F.inverse(damping=DAMPING).to_dense(), expected)
    assert np.isclose(expected[-1, -1], 1 / (n * DAMPING))


@pytest.mark.parametrize("weighted", [False, True])
def test_exact_for_one_linear_layer_with_a_gaussian(weighted: bool, x64: None) -> None:
    """The Gauss–Newton matrix of `y ~ N(Wᵀx, I)`: every component of the output is a gradient of its own."""
    n = 9
    params, x = draw(0, 3, 2), draw(1, n, 3)
    w = jnp.asarray(np.random.default_rng(2).random(n)) if weighted else jnp.ones(n)
    structure = dv.Kronecker()
    gradients = example_gradients(lambda p, z: z @ p, params, x)
    moments = structure.statistic(gradients, jnp.broadcast_to(w, (2, n)))
    mean = jax.tree.map(lambda s: s / w.sum(), moments)
    G = np.asarray(gradients.rows())
    dense = np.einsum("kbp,kbq,b->pq", G, G, w) / float(w.sum())
    sigma = structure.covariance(mean, gradients.layout, damping=0.0, prior_precision=None, num_data=n)
    close(sigma.to_dense(), np.linalg.inv(dense) / n)


def test_exact_for_the_empirical_fisher_where_residuals_are_of_one_size(x64: None) -> None:
    n = 8
    x = draw(1, n, 3)
    data = {"x": x, "y": jnp.where(jnp.arange(n) % 2 == 0, 0.5, -0.5)}
    F = dv.fisher(
        lambda p, z: -0.5 * jnp.sum((z["x"] @ p - z["y"]) ** 2),
        jnp.zeros((3, 1)),
        data,
        structure=dv.Kronecker(),
    )
    dense = 0.25 * np.asarray(x.T @ x) / n
    sigma = F.inverse(damping=1e-3)
    close(sigma.to_dense(), np.linalg.inv(n * (dense + 1e-3 * np.eye(3))))


def test_reduce_is_exact_for_the_mean_of_a_linear_layer(x64: None) -> None:
    n, t = 9, 4
    params, x = draw(0, 3, 2), draw(1, n, t, 3)
    gradients = example_gradients(lambda p, z: jnp.mean(z @ p, axis=0), params, x)
    G = np.asarray(gradients.rows())
    dense = np.einsum("kbp,kbq->pq", G, G) / n

    def block(structure: Any) -> np.ndarray:
        mean = jax.tree.map(lambda s: s / n, structure.statistic(gradients, jnp.ones((2, n))))
        sigma = structure.covariance(mean, gradients.layout, damping=0.0, prior_precision=None, num_data=1)
        return np.linalg.inv(np.asarray(sigma.to_dense()))

    close(block(dv.Kronecker("reduce")), dense)
    assert np.abs(block(dv.Kronecker("expand")) - dense).max() > 0.1 * np.abs(dense).max()


def test_split_damping_is_the_damped_factors(x64: None) -> None:
    n = 6
    x = draw(1, n, 3)
    w = draw(0, 3, 2)

    def model(p: Any, z: Any, probe: Any) -> tuple[Any, Any]:
        return jnp.sum(jnp.sin(z @ p + probe)), z

    F = dv.fisher(lambda p, z: model(p, z, 0.0)[0], w, x, structure=dv.Kronecker(split_damping=True))
    a, g = by_probes(model, w, x, jnp.zeros(2))
    left, right = a.T @ a / n, g.T @ g / n
    ratio = np.sqrt(np.trace(left) / 3 / (np.trace(right) / 2))
    root = np.sqrt(DAMPING + 0.5 / n)
    expected = np.kron(
        np.linalg.inv(left + ratio * root * np.eye(3)), np.linalg.inv(right + root / ratio * np.eye(2))
    )
    sigma = F.inverse(damping=DAMPING, prior_precision=0.5)
    close(sigma.to_dense(), expected / n)
    exact = dv.fisher(lambda p, z: model(p, z, 0.0)[0], w, x, structure=dv.Kronecker())
    gap = np.asarray(exact.inverse(damping=DAMPING, prior_precision=0.5).to_dense() - sigma.to_dense())
    assert np.linalg.eigvalsh(gap).min() > 0, "split damping never gives more variance than exact damping"


# One of each way a leaf's gradient can be kept, contracted and joined.
CASES = {
    "relu mlp over a sequence", "two batch axes", "transpose and itself", "tied embeddings",
    "look-up out of range, fill", "convolution, 2d, dilated groups", "vector-valued u", "unused parameters",
}  # fmt: skip
STRUCTURES = {
    "one-sided, reduced, split": dv.Kronecker("reduce", split_damping=True, widest=3),
    "EKFAC": dv.EigenKronecker(dense_up_to=4),
}


@pytest.mark.parametrize(
    "case", [case for case in zoo.CASES if case.name in CASES], ids=lambda case: case.name
)
def test_quadratic_form_is_that_of_the_dense_matrix(case: zoo.Case, x64: None) -> None:
    u, params, z = case.make(KEY, jnp.float64)
    found = reference.example_gradients(u, params, z)
    n = len(found[0])
    ndim = next(leaf.ndim for leaf in jax.tree.leaves(params) if reference.uncertain(leaf))
    shape = found[0].shape[1 : found[0].ndim - ndim]
    G = np.concatenate([np.asarray(g).reshape(n, *shape, -1) for g in found], axis=-1)
    scores = G.reshape(n, -1, G.shape[-1]).sum(axis=1)
    for name, structure in STRUCTURES.items():
        F = dv.fisher(lambda p, c: jnp.sum(u(p, c)), params, z, structure=structure)
        sigma = F.inverse(damping=0.1)
        dense = np.asarray(sigma.to_dense())
        expected = np.einsum("...p,pq,...q->...", G, dense, G)
        variance = np.asarray(dv.variance(u, params, z, sigma))
        np.testing.assert_allclose(variance, expected, rtol=1e-9, atol=1e-12 * expected.max(), err_msg=name)
        np.testing.assert_allclose(sigma.diagonal(), np.diag(dense), rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(dense, dense.T, rtol=1e-9, atol=1e-12, err_msg=name)
        if name == "EKFAC":
            # A rotation keeps the trace, and EKFAC's eigenvalues are exact.
            np.testing.assert_allclose(F.trace(), np.sum(scores**2) / n, rtol=1e-9)


def test_pieces_cut_from_one_leaf_have_factors_each(x64: None) -> None:
    n = 5
    params, x, z = draw(0, 2, 3, 2), draw(1, n, 3), draw(2, 4, 3)

    def u(p: Any, x: Any) -> Any:
        return jnp.sum(jnp.sin(x @ p[0]) * jnp.tanh(x**2 @ p[1]))

    F = dv.fisher(u, params, x, structure=dv.Kronecker())
    assert F.structure.kinds(F.mean, F.layout) == {"params": "2 kronecker"}
    first, second = np.asarray(x @ params[0]), np.asarray(x**2 @ params[1])
    cotangents = np.cos(first) * np.tanh(second), np.sin(first) / np.cosh(second) ** 2
    expected = np.zeros((12, 12))
    for k, (a, g) in enumerate(zip((np.asarray(x), np.asarray(x**2)), cotangents, strict=True)):
        block = kfac(a[:, None], g[:, None], "expand") + DAMPING * np.eye(6)
        expected[6 * k : 6 * k + 6, 6 * k : 6 * k + 6] = np.linalg.inv(n * block)
    sigma = F.inverse(damping=DAMPING)
    close(sigma.to_dense(), expected)
    rows = np.asarray(jax.vmap(jax.grad(u), (None, 0))(params, z)).reshape(4, -1)
    close(dv.variance(u, params, z, sigma), np.einsum("np,pq,nq->n", rows, expected, rows))
