"""What every score takes: errors and variances with the cases first, weights, and the checks on them."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

Cases: TypeAlias = Shaped[ArrayLike, "..."]
"""An array `[n, *q]`, the cases first. `as_pair` checks the shapes, since it can explain what is wrong."""
Weights: TypeAlias = Shaped[ArrayLike, "..."] | None
"""One weight a case, `[n]`, or None for ones."""


def known(value: object) -> bool:
    """Whether the numbers in `value` can be looked at: under `jit`, `grad` or `vmap` only shapes can."""
    return not isinstance(value, jax.core.Tracer)


def as_cases(value: ArrayLike, name: str) -> Array:
    """`value` as an inexact array with at least one axis, and at least one case along it."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(jnp.result_type(float))
    if array.ndim == 0 or array.shape[0] == 0:
        raise ValueError(
            f"`{name}` has shape {array.shape}, which holds no cases. Its first axis counts the cases and"
            " must be at least one long; the quantities come after it."
        )
    return array


def as_pair(
    errors: ArrayLike, variance: ArrayLike, variance_name: str = "variance"
) -> tuple[Float[Array, "n *q"], Float[Array, "n *q"]]:
    """Errors and variances of one shape `[n, *q]`, finite, the variances not negative.

    Raises:
        ValueError: shapes differ, or a value is NaN, infinite or negative where it must not be. Under `jit`
            only the shapes are looked at.
    """
    e, v = as_cases(errors, "errors"), as_cases(variance, variance_name)
    if e.shape != v.shape:
        raise ValueError(
            f"`errors` has shape {e.shape} and `{variance_name}` has shape {v.shape}. Both must be [n,"
            " *quantities]: one error and one variance for each case and quantity."
        )
    require_finite(e, "errors")
    require_variance(v, variance_name)
    return e, v


def require_finite(array: Array, name: str) -> None:
    """Raise if a value that is known is NaN or infinite, and say which case holds the first."""
    if not known(array):
        return
    bad = ~np.isfinite(np.asarray(array))
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"`{name}` holds {int(bad.sum())} values that are not finite, the first at index {first}. Leave"
            " those cases out before scoring."
        )


def require_variance(array: Array, name: str) -> None:
    """Raise if a value that is known is not a variance: NaN, infinite or below zero."""
    require_finite(array, name)
    if not known(array):
        return
    lowest = float(np.min(np.asarray(array)))
    if lowest < 0:
        raise ValueError(
            f"`{name}` goes down to {lowest:.3g}, and a variance cannot be negative. Standard deviations and"
            " log-variances must be turned into variances first."
        )


def as_weights(weights: Weights, like: Array) -> Float[Array, " n"]:
    """One weight a case, ones when none are given; a weight of 2 is the case standing there twice."""
    n = like.shape[0]
    if weights is None:
        return jnp.ones(n, like.dtype)
    array = jnp.asarray(weights, like.dtype)
    if array.shape != (n,):
        raise ValueError(
            f"`weights` has shape {array.shape} for {n} cases. Give one weight a case, shape ({n},), shared"
            " by all quantities."
        )
    if known(array) and (float(array.min()) < 0 or not float(array.sum()) > 0):
        raise ValueError("`weights` must be zero or positive, with a positive sum.")
    return array


def weighted_mean(values: Float[Array, "n *q"], weights: Float[Array, " n"]) -> Float[Array, "*q"]:
    """`Σ wᵢ xᵢ / Σ wᵢ` over the cases."""
    return jnp.tensordot(weights, values, axes=1) / jnp.sum(weights)


def along_cases(weights: Float[Array, " n"], like: Float[Array, "n *q"]) -> Float[Array, "n *ones"]:
    """Weights with trailing axes of length one, so that they broadcast against `like`."""
    return weights.reshape(weights.shape + (1,) * (like.ndim - 1))


def brief(value: Array) -> str:
    """A short text of a few numbers, or the type and shape of many."""
    if not known(value) or value.size > 8:
        return f"{value.dtype}{list(value.shape)}"
    return np.array2string(np.asarray(value), precision=4, separator=", ")
