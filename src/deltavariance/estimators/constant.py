"""The same variance for every case."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance import cases
from deltavariance.estimators.base import Estimator, PyTree, Quantity, arrays_of
from deltavariance.tracing import as_real_array


class Constant(Estimator):
    """One number for all cases: what can be said without looking at the case.

    After a noise model is fitted to it this is plain homoscedastic noise, the floor for every likelihood.

    >>> import jax.numpy as jnp
    >>> Constant({"w": jnp.ones(2)}).variance(lambda p, z: p["w"] * z, jnp.arange(3.0)).shape
    (3, 2)
    """

    params: PyTree
    value: Float[Array, ""]
    training_cost: float = eqx.field(static=True)

    def __init__(self, params: PyTree, value: float = 1.0) -> None:
        self.params = arrays_of(params)
        self.value = jnp.asarray(value, jnp.result_type(float))
        self.training_cost = 0.0

    def variance(self, u: Quantity, z: PyTree) -> Float[Array, "n *u"]:
        n = cases.count(z, "z")
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), z)
        shape = eqx.filter_eval_shape(lambda p, case: as_real_array(u(p, case)), self.params, one)
        return jnp.full((n, *shape.shape), self.value, shape.dtype)

    def inference_cost(self, u: Quantity, z: PyTree | None = None) -> float:
        return 0.0
