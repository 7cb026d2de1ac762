"""Eigenvalues and eigenvectors as quantities: the interface."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Inexact

from ._certify import certify
from ._general import Eigensystem, general_eigensystem, normalised
from ._symmetric import symmetric_eigensystem, symmetrised


def eigenvalues(A: ArrayLike, M: ArrayLike | None = None, *, real: bool = False) -> Inexact[Array, " n"]:
    """Eigenvalues of a general real matrix, or of a symmetric pair `K x = λ M x`.

    With one argument A is any real square matrix. The eigenvalues are complex numbers (JAX cannot let their
    type depend on their values), in ascending order of real part and within a conjugate pair of imaginary
    part: ascending where they are real. `real=True` returns real numbers, for a matrix known to have only
    real eigenvalues, and raises an error if it turns out otherwise.

    With two, `eigenvalues(K, M)`, K is symmetric and M symmetric positive definite; the eigenvalues are real
    and ascending, and NaN if M is not positive definite. Prefer this form to `eigenvalues(M⁻¹K)`.

    Derivatives, in forward and reverse mode and of any order, are exact where the eigenvalue is simple:

        dλ_i = l_iᴴ dA r_i / (l_iᴴ r_i),        dλ_i = x_iᵀ (dK − λ_i dM) x_i  with  x_iᵀ M x_i = 1.

    Nearly equal eigenvalues give a `NearMultipleEigenvalueWarning` when derivatives are taken. On devices
    without a nonsymmetric solver the decomposition runs on the host.

    Cost: one dense decomposition, O(n³), with all derivatives from the same eigenvectors.

    >>> import jax, jax.numpy as jnp
    >>> import deltavariance as dv
    >>> chain = lambda k: jnp.array([[k[0] + k[1], -k[1]], [-k[1], k[1]]])
    >>> k = jnp.array([2.0, 1.0])
    >>> print(dv.implicit.eigenvalues(chain(k), jnp.eye(2)))
    [0.58578... 3.41421...]
    >>> print(jax.jacobian(lambda k: dv.implicit.eigenvalues(chain(k), real=True))(k))
    [[0.14644... 0.29289...]
     [0.85355... 1.70710...]]
    """
    matrix = checked_square(A, "A" if M is None else "K")
    if M is not None:
        return symmetric_eigensystem(*checked_pair(matrix, M))[0]
    values, _, _ = general_eigensystem(matrix)
    return real_values(values) if real else values


def eigenvectors(A: ArrayLike, M: ArrayLike | None = None) -> Eigensystem:
    """Eigenvalues with their eigenvectors, as an `Eigensystem(values, right, left)`; columns are vectors.

    Vectors of a general matrix have length 1 and a real, positive largest entry; vectors of a symmetric pair
    have `xᵀ M x = 1` and a positive largest entry. With these conventions they are smooth functions of the
    matrix, except where two entries compete for being the largest, and their derivatives are exact for simple
    eigenvalues. The order is that of `eigenvalues`.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> values, right, left = dv.implicit.eigenvectors(jnp.array([[2.0, 1.0], [0.0, 3.0]]))
    >>> print(right.real)
    [[1.         0.70710...]
     [0.         0.70710...]]
    """
    matrix = checked_square(A, "A" if M is None else "K")
    if M is None:
        values, right, left = general_eigensystem(matrix)
        return Eigensystem(values, normalised(right), normalised(left))
    values, vectors = symmetric_eigensystem(*checked_pair(matrix, M))
    row = jnp.argmax(jnp.abs(jax.lax.stop_gradient(vectors)), axis=0)
    vectors = vectors * jnp.sign(jnp.take_along_axis(vectors, row[None, :], axis=0))
    return Eigensystem(values, vectors, vectors)


def real_values(values: Inexact[Array, " n"]) -> Float[Array, " n"]:
    """The real parts, once the imaginary parts are known to be rounding errors."""
    size = jnp.max(jnp.abs(values), initial=0.0)
    imaginary = jnp.max(jnp.abs(values.imag), initial=0.0)
    # Rounding splits a nearly double real eigenvalue into a pair √ε apart.
    allowed = jnp.isnan(size) | (imaginary <= 10 * jnp.finfo(size.dtype).eps ** 0.5 * size)
    complaint = (
        "eigenvalues(A, real=True) met a matrix with complex eigenvalues: leave real=True away and use their "
        "real part, imaginary part or absolute value"
    )
    quoted = jax.lax.stop_gradient((allowed, imaginary))
    return certify(values.real, *quoted, complaint, True, "largest imaginary part is")


def checked_square(matrix: ArrayLike, name: str) -> Array:
    """A real floating-point square matrix, or an error that says what was given."""
    matrix = jnp.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"{name} must be a square matrix, and has shape {matrix.shape}; use jax.vmap for a batch."
        )
    if jnp.issubdtype(matrix.dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be real, and has the type {matrix.dtype}.")
    return matrix if jnp.issubdtype(matrix.dtype, jnp.floating) else matrix.astype(jnp.result_type(float))


def checked_pair(K: Array, M: ArrayLike) -> tuple[Array, Array]:
    """The symmetric parts of K and M, refused if a matrix whose entries are known is not symmetric."""
    M = checked_square(M, "M")
    if K.shape != M.shape:
        raise ValueError(f"K and M must have the same shape, and have {K.shape} and {M.shape}.")
    for name, matrix in (("K", K), ("M", M)):
        if not isinstance(matrix, jax.core.Tracer):
            entries = np.asarray(matrix)
            tolerance = 100 * np.finfo(entries.dtype).eps * np.abs(entries).max(initial=0.0)
            if np.abs(entries - entries.T).max(initial=0.0) > tolerance:
                raise ValueError(
                    f"{name} must be symmetric in eigenvalues(K, M); for a general matrix use eigenvalues(A) with "
                    "A = M⁻¹K."
                )
    return symmetrised(K), symmetrised(M)
