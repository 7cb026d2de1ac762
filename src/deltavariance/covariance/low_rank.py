"""A Σ with a few leading directions of the curvature, and one variance for everything else."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.rows import over_rows
from deltavariance.covariance.base import Covariance, block_factors
from deltavariance.covariance.factor import adding_up
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients


class LowRankCovariance(Covariance):
    """`Σ = D (V diag(s) Vᵀ + t (I − V Vᵀ)) D`: variance s_j along the R columns of V, t across all of them.

    `tail_limit` is the variance that the tail would have if the data said nothing of it (damping and prior alone):
    no tail of a semi-definite curvature can add more than `tail_limit · |Δ − VVᵀΔ|²`, which `tail_bound` returns.

    Cost of `ΔᵀΣΔ`: 4·R·P a case, beyond the gradient written out.
    """

    vectors: Float[Array, "P R"]
    variances: Float[Array, " R"]
    tail: Float[Array, ""]
    tail_limit: Float[Array, ""]
    factors: tuple[Array, ...]
    layout: Layout = eqx.field(static=True)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        parts = over_rows(self._shares, gradients, range(len(self.layout)))
        return {name: parts[..., number] for number, name in enumerate(self.layout.names)}

    def _shares(self, rows: Float[Array, "K b P"]) -> Float[Array, "K b L"]:
        scaled = rows * self._each()
        inside = scaled @ self.vectors
        across = scaled - inside @ self.vectors.T
        whole = inside**2 @ self.variances + self.tail * jnp.sum(across**2, axis=-1)
        product = (inside * self.variances) @ self.vectors.T + self.tail * across
        found = self.layout.unflatten(scaled * product)
        shares = jnp.stack([jnp.sum(x, axis=tuple(range(2, x.ndim))) for x in found], axis=-1)
        return adding_up(shares, whole)

    def tail_bound(self, rows: Float[Array, "... P"]) -> Float[Array, "..."]:
        """The most that the tail can add to `ΔᵀΣΔ`, for gradients written out (`dv.variance` counts `tail` instead)."""
        scaled = rows * self._each()
        across = scaled - (scaled @ self.vectors) @ self.vectors.T
        return self.tail_limit * jnp.sum(across**2, axis=-1)

    def _each(self) -> Float[Array, " P"]:
        return self.layout.flatten(
            [jnp.full(shape, factor) for factor, shape in zip(self.factors, self.layout.shapes, strict=True)]
        )

    def _apply(self, x: Float[Array, "... P"], along: Array, across: Array) -> Float[Array, "... P"]:
        inside = x @ self.vectors
        return across * (x - inside @ self.vectors.T) + (inside * along) @ self.vectors.T

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        each = self._each()
        return self.layout.unflatten(
            each * self._apply(each * self.layout.flatten(leaves), self.variances, self.tail)
        )

    def multiply_sqrt(self, noise: Float[Array, "... P"]) -> list[Array]:
        root = self._apply(noise, jnp.sqrt(self.variances), jnp.sqrt(self.tail))
        return self.layout.unflatten(self._each() * root)

    def logdet(self) -> Float[Array, ""]:
        rest = self.layout.size - self.variances.shape[0]
        # A tail without any direction left in it does not count, whatever its variance.
        tail = rest * jnp.log(jnp.where(rest > 0, self.tail, 1))
        return jnp.sum(jnp.log(self.variances)) + tail + 2 * jnp.sum(jnp.log(self._each()))

    def diagonal(self) -> Float[Array, " P"]:
        squares = self.vectors**2
        across = jnp.maximum(1 - jnp.sum(squares, axis=1), 0)
        return self._each() ** 2 * (self.tail * across + squares @ self.variances)

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "LowRankCovariance":
        chosen = block_factors(factors, self.blocks)
        roots = tuple(old * jnp.sqrt(jnp.asarray(new)) for old, new in zip(self.factors, chosen, strict=True))
        return eqx.tree_at(lambda sigma: sigma.factors, self, roots)
