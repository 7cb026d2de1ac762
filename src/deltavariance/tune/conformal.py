"""Intervals with a finite-sample guarantee: split conformal, scaled by the Delta standard deviation."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from deltavariance.metrics.cases import Cases, as_pair, brief, known


class ConformalQuantile(eqx.Module):
    """How many standard deviations an interval must reach to hold the target with probability `level`.

    `quantile` is `[*q]`, or `[groups, *q]` with one row for each label of `groups`. Made by `conformal`.
    """

    quantile: Float[Array, "..."]
    level: float = eqx.field(static=True)
    groups: tuple[Any, ...] | None = eqx.field(static=True, default=None)

    def interval(
        self, prediction: Cases, std: Cases, *, groups: Any = None
    ) -> tuple[Float[Array, "n *q"], Float[Array, "n *q"]]:
        """`prediction ± quantile · std` for each case and quantity.

        `groups` gives the label of each case, `[n]`, and is needed if and only if the quantile has groups.
        """
        centre, scale = jnp.asarray(prediction), jnp.asarray(std)
        half = self._rows(groups) * scale
        return centre - half, centre + half

    def _rows(self, labels: Any) -> Array:
        if (labels is None) != (self.groups is None):
            has = "no groups" if self.groups is None else f"the groups {list(self.groups)}"
            raise ValueError(f"This quantile was calibrated with {has}; give `groups=` to match.")
        if self.groups is None:
            return self.quantile
        found = list(np.asarray(labels).tolist())
        unknown = sorted({str(label) for label in found if label not in self.groups})
        if unknown:
            raise ValueError(
                f"No calibration case was in the groups {unknown}: only in {list(self.groups)}. A guarantee"
                " for a group needs cases of that group."
            )
        return self.quantile[np.array([self.groups.index(label) for label in found])]

    def __repr__(self) -> str:
        by = "" if self.groups is None else f", groups={list(self.groups)}"
        return f"ConformalQuantile({brief(self.quantile)} standard deviations at level {self.level:g}{by})"


def conformal(errors: Cases, std: Cases, level: float = 0.9, *, groups: Any = None) -> ConformalQuantile:
    """Calibrate intervals `prediction ± q · std` on n cases that had no part in training or tuning.

    q is the `⌈(n + 1) level⌉`-th smallest of `|e| / std`. If the new case and the calibration cases are
    exchangeable, the interval holds its target with a probability of at least `level`, and below `level +
    1/(n + 1)` unless there are ties, whatever the model, the error distribution or the quality of `std`. A
    better `std` makes the intervals narrower where they can be. The guarantee is an average over cases; with
    `groups` it holds within each group.

    Args:
        errors: targets minus predictions, `[n, *q]`.
        std: a positive scale for each, `[n, *q]`: `dv.variance(...) ** 0.5`, or the root of
            `noise.total(variance)`, which knows of the noise as well.
        level: the probability asked for. At least `level / (1 − level)` cases are needed (9 for 0.9) in each
            group.
        groups: a label for each case, `[n]`, as integers or strings.

    >>> import jax
    >>> e = jax.random.normal(jax.random.key(0), (999,))
    >>> calibrated = conformal(e, jnp.ones(999), level=0.9)
    >>> low, high = calibrated.interval(jnp.zeros(2), jnp.array([1.0, 2.0]))
    >>> bool(abs(high[0] - 1.645) < 0.15), float(high[1] / high[0])
    (True, 2.0)
    """
    if not 0 < level < 1:
        raise ValueError(
            f"`level` is {level}; the probability inside an interval lies between 0 and 1, as in 0.9."
        )
    e, s = as_pair(errors, std, "std")
    if known(s) and not bool(jnp.all(s > 0)):
        raise ValueError(
            f"`std` is zero in {int(jnp.sum(s == 0))} places. Every case needs a positive scale: add the"
            " noise with `jnp.sqrt(noise.total(variance))`, or a small constant."
        )
    scores = jnp.abs(e) / s
    if groups is None:
        return ConformalQuantile(_quantile(scores, level, "all cases"), level)
    labels = np.asarray(groups)
    if labels.shape != (e.shape[0],):
        raise ValueError(f"`groups` has shape {labels.shape} for {e.shape[0]} cases; give one label a case.")
    names = tuple(np.unique(labels).tolist())
    rows = [_quantile(scores[np.flatnonzero(labels == name)], level, f"group {name!r}") for name in names]
    return ConformalQuantile(jnp.stack(rows), level, names)


def _quantile(scores: Float[Array, "n *q"], level: float, where: str) -> Float[Array, "*q"]:
    n = scores.shape[0]
    # Rounded first: (n + 1)·level may come out a hair above the whole number that it is.
    rank = math.ceil(round((n + 1) * level, 9))
    if rank > n:
        needed = math.ceil(round(level / (1 - level), 9))
        raise ValueError(
            f"There are {n} calibration cases in {where}, and a guarantee at level {level} needs at least"
            f" {needed}."
        )
    return jnp.sort(scores, axis=0)[rank - 1]


def finite_sample_level(n: int, level: float) -> ArrayLike:
    """The probability the interval has with n exchangeable cases, no ties: `⌈(n + 1) level⌉/(n + 1)`."""
    return math.ceil(round((n + 1) * level, 9)) / (n + 1)
