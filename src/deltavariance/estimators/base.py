"""The one protocol: `estimator.variance(u, z)`, and what it costs."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.parameters import is_array
from deltavariance.tracing import as_real_array

PyTree = Any
Quantity = Callable[[Any, Any], Any]

# A backward pass computes two products where the forward pass computed one.
BACKWARD = 2.0


class Estimator(eqx.Module):
    """An estimator of the epistemic variance of any quantity `u(params, z)`.

    Costs are in units of a plain pass: `inference_cost(u)` in evaluations of u for one case, and `training_cost` in
    passes over the training data that come on top of the trained model. They count products of matrices, not
    seconds, and are NaN where only the user can know. `compare` measures seconds.
    """

    training_cost: eqx.AbstractVar[float]

    @abc.abstractmethod
    def variance(self, u: Quantity, z: PyTree) -> Float[Array, "n *u"]:
        """The variance of `u(params, z[i])` for each case i."""

    @abc.abstractmethod
    def inference_cost(self, u: Quantity, z: PyTree | None = None) -> float:
        """Plain passes a case. For a method that pays by component of u, give `z` too: otherwise u is a scalar."""


def arrays_of(params: PyTree) -> PyTree:
    """`params` with every array a JAX array."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if is_array(leaf) else leaf, params)


def components(u: Quantity, params: PyTree, z: PyTree | None) -> int:
    """How many components u has, from shapes; 1 if there is no z to tell."""
    if z is None:
        return 1
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), z)
    return math.prod(eqx.filter_eval_shape(lambda p, c: as_real_array(u(p, c)), params, one).shape)
