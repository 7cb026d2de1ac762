"""The generalised symmetric problem `K x = λ M x`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._gaps import inverse_differences, report_near_multiples


@jax.custom_jvp
def symmetric_eigensystem(
    stiffness: Float[Array, "n n"], mass: Float[Array, "n n"]
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Ascending values and columns with `Xᵀ M X = I`; NaN where `mass` is not positive definite."""
    lower = jnp.linalg.cholesky(mass)
    half = jax.scipy.linalg.solve_triangular(lower, stiffness, lower=True)
    reduced = jax.scipy.linalg.solve_triangular(lower, half.T, lower=True)
    values, vectors = jnp.linalg.eigh(reduced)
    return values, jax.scipy.linalg.solve_triangular(lower.T, vectors, lower=False)


@symmetric_eigensystem.defjvp
def _symmetric_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """`λ̇_i = x_iᵀ (K̇ − λ_i Ṁ) x_i`; `ẋ_i = Σ_{j≠i} x_j x_jᵀ(K̇ − λ_i Ṁ)x_i / (λ_i − λ_j) − ½ x_i x_iᵀṀx_i`."""
    values, vectors = symmetric_eigensystem(*primals)
    vectors_left = report_near_multiples(values, vectors)
    of_stiffness, of_mass = (vectors_left.T @ change @ vectors for change in tangents)
    mixed = of_stiffness - of_mass * values[None, :]
    weights = mixed * inverse_differences(values).T - 0.5 * jnp.diag(jnp.diagonal(of_mass))
    return (values, vectors), (jnp.diagonal(mixed), vectors @ weights)


def symmetrised(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part, so that derivatives by either of two mirrored entries are shared fairly."""
    return 0.5 * (matrix + matrix.T)
