"""How far eigenvalues are from their neighbours, and the report where that is not far enough."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Inexact


class NearMultipleEigenvalueWarning(RuntimeWarning):
    """Two eigenvalues all but coincide: their separate derivatives mean little."""


def eigenvalue_gaps(values: Inexact[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """Distance of each eigenvalue to the nearest other one, relative to the largest in absolute value.

    `gap_i = min_{j≠i} |λ_i − λ_j| / max_j |λ_j|`, infinite where there is but one eigenvalue. An eigenvalue is
    differentiable only while it is simple: as a gap shrinks, the two eigenvalues and, faster still, their
    eigenvectors come to depend on the parameters in a way that a straight line does not describe. Their sum
    stays smooth.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> print(dv.implicit.eigenvalue_gaps(jnp.array([1.0, 1.5, 4.0])))
    [0.125 0.125 0.625]
    """
    distance = jnp.abs(values[..., :, None] - values[..., None, :])
    itself = jnp.eye(values.shape[-1], dtype=bool)
    nearest = jnp.min(jnp.where(itself, jnp.inf, distance), axis=-1, initial=jnp.inf)
    return nearest / jnp.max(jnp.abs(values), axis=-1, keepdims=True, initial=jnp.finfo(distance.dtype).tiny)


def inverse_differences(values: Inexact[Array, " n"]) -> Inexact[Array, "n n"]:
    """`1 / (λ_i − λ_j)` off the diagonal; zero on it, and where two eigenvalues coincide to rounding.

    Coinciding eigenvalues leave the basis of their common space free: zero keeps it as it is.
    """
    difference = values[:, None] - values[None, :]
    smallest = jnp.finfo(difference.dtype).eps * jnp.max(jnp.abs(values), initial=0.0)
    apart: Bool[Array, "n n"] = jnp.abs(difference) > smallest
    return jnp.where(apart, 1.0 / jnp.where(apart, difference, 1.0), 0.0)


def report_near_multiples(
    values: Inexact[Array, " n"], weights: Inexact[Array, "*any"]
) -> Inexact[Array, "*any"]:
    """`weights`, unchanged; the host warns when two of `values` differ by less than √ε of the largest.

    Called where derivatives are formed, on a number that every derivative uses, so that the compiler cannot
    drop the check.
    """
    if values.shape[-1] < 2:
        return weights
    gaps = jnp.min(eigenvalue_gaps(values))
    limit = float(np.finfo(gaps.dtype).eps) ** 0.5

    def look(gap: np.ndarray | Array) -> np.ndarray:
        close = np.asarray(gap) < limit
        if close.any():
            warnings.warn(
                f"Two eigenvalues differ by {np.asarray(gap).min():.1e} of the largest"
                + (f" in {close.sum()} of {close.size} cases" if close.size > 1 else "")
                + ": a multiple eigenvalue has no derivative of its own, and a nearly multiple one a derivative "
                "that holds only in a tiny neighbourhood. Use a smooth function of both, such as their sum; "
                "dv.implicit.eigenvalue_gaps shows which they are.",
                NearMultipleEigenvalueWarning,
                stacklevel=2,
            )
        # True, always: the thread of a callback may lack the caller's double precision, and cannot hand it back.
        return np.ones(np.shape(gap), bool)

    looked_at = jax.pure_callback(
        look, jax.ShapeDtypeStruct((), bool), jax.lax.stop_gradient(gaps), vmap_method="expand_dims"
    )
    return jnp.where(looked_at, weights, jnp.nan)
