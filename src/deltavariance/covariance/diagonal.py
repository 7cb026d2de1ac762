"""A diagonal Σ: one variance a parameter."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance import contraction
from deltavariance.covariance.base import Covariance, block_factors
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients


class DiagonalCovariance(Covariance):
    """`Σ = diag(variances)`; `variances[l]` has the shape of leaf l.

    Cost of `ΔᵀΣΔ`: one gradient, and as much again as the products that would have formed the weight gradients.
    """

    variances: tuple[Array, ...]
    layout: Layout = eqx.field(static=True)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        parts = contraction.quadratic(self.variances, gradients)
        return dict(zip(self.layout.names, parts, strict=True))

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        return [variance * leaf for variance, leaf in zip(self.variances, leaves, strict=True)]

    def multiply_sqrt(self, noise: Float[Array, "... P"]) -> list[Array]:
        leaves = self.layout.unflatten(noise)
        return [jnp.sqrt(variance) * leaf for variance, leaf in zip(self.variances, leaves, strict=True)]

    def logdet(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(self.diagonal()))

    def diagonal(self) -> Float[Array, " P"]:
        return self.layout.flatten(list(self.variances))

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "DiagonalCovariance":
        chosen = block_factors(factors, self.blocks)
        variances = tuple(factor * variance for factor, variance in zip(chosen, self.variances, strict=True))
        return DiagonalCovariance(variances=variances, layout=self.layout)
