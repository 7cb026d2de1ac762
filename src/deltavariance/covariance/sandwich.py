"""`B F B · N` without writing it out: for curvatures whose structures do not combine."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.rows import over_rows
from deltavariance.covariance.base import Covariance, block_factors
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients


class SandwichCovariance(Covariance):
    """`Σ = N · D B F B D` with `B = H⁻¹/N` (`bread`), F (`meat`) and a factor for each leaf in D.

    Nothing of the product is stored. Cost of `ΔᵀΣΔ`: the gradient written out, and a multiplication by each of B and
    F. What a leaf is reported to contribute is `(BΔ)_l · (FBΔ)_l`.
    """

    bread: Covariance
    meat: Covariance
    num_data: Float[Array, ""]
    factors: tuple[Array, ...]
    layout: Layout = eqx.field(static=True)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        parts = over_rows(self._shares, gradients, range(len(self.layout)))
        return {name: parts[..., number] for number, name in enumerate(self.layout.names)}

    def _shares(self, rows: Float[Array, "K b P"]) -> Float[Array, "K b L"]:
        inside = self.bread.multiply(self._scaled(self.layout.unflatten(rows)))
        products = self.meat.multiply(inside)
        shares = [jnp.sum(x * y, axis=tuple(range(2, x.ndim))) for x, y in zip(inside, products, strict=True)]
        return self.num_data * jnp.stack(shares, axis=-1)

    def _scaled(self, leaves: Sequence[Array]) -> list[Array]:
        return [factor * leaf for factor, leaf in zip(self.factors, leaves, strict=True)]

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        inside = self.meat.multiply(self.bread.multiply(self._scaled(leaves)))
        return self._scaled([self.num_data * leaf for leaf in self.bread.multiply(inside)])

    @property
    def sqrt_columns(self) -> int:
        return self.meat.sqrt_columns

    def multiply_sqrt(self, noise: Float[Array, "... R"]) -> list[Array]:
        inside = self.bread.multiply(self.meat.multiply_sqrt(noise))
        return self._scaled([jnp.sqrt(self.num_data) * leaf for leaf in inside])

    def logdet(self) -> Float[Array, ""]:
        size = self.layout.size
        stretched = sum(
            2 * n * jnp.log(factor) for n, factor in zip(self.layout.sizes, self.factors, strict=True)
        )
        return 2 * self.bread.logdet() + self.meat.logdet() + size * jnp.log(self.num_data) + stretched

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "SandwichCovariance":
        chosen = block_factors(factors, self.blocks)
        roots = tuple(old * jnp.sqrt(jnp.asarray(new)) for old, new in zip(self.factors, chosen, strict=True))
        return eqx.tree_at(lambda sigma: sigma.factors, self, roots)
