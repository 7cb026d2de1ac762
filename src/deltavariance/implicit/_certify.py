"""Errors of a solve that did not converge, raised also from inside compiled code."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

T = TypeVar("T")


class ConvergenceError(RuntimeError):
    """A fixed point, root, minimiser or eigenvalue was not found to the tolerance asked for."""


def certify(
    solution: T,
    converged: Bool[Array, ""],
    residual: Float[Array, ""],
    complaint: str,
    throw: bool,
    quoting: str = "largest residual left is",
) -> T:
    """The solution, if it converged; otherwise an error that quotes the residual, or NaN if not `throw`.

    The verdict of the host callback is woven into the solution, so the compiler cannot drop the check as long
    as anything, a gradient for example, depends on the solution.
    """

    def verdict(ok: np.ndarray | Array, size: np.ndarray | Array) -> np.ndarray:
        failed = ~np.asarray(ok)
        if failed.any():
            sizes = np.asarray(size)[failed]
            # A residual that is not a number is the worst of them.
            worst = np.nan if np.isnan(sizes).any() else sizes.max()
            cases = f" in {failed.sum()} of {failed.size} cases" if failed.size > 1 else ""
            raise ConvergenceError(f"{complaint}{cases}: the {quoting} {worst:.3e}.")
        return np.asarray(ok)

    if throw:
        shape = jax.ShapeDtypeStruct(jnp.shape(converged), bool)
        converged = jax.pure_callback(verdict, shape, converged, residual, vmap_method="expand_dims")
    return jax.tree.map(lambda leaf: jnp.where(converged, leaf, jnp.nan), solution)


def largest_entry(tree: object) -> Float[Array, ""]:
    """Largest absolute value over all leaves: 0 for a tree without entries, NaN where any entry is NaN."""
    sizes = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in jax.tree.leaves(tree)]
    return jnp.max(jnp.stack(sizes)) if sizes else jnp.zeros(())
