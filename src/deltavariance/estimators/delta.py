"""Delta Variances, and the gradient alone."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from deltavariance.covariance import Covariance, as_covariance
from deltavariance.estimators.base import BACKWARD, Estimator, PyTree, Quantity, arrays_of, components
from deltavariance.parameters import Where
from deltavariance.variance import variance


class DeltaVariance(Estimator):
    """`ΔᵀΣΔ`, as an estimator beside its rivals.

    Training: the fit of Σ; three plain passes (one gradient) unless `training_cost` says otherwise. Inference: one
    forward pass, and a backward one for each component of u.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"slope": jnp.array(2.0)}
    >>> estimator = DeltaVariance(params, dv.as_covariance(params, 0.01))
    >>> print(estimator.variance(lambda p, z: p["slope"] * z, jnp.array([1.0, 3.0])))
    [0.01 0.09]
    """

    params: PyTree
    sigma: Covariance
    training_cost: float = eqx.field(static=True)

    def __init__(self, params: PyTree, sigma: Covariance, *, training_cost: float = 1 + BACKWARD) -> None:
        self.params, self.sigma, self.training_cost = arrays_of(params), sigma, training_cost
        sigma.layout.check(self.params)

    def variance(self, u: Quantity, z: PyTree, **options: Any) -> Float[Array, "n *u"]:
        return variance(u, self.params, z, self.sigma, **options)

    def inference_cost(self, u: Quantity, z: PyTree | None = None) -> float:
        return 1 + BACKWARD * components(u, self.params, z)


class GradientNorm(Estimator):
    """`|Δ|²`, that is Σ = I: what the gradient knows without any data.

    A baseline: a Σ that is not better than this earns nothing. Its scale means nothing either; only ranks, or a
    noise model fitted on validation data, can be compared.
    """

    params: PyTree
    sigma: Covariance
    training_cost: float = eqx.field(static=True)

    def __init__(self, params: PyTree, *, where: Where = None) -> None:
        self.params = arrays_of(params)
        self.sigma = as_covariance(self.params, 1.0, where=where)
        self.training_cost = 0.0

    def variance(self, u: Quantity, z: PyTree, **options: Any) -> Float[Array, "n *u"]:
        return variance(u, self.params, z, self.sigma, **options)

    def inference_cost(self, u: Quantity, z: PyTree | None = None) -> float:
        return 1 + BACKWARD * components(u, self.params, z)
