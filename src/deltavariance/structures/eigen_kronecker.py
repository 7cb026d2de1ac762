"""EKFAC: KFAC's eigenvectors, with eigenvalues of their own from a second pass over the data."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.basis import Basis
from deltavariance.contraction.kronecker import rotated_square_sum
from deltavariance.covariance.damped import damped
from deltavariance.covariance.kronecker import KroneckerCovariance
from deltavariance.parameters import Layout
from deltavariance.structures.base import Structure
from deltavariance.structures.kronecker import Kronecker, Moments, add_pieces
from deltavariance.structures.prior import precisions
from deltavariance.tracing import ExampleGradients

Eigenvalues = list[tuple[Array, ...]]


class EigenKronecker(Kronecker):
    """Kronecker-factored eigenvectors with exact eigenvalues (EKFAC).

    The first pass over the data is `Kronecker`'s. In the basis `U = U_A ⊗ U_G` that results, the second pass sums the
    squares `(Uᵀ Δ)²`: the exact diagonal of `Uᵀ C U`, and so the best that this basis can hold, never further from C
    in Frobenius norm than KFAC is. Damping and prior are exact, and changing them takes no new decomposition.

    Fit: two passes, of one gradient and I² + O² multiplications a use each, and one decomposition.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"w": jnp.ones((2, 1))}
    >>> def log_likelihood(p, example):
    ...     return -0.5 * jnp.sum((example["x"] @ p["w"] - example["y"]) ** 2)
    >>> data = {"x": jnp.array([[1.0, 0.0], [0.0, 2.0]]), "y": jnp.zeros((2, 1))}
    >>> F = dv.fisher(log_likelihood, params, data, structure=dv.EigenKronecker())
    >>> F.diagonal().tolist()
    [0.5, 8.0]
    """

    def next_pass(self, mean: Moments, layout: Layout) -> "InBasis":
        return InBasis(
            tuple(tuple(moment.spectrum()[0] for moment in moments) for moments in mean),
            tuple(self.kinds_of(mean)),
        )


class InBasis(Structure):
    """The diagonal of the curvature in a given basis for each piece of each leaf."""

    bases: tuple[tuple[Basis, ...], ...]
    names_of_kinds: tuple[str, ...] = eqx.field(static=True)

    def statistic(self, gradients: ExampleGradients, weights: Float[Array, "K B"]) -> Eigenvalues:
        weights = jnp.broadcast_to(weights, (gradients.components, gradients.cases))
        return [
            tuple(rotated_square_sum(bases, gradients, number, weights))
            for number, bases in enumerate(self.bases)
        ]

    def covariance(
        self, mean: Eigenvalues, layout: Layout, *, damping: Any, prior_precision: Any, num_data: Any
    ) -> KroneckerCovariance:
        prior = precisions(prior_precision, layout)
        pieces = tuple(
            tuple(
                damped(basis, eigenvalues, damping, tau, num_data, name, shape)
                for basis, eigenvalues in zip(bases, found, strict=True)
            )
            for bases, found, tau, name, shape in zip(
                self.bases, mean, prior, layout.names, layout.shapes, strict=True
            )
        )
        return KroneckerCovariance(pieces=pieces, kinds=self.names_of_kinds, layout=layout)

    def diagonal(self, mean: Eigenvalues, layout: Layout) -> list[Array]:
        return add_pieces(self.bases, mean, layout)

    def kinds(self, mean: Eigenvalues, layout: Layout) -> dict[str, str]:
        """How each leaf is kept, as `Kronecker.kinds`."""
        return dict(zip(layout.names, self.names_of_kinds, strict=True))
