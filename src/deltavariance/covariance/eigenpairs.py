"""Eigenpairs of one symmetric matrix, negative eigenvalues left as they are, found once and kept."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Eigenpairs = tuple[Float[Array, " G"], Float[Array, "G G"]]

# One entry for each matrix that is still alive: another damping, prior or N needs no other decomposition.
_KEPT: dict[int, Eigenpairs] = {}


def eigenpairs(matrix: Float[Array, "G G"]) -> Eigenpairs:
    """Ascending eigenvalues and eigenvectors (columns) of a symmetric matrix.

    Numbers are decomposed in float64 on the host whatever their own type is: a float32 decomposition errs by 1e-7 of
    the *largest* eigenvalue, far above a small damping. Inside `jit`, `grad` and `vmap` they are decomposed in their
    own type. The answer is kept for as long as `matrix` lives. Cost: about 10 G³ the first time.
    """
    if isinstance(matrix, jax.core.Tracer):
        return jnp.linalg.eigh(matrix)
    kept = _KEPT.get(id(matrix))
    if kept is None:
        values, vectors = np.linalg.eigh(np.asarray(matrix, np.float64))
        # Under `jit` a number that is at hand would become part of the trace, and must not be kept from there.
        with jax.ensure_compile_time_eval():
            kept = jnp.asarray(values, matrix.dtype), jnp.asarray(vectors, matrix.dtype)
        _KEPT[id(matrix)] = kept
        weakref.finalize(matrix, _KEPT.pop, id(matrix), None)
    return kept


def with_diagonal(matrix: Float[Array, "G G"], diagonal: Float[Array, " G"]) -> Eigenpairs:
    """Eigenpairs of `matrix + diag(diagonal)`, the sum taken in float64 where the numbers are at hand."""
    if isinstance(matrix, jax.core.Tracer) or isinstance(diagonal, jax.core.Tracer):
        return jnp.linalg.eigh(matrix + jnp.diag(diagonal))
    values, vectors = np.linalg.eigh(
        np.asarray(matrix, np.float64) + np.diag(np.asarray(diagonal, np.float64))
    )
    return jnp.asarray(values, matrix.dtype), jnp.asarray(vectors, matrix.dtype)
