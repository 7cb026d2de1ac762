"""Delta Variances of the last layer alone."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from deltavariance.covariance import Covariance
from deltavariance.curvature.fisher import fisher
from deltavariance.estimators.base import BACKWARD, Estimator, PyTree, Quantity, arrays_of, components
from deltavariance.parameters import Layout, Where
from deltavariance.structures import EigenKronecker, Structure
from deltavariance.variance import variance


class LastLayer(Estimator):
    """`ΔᵀΣΔ` with only the parameters that `where` selects uncertain, and `Σ = (F + damping·I)⁻¹/N` over them.

    Cheap, since no gradient runs through the rest, and blind to what the rest might have been.

    Args:
        log_likelihood, data: as for `dv.fisher`.
        where: the last layer, as in `where=lambda p: p["head"]`.
        structure: `EigenKronecker()` by default; a last layer of few parameters affords a full matrix.

    Training: a pass and the products of one layer. Inference: one pass, and a backward pass through the layer.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"body": jnp.array(2.0), "head": jnp.array([1.0])}
    >>> predict = lambda p, x: jnp.sum(p["head"] * jnp.tanh(p["body"] * x))
    >>> data = (jnp.linspace(-1, 1, 20), jnp.linspace(-1, 1, 20))
    >>> estimator = LastLayer(params, dv.gaussian_log_likelihood(predict, scale=0.1), data, where=lambda p: p["head"])
    >>> estimator.variance(predict, jnp.array([0.0, 1.0])).shape
    (2,)
    """

    params: PyTree
    sigma: Covariance
    training_cost: float = eqx.field(static=True)

    def __init__(
        self,
        params: PyTree,
        log_likelihood: Callable[[Any, Any], Any],
        data: PyTree,
        *,
        where: Where | Layout,
        structure: Structure | None = None,
        damping: Any = 1e-8,
        prior_precision: Any = None,
        **options: Any,
    ) -> None:
        if where is None:
            raise ValueError(
                "Say which layer is the last with `where=`, a function from the parameters to a part of them, as in"
                " `where=lambda p: p['head']`."
            )
        self.params = arrays_of(params)
        chosen = EigenKronecker() if structure is None else structure
        F = fisher(log_likelihood, self.params, data, where=where, structure=chosen, **options)
        self.sigma = F.inverse(damping, prior_precision=prior_precision)
        self.training_cost = 1 + BACKWARD * self._share

    @property
    def _share(self) -> float:
        """The part of a backward pass that a layer takes, by its parameters: exact where each is used equally often."""
        return self.sigma.layout.size / Layout.of(self.params).size

    def variance(self, u: Quantity, z: PyTree, **options: Any) -> Float[Array, "n *u"]:
        return variance(u, self.params, z, self.sigma, **options)

    def inference_cost(self, u: Quantity, z: PyTree | None = None) -> float:
        return 1 + BACKWARD * self._share * components(u, self.params, z)
