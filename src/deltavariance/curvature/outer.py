"""Weighted means of outer products of gradients of a function with any number of components."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance import cases as _cases
from deltavariance.curvature.base import Curvature
from deltavariance.curvature.products import OuterProduct
from deltavariance.memory import largest_batch
from deltavariance.parameters import Frozen, Layout, Where, freeze
from deltavariance.structures import Diagonal, MatrixFree, Structure
from deltavariance.tracing import example_gradients
from deltavariance.variance import hashable

PyTree = Any


def outer_products(
    function: Callable[[Any, Any], Any],
    params: PyTree,
    data: PyTree,
    *,
    structure: Structure | None,
    where: Where | Layout,
    weights: Any,
    mask: Any,
    num_data: int | None,
    batch_size: int | None,
    memory_budget: int | None,
    what: str = "inputs",
) -> Curvature:
    """`Σ_n w_n Σ_k Δ_nk Δ_nkᵀ / Σ_n w_n`, Δ_nk the gradient of component k of `function(params, example n)`."""
    current = Diagonal() if structure is None else structure
    layout = where if isinstance(where, Layout) else Layout.of(params, where)
    if isinstance(current, MatrixFree):
        operator = OuterProduct.of(function, params, data, weights, mask, layout)
        total_weight = jnp.sum(operator.weights)
        number = total_weight if num_data is None else jnp.asarray(float(num_data))
        return Curvature(current, operator, total_weight, number, layout)
    once = hasattr(data, "__next__")
    f_arrays, frozen_f = hashable(function)
    arrays, frozen = freeze(params)

    def largest(batch: PyTree) -> int:
        return largest_batch((f_arrays, frozen_f), (arrays, frozen), batch, layout, batch_size, memory_budget)

    given = _cases.combined(weights, mask)
    # Where Σw is known beforehand it is divided out of the weights, and never out of what may be many matrices.
    whole = _cases.total_weight(data, given)
    while True:
        total, seen = None, jnp.zeros(())
        for batch in _cases.batches(data, given, largest, what=what):
            part, weight, finite = _batch_sum(
                frozen_f,
                frozen,
                f_arrays,
                arrays,
                current,
                batch.cases,
                jnp.asarray(batch.weights, float),
                layout,
                whole,
            )
            if not isinstance(finite, jax.core.Tracer) and not bool(finite):
                raise ValueError(
                    f"Batch {batch.number} of the {what} gives NaN or infinity in the prediction or its gradient. Leave"
                    " those examples out with `mask=`, or mend the data, the parameters or the function."
                )
            total = part if total is None else jax.tree.map(jnp.add, total, part)
            seen = seen + weight
        mean = total
        if whole is None:
            mean = jax.tree.map(lambda x, seen=seen: x / jnp.where(seen > 0, seen, 1), total)
        following = current.next_pass(mean, layout)
        if following is None:
            counted = seen if num_data is None else jnp.asarray(float(num_data))
            return Curvature(current, mean, seen, counted, layout)
        if once:
            raise ValueError(
                f"{current} needs a second pass over the {what}, and the iterator given is used up after the first."
                " Give"
                " arrays, or an object whose `__iter__` starts afresh (a list of batches, a data loader)."
            )
        current = following


@functools.partial(jax.jit, static_argnums=(0, 1, 7))
def _batch_sum(
    function: Frozen,
    params: Frozen,
    f_arrays: list[Array],
    arrays: list[Array],
    structure: Structure,
    batch: PyTree,
    weights: Float[Array, " B"],
    layout: Layout,
    whole: Float[Array, ""] | None,
) -> tuple[Any, Array, Array]:
    """The weighted sum of a batch (over `whole`, if given), Σw, and whether all of it is finite."""
    real = weights > 0
    # A row left out may hold anything, and 0·NaN is NaN: a row that counts stands in for it.
    stand_in = jnp.where(real, jnp.arange(real.shape[0]), jnp.argmax(real))
    gradients = example_gradients(
        function.thaw(f_arrays),
        params.thaw(arrays),
        jax.tree.map(lambda leaf: leaf[stand_in], batch),
        where=layout,
    )
    shares = weights if whole is None else weights / whole
    total = structure.statistic(gradients, jnp.broadcast_to(shares, (gradients.components, gradients.cases)))
    finite = [jnp.all(jnp.isfinite(x)) for x in [gradients.value, *jax.tree.leaves(total)]]
    return total, jnp.sum(weights), jnp.all(jnp.stack(finite))
