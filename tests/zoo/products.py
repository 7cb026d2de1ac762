"""Products of a parameter with something, in every operand order and rank; scales and shifts."""

from typing import Any

import jax
import jax.numpy as jnp

from .case import Case, Draw, Made, Quantity


def mlp(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        hidden = jnp.tanh(x @ p["w1"] + p["b1"])
        return jnp.dot(jnp.tanh(hidden @ p["w2"] + p["b2"]), p["w3"])

    params = {"w1": draw(3, 5), "b1": draw(5), "w2": draw(5, 4), "b2": draw(4), "w3": draw(4)}
    return u, params, draw(3, 3)


def relu_mlp_sequence(draw: Draw) -> Made:
    """The same weights for every row of a sequence of 11: T is past every small-T form."""

    def u(p: Any, x: Any) -> jax.Array:
        return jnp.sum(jax.nn.softmax(jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] * p["s"])[:, 0] ** 2)

    params = {"w1": draw(3, 4), "b1": draw(4), "w2": draw(4, 2), "s": draw(2)}
    return u, params, draw(3, 11, 3)


def matrix_and_elementwise(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        return jnp.sum(jnp.tanh(p["w"] @ x)) + jnp.sum(jnp.sin(p["w"]) * x) + jnp.sum(p["w"] ** 2)

    return u, {"w": draw(4, 4)}, draw(3, 4)


def two_parameters_multiplied(draw: Draw) -> Made:
    """Neither operand is data: both factors of the product are uncertain."""

    def u(p: Any, x: Any) -> jax.Array:
        return jnp.sum(jnp.tanh((p["a"] @ p["b"]) @ x)) + x @ (p["c"] @ p["c"].T) @ x

    return u, {"a": draw(4, 2), "b": draw(2, 3), "c": draw(3, 2)}, draw(3, 3)


def outer_and_inner(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        outer = jnp.einsum("i,jk->ijk", x, p["m"])
        return jnp.sum(jnp.tanh(outer)) + jnp.vdot(p["v"], x) ** 2 + jnp.tanh(p["s"] * x[0])

    return u, {"m": draw(2, 3), "v": draw(4), "s": draw()}, draw(3, 4)


def scales_and_shifts(draw: Draw) -> Made:
    """Vectors along every axis of an image, from both sides, by all four operations; a scalar leaf."""

    def u(p: Any, x: Any) -> jax.Array:
        y = jnp.tanh(x * p["last"] + p["first"][:, None, None])
        y = jnp.tanh(p["shift"][:, None] - y / p["divisor"])
        y = y * p["scalar"] + p["offset"] - x * p["first"][:, None, None]
        return jnp.sum(jnp.sin(jnp.negative(y) / jnp.exp(p["scalar"])))

    shapes = {"last": (4,), "first": (2,), "shift": (3,), "scalar": (), "offset": (2, 1, 4)}
    params = {name: draw(*shape) for name, shape in shapes.items()} | {"divisor": draw.positive(3, 4)}
    return u, params, draw(3, 2, 3, 4)


def bias_only(draw: Draw) -> Made:
    return (lambda p, x: jnp.sum(jnp.tanh(x + p))), draw(4), draw(3, 4)


def scalar_only(draw: Draw) -> Made:
    return (lambda p, x: jnp.sin(p * x)), draw(), draw(3)


def elementwise_only(draw: Draw) -> Made:
    """Parameters met by no product: minima, powers, comparisons, selections."""

    def u(p: Any, x: Any) -> jax.Array:
        y = jnp.maximum(p["a"], x) + jnp.where(x > 0, p["b"], -p["b"]) + jnp.clip(x, -p["c"], p["c"])
        y = jnp.where(x > p["a"], y, 2 * y) + p["c"] ** x + jnp.arctan2(p["a"], x)
        return jnp.sum(y * jnp.cos(p["b"]))

    return u, {"a": draw(4), "b": draw(4), "c": draw.positive(4)}, draw(3, 4)


def norms(draw: Draw) -> Made:
    """Weight normalisation, a maximum over a parameter under stop_gradient, a sorted parameter."""

    def u(p: Any, x: Any) -> jax.Array:
        y = (p["w"] / jnp.linalg.norm(p["w"], axis=1, keepdims=True)) @ x
        z = (p["v"] / jax.lax.stop_gradient(jnp.max(jnp.abs(p["v"])))) @ jnp.tanh(y)
        return jnp.sum(z) + jax.nn.logsumexp(p["v"] @ y) + jnp.sort(p["w"][0]) @ x + jnp.max(p["v"] @ y)

    return u, {"w": draw(4, 3), "v": draw(3, 4)}, draw(3, 3)


def bfloat16(draw: Draw) -> Made:
    """bfloat16 arithmetic on float32 master weights; in float64 the same network computed exactly."""
    compute = jnp.dtype(jnp.bfloat16) if draw.dtype == jnp.float32 else draw.dtype

    def u(p: Any, x: Any) -> jax.Array:
        low = jax.tree.map(lambda leaf: leaf.astype(compute), p)
        y = jax.nn.gelu(x.astype(compute) @ low["w1"] + low["b1"]) * low["s"]
        y = jnp.tanh(y @ low["w2"] + low["b2"])
        return jnp.sum(y.astype(draw.dtype) ** 2)

    params = {"w1": draw(4, 16), "b1": draw(16), "s": draw(16), "w2": draw(16, 5), "b2": draw(5)}
    return u, params, draw(3, 6, 4)


def _einsum(name: str, formula: str, left: tuple[int, ...], right: tuple[int, ...], *, first: bool) -> Case:
    """Σ tanh(einsum(parameter, data)) with the parameter as the first or the second operand."""

    def build(draw: Draw) -> Made:
        def u(p: Any, x: Any) -> jax.Array:
            operands = (p["w"], x) if first else (x, p["w"])
            y = jnp.einsum(formula, *operands)
            return jnp.sum(jnp.sin(y + 0.3 * jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))

        parameter, data = (left, right) if first else (right, left)
        return u, {"w": draw(*parameter)}, draw(3, *data)

    return Case(name, build)


def _wrapped(name: str, u: Quantity, parameter: tuple[int, ...], data: tuple[int, ...]) -> Case:
    return Case(name, lambda draw: (u, {"w": draw(*parameter)}, draw(3, *data)))


CASES = (
    Case("mlp", mlp),
    Case("relu mlp over a sequence", relu_mlp_sequence),
    Case("matrix and elementwise", matrix_and_elementwise),
    Case("two parameters multiplied", two_parameters_multiplied),
    Case("outer and inner products", outer_and_inner),
    Case("scales and shifts", scales_and_shifts),
    Case("bias only", bias_only),
    Case("scalar only", scalar_only),
    Case("elementwise only", elementwise_only),
    Case("norms", norms),
    _einsum("heads out of features", "td,dhk->thk", (4, 3), (3, 2, 5), first=False),
    _einsum("heads, parameter first", "hdk,td->htk", (2, 3, 5), (4, 3), first=True),
    _einsum("heads into features", "thk,hkd->td", (4, 2, 3), (2, 3, 5), first=False),
    _einsum("heads as batch", "htk,hkd->htd", (2, 4, 3), (2, 3, 5), first=False),
    _einsum(
        "heads as batch, parameter first and last axis", "kdh,htk->dth", (3, 5, 2), (2, 4, 3), first=True
    ),
    _einsum("experts as batch", "eio,ei->eo", (3, 4, 2), (3, 4), first=True),
    _einsum("two batch axes", "abio,tabi->taob", (2, 3, 4, 2), (5, 2, 3, 4), first=True),
    _einsum("batch axis shared and summed", "gtk,gk->t", (2, 4, 3), (2, 3), first=False),
    _einsum("sum over an axis of the parameter alone", "ijk,tj->ti", (3, 4, 2), (5, 4), first=True),
    _einsum("diagonal of the parameter", "ii,ti->ti", (4, 4), (3, 4), first=True),
    _einsum("full contraction", "ij,ij->", (3, 4), (3, 4), first=True),
    _einsum("depthwise by einsum", "tc,c->tc", (4, 3), (3,), first=False),
    _wrapped("quadratic form", lambda p, x: jnp.tanh(x @ p["w"] @ x), (4, 4), (4,)),
    _wrapped(
        "power of a matrix", lambda p, x: jnp.sum(p["w"] @ (p["w"] @ jnp.tanh(p["w"] @ x))), (3, 3), (3,)
    ),
    _wrapped(
        "transpose and itself",
        lambda p, x: jnp.sum(jnp.tanh(jnp.tanh(x @ p["w"]) @ p["w"].T)),
        (3, 5),
        (2, 3),
    ),
)
