"""Variances of every estimator on validation and hold-out cases, hyper-parameters chosen on validation alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import deltavariance as dv

Variances = Float[np.ndarray, "n quantities"]


@dataclass(frozen=True)
class Estimate:
    """One estimator's variances in units of the squared typical error, and how the error follows from them.

    `kind` is delta, sampled or baseline. `chosen` says which hyper-parameters validation chose, one a quantity
    where there is a choice. `noise` holds α and β of the Laplace likelihood, fitted on validation. `errors` are the
    estimator's own on the hold-out cases where its forecast is another one than the base model's.
    """

    name: str
    kind: str
    validation: Variances
    test: Variances
    noise: dv.metrics.NoiseModel
    chosen: tuple[float, ...] = ()
    errors: Variances | None = None


@dataclass(frozen=True)
class Judged:
    """What all estimators are held against: forecasts and truths on both splits, in units of typical errors.

    `unit` is the mean absolute error of each quantity on validation.
    """

    errors_validation: Variances
    errors_test: Variances
    unit: Float[np.ndarray, " quantities"]

    @classmethod
    def of(cls, forecast: Variances, target: Variances, validation: int) -> "Judged":
        """From forecasts and truths of validation and then hold-out cases; the first `validation` are the former."""
        errors = np.asarray(target, np.float64) - np.asarray(forecast, np.float64)
        unit = np.mean(np.abs(errors[:validation]), axis=0)
        if not np.all(unit > 0):
            raise ValueError(
                "The forecast of some quantity is always right on the validation cases, so there is nothing to "
                f"score (quantity {int(np.flatnonzero(~(unit > 0))[0])})."
            )
        scaled = (errors / unit).astype(np.float32)
        return cls(scaled[:validation], scaled[validation:], unit)

    @property
    def count(self) -> int:
        return len(self.errors_validation)


def plain(
    judged: Judged, name: str, kind: str, variance: Any, *, errors: Variances | None = None
) -> Estimate:
    """An estimator without hyper-parameters; `variance` `[validation + hold-out, quantities]` in squared units of u.

    `errors`, of both splits in physical units, where the estimator has a forecast of its own.
    """
    scaled = _scaled(judged, variance)
    own = None if errors is None else (np.asarray(errors) / judged.unit).astype(np.float32)
    fitted = judged.errors_validation if own is None else own[: judged.count]
    noise = dv.tune.noise(fitted, scaled[: judged.count])
    return Estimate(
        name,
        kind,
        scaled[: judged.count],
        scaled[judged.count :],
        noise,
        errors=None if own is None else own[judged.count :],
    )


def best_of(judged: Judged, name: str, kind: str, curves: Any, grid: Sequence[float]) -> Estimate:
    """An estimator with one hyper-parameter: `curves` `[grid, validation + hold-out, quantities]`.

    For each quantity the value with the highest Laplace likelihood on validation is taken.
    """
    scaled = np.stack([_scaled(judged, curve) for curve in curves])
    choice = dv.tune.best_damping(
        scaled[:, : judged.count], judged.errors_validation, np.asarray(grid, np.float32)
    )
    chosen = np.asarray(choice.select(scaled))
    return Estimate(
        name,
        kind,
        chosen[: judged.count],
        chosen[judged.count :],
        choice.noise,
        tuple(float(grid[int(k)]) for k in np.asarray(choice.index)),
    )


def block_scaled(
    judged: Judged,
    name: str,
    parts: Sequence[dict[str, Any]],
    dampings: Sequence[float],
    topics: Sequence[str],
    *,
    regularisation: Sequence[float] = (1.0, 10.0, 100.0),
) -> Estimate:
    """One factor for each layer of the network, and one damping, for each topic: fitted on validation.

    `parts` holds for each damping the variance by layer, `[validation + hold-out, quantities]`. A topic's quantities
    share their factors, since a factor for each quantity and layer would be many numbers from few cases.
    """
    scaled = [{block: _scaled(judged, part) for block, part in each.items()} for each in parts]
    variance = np.empty_like(next(iter(scaled[0].values())))
    chosen = np.zeros(variance.shape[1])
    for topic in dict.fromkeys(topics):
        where = np.array([k for k, t in enumerate(topics) if t == topic])
        errors = judged.errors_validation[:, where]
        sums = np.stack([np.sum(list(each.values()), axis=0)[: judged.count][:, where] for each in scaled])
        choice = dv.tune.best_damping(sums, errors, np.asarray(dampings, np.float32), shared=True)
        best = int(choice.index)
        own = {block: part[:, where] for block, part in scaled[best].items()}
        # A common factor is α and β's business: the parts start at the size that validation found for them.
        beta = float(np.mean(np.asarray(choice.noise.beta)))
        own = {block: part * max(beta, 1e-30) for block, part in own.items()}
        scales = dv.tune.block_scales(
            {block: part[: judged.count] for block, part in own.items()},
            errors,
            regularisation=list(regularisation),
        )
        variance[:, where] = np.asarray(scales.variance(own))
        chosen[where] = dampings[best]
    noise = dv.tune.noise(judged.errors_validation, variance[: judged.count])
    return Estimate(
        name, "delta", variance[: judged.count], variance[judged.count :], noise, tuple(chosen.tolist())
    )


def _scaled(judged: Judged, variance: Any) -> Variances:
    value = np.asarray(variance, np.float64) / judged.unit**2
    return np.asarray(jnp.asarray(value, jnp.float32))
