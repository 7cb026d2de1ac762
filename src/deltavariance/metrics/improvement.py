"""Paired differences of a score to a reference estimator, with block-bootstrap standard errors.

Cases that follow each other in time are alike, so that n of them say less than n independent ones. The
circular block bootstrap draws whole runs of neighbouring cases, both estimators on the same draws, and the
spread of the difference over the draws is its standard error.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from deltavariance.metrics.association import correlation, rank_correlation
from deltavariance.metrics.cases import Cases, as_pair
from deltavariance.metrics.intervals import calibration_error
from deltavariance.metrics.likelihood import crps, log_likelihood
from deltavariance.metrics.removal import ause, removal_auc

Score: TypeAlias = Callable[..., Any]
"""`score(errors [n, *q], variance [n, *q]) -> [*q]`, and `weights=` besides if it can weight cases."""

_HIGHER_IS_BETTER: dict[Score, bool] = {
    removal_auc: False,
    ause: False,
    crps: False,
    calibration_error: False,
    correlation: True,
    rank_correlation: True,
    log_likelihood: True,
}
_CHUNK = 2_000_000  # numbers in one array of the bootstrap: some 50 MB with the temporaries, still few steps


class Improvement(eqx.Module):
    """How much better than a reference: `difference` and `standard_error` a quantity, and on average.

    Signs are turned so that positive is better. `mean` is over all quantities; its error comes from the same
    draws, so that quantities which rise and fall together are not counted as independent.
    """

    difference: Float[Array, "*q"]
    standard_error: Float[Array, "*q"]
    score: Float[Array, "*q"]
    reference: Float[Array, "*q"]
    mean: Float[Array, ""]
    mean_standard_error: Float[Array, ""]

    def __repr__(self) -> str:
        shape = list(self.difference.shape)
        over = "" if not shape else f", mean over quantities {shape}"
        return f"Improvement({_text(self.mean)} ± {_text(self.mean_standard_error)}{over})"


def improvement(
    score: Score,
    errors: Cases,
    variance: Cases,
    reference_variance: Cases,
    *,
    key: PRNGKeyArray,
    block_length: int = 1,
    repeats: int = 200,
    reference_errors: Cases | None = None,
    reference_score: Score | None = None,
    higher_is_better: bool | None = None,
) -> Improvement:
    """The score of one estimator less that of a reference, on the same cases.

    Args:
        score: one of `dv.metrics`, a `functools.partial` of one (`partial(log_likelihood, noise=model)`), or
            an own function of errors and variance.
        block_length: how many neighbouring cases are drawn together; several times the number of cases over
            which they are alike. 1 is for independent cases.
        repeats: bootstrap draws. The standard error is itself known to about `1/√(2 repeats)`: 5 % with 200.
        reference_errors: the reference's own errors, if its prediction is another one (an ensemble's mean).
        reference_score: the score with the reference's own settings, such as its noise model.
        higher_is_better: must be given for an own score; the library's scores are known.

    >>> import jax
    >>> e = jnp.linspace(-2.0, 2.0, 40)
    >>> result = improvement(correlation, e, e**2, jnp.ones(40), key=jax.random.key(0), block_length=4)
    >>> bool(result.difference > 5 * result.standard_error)
    True
    """
    e, v = as_pair(errors, variance)
    reference_e, r = as_pair(
        e if reference_errors is None else reference_errors, reference_variance, "reference_variance"
    )
    if r.shape != v.shape:
        raise ValueError(
            f"`reference_variance` has shape {r.shape} and `variance` has shape {v.shape}; pairs are needed."
        )
    sign = 1.0 if _direction(score, higher_is_better) else -1.0
    ours, theirs = _weighted(score), _weighted(score if reference_score is None else reference_score)

    def scores(w: Float[Array, " n"]) -> tuple[Array, Array]:
        return ours(e, v, w), theirs(reference_e, r, w)

    def difference(w: Float[Array, " n"]) -> Array:
        mine, reference = scores(w)
        return sign * (mine - reference)

    mine, reference = scores(jnp.ones(e.shape[0], e.dtype))
    draws = _bootstrap(difference, e, block_length, repeats, key)
    value = sign * (mine - reference)
    return Improvement(
        difference=value,
        standard_error=jnp.std(draws, axis=0, ddof=1),
        score=mine,
        reference=reference,
        mean=jnp.mean(value),
        mean_standard_error=jnp.std(jnp.mean(draws.reshape(repeats, -1), axis=1), ddof=1),
    )


def standard_error(
    score: Score,
    errors: Cases,
    variance: Cases,
    *,
    key: PRNGKeyArray,
    block_length: int = 1,
    repeats: int = 200,
) -> Float[Array, "*q"]:
    """The block-bootstrap standard error of a score, one a quantity.

    >>> import jax
    >>> e = jnp.linspace(-2.0, 2.0, 100)
    >>> float(standard_error(lambda e, v: jnp.mean(e), e, e**2, key=jax.random.key(0)))
    0.11...
    """
    e, v = as_pair(errors, variance)
    one = _weighted(score)
    draws = _bootstrap(lambda w: one(e, v, w), e, block_length, repeats, key)
    return jnp.std(draws, axis=0, ddof=1)


def block_counts(key: PRNGKeyArray, n: int, block_length: int, repeats: int) -> Int[Array, "repeats n"]:
    """How often each of n cases stands in each draw of the circular block bootstrap; rows sum to n.

    Blocks start anywhere with equal chance and wrap around the end; the last one is cut to reach n.
    """
    blocks = -(-n // block_length)
    starts = jax.random.randint(key, (repeats, blocks, 1), 0, n)
    index = ((starts + jnp.arange(block_length)) % n).reshape(repeats, -1)[:, :n]
    return jax.vmap(functools.partial(jnp.bincount, length=n))(index)


def _bootstrap(
    statistic: Callable[[Array], Array], like: Array, block_length: int, repeats: int, key: PRNGKeyArray
) -> Float[Array, "repeats *q"]:
    n = like.shape[0]
    if not 1 <= block_length <= n // 2:
        raise ValueError(
            f"`block_length` is {block_length} for {n} cases. It must lie between 1 and half the number of"
            " cases, and a standard error worth having needs ten blocks or more."
        )
    if repeats < 2:
        raise ValueError(
            f"`repeats` is {repeats}; a standard error needs two draws at least, and 200 are usual."
        )
    chunk = max(1, min(repeats, _CHUNK // like.size))

    @jax.jit
    def run(counts: Array) -> Array:
        return jax.lax.map(statistic, counts, batch_size=chunk)

    return run(block_counts(key, n, block_length, repeats).astype(like.dtype))


def _weighted(score: Score) -> Callable[[Array, Array, Array], Array]:
    """The score as a function of counts: by its own `weights=`, or by repeating the cases."""
    if "weights" in inspect.signature(score).parameters:
        return lambda e, v, w: jnp.asarray(score(e, v, weights=w))

    def repeated(e: Array, v: Array, w: Array) -> Array:
        index = jnp.repeat(jnp.arange(e.shape[0]), w.astype(int), total_repeat_length=e.shape[0])
        return jnp.asarray(score(e[index], v[index]))

    return repeated


def _direction(score: Score, higher_is_better: bool | None) -> bool:
    if higher_is_better is not None:
        return higher_is_better
    plain = score
    while isinstance(plain, functools.partial):
        plain = plain.func
    if plain not in _HIGHER_IS_BETTER:
        name = getattr(plain, "__name__", repr(plain))
        raise ValueError(
            f"It is not known whether more is better for the score {name!r}. Say so with `higher_is_better=`."
        )
    return _HIGHER_IS_BETTER[plain]


def _text(value: Array) -> str:
    return f"{float(np.asarray(value)):.4g}" if not isinstance(value, jax.core.Tracer) else "traced"
