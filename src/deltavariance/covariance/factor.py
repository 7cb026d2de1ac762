"""A Σ that is a diagonal plus an outer product of a few columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance import contraction
from deltavariance.contraction.rows import over_rows
from deltavariance.covariance.base import Covariance, block_factors
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients


class FactorCovariance(Covariance):
    """`Σ = diag(d) + B Bᵀ` with `B [P, R]`. Cost of `ΔᵀΣΔ`: P·R a case, beyond the gradient written out.

    What a leaf is reported to contribute is `Δ_l · (ΣΔ)_l`.
    """

    variances: tuple[Array, ...]
    columns: Float[Array, "P R"]
    layout: Layout = eqx.field(static=True)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        parts = over_rows(self._shares, gradients, range(len(self.layout)))
        squares = contraction.quadratic(self.variances, gradients)
        return {name: squares[number] + parts[..., number] for number, name in enumerate(self.layout.names)}

    def _shares(self, rows: Float[Array, "K b P"]) -> Float[Array, "K b L"]:
        inside = rows @ self.columns
        found = self.layout.unflatten(rows * (inside @ self.columns.T))
        shares = jnp.stack([jnp.sum(x, axis=tuple(range(2, x.ndim))) for x in found], axis=-1)
        return adding_up(shares, jnp.sum(inside**2, axis=-1))

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        joined = self.layout.flatten(leaves)
        return self.layout.unflatten(self._diagonal() * joined + (joined @ self.columns) @ self.columns.T)

    def _diagonal(self) -> Float[Array, " P"]:
        return self.layout.flatten(list(self.variances))

    @property
    def sqrt_columns(self) -> int:
        return self.layout.size + self.columns.shape[1]

    def multiply_sqrt(self, noise: Float[Array, "... Q"]) -> list[Array]:
        size = self.layout.size
        own = jnp.sqrt(self._diagonal()) * noise[..., :size]
        return self.layout.unflatten(own + noise[..., size:] @ self.columns.T)

    def logdet(self) -> Float[Array, ""]:
        """By `det(D + BBᵀ) = det D · det(I + BᵀD⁻¹B)`; minus infinity where a variance is 0."""
        diagonal = self._diagonal()
        inner = jnp.eye(self.columns.shape[1], dtype=diagonal.dtype) + self.columns.T @ (
            self.columns / diagonal[:, None]
        )
        return jnp.sum(jnp.log(diagonal)) + jnp.linalg.slogdet(inner)[1]

    def diagonal(self) -> Float[Array, " P"]:
        return self._diagonal() + jnp.sum(self.columns**2, axis=1)

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "FactorCovariance":
        chosen = block_factors(factors, self.blocks)
        each = self.layout.flatten(
            [jnp.full(shape, factor) for factor, shape in zip(chosen, self.layout.shapes, strict=True)]
        )
        variances = tuple(factor * v for factor, v in zip(chosen, self.variances, strict=True))
        return eqx.tree_at(
            lambda sigma: (sigma.variances, sigma.columns),
            self,
            (variances, self.columns * jnp.sqrt(each)[:, None]),
        )


def adding_up(shares: Float[Array, "K b L"], whole: Float[Array, "K b"]) -> Float[Array, "K b L"]:
    """Shares that sum to `whole`: rounding is put right in the largest, so that a sum of squares is never negative."""
    largest = jnp.argmax(jnp.abs(shares), axis=-1, keepdims=True)
    here = jnp.arange(shares.shape[-1]) == largest
    rest = jnp.sum(jnp.where(here, 0, shares), axis=-1, keepdims=True)
    return jnp.where(here, whole[..., None] - rest, shares)
