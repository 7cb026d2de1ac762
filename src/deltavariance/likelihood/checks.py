"""Checks of scales and covariances, made when their values are known, that is outside of a trace."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike


def concrete(value: Any) -> bool:
    """Whether the numbers are there to be looked at."""
    return not isinstance(value, jax.core.Tracer)


def check_positive(name: str, value: ArrayLike) -> None:
    """Raise unless every entry is positive and finite."""
    if not concrete(value):
        return
    entries = np.asarray(value)
    bad = ~((entries > 0) & np.isfinite(entries))
    if bad.any():
        where = "" if entries.ndim == 0 else f" (first at index {tuple(int(i) for i in np.argwhere(bad)[0])})"
        raise ValueError(
            f"{name} must be positive and finite; {int(bad.sum())} of {entries.size} entries are not{where},"
            f" for example {float(entries[bad].flat[0])}. It is a standard deviation in the units of the"
            " targets: estimate it with `dv.estimate_noise(f, params, data)` where it is not known."
        )


def check_square(name: str, value: ArrayLike) -> Array:
    matrix = jnp.asarray(value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"`{name}` should be a matrix [k, k] over the k flattened outputs of one case; got shape"
            f" {matrix.shape}."
        )
    matrix = matrix.astype(jnp.result_type(matrix, jnp.float32))
    if concrete(matrix) and not bool(jnp.all(jnp.isfinite(matrix))):
        raise ValueError(f"`{name}` holds NaN or infinite entries.")
    return matrix
