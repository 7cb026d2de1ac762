"""Eigendecompositions of second moments, in double precision where the numbers are at hand, and kept."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Spectrum = tuple[Float[Array, "N F"], Float[Array, "N F F"]]

# One entry for each matrix that is still alive: another damping needs no other decomposition.
_KEPT: dict[int, Spectrum] = {}


def spectrum(matrices: Float[Array, "N F F"]) -> Spectrum:
    """Eigenvalues `[N, F]`, negative ones (rounding errors of a second moment) set to zero, and eigenvectors.

    Numbers are decomposed in float64 on the host whatever their own type is, since a float32 decomposition errs by
    1e-7 of the *largest* eigenvalue, far above a small damping; inside `jit`, `grad` and `vmap` in their own type.
    The answer is kept for as long as `matrices` lives.
    """
    if isinstance(matrices, jax.core.Tracer):
        values, vectors = jnp.linalg.eigh(matrices)
        return jnp.maximum(values, 0), vectors
    kept = _KEPT.get(id(matrices))
    if kept is None:
        exact_values, exact_vectors = np.linalg.eigh(np.asarray(matrices, np.float64))
        kept = (
            jnp.asarray(np.maximum(exact_values, 0), matrices.dtype),
            jnp.asarray(exact_vectors, matrices.dtype),
        )
        _KEPT[id(matrices)] = kept
        weakref.finalize(matrices, _KEPT.pop, id(matrices), None)
    return kept
