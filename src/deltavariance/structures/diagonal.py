"""Keep the diagonal only."""

from typing import Any

from jaxtyping import Array, Float

from deltavariance import contraction
from deltavariance.covariance import DiagonalCovariance
from deltavariance.parameters import Layout
from deltavariance.structures.base import Structure
from deltavariance.structures.prior import precisions
from deltavariance.tracing import ExampleGradients


class Diagonal(Structure):
    """The diagonal of the curvature: P numbers, one gradient's price to fit and to use."""

    def statistic(self, gradients: ExampleGradients, weights: Float[Array, "K B"]) -> list[Array]:
        return contraction.square_sum(gradients, weights)

    def covariance(
        self, mean: list[Array], layout: Layout, *, damping: Any, prior_precision: Any, num_data: Any
    ) -> DiagonalCovariance:
        prior = precisions(prior_precision, layout)
        variances = tuple(1 / (num_data * (c + damping) + tau) for c, tau in zip(mean, prior, strict=True))
        return DiagonalCovariance(variances=variances, layout=layout)

    def diagonal(self, mean: list[Array], layout: Layout) -> list[Array]:
        return mean
