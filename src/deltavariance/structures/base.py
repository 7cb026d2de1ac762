"""What a structure is: which statistics of per-example gradients it keeps, and which Σ they become."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from deltavariance.covariance import Covariance
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients

Statistic = Any


class Structure(eqx.Module):
    """How a curvature matrix `C = Σ_n w_n Δ_n Δ_nᵀ / Σ_n w_n` is kept, and inverted.

    Statistics are pytrees that add up over batches and workers.
    """

    @abc.abstractmethod
    def statistic(self, gradients: ExampleGradients, weights: Float[Array, "K B"]) -> Statistic:
        """This structure's share of `Σ_{k,b} w[k,b] Δ[k,b] Δ[k,b]ᵀ`."""

    @abc.abstractmethod
    def covariance(
        self, mean: Statistic, layout: Layout, *, damping: Any, prior_precision: Any, num_data: Any
    ) -> Covariance:
        """`(C + damping·I + prior_precision/N)⁻¹ / N` from the mean statistic."""

    @abc.abstractmethod
    def diagonal(self, mean: Statistic, layout: Layout) -> list[Array]:
        """The diagonal of C, leaf by leaf."""

    def next_pass(self, mean: Statistic, layout: Layout) -> "Structure | None":
        """The structure to accumulate in another pass over the data, if this one needs it."""
        return None
