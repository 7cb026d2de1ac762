"""The unknown `w` of an implicit equation: what it may hold, and how far it can be resolved."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def floating_state(w0: PyTree, what: str) -> PyTree:
    """`w0` with every leaf an array of real floating-point numbers."""

    def leaf(value: object) -> jax.Array:
        array = jnp.asarray(value)
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise TypeError(
                f"The start w0 of {what} holds a complex leaf of shape {array.shape}; only real unknowns can be "
                "solved for. Split it into its real and imaginary parts."
            )
        return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))

    if not jax.tree.leaves(w0):
        raise ValueError(
            f"The start w0 of {what} holds no arrays; it must have the structure of the solution."
        )
    return jax.tree.map(leaf, w0)


def matched_state(function: Callable[[PyTree], PyTree], w0: PyTree, what: str) -> PyTree:
    """`w0` in the precision of `function(w0)`, which must have the structure and the shapes of `w0`."""
    out = jax.eval_shape(function, w0)
    if str(jax.tree.structure(out)) != str(jax.tree.structure(w0)):
        raise ValueError(
            f"{what} must return a pytree like w0: w0 has structure {jax.tree.structure(w0)}, the result has "
            f"{jax.tree.structure(out)}."
        )
    for given, returned in zip(jax.tree.leaves(w0), jax.tree.leaves(out), strict=True):
        if given.shape != returned.shape:
            raise ValueError(
                f"{what} must return arrays shaped like those of w0: a leaf of shape {given.shape} came back "
                f"with shape {returned.shape}."
            )
    return jax.tree.map(lambda a, b: a.astype(jnp.promote_types(a.dtype, b.dtype)), w0, out)


def machine_epsilon(w: PyTree) -> float:
    """Spacing of the coarsest floating-point type in `w`."""
    return max(float(np.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(w))
