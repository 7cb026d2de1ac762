"""One row of a parameter picked by a computed number: `W[i]`."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from deltavariance.tracing.rules.base import Match, Rule
from deltavariance.tracing.views import Reshape, View


@dataclass(frozen=True)
class Row(Rule):
    """`dynamic_slice` of one whole row: T = 1. An index out of range is clamped, forwards and backwards."""

    rows: int

    def inputs(self, recorded: jax.Array) -> jax.Array:
        return jnp.clip(jnp.reshape(recorded, (1,)).astype(jnp.int32), 0, self.rows - 1)

    def cotangents(self, cotangent: jax.Array, recorded: jax.Array) -> jax.Array:
        return jnp.reshape(cotangent, (1, -1))


def match(eqn: Any, position: int, view: View) -> Match | None:
    """`view` is operand number `position` of a `dynamic_slice` that takes one row along one axis."""
    table, y = eqn.invars[0].aval, eqn.outvars[0].aval
    taken = eqn.params["slice_sizes"]
    cut = [axis for axis in range(table.ndim) if taken[axis] != table.shape[axis]]
    if position != 0 or len(cut) != 1 or taken[cut[0]] != 1 or any(view.mapped):
        return None
    if not jnp.issubdtype(y.dtype, jnp.floating) or 0 in table.shape:
        return None
    axis = cut[0]
    rest = tuple(other for other in range(table.ndim) if other != axis)
    rows, width = table.shape[axis], math.prod(table.shape[other] for other in rest)
    path = view.path.then(Reshape((axis, *rest), (rows, width)))
    return Match(Row(rows), eqn.invars[1 + axis], view, path, (rows, width))
