"""Keep everything: the full matrix."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.rows import outer_sum
from deltavariance.covariance.base import LARGEST_DENSE
from deltavariance.covariance.block import SpectralCovariance
from deltavariance.covariance.definite import Spectrum, semidefinite_variances
from deltavariance.parameters import Layout
from deltavariance.structures.base import Structure
from deltavariance.structures.block import block_spectrum, refuse, vectors_of
from deltavariance.structures.prior import precisions
from deltavariance.tracing import ExampleGradients


class Dense(Structure):
    """The full curvature matrix `[P, P]`: exact, and refused above `limit` parameters.

    Fit: P² multiplications an example beyond one gradient. The eigendecomposition (about 10 P³, in float64) is made
    at the first `inverse` and kept: another damping, N, or prior that is one number costs P.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"w": jnp.zeros(2)}
    >>> def log_likelihood(p, example):
    ...     return -0.5 * (example["x"] @ p["w"] - example["y"]) ** 2
    >>> data = {"x": jnp.array([[1.0, 1.0], [1.0, -1.0]]), "y": jnp.array([1.0, 2.0])}
    >>> F = dv.fisher(log_likelihood, params, data, structure=dv.Dense())
    >>> F.mean.tolist()
    [[2.5, -1.5], [-1.5, 2.5]]
    """

    limit: int = eqx.field(static=True, default=LARGEST_DENSE)

    def check(self, layout: Layout) -> None:
        """Raise, before anything is allocated, if the matrix is too large."""
        refuse(layout.size, self.limit, "all of them")

    def statistic(self, gradients: ExampleGradients, weights: Float[Array, "K B"]) -> Float[Array, "P P"]:
        self.check(gradients.layout)
        return outer_sum(gradients, weights, range(len(gradients.layout)))

    def spectra(
        self, mean: Float[Array, "P P"], layout: Layout, *, prior_precision: Any, num_data: Any
    ) -> list[Spectrum]:
        """The eigenpairs of `C + prior_precision/N`."""
        prior = precisions(prior_precision, layout)
        return [block_spectrum(mean, layout, prior, range(len(layout)), "all", num_data)]

    def covariance(
        self, mean: Float[Array, "P P"], layout: Layout, *, damping: Any, prior_precision: Any, num_data: Any
    ) -> SpectralCovariance:
        spectra = self.spectra(mean, layout, prior_precision=prior_precision, num_data=num_data)
        return self.assemble(spectra, [semidefinite_variances(spectra[0].values, damping, num_data)], layout)

    def assemble(
        self, spectra: Sequence[Spectrum], variances: Sequence[Array], layout: Layout
    ) -> SpectralCovariance:
        """Σ from eigenvectors and the variances along them."""
        return SpectralCovariance.of(vectors_of(spectra[0]), variances[0], layout)

    def diagonal(self, mean: Float[Array, "P P"], layout: Layout) -> list[Array]:
        return layout.unflatten(jnp.diagonal(mean))
