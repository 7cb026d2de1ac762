"""Gradients written out as rows, a few cases at a time: what dense matrices are contracted with and made of."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.loops import over_cases, sum_over_cases
from deltavariance.tracing.gradients import ExampleGradients, Form, add_up

# Numbers written out at once (64 MiB in float32).
_AT_ONCE = 1 << 24


class Leaves(tuple[tuple[Form, ...], ...]):
    """The forms of several leaves, sliced together."""

    def cases(self, start: Any, size: int) -> "Leaves":
        return Leaves(tuple(form.cases(start, size) for form in forms) for forms in self)


def over_rows(
    function: Callable[[Float[Array, "K b G"]], Array], gradients: ExampleGradients, members: Sequence[int]
) -> Float[Array, "K B ..."]:
    """`function` of the gradients of the leaves `members`, joined to rows; few enough cases at a time to be held."""
    return over_cases(
        lambda leaves: function(_joined(leaves, gradients, members)),
        _chosen(gradients, members),
        gradients.cases,
        _size(gradients, members),
    )


def sum_over_rows(
    function: Callable[[Float[Array, "K b G"], Float[Array, "K b"]], Any],
    gradients: ExampleGradients,
    weights: Float[Array, "K B"],
    members: Sequence[int],
) -> Any:
    """The sum over cases of `function(rows, their weights)`."""
    weights = jnp.broadcast_to(weights, (gradients.components, gradients.cases))
    return sum_over_cases(
        lambda leaves, w: function(_joined(leaves, gradients, members), w),
        _chosen(gradients, members),
        weights,
        _size(gradients, members),
    )


def outer_sum(
    gradients: ExampleGradients, weights: Float[Array, "K B"], members: Sequence[int]
) -> Float[Array, "G G"]:
    """`Σ_{k,b} w Δ Δᵀ` over the leaves `members`. Cost: K·B·G² multiplications."""

    def some(rows: Array, w: Array) -> Array:
        return jnp.einsum("kbp,kbq->pq", rows * w[..., None], rows)

    total: Array = sum_over_rows(some, gradients, weights, members)
    return total


def _chosen(gradients: ExampleGradients, members: Sequence[int]) -> Leaves:
    return Leaves(gradients.leaves[number] for number in members)


def _joined(leaves: Leaves, gradients: ExampleGradients, members: Sequence[int]) -> Array:
    shapes = [gradients.layout.shapes[number] for number in members]
    found = [
        add_up([form.dense(shape) for form in forms], shape, gradients) if forms else None
        for forms, shape in zip(leaves, shapes, strict=True)
    ]
    # How many cases this slice holds; a leaf without a gradient cannot tell.
    cases = next((leaf.shape[1] for leaf in found if leaf is not None), gradients.cases)
    leading = (gradients.components, cases)
    dtype = next((leaf.dtype for leaf in found if leaf is not None), gradients.value.dtype)
    return jnp.concatenate(
        [
            jnp.zeros((*leading, math.prod(shape)), dtype)
            if leaf is None
            else jnp.reshape(leaf, (*leading, -1))
            for leaf, shape in zip(found, shapes, strict=True)
        ],
        axis=-1,
    )


def _size(gradients: ExampleGradients, members: Sequence[int]) -> int:
    size = sum(math.prod(gradients.layout.shapes[number]) for number in members)
    if not any(gradients.leaves[number] for number in members):
        return gradients.cases
    return max(1, _AT_ONCE // max(1, gradients.components * size))
