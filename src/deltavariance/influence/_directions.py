"""Inner products of many examples' gradients with a few directions, without writing out a gradient."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.covariance import Covariance
from deltavariance.parameters import Layout
from deltavariance.tracing import as_real_array
from deltavariance.variance import gradient_rows

PyTree = Any
Function = Callable[[Any, Any], Any]


def solved_gradients(u: Function, params: PyTree, z: PyTree, sigma: Covariance) -> Float[Array, "n k P"]:
    """`Σ Δ` for every case and component of u."""
    rows = gradient_rows(u, params, z, sigma.layout)
    return sigma.matvec(rows)


def slopes(
    function: Function,
    params: PyTree,
    examples: PyTree,
    directions: Float[Array, "d P"],
    layout: Layout,
) -> Float[Array, "d B o"]:
    """`∇ function(params, example)ᵀ v` for each direction v, example and component of the function.

    One linearised pass over the examples serves all directions: the cost of about a gradient of the batch for each.
    """

    def values(leaves: list[Array]) -> Array:
        one = lambda example: jnp.ravel(as_real_array(function(layout.put(params, leaves), example)))  # noqa: E731
        return jnp.asarray(jax.vmap(one)(examples))

    point = layout.take(params)
    _, push = jax.linearize(values, point)
    tangents = [leaf.astype(at.dtype) for leaf, at in zip(layout.unflatten(directions), point, strict=True)]
    out: Array = jax.vmap(push)(tangents)
    return out
