"""Choose a damping from the variances that each would give: no gradients, no curvature, only scores."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from deltavariance.metrics.association import correlation
from deltavariance.metrics.cases import Cases, as_cases, brief, require_finite, weighted_mean
from deltavariance.metrics.families import Family, as_family
from deltavariance.metrics.noise_model import NoiseModel
from deltavariance.tune.noise import fit_noise

_AT_ONCE = 1 << 20
_TIE = 1e-5  # in units of a correlation or of nats a case; far below what validation data can tell apart


class DampingChoice(eqx.Module):
    """The damping with the best score on validation data, one a quantity or one for all.

    `scores` is the whole curve, `[dampings, *q]` (`[dampings]` if shared); `noise` is α, β fitted to the
    variance at the chosen damping. `float(choice)` is the damping where there is one.
    """

    damping: Float[Array, "..."]
    index: Int[Array, "..."]
    dampings: Float[Array, " dampings"]
    scores: Float[Array, "dampings ..."]
    noise: NoiseModel

    def select(self, variances: Cases) -> Float[Array, "n *q"]:
        """The variances at the chosen damping, from those at all dampings, for any cases."""
        curves = jnp.asarray(variances)
        if self.index.ndim == 0:
            return curves[self.index]
        return jnp.take_along_axis(curves, self.index[None, None], axis=0)[0]

    def __float__(self) -> float:
        if self.damping.ndim:
            raise TypeError(
                f"This choice holds {self.damping.size} dampings, one a quantity: use `.damping`, or choose"
                " one for all with `shared=True`."
            )
        return float(self.damping)

    def __repr__(self) -> str:
        return f"DampingChoice({brief(self.damping)}, of {len(self.dampings)} tried)"


def best_damping(
    variances: Cases,
    errors: Cases,
    dampings: Cases,
    *,
    score: str = "log_likelihood",
    family: str | Family = "laplace",
    shared: bool = False,
) -> DampingChoice:
    """The damping whose variance describes the errors best.

    Args:
        variances: `[dampings, n, *q]`, as `dv.tune.damped_variances` returns them. A variance that is not
            finite puts its damping out of question.
        errors: targets minus predictions, `[n, *q]`.
        score: "log_likelihood" with α, β ≥ 0 fitted for each damping, or "correlation" of |error| with √ν.
        shared: one damping for all quantities, by the mean score, rather than one for each.

    Scores are equal over long stretches of the grid (wherever the damping is far below or far above the
    curvature); of equal scores the damping nearest to the middle of the grid is taken, which is the inner end
    of such a stretch.

    Cost: some 30 passes over the errors for each damping with the likelihood, one with the correlation.

    >>> e = jnp.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0])
    >>> curves = jnp.stack([jnp.ones(6), e**2, 1 / e**2])
    >>> best_damping(curves, e, jnp.array([0.1, 1.0, 10.0]), score="correlation")
    DampingChoice(1., of 3 tried)
    """
    e = as_cases(errors, "errors")
    require_finite(e, "errors")
    curves, grid = jnp.asarray(variances), jnp.asarray(dampings)
    if grid.ndim != 1 or curves.shape != (*grid.shape, *e.shape):
        raise ValueError(
            f"`variances` has shape {curves.shape} for {grid.size} dampings and errors of shape {e.shape}; it"
            f" must be [dampings, n, *quantities], here {(grid.size, *e.shape)}."
        )
    chosen = as_family(family)
    if chosen is None:
        ones = jnp.ones_like(e)
        middle = jnp.where(jnp.isfinite(curves), curves, 0.0)[grid.size // 2]
        chosen = fit_noise(None, e, middle, ones, ones[(slice(None),) + (0,) * (e.ndim - 1)]).family
    scores = _scores(_score(score), chosen, curves, e)
    if shared:
        scores = jnp.mean(scores.reshape(grid.size, -1), axis=1)
    index = _inner_best(scores)
    best = DampingChoice(grid[index], index, grid, scores, NoiseModel(chosen, jnp.zeros(()), jnp.ones(())))
    fitted = _noise(chosen, best.select(curves), e)
    return eqx.tree_at(lambda c: c.noise, best, fitted)


Score = Callable[[Family, Array, Array], Array]


@eqx.filter_jit
def _scores(score: Score, family: Family, curves: Array, e: Array) -> Float[Array, "dampings *q"]:
    def one(v: Array) -> Array:
        usable = jnp.all(jnp.isfinite(v) & (v >= 0), axis=0)
        value = score(family, e, jnp.where(usable, v, 1.0))
        return jnp.where(usable & jnp.isfinite(value), value, -jnp.inf)

    # Side by side as far as the temporaries stay within some tens of megabytes.
    return lax.map(one, curves, batch_size=max(1, min(len(curves), _AT_ONCE // e.size)))


def _likelihood(family: Family, e: Array, v: Array) -> Array:
    ones = jnp.ones(e.shape[0], e.dtype)
    model = fit_noise(family, e, v, jnp.ones_like(e), ones, sketch=True)
    return weighted_mean(model.log_density(e, v), ones)


def _correlation(family: Family, e: Array, v: Array) -> Array:
    return correlation(e, v)


def _score(name: str) -> Score:
    table = {"log_likelihood": _likelihood, "correlation": _correlation}
    if name not in table:
        raise ValueError(f"There is no score {name!r} to choose a damping by; choose one of {list(table)}.")
    return table[name]


@jax.jit
def _noise(family: Family, v: Array, e: Array) -> NoiseModel:
    return fit_noise(family, e, v, jnp.ones_like(e), jnp.ones(e.shape[0], e.dtype))


def _inner_best(scores: Float[Array, "dampings *q"]) -> Int[Array, "*q"]:
    """The index of the best score; of equals, the one nearest to the middle."""
    top = jnp.max(scores, axis=0)
    equal = scores >= top - _TIE * jnp.maximum(1.0, jnp.abs(jnp.where(jnp.isfinite(top), top, 0.0)))
    middle = (scores.shape[0] - 1) / 2
    distance = np.abs(np.arange(scores.shape[0]) - middle).reshape((-1,) + (1,) * (scores.ndim - 1))
    return jnp.argmin(jnp.where(equal, distance, jnp.inf), axis=0)
