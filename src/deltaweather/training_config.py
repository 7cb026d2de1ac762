"""How to train: the stages, the optimiser, and when to stop."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree


@dataclass(frozen=True)
class Stage:
    """`updates` batches with forecasts of `steps` steps; the rate warms up, peaks, and falls along a cosine."""

    updates: int
    steps: int = 1
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Batches of 32 and a decay of 1e-3 for the average of squared gradients are the paper's."""

    stages: tuple[Stage, ...] = (Stage(3000), Stage(1000, steps=4, learning_rate=3e-4))
    batch_size: int = 32
    weight_decay: float = 1e-4
    clip: float = 1.0
    warmup: float = 0.1
    dropout: float = 0.0
    remat: bool = False
    evaluate_every: int = 250
    patience: int = 8
    validation_steps: int = 4
    fisher_decay: float = 1e-3

    def optimiser(self, stage: Stage) -> optax.GradientTransformation:
        """AdamW behind clipping by the global norm; only matrices and kernels decay."""
        warmup = max(1, round(self.warmup * stage.updates))
        rate = optax.warmup_cosine_decay_schedule(
            0.0,
            stage.learning_rate,
            warmup,
            max(stage.updates, warmup + 1),
            end_value=0.01 * stage.learning_rate,
        )
        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.adamw(rate, weight_decay=self.weight_decay, mask=_is_matrix),
        )


def _is_matrix(params: PyTree) -> PyTree:
    return jax.tree.map(lambda p: jnp.ndim(p) > 1, params)
