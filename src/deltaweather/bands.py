"""A forecast with its bands: how far it depends on the data it was learned from, and how far the weather is open."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

import deltavariance as dv

from .benchmark.curvatures import exact_fisher, spread, step_noise
from .benchmark.delta import damped_variances
from .benchmark.estimates import Judged
from .benchmark.members import Workshop, on_device
from .benchmark.question import ask, observed, starts_of
from .models import StepModel
from .quantities import Quantity, longest_lead

LEVEL = 0.9
CASES = 365  # validation starts that the sizes are fitted on


@dataclass(frozen=True)
class Band:
    """One quantity's forecast: its value, the interval that holds the truth with probability `LEVEL`, and the standard
    deviations of the model's own part and of the whole. `share` is the first's part of the whole variance."""

    quantity: Quantity
    forecast: float
    low: float
    high: float
    own: float
    whole: float
    happened: float | None

    @property
    def share(self) -> float:
        return self.own**2 / self.whole**2


@dataclass(frozen=True)
class Fitted:
    """What validation says of each quantity: the damping of Σ, α and β, in units of its typical error."""

    fisher: dv.Fisher
    noise: dv.metrics.NoiseModel
    dampings: tuple[float, ...]
    index: np.ndarray
    unit: np.ndarray


def fit_bands(shop: Workshop, model: StepModel, table: Sequence[Quantity]) -> Fitted:
    """A Fisher information of the training years; its damping and the noise of every quantity, on validation years."""
    dataset, task, settings = shop.dataset, shop.task, shop.settings
    steps = longest_lead(table)
    validation = spread(dataset.starts("validation", steps=steps, history=model.history, every=4), CASES)
    noise = step_noise(model, task.source, spread(validation, settings.noise_cases), task.static)
    fisher = exact_fisher(
        model,
        task.source,
        spread(shop.starts, settings.fisher_cases),
        task.static,
        noise,
        structure=dv.Diagonal(),
        num_data=len(shop.starts),
    )
    question = ask(dataset, task.static, table)
    starts = starts_of(task.source, validation, model.history, steps)
    curves = damped_variances(question, model, starts, fisher, settings.dampings, split_leads=False)
    forecast = np.asarray(jax.jit(jax.vmap(lambda case: question(model, case)))(starts))
    judged = Judged.of(forecast, observed(dataset, table, validation), len(validation))
    choice = dv.tune.best_damping(
        (curves / judged.unit**2).astype(np.float32),
        judged.errors_validation,
        np.asarray(settings.dampings, np.float32),
    )
    return Fitted(fisher, choice.noise, settings.dampings, np.asarray(choice.index), judged.unit)


def forecast_bands(
    shop: Workshop, model: StepModel, fitted: Fitted, table: Sequence[Quantity], start: int
) -> list[Band]:
    """The forecast from one time of the record, with what happened where the record knows it."""
    dataset, task = shop.dataset, shop.task
    steps = longest_lead(table)
    model = on_device(model)
    question = ask(dataset, task.static, table)
    at = np.array([start])
    case = starts_of(task.source, at, model.history, steps)
    curves = damped_variances(question, model, case, fitted.fisher, fitted.dampings, split_leads=False)
    own = curves[fitted.index, 0, np.arange(len(table))]
    value = np.asarray(question(model, jax.tree.map(lambda x: x[0], case)))
    truth: Float[np.ndarray, " quantities"] = observed(dataset, table, at)[0]
    bands = []
    for k, quantity in enumerate(table):
        unit = float(fitted.unit[k])
        beta, alpha = (float(np.asarray(x)[k]) for x in (fitted.noise.beta, fitted.noise.alpha))
        of_model, of_all = beta * float(own[k]), alpha * unit**2 + beta * float(own[k])
        model_noise = dv.metrics.NoiseModel(fitted.noise.family, 0.0, 1.0)
        low, high = model_noise.interval(value[k], of_all, LEVEL)
        bands.append(
            Band(
                quantity,
                float(value[k]),
                float(low),
                float(high),
                of_model**0.5,
                of_all**0.5,
                float(truth[k]),
            )
        )
    return bands


def summary(bands: Sequence[Band]) -> dict[str, Any]:
    """Mean epistemic share by topic."""
    topics = dict.fromkeys(b.quantity.topic for b in bands)
    return {t: float(np.mean([b.share for b in bands if b.quantity.topic == t])) for t in topics}
