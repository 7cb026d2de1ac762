"""A Σ that the user has already."""

from typing import Any

import jax
import jax.numpy as jnp

from deltavariance.covariance.base import Covariance
from deltavariance.covariance.dense import DenseCovariance
from deltavariance.covariance.diagonal import DiagonalCovariance
from deltavariance.parameters import Layout, Where

PyTree = Any


def as_covariance(params: PyTree, value: Any, *, where: Where | Layout = None) -> Covariance:
    """A given Σ: a number (the variance of every parameter), a pytree of variances like `params`, or a `[P, P]` matrix.

    It is taken as it stands: whatever 1/N there is must be in it.

    >>> import jax.numpy as jnp
    >>> as_covariance({"w": jnp.zeros(3)}, 0.01).diagonal().tolist() == [jnp.float32(0.01)] * 3
    True
    """
    layout = where if isinstance(where, Layout) else Layout.of(params, where)
    if isinstance(value, Covariance):
        return value
    leaves = jax.tree.leaves(value)
    if len(leaves) == 1 and jnp.ndim(leaves[0]) == 0:
        found = [
            jnp.full(shape, leaves[0], dtype)
            for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)
        ]
        return DiagonalCovariance(variances=tuple(found), layout=layout)
    size = layout.size
    if len(leaves) == 1 and jnp.shape(leaves[0]) == (size, size) and layout.shapes != ((size, size),):
        return DenseCovariance.of(jnp.asarray(leaves[0]), layout)
    if jax.tree.structure(value) == jax.tree.structure(params):  # type: ignore[operator]
        found = layout.take(value)
    elif len(leaves) == len(layout):
        found = [jnp.asarray(leaf) for leaf in leaves]
    else:
        raise ValueError(
            f"Σ was given as a pytree with {len(leaves)} leaves, and there are {len(layout)} uncertain parameters:"
            f" {list(layout.names)}. Give one number, a pytree of variances like `params`, or a matrix of shape"
            f" [{size}, {size}]."
        )
    for name, shape, leaf in zip(layout.names, layout.shapes, found, strict=True):
        if leaf.shape not in ((), shape):
            raise ValueError(
                f"The variances of {name!r} have shape {leaf.shape}, and the parameter has {shape}."
            )
    variances = tuple(jnp.broadcast_to(leaf, shape) for leaf, shape in zip(found, layout.shapes, strict=True))
    return DiagonalCovariance(variances=variances, layout=layout)
