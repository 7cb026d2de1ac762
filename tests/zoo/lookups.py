"""Embedding look-ups: every gather mode, with indices out of range, in every shape of index."""

from typing import Any

import jax
import jax.numpy as jnp

from .case import Case, Draw, Made


def _rows(name: str, **options: Any) -> Case:
    """`table.at[i].get(...)` with indices below -size, negative, in range, repeated and past the end."""

    def build(draw: Draw) -> Made:
        def u(p: Any, z: Any) -> jax.Array:
            rows = p["table"].at[z["i"]].get(**options)
            return jnp.sum(jnp.tanh(rows @ p["w"]) * z["x"][:, None]) + jnp.sum(jnp.sin(rows))

        indices = jnp.asarray(
            [[0, -1, 9, 2, 2, -9], [5, 4, -6, -7, 6, 1], [100, -100, 3, 3, 3, 0]], jnp.int32
        )
        return u, {"table": draw(6, 3), "w": draw(3, 2)}, {"i": indices, "x": draw(3, 6)}

    return Case(f"look-up out of range, {name}", build)


def default_fill_masked(draw: Draw) -> Made:
    """jnp.take fills with NaN past the end; the quantity masks those, as padded sequences do."""

    def u(p: Any, i: Any) -> jax.Array:
        rows = jnp.take(p, i, axis=0)
        return jnp.sum(jnp.tanh(jnp.where(jnp.isnan(rows), 0.0, rows)))

    return u, draw(5, 3), draw.integers(-8, 8, 3, 6)


def promised_in_bounds(draw: Draw) -> Made:
    def u(p: Any, i: Any) -> jax.Array:
        return jnp.sum(jnp.tanh(p.at[i].get(mode="promise_in_bounds")))

    return u, draw(5, 3), draw.integers(0, 5, 3, 4)


def take_axes(draw: Draw) -> Made:
    """Columns, wrapped indices, clipped takes, and an index array of rank two."""

    def u(p: Any, i: Any) -> jax.Array:
        y = jnp.take(p["w"], i, axis=1, mode="wrap") @ p["v"]
        y = jnp.sum(jnp.tanh(y)) + jnp.sum(jnp.sin(jnp.take(p["w"], i + 3, axis=0, mode="clip")))
        return y + jnp.sum(jnp.cos(p["w"][i.reshape(2, 2) % 4]))

    return u, {"w": draw(4, 5), "v": draw(4)}, draw.integers(-7, 9, 3, 4)


def single_elements(draw: Draw) -> Made:
    """Scalar indices, pairs of index arrays, an index beside a slice, take_along_axis."""

    def u(p: Any, i: Any) -> jax.Array:
        w = p["w"]
        y = jnp.sum(jnp.tanh(w[i[0]])) + w[i[1], i[2]] ** 2 + jnp.sum(jnp.sin(w[i, i[::-1]]))
        y += jnp.sum(jnp.tanh(w[1:, i[3]])) + jnp.sum(jnp.cos(w[i[:, None], jnp.arange(2)]))
        return y + jnp.sum(jnp.tanh(jnp.take_along_axis(w, i[:, None], axis=1))) + jnp.sin(p["v"][i[0]])

    return u, {"w": draw(4, 5), "v": draw(4)}, draw.integers(0, 4, 3, 4)


def moving_windows(draw: Draw) -> Made:
    """dynamic_slice moves its window inside when it would leave the array."""

    def u(p: Any, start: Any) -> jax.Array:
        window = jax.lax.dynamic_slice(p, (start, start + 1), (3, 2))
        row = jax.lax.dynamic_index_in_dim(p, start, keepdims=False)
        return jnp.sum(jnp.tanh(window @ row[:2])) + jnp.sum(
            jax.lax.dynamic_update_slice(p, window * 2, (start, start)) ** 2
        )

    return u, draw(5, 4), jnp.asarray([-9, 1, 4], jnp.int32)


def looked_up_by_vmap(draw: Draw) -> Made:
    """An inner vmap makes batched gathers; one table is itself batched."""

    def u(p: Any, i: Any) -> jax.Array:
        shared = jax.vmap(lambda j: jnp.tanh(p["table"][j]) @ p["w"])(i)
        own = jax.vmap(lambda table, j: table.at[j].get(mode="fill", fill_value=0.0))(p["stack"], i[:2] + 2)
        return jnp.sum(shared) * jnp.sum(jnp.sin(own))

    return u, {"table": draw(5, 3), "w": draw(3), "stack": draw(2, 4, 3)}, draw.integers(0, 4, 3, 6)


def one_hot(draw: Draw) -> Made:
    def u(p: Any, i: Any) -> jax.Array:
        return jnp.sum(jnp.tanh(jax.nn.one_hot(i, 5, dtype=draw.dtype) @ p["table"]) * p["table"][2])

    return u, {"table": draw(5, 3)}, draw.integers(-2, 7, 3, 4)


CASES = (
    _rows("fill", mode="fill", fill_value=0.0),
    _rows("drop", mode="drop", fill_value=0.25),
    _rows("clip", mode="clip"),
    _rows("fill, without wrap-around", mode="fill", fill_value=0.0, wrap_negative_indices=False),
    _rows("clip, without wrap-around", mode="clip", wrap_negative_indices=False),
    Case("look-up out of range, default, masked", default_fill_masked),
    Case("look-up promised in bounds", promised_in_bounds),
    Case("look-up along axes", take_axes),
    Case("look-up of single elements", single_elements),
    Case("look-up of moving windows", moving_windows),
    Case("look-up by vmap", looked_up_by_vmap),
    Case("one-hot look-up", one_hot),
)
