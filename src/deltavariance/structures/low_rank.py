"""Keep the leading eigenpairs, and the trace for the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance import contraction
from deltavariance.contraction.rows import sum_over_rows
from deltavariance.covariance.definite import Spectrum, semidefinite_variances
from deltavariance.covariance.low_rank import LowRankCovariance
from deltavariance.parameters import Layout
from deltavariance.structures.base import Structure
from deltavariance.structures.prior import precisions
from deltavariance.tracing import ExampleGradients

Sketch = tuple[Float[Array, "P S"], Float[Array, ""]]


class LowRank(Structure):
    """The `rank` leading eigenpairs of C, and a constant for all other directions that keeps the trace.

    By randomised range finding: C meets `rank + oversampling` random directions, then twice (`powers`) those that
    come out, orthonormalised; the eigenpairs are Ritz pairs of the last ones. Each is a pass over the data. Exact
    where C has no more than `rank` eigenvalues other than 0 or the tail is constant.

    The prior must be one number. The tail has variance `1/(N(c + damping) + prior)`, with c the mean of the
    remaining eigenvalues; `LowRankCovariance.tail_bound` says how much the tail could add at the most.

    Fit: `powers + 1` passes, of 4·S·P multiplications an example each. Memory: S·P numbers.
    """

    rank: int = eqx.field(static=True)
    oversampling: int = eqx.field(static=True, default=8)
    powers: int = eqx.field(static=True, default=2)
    key: PRNGKeyArray | None = None
    directions: Float[Array, "P S"] | None = None
    passes: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, and it is {self.rank}.")

    def start(self, layout: Layout) -> Float[Array, "P S"]:
        """The directions of this pass: random ones in the first."""
        if self.directions is not None:
            return self.directions
        columns = min(self.rank + self.oversampling, layout.size)
        key = jax.random.key(0) if self.key is None else self.key
        return jax.random.rademacher(key, (layout.size, columns), layout.dtypes[0])

    def statistic(self, gradients: ExampleGradients, weights: Float[Array, "K B"]) -> Sketch:
        """`Σ w Δ ΔᵀQ` and `Σ w |Δ|²`."""
        directions = self.start(gradients.layout)

        def some(rows: Array, w: Array) -> Array:
            flat = jnp.reshape(rows, (-1, rows.shape[-1]))
            return flat.T @ (jnp.reshape(w, (-1, 1)) * (flat @ directions))

        sketch: Array = sum_over_rows(some, gradients, weights, range(len(gradients.layout)))
        weights = jnp.broadcast_to(weights, (gradients.components, gradients.cases))
        squares = contraction.square_sum(gradients, weights)
        return sketch, sum((jnp.sum(x) for x in squares), jnp.zeros(()))

    def next_pass(self, mean: Sketch, layout: Layout) -> "LowRank | None":
        if self.passes >= self.powers:
            return None
        directions, _ = jnp.linalg.qr(mean[0])
        return LowRank(self.rank, self.oversampling, self.powers, self.key, directions, self.passes + 1)

    def of_hessian(
        self, accumulate: Callable[..., Any], products: Callable[..., Any], layout: Layout
    ) -> tuple["LowRank", Sketch, Array]:
        """The same for a matrix that is known by its products: structure, statistic, and Σw."""
        current = self
        trace: Array | None = None
        while True:
            directions = current.start(layout)
            found, weight = accumulate(products, directions.T)
            if trace is None:
                # Signs: E vᵀHv is the trace.
                trace = jnp.mean(jnp.sum(directions.T * found, axis=1))
            mean = (found.T, trace)
            following = current.next_pass(mean, layout)
            if following is None:
                return current, mean, weight
            current = following

    def spectra(self, mean: Sketch, layout: Layout, *, prior_precision: Any, num_data: Any) -> list[Spectrum]:
        """The leading eigenpairs, and the tail's eigenvalue, of `C + prior_precision/N`."""
        prior = precisions(prior_precision, layout)
        if any(tau is not prior[0] or tau.size != 1 for tau in prior):
            raise ValueError(
                "A low-rank curvature holds its tail as one number, so `prior_precision` must be one number too. Use"
                " `dv.Dense()`, `dv.Block()` or `dv.Diagonal()` for one that differs between parameters."
            )
        shift = jnp.reshape(prior[0], ()) / num_data
        directions = self.start(layout)
        sketch, trace = mean
        small = directions.T @ sketch
        values, rotation = jnp.linalg.eigh((small + small.T) / 2)
        leading = jnp.argsort(-jnp.abs(values))[: self.rank]
        vectors, values = directions @ rotation[:, leading], values[leading]
        rest = max(layout.size - values.shape[0], 1)
        tail = jnp.maximum((trace - jnp.sum(values)) / rest, 0)
        everything = tuple(range(len(layout)))
        return [
            Spectrum(values + shift, vectors, everything, "leading"),
            Spectrum(jnp.stack([tail + shift, shift]), None, (), "tail"),
        ]

    def covariance(
        self, mean: Sketch, layout: Layout, *, damping: Any, prior_precision: Any, num_data: Any
    ) -> LowRankCovariance:
        spectra = self.spectra(mean, layout, prior_precision=prior_precision, num_data=num_data)
        variances = [semidefinite_variances(found.values, damping, num_data) for found in spectra]
        return self.assemble(spectra, variances, layout)

    def assemble(
        self, spectra: Sequence[Spectrum], variances: Sequence[Array], layout: Layout
    ) -> LowRankCovariance:
        """Σ from eigenvectors, the variances along them, and the tail's: as it is, and were it nothing."""
        assert spectra[0].vectors is not None
        return LowRankCovariance(
            vectors=spectra[0].vectors,
            variances=variances[0],
            tail=variances[1][0],
            tail_limit=variances[1][1],
            factors=(jnp.ones(()),) * len(layout),
            layout=layout,
        )

    def diagonal(self, mean: Sketch, layout: Layout) -> list[Array]:
        """The diagonal of the leading part and the tail together; its sum is the trace."""
        leading, tail = self.spectra(mean, layout, prior_precision=None, num_data=1.0)
        assert leading.vectors is not None
        squares = leading.vectors**2
        rest = jnp.maximum(1 - jnp.sum(squares, axis=1), 0)
        return layout.unflatten(squares @ leading.values + tail.values[0] * rest)
