"""From a curvature that is diagonal in some basis to Σ: damping, prior and 1/N go onto its eigenvalues."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.basis import Basis
from deltavariance.contraction.separable import Separable
from deltavariance.covariance.kronecker import Piece
from deltavariance.covariance.spectrum import spectrum


def damped(
    basis: Basis,
    eigenvalues: Float[Array, "N I O"],
    damping: Any,
    precision: Array,
    num_data: Any,
    name: str,
    shape: Sequence[int],
) -> Piece:
    """`(C + damping·I + precision/N)⁻¹ / N`, exactly, of one piece of the leaf `name`.

    A precision for each parameter is possible where the basis is the leaf's own (a diagonal) or can be made anew (a
    dense block).
    """
    if precision.ndim == 0 or precision.size == 1:
        inverse = num_data * (eigenvalues + damping) + jnp.reshape(precision, ())
        return Piece(basis, 1 / _positive(inverse, name))
    each = basis.enter(jnp.broadcast_to(precision, shape), shape)
    if basis.is_identity:
        return Piece(basis, 1 / _positive(num_data * (eigenvalues + damping) + each, name))
    if basis.frame[:2] == (1, 1) and basis.left is None and basis.right is not None:
        vectors = basis.right
        matrix = jnp.einsum("nip,np,njp->nij", vectors, num_data * (eigenvalues[:, 0] + damping), vectors)
        inverse, vectors = spectrum(matrix + jax.vmap(jnp.diag)(each[:, 0]))
        anew = Basis(None, vectors, basis.path, basis.frame)
        return Piece(anew, 1 / _positive(inverse[:, None], name))
    raise ValueError(
        f"`prior_precision` gives each entry of {name!r} a number of its own, and a Kronecker-factored block"
        " cannot hold that exactly. Give one number for this leaf, as in `prior_precision={"
        + repr(name)
        + ": 1.0}`, or use"
        " `dv.Diagonal()`."
    )


def split(
    basis: Basis,
    left: Float[Array, "N I"],
    right: Float[Array, "N O"],
    damping: Any,
    precision: Array,
    num_data: Any,
    name: str,
) -> Piece:
    """`(A + π√d)⁻¹ ⊗ (G + √d/π)⁻¹ / N` with `d = damping + precision/N` and `π² = mean λ(A) / mean λ(G)`."""
    if precision.size != 1:
        raise ValueError(
            f"`prior_precision` gives each entry of {name!r} a number of its own; with `split_damping` it must be one"
            " number a leaf."
        )
    root = jnp.sqrt(damping + jnp.reshape(precision, ()) / num_data)
    mean_left, mean_right = jnp.mean(left, axis=1, keepdims=True), jnp.mean(right, axis=1, keepdims=True)
    known = (mean_left > 0) & (mean_right > 0)
    ratio = jnp.sqrt(jnp.where(known, mean_left, 1) / jnp.where(known, mean_right, 1))
    inputs = _positive(left + ratio * root, name)
    return Piece(basis, Separable(1 / inputs, 1 / (num_data * _positive(right + root / ratio, name))))


def _positive(values: Array, name: str) -> Array:
    """`values`, or an error if one is zero: Σ would be infinite there. Inside a trace nothing can be said."""
    if not isinstance(values, jax.core.Tracer) and not bool(jnp.all(values > 0)):
        raise ValueError(
            f"The curvature of {name!r} is singular: the data leave some directions of it undetermined, and without"
            " damping or a prior their variance is infinite. Give `damping=`, or a `prior_precision=`."
        )
    return values
