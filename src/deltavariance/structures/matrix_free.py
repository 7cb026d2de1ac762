"""Keep nothing but how to multiply by the curvature."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lineax
from jaxtyping import Array, Float

from deltavariance.covariance.matrix_free import MatrixFreeCovariance, Operator
from deltavariance.parameters import Layout
from deltavariance.structures.base import Structure
from deltavariance.structures.prior import precisions
from deltavariance.tracing import ExampleGradients


class MatrixFree(Structure):
    """Nothing is stored: products with Σ are solved by conjugate gradients (`lineax.CG`, or the `solver` given).

    The curvature holds on to the parameters and the data, which must be arrays in memory. The residual of a solve is
    `sigma.residual(vectors)`. Conjugate gradients want a positive definite matrix: state a damping or a prior.

    Fit: nothing. Use: a pass over the data for each step of each solve.
    """

    solver: Any = eqx.field(static=True, default_factory=lambda: lineax.CG(rtol=1e-6, atol=0.0))

    def statistic(self, gradients: ExampleGradients, weights: Float[Array, "K B"]) -> Any:
        raise TypeError(
            "`MatrixFree` keeps no statistic of gradients, only the data. Use it with `dv.hessian` or"
            " `dv.gauss_newton`, or"
            " choose `dv.LowRank(rank)` here."
        )

    def covariance(
        self, mean: Operator, layout: Layout, *, damping: Any, prior_precision: Any, num_data: Any
    ) -> MatrixFreeCovariance:
        prior = precisions(prior_precision, layout)
        dtype = layout.dtypes[0]
        shift = layout.flatten(
            [
                jnp.broadcast_to(damping + tau / num_data, shape).astype(dtype)
                for tau, shape in zip(prior, layout.shapes, strict=True)
            ]
        )
        return MatrixFreeCovariance(
            operator=mean,
            shift=shift,
            num_data=num_data,
            solver=self.solver,
            factors=(jnp.ones((), dtype),) * len(layout),
            layout=layout,
        )

    def diagonal(self, mean: Operator, layout: Layout) -> list[Array]:
        """By P products: small cases."""
        size = layout.size
        columns = [mean(jnp.zeros(size, layout.dtypes[0]).at[i].set(1))[i] for i in range(size)]
        return layout.unflatten(jnp.stack(columns))
