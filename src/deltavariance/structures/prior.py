"""The prior's precision, given as a number, by block, or by parameter, as one array a leaf."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from deltavariance.parameters import Layout


def precisions(prior_precision: Any, layout: Layout) -> list[Array]:
    """One array (or scalar) for each leaf, from `prior_precision`.

    `None` or a number holds for all; a mapping gives numbers by leaf name (others 0); any other pytree has one array
    for each uncertain leaf, in order. The precision is of the parameters themselves: it is not divided by N.
    """
    if prior_precision is None:
        return [jnp.zeros(())] * len(layout)
    if isinstance(prior_precision, Mapping) and set(prior_precision) <= set(layout.names):
        return [jnp.asarray(prior_precision.get(name, 0.0)) for name in layout.names]
    leaves = jax.tree.leaves(prior_precision)
    if len(leaves) == 1:
        return [jnp.asarray(leaves[0])] * len(layout)
    if len(leaves) != len(layout):
        raise ValueError(
            f"`prior_precision` has {len(leaves)} leaves, and there are {len(layout)} uncertain parameters:"
            f" {list(layout.names)}. Give one number, a mapping from these names, or one array for each of them."
        )
    return [jnp.asarray(leaf) for leaf in leaves]
