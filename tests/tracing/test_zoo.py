"""Gradients, variances and Fisher information equal the plain per-example ones on every model of the zoo."""

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
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}

# In single precision: one model of each kind and framework, and what rounds differently.
SINGLE = {
    "mlp", "relu mlp over a sequence", "scales and shifts", "norms", "heads as batch", "qkv split",
    "LoRA", "casts", "tied embeddings", "look-up out of range, fill", "look-up of single elements",
    "convolution, 2d, transposed", "convolution, 2d, dilated groups", "convolution, 3d, stride",
    "CNN with GroupNorm", "U-Net", "rollout with remat", "stacked layers by scan, reverse",
    "nested scan", "branches", "mixture of experts by switch", "custom_vjp", "inner vmap",
    "derivative inside u", "attention block", "LSTM", "GRU", "graph network", "image-shaped u",
    "keys in z", "leaves that are not uncertain", "Fourier transform", "Linen CNN",
    "Linen attention", "Linen LSTM", "NNX MLP", "NNX attention", "Haiku GRU", "Haiku MLP",
    "Equinox CNN", "Equinox tied",
}  # fmt: skip


def close(found: list[Any], expected: list[Any], tolerance: float, what: str) -> None:
    """Largest difference in each array, relative to its largest entry.

    An array that is analytically zero (a key's bias under softmax) holds rounding errors only, so its
    entries are compared relative to a thousandth of the largest entry of all.
    """
    assert len(found) == len(expected), what
    largest = max((float(np.max(np.abs(e), initial=0.0)) for e in expected), default=0.0)
    for number, (f, e) in enumerate(zip(found, expected, strict=True)):
        assert f.shape == e.shape, f"{what}, leaf {number}: shape {f.shape}, expected {e.shape}"
        f, e = np.asarray(f, np.float64), np.asarray(e, np.float64)
        scale = max(float(np.max(np.abs(e), initial=0.0)), 1e-3 * largest, 1e-30)
        error = float(np.max(np.abs(f - e), initial=0.0)) / scale
        assert error <= tolerance, f"{what}, leaf {number}: relative error {error:.2e}"


def precision(params: Any) -> float:
    """The tolerance of the least precise leaf: gradients are rounded to their leaf's type."""
    names = {str(leaf.dtype) for leaf in jax.tree.leaves(params) if reference.uncertain(leaf)}
    return max(TOLERANCE[name] for name in names)


def random_variances(params: Any) -> Any:
    """A pytree like params with a positive number for every uncertain entry."""
    generator = np.random.default_rng(11)

    def one(leaf: Any) -> Any:
        if not reference.uncertain(leaf):
            return leaf
        return jnp.asarray(0.1 + generator.random(leaf.shape), leaf.dtype)

    return jax.tree.map(one, params)


def rows(gradients: list[jax.Array], n: int, u_shape: tuple[int, ...]) -> np.ndarray:
    """[n, *u, P]"""
    return np.concatenate([np.asarray(g, np.float64).reshape(n, *u_shape, -1) for g in gradients], axis=-1)


def check(case: zoo.Case, dtype: Any) -> None:
    """One compilation a case: the library inside `jit`, beside the plain gradients."""
    u, params, z = case.make(KEY, dtype)
    leaves, tree = jax.tree.flatten(params)
    given = random_variances(params)
    sigma = dv.as_covariance(params, given)

    @jax.jit
    def everything(inexact: list[Any], z: Any) -> Any:
        values = iter(inexact)
        params = tree.unflatten([next(values) if reference.uncertain(leaf) else leaf for leaf in leaves])
        F = dv.fisher(lambda p, case: jnp.sum(u(p, case)), params, z, structure=dv.Diagonal())
        return (
            reference.example_gradients(u, params, z),
            list(example_gradients(u, params, z).dense().values()),
            dv.variance(u, params, z, sigma),
            dv.variance(u, params, z, F.inverse(damping=0.01)),
        )

    inexact = [leaf for leaf in leaves if reference.uncertain(leaf)]
    expected, found, variance, with_fisher = everything(inexact, z)
    assert all(np.all(np.isfinite(e)) for e in expected), "the case itself is broken"
    tolerance = precision(params)
    close(found, expected, tolerance, "gradients")

    n = len(expected[0])
    G = rows(expected, n, expected[0].shape[1 : expected[0].ndim - inexact[0].ndim])
    values = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(given) if reference.uncertain(leaf)]
    close([variance], [G**2 @ np.concatenate([value.ravel() for value in values])], tolerance, "variance")

    score = G.reshape(n, -1, G.shape[-1]).sum(axis=1)
    damped = n * (np.mean(score**2, axis=0) + 0.01)
    close([with_fisher], [G**2 @ (1 / damped)], tolerance, "Fisher")


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda case: case.name)
def test_double_precision(case: zoo.Case, x64: None) -> None:
    check(case, jnp.float64)


@pytest.mark.parametrize(
    "case", [case for case in zoo.CASES if case.name in SINGLE], ids=lambda case: case.name
)
def test_single_precision(case: zoo.Case) -> None:
    check(case, jnp.float32)


def test_names_are_unique_and_known() -> None:
    names = [case.name for case in zoo.CASES]
    assert len(names) == len(set(names))
    assert set(names) >= SINGLE


def test_bfloat16_is_as_precise_as_bfloat16_allows() -> None:
    """Compared with the exact gradient: no further from it than plain differentiation is, up to rounding."""
    with jax.enable_x64(True):
        exact = [
            np.asarray(g)
            for g in reference.example_gradients(*zoo.Case("", zoo.bfloat16).make(KEY, jnp.float64))
        ]
    low = zoo.Case("", zoo.bfloat16).make(KEY, jnp.float32)
    found = list(example_gradients(*low).dense().values())
    for ours, plain, truth in zip(found, reference.example_gradients(*low), exact, strict=True):
        assert ours.dtype == jnp.float32
        scale = np.linalg.norm(truth)
        own, usual = (np.linalg.norm(np.asarray(g, np.float64) - truth) / scale for g in (ours, plain))
        assert 1e-4 < usual < 3e-2, "the case is meant to compute in bfloat16"
        assert own < 1.2 * usual + 1e-3
