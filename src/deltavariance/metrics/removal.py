"""How fast the error falls as the most uncertain cases are taken away: removal AUC, AUSE, sparsification."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from deltavariance.metrics.cases import Cases, Weights, as_pair, as_weights


def removal_auc(errors: Cases, variance: Cases, *, weights: Weights = None) -> Float[Array, "*q"]:
    """The paper's AUC: the mean absolute error left, averaged over how many of the most uncertain were
    removed.

    With the cases ordered by falling variance, `(1/n) Σ_{k=0}^{n−1} mean(|e| of the n − k cases left)`.
    **Lower is better**; an order that says nothing gives the mean absolute error, so dividing by that
    compares quantities of different units. Only the order of the variances matters. Cases of equal variance
    count as removed in random order (the expectation over it is taken exactly), so a constant variance has no
    luck with the order of the data.

    Args:
        errors: target minus prediction.
        variance: predicted variance, or anything that orders the cases alike.
        weights: how often each case stands in the data, `[n]`; twice is the same as repeating it.

    Cost: one sort a quantity.

    >>> float(removal_auc(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.1, 0.2, 0.3])))
    1.5
    >>> float(removal_auc(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 0.5, 0.5])))
    2.0
    """
    e, v = as_pair(errors, variance)
    left, mass = _falling(jnp.abs(e), v, as_weights(weights, e))
    return _area(left, mass)


def ause(errors: Cases, variance: Cases, *, weights: Weights = None) -> Float[Array, "*q"]:
    """Area under the sparsification error: removal AUC less that of the perfect order, over the mean error.

    `(removal_auc(e, ν) − removal_auc(e, |e|)) / mean |e|`: 0 is perfect, lower is better, free of units.

    >>> float(ause(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 4.0, 9.0])))
    0.0
    """
    e, v = as_pair(errors, variance)
    w = as_weights(weights, e)
    size = jnp.abs(e)
    left, mass = _falling(size, v, w)
    best, best_mass = _falling(size, size, w)
    total = left[0] / mass[0]
    return jnp.where(
        total > 0, (_area(left, mass) - _area(best, best_mass)) / jnp.where(total > 0, total, 1.0), 0.0
    )


class SparsificationCurve(eqx.Module):
    """The mean absolute error left after a fraction of the cases is removed, most uncertain first.

    `error` follows the predicted variance and `oracle` the true |e|; both are `[fractions, *q]`, in the units
    of the errors. `random` is what is left without any knowledge, `[*q]`.
    """

    fraction: Float[Array, " fractions"]
    error: Float[Array, "fractions *q"]
    oracle: Float[Array, "fractions *q"]
    random: Float[Array, "*q"]

    @property
    def sparsification_error(self) -> Float[Array, "fractions *q"]:
        """The curve less the oracle's, in units of the mean error: zero where the order is perfect."""
        return (self.error - self.oracle) / self.random


def sparsification_curve(
    errors: Cases,
    variance: Cases,
    *,
    fractions: Float[ArrayLike, " fractions"] | None = None,
    weights: Weights = None,
) -> SparsificationCurve:
    """The whole curve behind `removal_auc` and `ause`.

    Args:
        fractions: shares of the cases to remove, in [0, 1); 0, 0.01 ... 0.99 by default. A share that is no
            whole number of cases removes a part of the next one.

    >>> e = jnp.array([1.0, 2.0, 3.0, 4.0])
    >>> curve = sparsification_curve(e, e**2, fractions=jnp.array([0.0, 0.5]))
    >>> curve.error
    Array([2.5, 1.5], dtype=float32)
    """
    e, v = as_pair(errors, variance)
    w = as_weights(weights, e)
    size = jnp.abs(e)
    share = jnp.linspace(0, 0.99, 100) if fractions is None else jnp.asarray(fractions)
    share = share.astype(e.dtype)
    left, mass = _falling(size, v, w)
    best, best_mass = _falling(size, size, w)
    return SparsificationCurve(share, _at(share, left, mass), _at(share, best, best_mass), left[0] / mass[0])


