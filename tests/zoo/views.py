"""Uses of a parameter through slices, reshapes, transposes, casts, joins and other views of it."""

from typing import Any

import jax
import jax.numpy as jnp

from .case import Case, Draw, Made


def reshapes_and_transposes(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        y = jnp.tanh(p["w"].reshape(4, 6).T @ x)
        y = jnp.tanh(y @ p["w"].transpose(2, 0, 1).reshape(6, 4))
        return jnp.sum(y * p["v"][None, :, None].reshape(4)) + jnp.sum(jnp.squeeze(p["v"][:, None], 1) * y)

    return u, {"w": draw(2, 4, 3), "v": draw(4)}, draw(3, 4)


def slices(draw: Draw) -> Made:
    """Overlapping slices, strides and reversals of one matrix, used as different layers."""

    def u(p: Any, x: Any) -> jax.Array:
        w = p["w"]
        y = jnp.tanh(w[:4, 1:4] @ x)
        y = jnp.tanh(w[1:8:2, ::-1][:, :4] @ y)
        y = y * w[-1, :4] + w[2, 1:5]
        return jnp.sum(y) + jax.lax.dynamic_slice(w, (1, 1), (2, 3)).sum(0) @ x

    return u, {"w": draw(8, 5)}, draw(3, 3)


def qkv_split(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        q, k, v = jnp.split(x @ p["qkv"] + p["b"], 3, axis=-1)
        attended = jax.nn.softmax(q @ k.T / 2.0) @ v
        wq, _, wv = jnp.split(p["qkv"], 3, axis=1)
        return jnp.sum(jnp.tanh(attended)) + jnp.sum(jnp.sin(x @ wq)) * jnp.sum(x @ wv)

    return u, {"qkv": draw(4, 12), "b": draw(12)}, draw(3, 5, 4)


def lora(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        y = jnp.tanh((p["w"] + 0.5 * p["a"] @ p["b"]) @ x)
        return jnp.sum(y + p["a"] @ (p["b"] @ x))

    return u, {"w": draw(4, 3), "a": draw(4, 2), "b": draw(2, 3)}, draw(3, 3)


def sums_and_masks(draw: Draw) -> Made:
    """Combinations of parameters that are themselves used as matrices."""

    def u(p: Any, x: Any) -> jax.Array:
        mask = jnp.tril(jnp.ones((4, 4), x.dtype))
        y = jnp.tanh((p["w"] * mask) @ x)
        y = jnp.tanh((p["w"] + p["w"].T) @ y)
        y = jnp.tanh((p["w"] - p["v"]) @ y)
        y = jnp.tanh((2.0 * p["w"] * p["s"]) @ y)
        return jnp.sum(jnp.tanh((-p["v"] + jnp.eye(4, dtype=x.dtype)) @ y)) + jnp.tril(p["v"])[:, 0] @ x

    return u, {"w": draw(4, 4), "v": draw(4, 4), "s": draw()}, draw(3, 4)


def joins(draw: Draw) -> Made:
    """Parameters concatenated, stacked, padded, broadcast, put on a diagonal or in a Kronecker product."""

    def u(p: Any, x: Any) -> jax.Array:
        y = jnp.tanh(jnp.concatenate([p["a"], p["b"]], axis=0) @ x)
        y = jnp.tanh(jnp.stack([p["v"], p["v"][::-1]]) @ y)
        wide = jnp.pad(p["a"], ((0, 0), (1, 1)))
        y = jnp.sum(y) + jnp.sum(jnp.sin(wide @ jnp.concatenate([x, x])[:5]))
        y += jnp.sum(jnp.broadcast_to(p["v"], (3, 5)) * x[:, None])
        return (
            y
            + jnp.sum(jnp.diag(p["b"][0]) @ x)
            + jnp.sum(jnp.cos(jnp.kron(p["a"], p["b"]) @ jnp.outer(x, x).ravel()))
        )

    return u, {"a": draw(2, 3), "b": draw(3, 3), "v": draw(5)}, draw(3, 3)


def casts(draw: Draw) -> Made:
    """float32 parameters computed with in the test's precision; one also used as it is."""

    def u(p: Any, x: Any) -> jax.Array:
        y = jnp.tanh(x @ p["w"].astype(draw.dtype) + p["b"])
        return jnp.sum(y) + (x.astype(jnp.float32) @ p["w"]).sum().astype(draw.dtype)

    params = {"w": draw(3, 4).astype(jnp.float32), "b": draw(4).astype(jnp.float32)}
    return u, params, draw(3, 3)


def tied_embeddings(draw: Draw) -> Made:
    def u(p: Any, tokens: Any) -> jax.Array:
        x = p["table"][tokens] * 2.0 + p["positions"]
        x = jnp.tanh(x @ p["w"])
        logits = x @ p["table"].T
        return jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, None], axis=1))

    params = {"table": draw(7, 3), "positions": draw(4, 3), "w": draw(3, 3)}
    return u, params, draw.integers(0, 7, 3, 4)


def updated_in_place(draw: Draw) -> Made:
    """A parameter with entries replaced by data, and data with entries replaced by a parameter."""

    def u(p: Any, x: Any) -> jax.Array:
        w = p["w"].at[1].set(x).at[0, 1].add(x[0]).at[2].multiply(2.0)
        buffer = jnp.zeros((5, 3), x.dtype).at[1:4].set(p["w"]).at[0].add(p["v"])
        return jnp.sum(jnp.tanh(w @ x)) + jnp.sum(jnp.sin(buffer @ x)) + jnp.sum(jnp.roll(p["v"], 1) * x)

    return u, {"w": draw(3, 3), "v": draw(3)}, draw(3, 3)


CASES = (
    Case("reshapes and transposes", reshapes_and_transposes),
    Case("slices", slices),
    Case("qkv split", qkv_split),
    Case("LoRA", lora),
    Case("sums and masks", sums_and_masks),
    Case("joins", joins),
    Case("casts", casts),
    Case("tied embeddings", tied_embeddings),
    Case("updated in place", updated_in_place),
)
