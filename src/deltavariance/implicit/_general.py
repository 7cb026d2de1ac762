"""Eigenvalues of general real matrices, with derivatives from left and right eigenvectors."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Inexact

from ._gaps import inverse_differences, report_near_multiples


class Eigensystem(NamedTuple):
    """Eigenvalues, and in the same order the columns of right and left eigenvectors.

    `A right_i = λ_i right_i` and `left_iᴴ A = λ_i left_iᴴ`. For a symmetric pair (K, M) both are the same.
    """

    values: Inexact[Array, " n"]
    right: Inexact[Array, "n n"]
    left: Inexact[Array, "n n"]


@jax.custom_jvp
def general_eigensystem(
    matrix: Float[Array, "n n"],
) -> tuple[Complex[Array, " n"], Complex[Array, "n n"], Complex[Array, "n n"]]:
    """Values in ascending order of real, then imaginary part; right and left eigenvectors of any scale."""
    values, left, right = jax.lax.platform_dependent(
        matrix, cpu=_decompose_compiled, default=_decompose_on_host
    )
    # Conjugate pairs have equal real parts in exact arithmetic, and in LAPACK's.
    order = jnp.lexsort((values.imag, values.real))
    return values[order], right[:, order], left[:, order]


def _decompose_compiled(matrix: Array) -> tuple[Array, Array, Array]:
    values, left, right = jax.lax.linalg.eig(matrix)
    return values, left, right


def _decompose_on_host(matrix: Array) -> tuple[Array, Array, Array]:
    """For accelerators, most of which have no routine for nonsymmetric matrices.

    Numbers travel as their bits: the thread in which a callback runs need not know the caller's double precision.
    """
    n, dtype = matrix.shape[-1], np.dtype(matrix.dtype)
    bits = jax.lax.bitcast_convert_type(matrix, jnp.int32)
    shape = jax.ShapeDtypeStruct((2 * n + 1, n, 2, *bits.shape[2:]), jnp.int32)

    def decompose(on_host: np.ndarray | Array) -> np.ndarray:
        # Double precision has a last axis of two words, single precision none.
        batch = np.shape(on_host)[: -bits.ndim]
        given = np.ascontiguousarray(on_host).view(dtype).reshape(*batch, n, n)
        values, left, right = _decompose_with_numpy(given)
        packed = np.concatenate([values[..., None, :], left, right], axis=-2)
        parts = np.stack([packed.real, packed.imag], axis=-1).astype(dtype)
        out = parts[..., None].view(np.int32)
        return out if bits.ndim == 3 else out[..., 0]

    packed_bits = jax.pure_callback(decompose, shape, bits, vmap_method="expand_dims")
    parts = jax.lax.bitcast_convert_type(packed_bits, dtype)
    packed = jax.lax.complex(parts[..., 0], parts[..., 1])
    return packed[0], packed[1 : n + 1], packed[n + 1 :]


def _decompose_with_numpy(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    finite = np.isfinite(matrix).all(axis=(-2, -1))
    values, right = np.linalg.eig(np.where(finite[..., None, None], matrix, np.eye(matrix.shape[-1])))
    # Left eigenvectors are the rows of the inverse; of a defective matrix the least-squares inverse.
    try:
        inverse = np.linalg.inv(right)
    except np.linalg.LinAlgError:
        inverse = np.linalg.pinv(right)
    hide = np.where(finite, 1.0, np.nan)
    left = np.conj(np.swapaxes(inverse, -1, -2))
    return values * hide[..., None], left * hide[..., None, None], right * hide[..., None, None]


@general_eigensystem.defjvp
def _general_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    """`λ̇_i = l_iᴴ Ȧ r_i / l_iᴴ r_i`; vectors by the expansion in the others, up to their own multiples."""
    (matrix,), (change,) = primals, tangents
    values, right, left = general_eigensystem(matrix)
    overlap = jnp.sum(jnp.conj(left) * right, axis=0)
    overlap = report_near_multiples(values, overlap)
    mixed = (jnp.conj(left.T) @ change.astype(right.dtype) @ right) / overlap[
        :, None
    ]  # [j, i]: l_jᴴ Ȧ r_i / l_jᴴ r_j
    value_change = jnp.diagonal(mixed)
    inverse = inverse_differences(values)
    right_change = right @ (mixed * inverse.T)
    # Left vectors: the same for Aᴴ, whose eigenvalues are the conjugates.
    mixed_left = jnp.conj(mixed.T) * (jnp.conj(overlap)[None, :] / jnp.conj(overlap)[:, None])
    left_change = left @ (mixed_left * jnp.conj(inverse.T))
    return (values, right, left), (value_change, right_change, left_change)


def normalised(vectors: Inexact[Array, "n n"]) -> Inexact[Array, "n n"]:
    """Columns of length 1 whose largest entry is real and positive: a choice that varies smoothly."""
    row = jnp.argmax(jnp.abs(jax.lax.stop_gradient(vectors)), axis=0)
    largest = jnp.take_along_axis(vectors, row[None, :], axis=0)
    turned = vectors / largest
    return turned / jnp.sqrt(jnp.sum(jnp.real(turned * jnp.conj(turned)), axis=0))
