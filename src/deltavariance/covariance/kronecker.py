"""A Σ with one block a leaf, each diagonal in an orthogonal basis that is a Kronecker product."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.basis import Basis
from deltavariance.contraction.kronecker import Weight, full, rotated_quadratic
from deltavariance.contraction.separable import Separable
from deltavariance.covariance.base import Covariance, block_factors
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients


class Piece(eqx.Module):
    """One piece of a leaf: `Σ = (L ⊗ R) diag(S) (L ⊗ R)ᵀ` in the frame of a product."""

    basis: Basis
    variances: Weight

    def multiply(self, leaf: Array, shape: Sequence[int]) -> Array:
        rotated = self.basis.rotate(self.basis.enter(leaf, shape))
        return self.basis.leave(self.basis.unrotate(full(self.variances) * rotated), shape)

    def multiply_sqrt(self, noise: Array, shape: Sequence[int]) -> Array:
        scaled = jnp.sqrt(full(self.variances)) * self.basis.enter(noise, shape)
        return self.basis.leave(self.basis.unrotate(scaled), shape)

    def diagonal(self, shape: Sequence[int]) -> Array:
        squared = Basis(
            None if self.basis.left is None else jnp.swapaxes(self.basis.left**2, 1, 2),
            None if self.basis.right is None else jnp.swapaxes(self.basis.right**2, 1, 2),
            self.basis.path,
            self.basis.frame,
        )
        return self.basis.leave(squared.rotate(full(self.variances)), shape)

    def logdet(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(full(self.variances)))

    def scale(self, factor: Any) -> "Piece":
        if isinstance(self.variances, Separable):
            return Piece(self.basis, Separable(self.variances.left, factor * self.variances.right))
        return Piece(self.basis, factor * self.variances)


class KroneckerCovariance(Covariance):
    """`Σ` = one block a leaf, kept as eigenvectors of its two sides and a variance for each pair of them.

    `block_quadratic` costs, beyond one gradient, I² + O² multiplications a use to rotate its factors and I·O for the
    squares; a rotation of the gradient's product instead where that is less.
    """

    pieces: tuple[tuple[Piece, ...], ...]
    kinds: tuple[str, ...] = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        return {
            name: rotated_quadratic([(piece.basis, piece.variances) for piece in pieces], gradients, number)
            for number, (name, pieces) in enumerate(zip(self.layout.names, self.pieces, strict=True))
        }

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        return self._each(lambda piece, leaf, shape: piece.multiply(leaf, shape), leaves)

    def multiply_sqrt(self, noise: Float[Array, "... P"]) -> list[Array]:
        return self._each(
            lambda piece, leaf, shape: piece.multiply_sqrt(leaf, shape), self.layout.unflatten(noise)
        )

    def logdet(self) -> Float[Array, ""]:
        terms = [piece.logdet() for pieces in self.pieces for piece in pieces]
        return sum(terms[1:], terms[0])

    def diagonal(self) -> Float[Array, " P"]:
        blank = [jnp.zeros(())] * len(self.layout)
        return self.layout.flatten(self._each(lambda piece, _, shape: piece.diagonal(shape), blank))

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "KroneckerCovariance":
        chosen = block_factors(factors, self.blocks)
        return KroneckerCovariance(
            pieces=tuple(
                tuple(piece.scale(factor) for piece in pieces)
                for factor, pieces in zip(chosen, self.pieces, strict=True)
            ),
            kinds=self.kinds,
            layout=self.layout,
        )

    def _each(
        self, function: Callable[[Piece, Array, Sequence[int]], Array], leaves: Sequence[Array]
    ) -> list[Array]:
        results = []
        for pieces, leaf, shape in zip(self.pieces, leaves, self.layout.shapes, strict=True):
            first, *rest = [function(piece, leaf, shape) for piece in pieces]
            results.append(sum(rest, first))
        return results
