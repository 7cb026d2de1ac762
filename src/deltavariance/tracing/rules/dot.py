"""Products with a parameter: `x @ W`, `einsum`, multi-head projections, in any operand order."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from deltavariance.tracing.rules.base import Match, Rule
from deltavariance.tracing.views import Reshape, View


@dataclass(frozen=True)
class Dot(Rule):
    """`dot_general`: the parameter's batch axes are N, contracted ones I, free ones O; the input's free axes are T."""

    order: tuple[int, ...]
    shape: tuple[int, int, int]
    out_order: tuple[int, ...]
    out_shape: tuple[int, int, int]

    def inputs(self, recorded: jax.Array) -> jax.Array:
        return jnp.reshape(jnp.transpose(recorded, self.order), self.shape)

    def cotangents(self, cotangent: jax.Array, recorded: jax.Array) -> jax.Array:
        return jnp.reshape(jnp.transpose(cotangent, self.out_order), self.out_shape)


def match(eqn: Any, position: int, view: View) -> Match | None:
    """`view` is operand number `position` of a `dot_general`."""
    (contract, batch) = eqn.params["dimension_numbers"]
    other = 1 - position
    w, x, y = eqn.invars[position].aval, eqn.invars[other].aval, eqn.outvars[0].aval
    w_contract, x_contract = contract[position], contract[other]
    w_batch, x_batch = batch[position], batch[other]
    w_free = [d for d in range(w.ndim) if d not in w_contract and d not in w_batch]
    x_free = [d for d in range(x.ndim) if d not in x_contract and d not in x_batch]
    n, i = _size(w, w_batch), _size(w, w_contract)
    t, o = _size(x, x_free), _size(w, w_free)
    # The result's axes are batch, then the left operand's free axes, then the right one's.
    heads = list(range(len(w_batch)))
    left_free, right_free = (w_free, x_free) if position == 0 else (x_free, w_free)
    first = [len(heads) + k for k in range(len(left_free))]
    second = [len(heads) + len(left_free) + k for k in range(len(right_free))]
    t_axes, o_axes = (second, first) if position == 0 else (first, second)
    rule = Dot(
        order=(*x_batch, *x_free, *x_contract),
        shape=(n, t, i),
        out_order=(*heads, *t_axes, *o_axes),
        out_shape=(n, t, o),
    )
    if not jnp.issubdtype(y.dtype, jnp.floating) or not jnp.issubdtype(x.dtype, jnp.inexact):
        return None
    path = view.path.then(Reshape((*w_batch, *w_contract, *w_free), (n, i, o)))
    return Match(rule, eqn.invars[other], view, path, (n, i, o))


def _size(aval: Any, axes: Any) -> int:
    return math.prod(aval.shape[axis] for axis in axes)
