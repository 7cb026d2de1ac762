"""Scores of intervals and the probabilities behind them: coverage, width, calibration, spread and skill."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from deltavariance.metrics.cases import Cases, Weights, as_cases, as_pair, as_weights, weighted_mean
from deltavariance.metrics.families import Family
from deltavariance.metrics.noise_model import NoiseModel, as_noise


def coverage(
    targets: Cases,
    lower: Cases,
    upper: Cases,
    *,
    weights: Weights = None,
) -> Float[Array, "*q"]:
    """The share of targets inside `[lower, upper]`; take the bounds from any `interval` of the library.

    >>> float(coverage(jnp.array([0.0, 1.0, 2.0, 9.0]), jnp.zeros(4), jnp.full(4, 3.0)))
    0.75
    """
    y = as_cases(targets, "targets")
    low, high = _bounds(lower, upper, y)
    inside = ((y >= low) & (y <= high)).astype(y.dtype)
    return weighted_mean(inside, as_weights(weights, y))


def width(lower: Cases, upper: Cases, *, weights: Weights = None) -> Float[Array, "*q"]:
    """The mean width of the intervals. Of two that cover alike the narrower is better.

    >>> float(width(jnp.array([0.0, 0.0]), jnp.array([1.0, 3.0])))
    2.0
    """
    first = as_cases(lower, "lower")
    low, high = _bounds(lower, upper, first)
    return weighted_mean(high - low, as_weights(weights, first))


def calibration_error(
    errors: Cases,
    variance: Cases,
    noise: NoiseModel | Family | str | None = None,
    *,
    levels: Float[ArrayLike, " levels"] | None = None,
    aleatoric: Cases | None = None,
    weights: Weights = None,
) -> Float[Array, "*q"]:
    """Mean distance between what central intervals promise and what they hold; 0 is perfect, ½ the worst.

    `mean over levels ℓ of |share of errors inside the central ℓ-interval − ℓ|`, with ℓ = 0.05, 0.10 ... 0.95
    unless given. The expectation over n independent cases of a perfect model is not 0 but of order `0.3/√n`.

    >>> float(calibration_error(jnp.array([0.0, 0.0, 0.0]), jnp.array([1.0, 1.0, 1.0])))
    0.5
    """
    e, v = as_pair(errors, variance)
    model = as_noise(noise)
    w = as_weights(weights, e)
    share = jnp.linspace(0.05, 0.95, 19) if levels is None else jnp.asarray(levels)
    # P(|E| ≤ |e|): a case lies inside the central interval of every level above this one.
    central = 2 * model.family.cdf(jnp.abs(e), model.total(v, aleatoric)) - 1

    def gap(level: Array) -> Array:
        return jnp.abs(weighted_mean((central <= level).astype(e.dtype), w) - level)

    return jnp.mean(jax.lax.map(gap, share.astype(e.dtype)), axis=0)


def spread_skill(
    errors: Cases,
    variance: Cases,
    noise: NoiseModel | Family | str | None = None,
    *,
    aleatoric: Cases | None = None,
    weights: Weights = None,
) -> Float[Array, "*q"]:
    """Spread over skill, `√(mean s) / √(mean e²)` with `s = α + β ν`: 1 if sizes are right, below 1 if
    overconfident.

    >>> float(spread_skill(jnp.array([2.0, -2.0]), jnp.array([1.0, 1.0])))
    0.5
    """
    e, v = as_pair(errors, variance)
    w = as_weights(weights, e)
    s = as_noise(noise).total(v, aleatoric)
    return jnp.sqrt(weighted_mean(s, w)) / jnp.sqrt(weighted_mean(e**2, w))


class SpreadSkillCurve(eqx.Module):
    """Root mean variance (`spread`) and root mean square error (`skill`) in groups of cases of like variance.

    Both are `[bins, *q]`, the least uncertain group first. Sizes are right where the two are equal in every
    group.
    """

    spread: Float[Array, "bins *q"]
    skill: Float[Array, "bins *q"]


def spread_skill_curve(errors: Cases, variance: Cases, *, bins: int = 10) -> SpreadSkillCurve:
    """Spread against skill over groups of equally many cases, in order of the variance (the first groups are
    larger by one case if n is not a multiple of `bins`).

    >>> curve = spread_skill_curve(jnp.array([1.0, 1.0, 3.0, 3.0]), jnp.array([1.0, 1.0, 9.0, 9.0]), bins=2)
    >>> curve.spread, curve.skill
    (Array([1., 3.], dtype=float32), Array([1., 3.], dtype=float32))
    """
    e, v = as_pair(errors, variance)
    if not 1 <= bins <= e.shape[0]:
        raise ValueError(f"`bins` is {bins} for {e.shape[0]} cases; give at least one case a bin.")
    index = jnp.argsort(v, axis=0, stable=True)
    parts_v = jnp.array_split(jnp.take_along_axis(v, index, axis=0), bins)
    parts_e = jnp.array_split(jnp.take_along_axis(e**2, index, axis=0), bins)
    return SpreadSkillCurve(
        spread=jnp.sqrt(jnp.stack([part.mean(axis=0) for part in parts_v])),
        skill=jnp.sqrt(jnp.stack([part.mean(axis=0) for part in parts_e])),
    )


def _bounds(lower: ArrayLike, upper: ArrayLike, like: Array) -> tuple[Array, Array]:
    low, high = jnp.asarray(lower), jnp.asarray(upper)
    if low.shape != high.shape or low.shape != like.shape:
        raise ValueError(
            f"`lower` has shape {low.shape} and `upper` {high.shape}, for targets of shape {like.shape}; all"
            " must be [n, *quantities]."
        )
    return low, high
