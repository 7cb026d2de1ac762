"""A full Σ: every covariance of every two parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.covariance.base import Covariance, block_factors
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients


class DenseCovariance(Covariance):
    """`Σ = S Sᵀ` with both Σ and its square root S kept, so that a draw or a product costs P² and no factorisation."""

    matrix: Float[Array, "P P"]
    root: Float[Array, "P P"]
    layout: Layout = eqx.field(static=True)

    @staticmethod
    def of(matrix: Float[Array, "P P"], layout: Layout) -> "DenseCovariance":
        """From a symmetric positive semi-definite matrix; its negative eigenvalues, if any, are an error."""
        values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
        floor = -1e-5 * jnp.max(jnp.abs(values))
        if not isinstance(values, jax.core.Tracer) and bool(values[0] < floor):
            raise ValueError(
                f"Σ must be positive semi-definite, and the matrix given has the eigenvalue {float(values[0]):.3g}."
            )
        return DenseCovariance(matrix=matrix, root=vectors * jnp.sqrt(jnp.maximum(values, 0)), layout=layout)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        rows = gradients.rows()
        shares = self.layout.unflatten(rows * (rows @ self.matrix))
        return {
            name: jnp.sum(share, axis=tuple(range(2, share.ndim)))
            for name, share in zip(self.layout.names, shares, strict=True)
        }

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        return self.layout.unflatten(self.layout.flatten(leaves) @ self.matrix)

    def multiply_sqrt(self, noise: Float[Array, "... P"]) -> list[Array]:
        return self.layout.unflatten(noise @ self.root.T)

    def logdet(self) -> Float[Array, ""]:
        return jnp.linalg.slogdet(self.matrix)[1]

    def diagonal(self) -> Float[Array, " P"]:
        return jnp.diagonal(self.matrix)

    def to_dense(self) -> Float[Array, "P P"]:
        return self.matrix

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "DenseCovariance":
        chosen = block_factors(factors, self.blocks)
        roots = self.layout.flatten(
            [
                jnp.full(shape, jnp.sqrt(factor))
                for factor, shape in zip(chosen, self.layout.shapes, strict=True)
            ]
        )
        return DenseCovariance(
            matrix=self.matrix * roots[:, None] * roots, root=self.root * roots[:, None], layout=self.layout
        )
