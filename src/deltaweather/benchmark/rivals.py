"""The rivals' answers: ensembles, dropout at several rates, SWAG's draws."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Key

import deltavariance as dv

from ..models import StepModel
from .members import on_device
from .question import Question, Start


def ensemble_values(
    question: Question, members: Sequence[StepModel], starts: Start
) -> Float[np.ndarray, "members n quantities"]:
    """Every member's forecast of every quantity."""
    ensemble = dv.estimators.Ensemble([on_device(m) for m in members])
    return np.asarray(ensemble.values(question, starts))


def dropout_curves(
    question: Question,
    model: StepModel,
    starts: Start,
    rates: Sequence[float],
    samples: int,
    key: Key[Array, ""],
    *,
    own: bool,
) -> Float[np.ndarray, "rates n quantities"]:
    """The variance at every rate: by the network's own dropout if it was trained with any, else brought in after
    training at the inputs of all its products."""
    if own:
        rival = dv.estimators.OwnDropout(model, samples=samples, key=key)
        return np.stack([np.asarray(rival.variance(question.at_rate(r), starts)) for r in rates])
    after = dv.estimators.MCDropout(model, rate=rates[0], samples=samples, key=key)
    return np.stack([np.asarray(after.with_rate(r).variance(question, starts)) for r in rates])


def swag_variance(
    question: Question, snapshots: Sequence[StepModel], starts: Start, samples: int, key: Key[Array, ""]
) -> Any:
    """The variance among draws from the normal distribution of the snapshots."""
    swag = dv.estimators.SWAG([on_device(s) for s in snapshots], samples=samples, key=key)
    return np.asarray(swag.variance(question, starts))
