"""The model's skill beside persistence, climatology and a linear autoregression, on the hold-out years."""

from typing import Any

import numpy as np
from jaxtyping import Int64

from ..autoregression import fit_autoregression
from ..data import Dataset
from ..models import StepModel
from ..skill import climatology, measure, model_forecaster, persistence
from ..train import Task
from .curvatures import spread

LAGS = 5
LARGEST = 2048


def skill_rows(
    dataset: Dataset, task: Task, model: StepModel, starts: Int64[np.ndarray, " n"], *, steps: int
) -> list[dict[str, Any]]:
    """One row a forecaster, channel and lead: RMSE in the network's units times the channel's deviation, MSE over
    climatology's, and anomaly correlation."""
    history = max(LAGS, model.history)
    chosen = spread(starts[starts >= history], LARGEST)
    learned = dataset.starts("train", steps=steps, history=LAGS)
    linear = fit_autoregression(task.source, learned, task.static, steps=steps, lags=LAGS)
    skills = measure(
        {
            "model": model_forecaster(model, task.static),
            "persistence": persistence(task.static),
            "climatology": climatology(task.static),
            "autoregression": linear.forecaster(task.static),
        },
        task.source,
        chosen,
        task.static,
        dataset.grid.area_weights,
        steps=steps,
        history=history,
    )
    deviation = np.asarray(dataset.normaliser.std)
    logarithmic = np.asarray(dataset.normaliser.log_scale) > 0
    hours = dataset.step / np.timedelta64(1, "h")
    return [
        {
            "forecast": name,
            "channel": f"log {channel}" if logarithmic[k] else str(channel),
            "lead_hours": float(hours * (n + 1)),
            "rmse": float(skill.rmse(deviation)[n, k]),
            "relative_mse": float(skill.relative[n, k]),
            "acc": float(skill.acc[n, k]),
        }
        for name, skill in skills.items()
        for k, channel in enumerate(dataset.channels)
        for n in range(steps)
    ]
