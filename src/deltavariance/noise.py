"""How large the noise is, estimated from the residuals of a trained model.

The noise is part of the likelihood: if it is taken c times too small, `F⁻¹/N` comes out `c⁴` times too small
and `H⁻¹/N` `c²` times. With several outputs its correlations count as much as its size.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from deltavariance.cases import batches
from deltavariance.likelihood.base import Predict, Split, match_target, split_example
from deltavariance.likelihood.factor_analysis import factor_analysis, shrinkage_of_pairs, shrinkage_of_rows
from deltavariance.likelihood.noise_estimate import NoiseEstimate
from deltavariance.likelihood.noise_models import FullCovariance, LowRankCovariance
from deltavariance.likelihood.residual_moments import CrossSums, Sketch, SquareSums

__all__ = ["Common", "Full", "LowRank", "NoiseEstimate", "PerOutput", "estimate_noise"]

_LARGEST_FULL = 512  # outputs up to which the whole covariance is the default, and a sketch is exact


@dataclass(frozen=True)
class Common:
    """One standard deviation for all outputs, which are independent."""

    def sums(self, size: int) -> SquareSums:
        return SquareSums(size)

    def estimate(self, sums: SquareSums, freedom: float, shape: tuple[int, ...]) -> NoiseEstimate:
        scale = math.sqrt(sums.square.sum() / (sums.weight.sum() * freedom))
        return NoiseEstimate(scale, jnp.full(shape, scale), sums.total)


@dataclass(frozen=True)
class PerOutput:
    """One standard deviation per output; the outputs are independent."""

    def sums(self, size: int) -> SquareSums:
        return SquareSums(size)

    def estimate(self, sums: SquareSums, freedom: float, shape: tuple[int, ...]) -> NoiseEstimate:
        scale = jnp.asarray(np.sqrt(_variances(sums, freedom)).reshape(shape))
        return NoiseEstimate(scale, scale, sums.total)


@dataclass(frozen=True)
class Full:
    """The covariance across all k outputs, its correlations shrunk towards zero.

    `shrinkage` is the part that is taken away, between 0 and 1; None estimates it from how noisy the
    correlations are. Costs O(N k²) time and O(k²) memory.
    """

    shrinkage: int | float | None = None

    def sums(self, size: int) -> CrossSums:
        return CrossSums(size)

    def estimate(self, sums: CrossSums, freedom: float, shape: tuple[int, ...]) -> NoiseEstimate:
        pairs = np.maximum(sums.pairs, 1e-300)
        covariance = sums.cross / (pairs * freedom)
        variances = _variances(sums, freedom)
        amount = self.shrinkage
        if amount is None:
            amount = shrinkage_of_pairs(sums.cross / pairs, sums.fourth / pairs, sums.pairs)
        spread = np.sqrt(variances)
        rho = (1.0 - amount) * covariance / np.outer(spread, spread)
        np.fill_diagonal(rho, 1.0)
        if sums.pairs.min() < sums.pairs.max():
            rho = _nearest_correlation(
                rho
            )  # pairs that were seen in different examples may contradict each other
        largest = float(np.linalg.eigvalsh(rho)[-1])
        scale = jnp.asarray(spread.reshape(shape))
        noise = FullCovariance.of(np.outer(spread, spread) * rho)
        return NoiseEstimate(noise, scale, sums.total, float(amount), largest)


@dataclass(frozen=True)
class LowRank:
    """A diagonal plus `rank` common factors, by maximum likelihood from one pass over the residuals.

    For fields on a grid and other outputs too many for a full covariance. `shrinkage` as in `Full`. The pass
    keeps the `max(4 rank, rank + 64)` leading directions (all of them up to 512 outputs); costs O(N k (rank +
    64)) time.
    """

    rank: int = 16
    shrinkage: int | float | None = None

    def sums(self, size: int) -> Sketch:
        rows = size if size <= _LARGEST_FULL else min(size, max(4 * self.rank, self.rank + 64))
        return Sketch(size, rows)

    def estimate(self, sums: Sketch, freedom: float, shape: tuple[int, ...]) -> NoiseEstimate:
        unit = sums.unit if sums.unit is not None else np.ones_like(sums.square)
        variances = _variances(sums, freedom) / unit**2
        basis = sums.basis / math.sqrt(sums.total)
        amount = self.shrinkage
        if amount is None:
            amount = shrinkage_of_rows(basis, sums.row_fourth / sums.total, sums.total)
        rank = min(self.rank, variances.size)
        own, factor = factor_analysis(basis / math.sqrt(freedom), variances, rank)
        own = own + amount * np.sum(factor**2, axis=1)
        factor = math.sqrt(1.0 - amount) * factor
        spread = np.sqrt(variances)
        largest = _largest_eigenvalue(own / variances, factor / spread[:, None])
        noise = LowRankCovariance(own * unit**2, factor * unit[:, None])
        return NoiseEstimate(
            noise, jnp.asarray((spread * unit).reshape(shape)), sums.total, float(amount), largest
        )


def estimate_noise(
    f: Predict,
    params: Any,
    data: Any,
    *,
    structure: Common | PerOutput | Full | LowRank | None = None,
    weights: ArrayLike | Iterable[ArrayLike] | None = None,
    num_parameters: int | float = 0,
    split: Split | None = None,
    allow_missing: bool = False,
    batch_size: int = 512,
) -> NoiseEstimate:
    """The noise around `f(params, x)`, from the residuals `y - f(params, x)` on `data`.

    `σ̂² = Σ w r² / (N - p/k)` with k outputs a case; residuals are not centred, since the likelihood is
    centred at f.

    - `data`: a pytree with a leading axis of N examples, or an iterable of such batches (read once). Held-out
      data are best: a network that has nearly interpolated its training data left residuals there that are
      far too small.
    - `structure`: `dv.noise.Common()`, `PerOutput()`, `Full()` or `LowRank(rank)`. By default a number for
      one output, the full covariance for up to 512 outputs, low rank beyond.
    - `weights`: how often each example counts, [N], or an iterable that goes with the batches; 0 masks an
      example.
    - `num_parameters`: p, the (effective) number of parameters that were fitted to these same data, 0 on
      held-out data.
    - `split`: from an example to `(x, y)`, where it is not a pair or a dictionary with the keys "x" and "y".
    - `allow_missing`: a NaN in y marks an output that was not observed, otherwise NaN is an error.

    Cost: one forward pass over the data, in chunks of `batch_size`, plus the structure's own.

    >>> import jax, jax.numpy as jnp
    >>> x = jnp.linspace(-1.0, 1.0, 1000)
    >>> y = 2.0 * x + 0.1 * jax.random.normal(jax.random.key(0), (1000,))
    >>> noise = estimate_noise(lambda params, x: params * x, jnp.array(2.0), (x, y))
    >>> print(f"{float(noise):.2f}")
    0.10
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` should be at least 1; got {batch_size}.")
    if num_parameters < 0:
        raise ValueError(f"`num_parameters` should not be negative; got {num_parameters}.")
    sums: Any = None
    shape: tuple[int, ...] = ()
    for batch in batches(data, weights, lambda _: batch_size):
        index, weight = batch.number, np.asarray(batch.weights, dtype=np.float64)
        chunk = np.asarray(_residuals(f, split, params, batch.cases), dtype=np.float64)
        if sums is None:
            shape = chunk.shape[1:]
            structure = structure or _default(math.prod(shape))
            sums = structure.sums(math.prod(shape))
        elif chunk.shape[1:] != shape:
            raise ValueError(
                f"Batch {index} has outputs of shape {chunk.shape[1:]}, the ones before of shape {shape}."
            )
        kept = weight > 0  # what is padded or masked may hold anything, NaN included
        chunk = chunk[kept].reshape(int(kept.sum()), math.prod(shape))
        _check_chunk(chunk, index, allow_missing)
        if len(chunk):
            sums.add(chunk, weight[kept])
    if sums is None or sums.total <= 0:
        raise ValueError(
            "`data` holds no example (or all weights are zero), so there are no residuals to learn from."
        )
    assert structure is not None
    freedom = 1.0 - num_parameters / (sums.total * sums.square.size)
    if freedom <= 0:
        raise ValueError(
            f"`num_parameters={num_parameters}` leaves no degree of freedom: there are {sums.total:g}"
            f" examples of {sums.square.size} outputs. Estimate the noise from held-out data, where nothing"
            " was fitted."
        )
    _check_spread(sums)
    return structure.estimate(sums, freedom, shape)


@eqx.filter_jit
def _residuals(f: Predict, split: Split | None, params: Any, batch: Any) -> Float[Array, "b ..."]:
    def one(example: Any) -> Array:
        x, y = split_example(example, split)
        output = jnp.asarray(f(params, x))
        output = output.astype(jnp.result_type(output, jnp.float32))
        return match_target(output, y) - output

    return jax.vmap(one)(batch)


def _default(size: int) -> Common | Full | LowRank:
    if size == 1:
        return Common()
    return Full() if size <= _LARGEST_FULL else LowRank()


def _variances(sums: SquareSums, freedom: float) -> Float[np.ndarray, " k"]:
    return sums.square / (sums.weight * freedom)


def _check_chunk(chunk: Float[np.ndarray, "b k"], index: int, allow_missing: bool) -> None:
    bad = np.isinf(chunk) if allow_missing else ~np.isfinite(chunk)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{int(bad.sum())} residuals of batch {index} are NaN or infinite, the first in its example"
            f" {row}, output {column}. If a NaN in the targets marks what was not observed, pass"
            " `allow_missing=True`; a weight of 0 leaves an example out."
        )


def _check_spread(sums: SquareSums) -> None:
    unseen, flat = np.flatnonzero(sums.weight <= 0), np.flatnonzero(sums.square <= 0)
    if unseen.size:
        raise ValueError(
            f"Output {int(unseen[0])} was never observed (NaN in every example): leave it out of the targets."
        )
    if flat.size:
        raise ValueError(
            f"The residuals of output {int(flat[0])} are all exactly zero, so its noise would be zero."
            " Estimate it from held-out data, or leave an output that is constant out of the targets."
        )


def _nearest_correlation(rho: Float[np.ndarray, "k k"], smallest: float = 1e-4) -> Float[np.ndarray, "k k"]:
    """Eigenvalues raised to a smallest one, and the diagonal brought back to one."""
    eigenvalues, vectors = np.linalg.eigh(rho)
    if eigenvalues[0] >= smallest:
        return rho
    lifted = (vectors * np.maximum(eigenvalues, smallest)) @ vectors.T
    spread = np.sqrt(np.diag(lifted))
    return lifted / np.outer(spread, spread)


def _largest_eigenvalue(own: Float[np.ndarray, " k"], factor: Float[np.ndarray, "k r"]) -> float:
    """Of diag(own) + factor factorᵀ, by power iteration from the factor's leading direction."""
    if factor.shape[1] == 0:
        return float(own.max())
    vector = np.linalg.svd(factor, full_matrices=False)[0][:, 0]
    value = 0.0
    for _ in range(100):
        image = own * vector + factor @ (factor.T @ vector)
        value = float(np.linalg.norm(image))
        vector = image / value
    return value
