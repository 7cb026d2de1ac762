"""Per-example gradients without the library: one Jacobian a case, by reverse mode, vectorised by vmap."""

from typing import Any

import jax
import jax.numpy as jnp

from .case import Quantity


def uncertain(leaf: Any) -> bool:
    """Whether the library should take this leaf for an uncertain parameter."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def example_gradients(u: Quantity, params: Any, z: Any) -> list[jax.Array]:
    """[n, *u.shape, *leaf.shape] for every inexact leaf, in the order of `jax.tree.leaves`."""
    leaves, tree = jax.tree.flatten(params)
    inexact = [leaf for leaf in leaves if uncertain(leaf)]

    def of_inexact(values: list[jax.Array], case: Any) -> jax.Array:
        given = iter(values)
        return u(tree.unflatten([next(given) if uncertain(leaf) else leaf for leaf in leaves]), case)

    return jax.jit(jax.vmap(jax.jacrev(of_inexact), (None, 0)))(inexact, z)
