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
    """For accelerators, most of which have no routine for nonsymmetric matrices."""
    dtype = jnp.result_type(matrix.dtype, jnp.complex64)
    vector = jax.ShapeDtypeStruct(matrix.shape[:-1], dtype)
    square = jax.ShapeDtypeStruct(matrix.shape, dtype)

    def decompose(on_host: np.ndarray | Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _decompose_with_numpy(on_host, np.dtype(dtype))

    return jax.pure_callback(decompose, (vector, square, square), matrix, vmap_method="expand_dims")


def _decompose_with_numpy(
    matrix: np.ndarray | Array, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    matrix = np.asarray(matrix)
    finite = np.isfinite(matrix).all(axis=(-2, -1))
    values, right = np.linalg.eig(np.where(finite[..., None, None], matrix, np.eye(matrix.shape[-1])))
    # Left eigenvectors are the rows of the inverse; a defective matrix has none, and gets infinities.
    try:
        left = np.conj(np.swapaxes(np.linalg.inv(right), -1, -2))
    except np.linalg.LinAlgError:
        left = np.conj(np.swapaxes(np.linalg.pinv(right), -1, -2))
    hide = np.where(finite, 1.0, np.nan)
    return (
        (values * hide[..., None]).astype(dtype),
        (left * hide[..., None, None]).astype(dtype),
        (right * hide[..., None, None]).astype(dtype),
    )


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
