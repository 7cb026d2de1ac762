"""Products with a Hessian, a Fisher information or a Gauss–Newton matrix of data held in memory."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.cases import as_weights, combined, count, is_tree_of_arrays
from deltavariance.covariance.matrix_free import Operator
from deltavariance.curvature.stream import negative_log_likelihood
from deltavariance.parameters import Frozen, Layout, freeze
from deltavariance.variance import hashable

PyTree = Any


class DataProduct(Operator):
    """A function of parameters and examples, with both, and a weight for each example."""

    function_arrays: list[Array]
    function_rest: Frozen = eqx.field(static=True)
    arrays: list[Array]
    rest: Frozen = eqx.field(static=True)
    data: PyTree
    weights: Float[Array, " N"]
    layout: Layout = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        function: Callable[[Any, Any], Any],
        params: PyTree,
        data: PyTree,
        weights: Any,
        mask: Any,
        layout: Layout,
    ) -> "DataProduct":
        if not is_tree_of_arrays(data):
            raise ValueError(
                "`MatrixFree` goes over the data at each use of Σ, so they must be a pytree of arrays in memory, not an"
                " iterable of batches."
            )
        total = count(data, "data")
        given = combined(weights, mask)
        real = jnp.ones(total) if given is None else jnp.asarray(as_weights(given, total), float)
        # A row left out may hold anything, and 0·NaN is NaN: a row that counts stands in for it.
        stand_in = jnp.where(real > 0, jnp.arange(total), jnp.argmax(real > 0))
        kept = jax.tree.map(lambda leaf: jnp.asarray(leaf)[stand_in], data)
        function_arrays, function_rest = hashable(function)
        arrays, rest = freeze(params)
        own = [jnp.asarray(x) for x in arrays]
        return cls(function_arrays, function_rest, own, rest, kept, real, layout)

    @property
    def function(self) -> Callable[[Any, Any], Any]:
        found: Callable[[Any, Any], Any] = self.function_rest.thaw(self.function_arrays)
        return found


class HessianProduct(DataProduct):
    """`H v` of the average negative log-likelihood: about four gradients over the data."""

    def __call__(self, vector: Float[Array, " P"]) -> Float[Array, " P"]:
        params = self.rest.thaw(self.arrays)
        loss = negative_log_likelihood(self.function, params, self.data, self.weights, self.layout)
        leaves = self.layout.take(params)
        _, product = jax.jvp(jax.grad(loss), (leaves,), (self.layout.unflatten(vector),))
        return self.layout.flatten(product) / jnp.sum(self.weights)


class OuterProduct(DataProduct):
    """`Σ_n w_n J_nᵀ J_n v / Σ w` for J the Jacobian of the function: about three passes over the data."""

    def __call__(self, vector: Float[Array, " P"]) -> Float[Array, " P"]:
        params = self.rest.thaw(self.arrays)

        def values(leaves: list[Array]) -> Array:
            found: Array = jax.vmap(self.function, (None, 0))(self.layout.put(params, leaves), self.data)
            return jnp.reshape(found, (self.weights.shape[0], -1))

        leaves = self.layout.take(params)
        _, along = jax.jvp(values, (leaves,), (self.layout.unflatten(vector),))
        _, pull_back = jax.vjp(values, leaves)
        (product,) = pull_back(self.weights[:, None] * along)
        return self.layout.flatten(product) / jnp.sum(self.weights)
