"""A Σ with a dense block for each group of leaves, kept as eigenvectors and the variances along them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.rows import over_rows
from deltavariance.covariance.base import Covariance, block_factors
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients


class BlockCovariance(Covariance):
    """`Σ = V diag(s) Vᵀ` for each group of leaves, nothing between the groups; its blocks are the groups.

    No product of Σ can be negative or lose its small eigenvalues: `ΔᵀΣΔ = Σ_i s_i (v_i·Δ)²`. Cost: G² a case, beyond
    the gradient written out.
    """

    vectors: tuple[Array, ...]  # [G, G] each
    variances: tuple[Array, ...]  # [G] each
    members: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    @property
    def blocks(self) -> tuple[str, ...]:
        return self.names

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        parts = {}
        for number, name in enumerate(self.names):
            squares = functools.partial(_squares, self.vectors[number], self.variances[number])
            parts[name] = over_rows(squares, gradients, self.members[number])
        return parts

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        joined = [joined_leaves(leaves, self.layout, members) for members in self.members]
        return self._apart(
            [((x @ v) * s) @ v.T for x, v, s in zip(joined, self.vectors, self.variances, strict=True)]
        )

    def multiply_sqrt(self, noise: Float[Array, "... P"]) -> list[Array]:
        leaves = self.layout.unflatten(noise)
        joined = [joined_leaves(leaves, self.layout, members) for members in self.members]
        return self._apart(
            [(x * jnp.sqrt(s)) @ v.T for x, v, s in zip(joined, self.vectors, self.variances, strict=True)]
        )

    def logdet(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(jnp.concatenate(self.variances)))

    def diagonal(self) -> Float[Array, " P"]:
        return self.layout.flatten(
            self._apart([v**2 @ s for v, s in zip(self.vectors, self.variances, strict=True)])
        )

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "BlockCovariance":
        chosen = block_factors(factors, self.blocks)
        variances = tuple(factor * s for factor, s in zip(chosen, self.variances, strict=True))
        return eqx.tree_at(lambda sigma: sigma.variances, self, variances)

    def _apart(self, joined: Sequence[Array]) -> list[Array]:
        leaves: dict[int, Array] = {}
        for x, members in zip(joined, self.members, strict=True):
            leaves |= zip(members, split_leaves(x, self.layout, members), strict=True)
        return [leaves[number] for number in range(len(self.layout))]


class SpectralCovariance(Covariance):
    """A full `Σ = D V diag(s) Vᵀ D`, kept as eigenvectors V, variances s, and a factor for each leaf in D.

    Its blocks are the leaves; what a leaf is reported to contribute, `Δ_l · (ΣΔ)_l`, holds its covariances with the
    others and may be negative. Cost of `ΔᵀΣΔ`: P² a case, beyond the gradient written out.
    """

    vectors: Float[Array, "P P"]
    variances: Float[Array, " P"]
    factors: tuple[Float[Array, ""], ...]
    layout: Layout = eqx.field(static=True)

    @staticmethod
    def of(
        vectors: Float[Array, "P P"], variances: Float[Array, " P"], layout: Layout
    ) -> "SpectralCovariance":
        factors = (jnp.ones((), variances.dtype),) * len(layout)
        return SpectralCovariance(vectors=vectors, variances=variances, factors=factors, layout=layout)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        parts = over_rows(self._shares, gradients, range(len(self.layout)))
        return {name: parts[..., number] for number, name in enumerate(self.layout.names)}

    def _shares(self, rows: Float[Array, "K b P"]) -> Float[Array, "K b L"]:
        """`Δ_l · (ΣΔ)_l` of each leaf, made to sum to the sum of squares, which rounding cannot turn negative."""
        scaled = rows * self._each()
        inside = scaled @ self.vectors
        whole = inside**2 @ self.variances
        if len(self.layout) == 1:
            return whole[..., None]
        shares = self.layout.unflatten(scaled * ((inside * self.variances) @ self.vectors.T))
        found = jnp.stack([jnp.sum(x, axis=tuple(range(2, x.ndim))) for x in shares], axis=-1)
        largest = jnp.argmax(jnp.abs(found), axis=-1, keepdims=True)
        here = jnp.arange(len(self.layout)) == largest
        rest = jnp.sum(jnp.where(here, 0, found), axis=-1, keepdims=True)
        return jnp.where(here, whole[..., None] - rest, found)

    def _each(self) -> Float[Array, " P"]:
        return self.layout.flatten(
            [jnp.full(shape, factor) for factor, shape in zip(self.factors, self.layout.shapes, strict=True)]
        )

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        each = self._each()
        inside = ((self.layout.flatten(leaves) * each) @ self.vectors) * self.variances
        return self.layout.unflatten((inside @ self.vectors.T) * each)

    def multiply_sqrt(self, noise: Float[Array, "... P"]) -> list[Array]:
        return self.layout.unflatten(((noise * jnp.sqrt(self.variances)) @ self.vectors.T) * self._each())

    def logdet(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(self.variances)) + 2 * jnp.sum(jnp.log(self._each()))

    def diagonal(self) -> Float[Array, " P"]:
        return (self.vectors**2 @ self.variances) * self._each() ** 2

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "SpectralCovariance":
        chosen = block_factors(factors, self.blocks)
        roots = tuple(
            factor * jnp.sqrt(jnp.asarray(f)) for factor, f in zip(self.factors, chosen, strict=True)
        )
        return eqx.tree_at(lambda sigma: sigma.factors, self, roots)


def _squares(vectors: Array, variances: Array, rows: Float[Array, "K b G"]) -> Float[Array, "K b"]:
    return (rows @ vectors) ** 2 @ variances


def joined_leaves(leaves: Sequence[Array], layout: Layout, members: Sequence[int]) -> Float[Array, "... G"]:
    """The leaves `members`, any leading axes in common, as one vector."""
    return jnp.concatenate(
        [
            jnp.reshape(leaves[n], (*leaves[n].shape[: leaves[n].ndim - len(layout.shapes[n])], -1))
            for n in members
        ],
        axis=-1,
    )


def split_leaves(joined: Float[Array, "... G"], layout: Layout, members: Sequence[int]) -> list[Array]:
    """The inverse of `joined_leaves`."""
    found, start = [], 0
    for number in members:
        stop = start + layout.sizes[number]
        found.append(jnp.reshape(joined[..., start:stop], (*joined.shape[:-1], *layout.shapes[number])))
        start = stop
    return found
