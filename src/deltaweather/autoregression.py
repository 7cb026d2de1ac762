"""Linear autoregression on principal components: what a network has to beat."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int64

from .cases import Cases, CaseSource
from .models.step import Static
from .skill import Forecaster

VALUES = 2**25  # numbers held at once


@dataclass(frozen=True)
class Autoregression:
    """Least squares from the components of the last `lags` anomalies to the anomalies of each lead.

    Anomalies are divided by their channel's deviation; `patterns` (columns) are the leading principal
    components of all cells and channels together. Every lead has a regression of its own, which is at least
    as good as iterating one of six hours.
    """

    patterns: Float[np.ndarray, "values components"]
    deviations: Float[np.ndarray, " channel"]
    coefficients: Float64[np.ndarray, "steps inputs components"]
    lags: int

    def forecaster(self, static: Static) -> Forecaster:
        """As a forecaster of cases with a history of at least `lags` states."""

        def forecast(cases: Cases) -> Float[Array, "n steps lat lon channel"]:
            past, _, means = _anomalies(cases, static)
            inputs = _inputs(self._project(past[:, past.shape[1] - self.lags :]))
            components = np.tensordot(inputs, self.coefficients[: means.shape[1]], axes=(1, 1))
            fields = (components @ self.patterns.T).reshape(means.shape) * self.deviations
            return jnp.asarray(means + fields, jnp.float32)

        return forecast

    def _project(
        self, anomalies: Float[np.ndarray, "n times lat lon channel"]
    ) -> Float[np.ndarray, "n times components"]:
        return _project(anomalies, self.patterns, self.deviations)


def fit_autoregression(
    source: CaseSource,
    starts: Int64[np.ndarray, " n"],
    static: Static,
    *,
    steps: int,
    lags: int = 5,
    components: int = 80,
    ridge: float = 1e-6,
) -> Autoregression:
    """Fits patterns (to at most 4096 states spread over `starts`) and regressions (to all of them).

    `ridge` is relative to the mean square of the inputs. Five lags reach back to the same hour of the day
    before, which helps more than any other setting where the course of the day dominates.

    **Cost** `n (lags + steps) · values · components` multiplications, and chunks of bounded memory.
    """
    patterns, deviations = _principal(source, starts, static, components)
    size = lags * patterns.shape[1] + 1
    gram: Float64[np.ndarray, "inputs inputs"] = np.zeros((size, size))
    moment: Float64[np.ndarray, "inputs leads"] = np.zeros((size, steps * patterns.shape[1]))
    for cases in _chunks(source, starts, static, lags, steps):
        past, future, _ = _anomalies(cases, static)
        inputs = _inputs(_project(past, patterns, deviations))
        outputs = _project(future, patterns, deviations).astype(np.float64)
        gram += inputs.T @ inputs
        moment += inputs.T @ outputs.reshape(len(outputs), -1)  # one product for all leads
    damped = gram + ridge * np.trace(gram) / size * np.eye(size)
    coefficients = np.linalg.solve(damped, moment).reshape(size, steps, -1).transpose(1, 0, 2)
    return Autoregression(patterns, deviations, coefficients, lags)


def _principal(
    source: CaseSource, starts: Int64[np.ndarray, " n"], static: Static, components: int
) -> tuple[Float[np.ndarray, "values components"], Float[np.ndarray, " channel"]]:
    """Leading patterns (from snapshots where there are fewer of them than values), and each channel's deviation."""
    values = int(np.prod(static.climatology.shape[1:]))
    count = min(len(starts), 4096, max(4 * components, VALUES // values))
    chosen = starts[np.linspace(0, len(starts) - 1, count).round().astype(np.int64)]
    chunks = _chunks(source, chosen, static, 1, 1)
    states = np.concatenate([_anomalies(cases, static)[0][:, 0] for cases in chunks])
    deviations = np.sqrt(np.maximum((states.astype(np.float64) ** 2).mean((0, 1, 2)), 1e-12)).astype(
        np.float32
    )
    snapshots = (states / deviations).reshape(len(states), -1).astype(np.float64)
    wide = values > len(snapshots)  # the smaller of the two Gram matrices has the same eigenvalues
    squares, vectors = np.linalg.eigh(snapshots @ snapshots.T if wide else snapshots.T @ snapshots)
    kept = min(components, int((squares > 1e-10 * squares[-1]).sum()))
    squares, vectors = squares[::-1][:kept], vectors[:, ::-1][:, :kept]
    patterns = snapshots.T @ vectors / np.sqrt(squares) if wide else vectors
    return np.ascontiguousarray(patterns, np.float32), deviations


def _chunks(
    source: CaseSource, starts: Int64[np.ndarray, " n"], static: Static, history: int, steps: int
) -> Iterator[Cases]:
    values = int(np.prod(static.climatology.shape[1:])) * (history + steps)
    length = max(8, VALUES // values)
    for first in range(0, len(starts), length):
        yield source.cases(starts[first : first + length], history, steps)


def _anomalies(
    cases: Cases, static: Static
) -> tuple[
    Float[np.ndarray, "n history lat lon channel"],
    Float[np.ndarray, "n steps lat lon channel"],
    Float[np.ndarray, "n steps lat lon channel"],
]:
    """Past and future anomalies, and the means of the future."""
    history = cases.state.shape[1]
    means = np.asarray(static.mean_state(jnp.asarray(cases.forcing.time)))
    past, future = np.asarray(cases.state) - means[:, :history], np.asarray(cases.target) - means[:, history:]
    return past, future, means[:, history:]


def _project(
    anomalies: Float[np.ndarray, "n times lat lon channel"],
    patterns: Float[np.ndarray, "values components"],
    deviations: Float[np.ndarray, " channel"],
) -> Float[np.ndarray, "n times components"]:
    flat = (anomalies / deviations).reshape(-1, len(patterns))
    return np.asarray((flat @ patterns).reshape(*anomalies.shape[:2], -1))


def _inputs(components: Float[np.ndarray, "n lags k"]) -> Float64[np.ndarray, "n inputs"]:
    flat = components.reshape(len(components), -1).astype(np.float64)
    return np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
