"""Scores on the hold-out cases, with the draws of a block bootstrap that all estimators share."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import deltavariance as dv

from .estimates import Estimate, Judged

SCORES = ("auc", "correlation", "log_likelihood")
AT_ONCE = 4_000_000  # numbers of one chunk of draws


@dataclass(frozen=True)
class Scored:
    """Scores of one estimator, `[1 + draws, quantities]` each: on the cases as they are, then on each draw.

    Higher is better in all three: `auc` is minus the removal AUC, in units of the mean absolute error.
    """

    auc: Float[np.ndarray, "draws quantities"]
    correlation: Float[np.ndarray, "draws quantities"]
    log_likelihood: Float[np.ndarray, "draws quantities"]


def draws_of(n: int, block_length: int, repeats: int, seed: int) -> Int[np.ndarray, "draws n"]:
    """How often each case counts: once each, and then in every draw."""
    counts = dv.metrics.block_counts(jax.random.key(seed), n, block_length, repeats)
    return np.concatenate([np.ones((1, n), np.int32), np.asarray(counts, np.int32)])


def score(estimate: Estimate, judged: Judged, counts: Int[np.ndarray, "draws n"]) -> Scored:
    """The three scores on every draw."""
    errors = judged.errors_test if estimate.errors is None else estimate.errors
    chunk = max(1, AT_ONCE // errors.size)
    auc, correlation, likelihood = _scores(
        jnp.asarray(errors),
        jnp.asarray(estimate.test),
        estimate.noise,
        jnp.asarray(counts, jnp.float32),
        chunk,
    )
    return Scored(-np.asarray(auc), np.asarray(correlation), np.asarray(likelihood))


@eqx.filter_jit
def _scores(
    errors: Float[Array, "n q"],
    variance: Float[Array, "n q"],
    noise: dv.metrics.NoiseModel,
    counts: Float[Array, "draws n"],
    chunk: int,
) -> Any:
    def one(weights: Float[Array, " n"]) -> tuple[Array, Array, Array]:
        return (
            dv.metrics.removal_auc(errors, variance, weights=weights),
            dv.metrics.correlation(errors, variance, weights=weights),
            dv.metrics.log_likelihood(errors, variance, noise, weights=weights),
        )

    return jax.lax.map(one, counts, batch_size=chunk)


@dataclass(frozen=True)
class Difference:
    """The mean of a score over some quantities, less the reference's, and its standard error."""

    value: float
    reference: float
    difference: float
    standard_error: float


def difference(
    own: Float[np.ndarray, "draws quantities"],
    reference: Float[np.ndarray, "draws quantities"],
    chosen: Int[np.ndarray, " k"],
) -> Difference:
    """Over the chosen quantities. Both on the same draws, so that what they share cancels."""
    mine, theirs = own[:, chosen].mean(1, dtype=np.float64), reference[:, chosen].mean(1, dtype=np.float64)
    gap = mine - theirs
    return Difference(float(mine[0]), float(theirs[0]), float(gap[0]), float(np.std(gap[1:], ddof=1)))
