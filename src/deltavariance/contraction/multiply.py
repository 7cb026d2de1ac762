"""Matrix products written as XLA is quickest at them on a CPU."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def turn(factor: Float[Array, "... N T F"], rotation: Float[Array, "N F H"]) -> Float[Array, "... N T H"]:
    """Each of N factors times its own matrix. Cost: T·F·H multiplications each."""
    if rotation.shape[0] == 1:
        # One matrix product: a batch axis of length one keeps XLA from seeing it.
        rows = jnp.reshape(factor, (-1, factor.shape[-1])) @ rotation[0]
        return jnp.reshape(rows, (*factor.shape[:-1], rotation.shape[-1]))
    return jnp.einsum("...nti,nij->...ntj", factor, rotation)


def sum_of_outer(left: Float[Array, "R I"], right: Float[Array, "R O"]) -> Float[Array, "I O"]:
    """`Σ_r left_r right_rᵀ`, that is `leftᵀ right`.

    The left side is laid out anew: a product along the rows of both sides takes a quarter longer. Where there is one
    output it is made as a row, which is six times faster than the column.
    """
    if right.shape[1] == 1:
        return (right.T @ left).T
    return jax.lax.optimization_barrier(left.T) @ right


def sum_of_rest(x: Float[Array, "..."], leading: int) -> Float[Array, "..."]:
    """The sum over all axes but the first `leading`, in two dimensions: in more it takes up to eight times longer."""
    rows = jnp.reshape(x, (math.prod(x.shape[:leading]), -1))
    return jnp.reshape(jnp.sum(rows, axis=1), x.shape[:leading])
