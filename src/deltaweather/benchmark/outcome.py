"""What one base model's benchmark found."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from .costs import Cost
from .estimates import Estimate, Judged
from .scores import Scored

REFERENCE = "ensemble"


@dataclass(frozen=True)
class Asked:
    """A quantity's labels, without its function."""

    name: str
    topic: str
    place: str
    lead: int
    unit: str
    note: str


@dataclass(frozen=True)
class Outcome:
    """One architecture and seed: forecasts, estimates, their scores, skill and costs.

    `forecast` and `target` are of the hold-out starts, in physical units; `times` says when they begin.
    `training` holds the seconds that each training took, `size` the number of parameters.
    """

    architecture: str
    seed: int
    size: int
    quantities: tuple[Asked, ...]
    steps_per_day: int
    times: np.ndarray
    forecast: Float[np.ndarray, "n quantities"]
    target: Float[np.ndarray, "n quantities"]
    judged: Judged
    estimates: dict[str, Estimate]
    scores: dict[str, Scored]
    skill: list[dict[str, Any]]
    costs: list[Cost]
    training: dict[str, float]
    validation_loss: float
    residual_correlation: float | None

    def variance(self, estimator: str) -> Float[np.ndarray, "n quantities"]:
        """The hold-out variances in squared physical units, as the estimator gives them."""
        return self.estimates[estimator].test * self.judged.unit**2

    def calibrated(self, estimator: str) -> tuple[np.ndarray, np.ndarray]:
        """Hold-out variances of the error in squared physical units: α, and β times the estimator's."""
        estimate = self.estimates[estimator]
        alpha = np.broadcast_to(np.asarray(estimate.noise.alpha), estimate.test.shape)
        beta = np.asarray(estimate.noise.beta)
        return alpha * self.judged.unit**2, beta * estimate.test * self.judged.unit**2
