"""Sequential loops over cases and components, for what would be too large to hold for all of them at once."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

F = TypeVar("F")


def over_components(function: Callable[[Any], Array], form: Any, components: int) -> Array:
    """`function` of the form of each component in turn, `[1, B, ...]` each, stacked to `[K, B, ...]`."""
    if components == 1:
        return function(form)
    return lax.map(lambda k: function(form.component(k))[0], jnp.arange(components))


def over_cases(function: Callable[[Any], Array], form: Any, cases: int) -> Array:
    """`function` of the form of one case after another, `[K, 1, ...]` each, joined to `[K, B, ...]`."""
    if cases == 1:
        return function(form)
    return jnp.moveaxis(lax.map(lambda b: function(form.cases(b, 1))[:, 0], jnp.arange(cases)), 0, 1)


def sum_over_cases(function: Callable[[Any, Array], Array], form: Any, weights: Array) -> Array:
    """The sum of `function(form of one case, its weights [K, 1])` over the cases, nothing kept but the sum."""
    cases = weights.shape[1]

    def term(b: Any) -> Array:
        return function(form.cases(b, 1), lax.dynamic_slice_in_dim(weights, b, 1, axis=1))

    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(term, 0))
    return lax.fori_loop(0, cases, lambda b, total: total + term(b), zero)
