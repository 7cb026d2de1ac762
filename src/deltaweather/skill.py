"""How good a forecaster is, beside those that need no network.

The uncertainty of a model without skill means nothing, so the comparison is made for every model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int64
from rich.table import Table

from .cases import Cases, CaseSource
from .forecast import rollouts
from .models.step import Static, StepModel

Forecaster = Callable[[Cases], Float[Array, "n steps lat lon channel"]]
CHUNK = 64


@dataclass(frozen=True)
class Skill:
    """Scores of one forecaster, `[steps, channel]`, over all starts and cells, weighted by area.

    `mse` is in squared normalised units; `relative` is it over climatology's, so that 1 is no skill; `acc` the
    anomaly correlation `Σ f' a' / sqrt(Σ f'² Σ a'²)`, with anomalies from the climatology of the training years.
    """

    mse: Float64[np.ndarray, "steps channel"]
    relative: Float64[np.ndarray, "steps channel"]
    acc: Float64[np.ndarray, "steps channel"]

    def rmse(self, unit: Float[np.ndarray, " channel"]) -> Float64[np.ndarray, "steps channel"]:
        """Root mean squared error in physical units, given each channel's size of one normalised unit."""
        return np.sqrt(self.mse) * unit


def persistence(static: Static) -> Forecaster:
    """The climatology of the date plus the present anomaly, unchanged.

    Stronger than the unchanged state, which stays as warm at midnight as it was at noon.
    """

    def forecast(cases: Cases) -> Float[Array, "n steps lat lon channel"]:
        history = cases.state.shape[1]
        means = static.mean_state(jnp.asarray(cases.forcing.time)[:, history - 1 :])
        return means[:, 1:] + (jnp.asarray(cases.state)[:, -1] - means[:, 0])[:, None]

    return forecast


def climatology(static: Static) -> Forecaster:
    """The mean of the date and the hour over the training years."""

    def forecast(cases: Cases) -> Float[Array, "n steps lat lon channel"]:
        return static.mean_state(jnp.asarray(cases.forcing.time)[:, cases.state.shape[1] :])

    return forecast


def model_forecaster(model: StepModel, static: Static) -> Forecaster:
    """A model's rollout."""
    step = eqx.filter_jit(rollouts)

    def forecast(cases: Cases) -> Float[Array, "n steps lat lon channel"]:
        history = cases.state.shape[1]
        state = jnp.asarray(cases.state)[:, history - model.history :]
        first = history - model.history
        forcing = type(cases.forcing)(cases.forcing.time[:, first:], cases.forcing.fields[:, first:])
        return step(model, state, forcing, cases.target.shape[1], static=static)

    return forecast


def measure(
    forecasters: Mapping[str, Forecaster],
    source: CaseSource,
    starts: Int64[np.ndarray, " n"],
    static: Static,
    area: Float[np.ndarray, "lat lon"],
    *,
    steps: int,
    history: int,
) -> dict[str, Skill]:
    """The scores of each forecaster on the same cases, `history` states long so that all have what they need.

    Sums are accumulated in double precision over chunks of starts, so memory does not grow with their number.
    """
    weights = np.asarray(area, np.float64)[..., None] / np.sum(area)
    totals = {name: np.zeros((3, steps, static.tendency.shape[0])) for name in forecasters}
    reference = np.zeros((steps, static.tendency.shape[0]))
    for first in range(0, len(starts), CHUNK):
        cases = source.cases(starts[first : first + CHUNK], history, steps)
        target = np.asarray(cases.target, np.float64)
        means = np.asarray(static.mean_state(jnp.asarray(cases.forcing.time)[:, history:]), np.float64)
        reference += _total(weights, (target - means) ** 2)
        for name, forecaster in forecasters.items():
            forecast = np.asarray(forecaster(cases), np.float64)
            totals[name] += np.stack(
                [
                    _total(weights, (forecast - target) ** 2),
                    _total(weights, (forecast - means) * (target - means)),
                    _total(weights, (forecast - means) ** 2),
                ]
            )
    return {name: _scores(total, reference, len(starts)) for name, total in totals.items()}


def _total(
    weights: Float64[np.ndarray, "lat lon 1"], values: Float64[np.ndarray, "n steps lat lon channel"]
) -> Float64[np.ndarray, "steps channel"]:
    return np.asarray((weights * values).sum((0, 2, 3)))


def _scores(
    total: Float64[np.ndarray, "3 steps channel"], reference: Float64[np.ndarray, "steps channel"], cases: int
) -> Skill:
    squares, product, own = total
    # A forecast of the climatology itself has no anomalies to correlate: zero, by convention.
    scale = np.sqrt(own * reference)
    correlation = np.divide(product, scale, out=np.zeros_like(product), where=scale > 1e-12)
    return Skill(squares / cases, squares / np.maximum(reference, 1e-300), correlation)


def skill_table(
    skills: Mapping[str, Skill],
    channels: list[str],
    units: Float[np.ndarray, " channel"],
    *,
    leads: Mapping[str, int],
) -> Table:
    """RMSE in the channels' own units (of the transformed variable for rain), relative error and ACC, per lead.

    `leads` maps a heading such as "24 h" to a number of steps.
    """
    table = Table(title="Skill: RMSE, squared error over climatology's, anomaly correlation")
    table.add_column("channel")
    table.add_column("forecast")
    for heading in leads:
        table.add_column(heading, justify="right")
    for k, channel in enumerate(channels):
        for name, skill in skills.items():
            rmse = skill.rmse(units)
            cells = [
                f"{rmse[n - 1, k]:.3g}  {skill.relative[n - 1, k]:.2f}  {skill.acc[n - 1, k]:.2f}"
                for n in leads.values()
            ]
            table.add_row(channel, name, *cells)
        table.add_section()
    return table


def skill_rows(
    skills: Mapping[str, Skill],
    channels: list[str],
    units: Float[np.ndarray, " channel"],
    *,
    hours: float = 6.0,
) -> list[dict[str, str | float]]:
    """The scores as tidy rows, one a forecaster, channel and lead."""
    return [
        {
            "forecast": name,
            "channel": channel,
            "lead_hours": hours * (n + 1),
            "rmse": float(skill.rmse(units)[n, k]),
            "relative_mse": float(skill.relative[n, k]),
            "acc": float(skill.acc[n, k]),
        }
        for name, skill in skills.items()
        for k, channel in enumerate(channels)
        for n in range(len(skill.mse))
    ]


def beaten_by(
    skills: Mapping[str, Skill], model: str, *, step: int
) -> dict[str, Float64[np.ndarray, " channel"]]:
    """For each other forecaster its squared error over the model's at a lead; above 1 the model is better."""
    own = skills[model].mse[step - 1]
    return {name: skill.mse[step - 1] / own for name, skill in skills.items() if name != model}
