"""Whether the larger errors come with the larger predictions: Pearson and Spearman correlation."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance.metrics.cases import Cases, Weights, as_pair, as_weights, weighted_mean
from deltavariance.metrics.removal import tie_bounds


def correlation(errors: Cases, variance: Cases, *, weights: Weights = None) -> Float[Array, "*q"]:
    """Pearson's correlation over the cases of |error| with the predicted standard deviation, `corr(|e|, √ν)`.

    Higher is better. Where one of the two is constant the correlation is not defined; 0 is returned, since a
    constant prediction knows nothing of the error.

    >>> float(correlation(jnp.array([1.0, -2.0, 3.0]), jnp.array([1.0, 4.0, 9.0])))
    1.0
    """
    e, v = as_pair(errors, variance)
    return _pearson(jnp.abs(e), jnp.sqrt(v), as_weights(weights, e))


def rank_correlation(errors: Cases, variance: Cases, *, weights: Weights = None) -> Float[Array, "*q"]:
    """Spearman's correlation over the cases of |error| with the predicted variance; ties share their mean
    rank.

    Higher is better; 0 where either is constant. Cost: two sorts a quantity.

    >>> float(rank_correlation(jnp.array([1.0, -2.0, 3.0]), jnp.array([0.1, 0.2, 10.0])))
    1.0
    """
    e, v = as_pair(errors, variance)
    w = as_weights(weights, e)
    return _pearson(_ranks(jnp.abs(e), w), _ranks(v, w), w)


def _pearson(x: Float[Array, "n *q"], y: Float[Array, "n *q"], w: Float[Array, " n"]) -> Float[Array, "*q"]:
    """Weighted Pearson correlation, each side brought to its own scale so that no square underflows."""
    x, y = (_standard(side, w) for side in (x, y))
    return jnp.clip(weighted_mean(x * y, w), -1.0, 1.0)


def _standard(x: Float[Array, "n *q"], w: Float[Array, " n"]) -> Float[Array, "n *q"]:
    """`x` with weighted mean 0 and variance 1, or all zeros where it is constant but for rounding."""
    size = jnp.max(jnp.abs(x), axis=0)
    scaled = x / jnp.where(size > 0, size, 1.0)
    centred = scaled - weighted_mean(scaled, w)
    spread = jnp.sqrt(weighted_mean(centred**2, w))
    varies = spread > 8 * float(np.finfo(x.dtype).eps)
    return jnp.where(varies, centred / jnp.where(varies, spread, 1.0), 0.0)


def _ranks(x: Float[Array, "n *q"], weights: Float[Array, " n"]) -> Float[Array, "n *q"]:
    """Mean ranks, where a case of weight w takes up w places."""
    index = jnp.argsort(x, axis=0, stable=True)
    ranked = jnp.take_along_axis(x, index, axis=0)
    up_to = jnp.concatenate([jnp.zeros_like(x[:1]), jnp.cumsum(weights[index], axis=0)])
    first, last = tie_bounds(ranked)
    middle = 0.5 * (jnp.take_along_axis(up_to, first, axis=0) + jnp.take_along_axis(up_to, last, axis=0))
    back = jnp.argsort(index, axis=0)
    return jnp.take_along_axis(middle, back, axis=0)
