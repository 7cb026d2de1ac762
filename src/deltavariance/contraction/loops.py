"""Sequential loops over cases and components, for what would be too large to hold for all of them at once."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

F = TypeVar("F")


def over_components(function: Callable[[Any], Array], form: Any, components: int, size: int = 1) -> Array:
    """`function` of the form of some components after another, `[≤ size, B, ...]` each, joined to `[K, B, ...]`."""
    if components <= size:
        return function(form)
    size = max(k for k in range(1, size + 1) if components % k == 0)
    parts = lax.map(lambda k: function(form.component(k, size)), jnp.arange(0, components, size))
    return jnp.reshape(parts, (components, *parts.shape[2:]))


def over_cases(function: Callable[[Any], Array], form: Any, cases: int, size: int = 1) -> Array:
    """`function` of the form of `size` cases after another, `[K, size, ...]` each, joined to `[K, B, ...]`."""
    if cases <= size:
        return function(form)
    steps, rest = divmod(cases, size)
    parts = jnp.moveaxis(
        lax.map(lambda step: function(form.cases(step * size, size)), jnp.arange(steps)), 0, 1
    )
    whole = jnp.reshape(parts, (parts.shape[0], steps * size, *parts.shape[3:]))
    if rest == 0:
        return whole
    return jnp.concatenate([whole, function(form.cases(steps * size, rest))], axis=1)


def sum_over_cases(function: Callable[[Any, Array], Any], form: Any, weights: Array, size: int = 1) -> Any:
    """The sum of `function(form of size cases, their weights [K, size])`, nothing kept but the sum."""
    cases = weights.shape[1]
    if cases <= size:
        return function(form, weights)
    steps, rest = divmod(cases, size)

    def term(start: Any, length: int) -> Any:
        return function(form.cases(start, length), lax.dynamic_slice_in_dim(weights, start, length, axis=1))

    def add(step: Any, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, term(step * size, size))

    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(lambda: term(0, size)))
    total = lax.fori_loop(0, steps, add, zero)
    return total if rest == 0 else jax.tree.map(jnp.add, total, term(steps * size, rest))
