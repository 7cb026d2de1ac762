"""Look-ups: rows of a parameter picked by numbers."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode

from deltavariance.tracing.rules.base import Match, Rule
from deltavariance.tracing.views import Reshape, View


@dataclass(frozen=True)
class LookUp(Rule):
    """`gather` of whole rows. A number out of range is clipped or has no effect on the gradient, as the mode says."""

    row_axes: tuple[int, ...]
    offset_dims: tuple[int, ...]
    clip: bool

    def _numbers(self, recorded: jax.Array) -> tuple[jax.Array, jax.Array]:
        limits = jnp.asarray(self.row_axes)
        numbers = jnp.reshape(recorded, (-1, len(self.row_axes))).astype(jnp.int32)
        inside = jnp.all((numbers >= 0) & (numbers < limits), axis=-1)
        numbers = jnp.clip(numbers, 0, limits - 1)
        strides = [math.prod(self.row_axes[k + 1 :]) for k in range(len(self.row_axes))]
        return numbers @ jnp.asarray(strides, jnp.int32), inside

    def inputs(self, recorded: jax.Array) -> jax.Array:
        return self._numbers(recorded)[0]

    def cotangents(self, cotangent: jax.Array, recorded: jax.Array) -> jax.Array:
        kept = [axis for axis in range(cotangent.ndim) if axis not in self.offset_dims]
        width = math.prod(cotangent.shape[axis] for axis in self.offset_dims)
        g = jnp.reshape(jnp.transpose(cotangent, (*kept, *self.offset_dims)), (-1, width))
        if self.clip:
            return g
        # The result of an out-of-range look-up has a cotangent that no row ever receives.
        return jnp.where(self._numbers(recorded)[1][:, None], g, 0)


def match(eqn: Any, position: int, view: View) -> Match | None:
    """`view` is operand number `position` of a `gather`; whole rows along the indexed axes are known."""
    numbers = eqn.params["dimension_numbers"]
    table, indices, y = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    indexed = tuple(numbers.start_index_map)
    whole = all(
        size == (1 if axis in indexed else table.shape[axis])
        for axis, size in enumerate(eqn.params["slice_sizes"])
    )
    plain_rows = (
        position == 0
        and whole
        and not any(view.mapped)
        and not numbers.operand_batching_dims
        and tuple(sorted(indexed)) == tuple(sorted(numbers.collapsed_slice_dims))
        and len(indexed) > 0
        and indices.shape[-1] == len(indexed)
        and 0 not in table.shape
        and 0 not in y.shape
        and jnp.issubdtype(y.dtype, jnp.floating)
    )
    if not plain_rows:
        return None
    row_axes = tuple(table.shape[axis] for axis in indexed)
    rest = tuple(axis for axis in range(table.ndim) if axis not in indexed)
    rows, width = math.prod(row_axes), math.prod(table.shape[axis] for axis in rest)
    rule = LookUp(row_axes, tuple(numbers.offset_dims), eqn.params["mode"] == GatherScatterMode.CLIP)
    path = view.path.then(Reshape((*indexed, *rest), (rows, width)))
    return Match(rule, eqn.invars[1], view, path, (rows, width))