def _falling(
    size: Float[Array, "n *q"], order: Float[Array, "n *q"], weights: Float[Array, " n"]
) -> tuple[Float[Array, "m *q"], Float[Array, "m *q"]]:
    """Sum of errors and of weights still there before the k-th removal, k = 0..n (m = n + 1).

    Within a group of ties both fall in a straight line, which is the expectation over all orders of the
    group.
    """
    index = jnp.argsort(-order, axis=0, stable=True)
    ranked = jnp.take_along_axis(order, index, axis=0)
    w = weights[index]
    error = _sums_from_below(w * jnp.take_along_axis(size, index, axis=0))
    mass = _sums_from_below(w)

    first, last = tie_bounds(ranked)
    top, bottom = (jnp.take_along_axis(mass, k, axis=0) for k in (first, last))
    error_top, error_bottom = (jnp.take_along_axis(error, k, axis=0) for k in (first, last))
    span = top - bottom
    t = jnp.where(span > 0, (top - mass[:-1]) / jnp.where(span > 0, span, 1.0), 0.0)
    straight = error_top + t * (error_bottom - error_top)
    return jnp.concatenate([straight, error[-1:]]), mass


def _sums_from_below(values: Float[Array, "n *q"]) -> Float[Array, "m *q"]:
    """What is left before each removal, with a zero at the end."""
    return jnp.concatenate([jnp.cumsum(values[::-1], axis=0)[::-1], jnp.zeros_like(values[:1])])


def tie_bounds(ranked: Float[Array, "n *q"]) -> tuple[Array, Array]:
    """For each place, the first place of its group of equals and the first place after it."""
    n = ranked.shape[0]
    place = jnp.arange(n).reshape((n,) + (1,) * (ranked.ndim - 1))
    change = ranked[1:] != ranked[:-1]
    edge = jnp.ones_like(ranked[:1], dtype=bool)
    starts = jnp.concatenate([edge, change])
    ends = jnp.concatenate([change, edge])
    first = lax.cummax(jnp.where(starts, place, 0), axis=0)
    last = lax.cummin(jnp.where(ends, place + 1, n), axis=0, reverse=True)
    return first, last


def _area(left: Float[Array, "m *q"], mass: Float[Array, "m *q"]) -> Float[Array, "*q"]:
    """The mean over removals of the error left.

    A case of weight w stands for w removals, `Σ_{j=1}^{w} (S + j ē)/(W + j)` with S, W what is left after it.
    The sum is `w ē + (S − ē W)(ψ(W + w + 1) − ψ(W + 1))`, which holds for whole weights and joins them
    smoothly.
    """
    after, below = left[1:], mass[1:]
    lost, w = left[:-1] - after, mass[:-1] - below
    safe = jnp.where(w > 0, w, 1.0)
    area = lost + (after - lost * below / safe) * _digamma_step(below + 1, w)
    return jnp.sum(jnp.where(w > 0, area, 0.0), axis=0) / mass[0]


def _digamma_step(x: Array, w: Array) -> Array:
    """`ψ(x + w) − ψ(x)` for x ≥ 1 without cancellation: ten recurrence steps, then Stirling's series."""
    shifted = sum(w / ((x + k) * (x + w + k)) for k in range(10))
    low, high = x + 10, x + 10 + w
    series = sum(c * (low**-p - high**-p) for p, c in ((1, 1 / 2), (2, 1 / 12), (4, -1 / 120), (6, 1 / 252)))
    return shifted + jnp.log1p(w / low) + series


def _at(
    share: Float[Array, " f"], left: Float[Array, "m *q"], mass: Float[Array, "m *q"]
) -> Float[Array, "f *q"]:
    """The mean error left once a share of the weight is gone, by interpolation of the sums."""

    def column(left: Float[Array, " m"], mass: Float[Array, " m"]) -> Float[Array, " f"]:
        remaining = (1 - share) * mass[0]
        return jnp.interp(remaining, mass[::-1], left[::-1]) / remaining

    columns = jax.vmap(column, in_axes=1, out_axes=1)(
        left.reshape(left.shape[0], -1), mass.reshape(mass.shape[0], -1)
    )
    return columns.reshape(share.shape + left.shape[1:])
