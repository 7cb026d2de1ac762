"""What changes during training, and the pure functions that change it."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from .cases import Cases
from .loss import batch_loss
from .models.layers import Dropout
from .models.step import Static, StepModel

Update = Callable[
    ["TrainState", Cases, Float[Array, " n"], Key[Array, ""], Static, Float[Array, "lat lon channel"]],
    tuple["TrainState", Float[Array, ""]],
]
Assess = Callable[["TrainState", Cases, Static, Float[Array, "lat lon channel"]], Float[Array, ""]]


class GradientSquares(eqx.Module):
    """The moving average of squared batch gradients, `s ← (1 - δ) s + δ g²`, gathered at no second pass.

    These are gradients of the *mean* training loss over `batch_size` cases, before clipping and without
    weight decay. They are not yet a Fisher matrix: that takes the batch size and the scale of a
    log-likelihood.
    """

    squares: PyTree
    updates: Float[Array, ""]
    decay: float = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    @classmethod
    def zero(cls, params: PyTree, decay: float, batch_size: int) -> "GradientSquares":
        return cls(jax.tree.map(jnp.zeros_like, params), jnp.zeros(()), decay, batch_size)

    def add(self, gradient: PyTree) -> "GradientSquares":
        squares = jax.tree.map(lambda s, g: (1 - self.decay) * s + self.decay * g**2, self.squares, gradient)
        return GradientSquares(squares, self.updates + 1, self.decay, self.batch_size)

    def average(self) -> PyTree:
        """The average, freed of the bias of its start at zero: `s / (1 - (1 - δ)^updates)`."""
        share = -jnp.expm1(self.updates * jnp.log1p(-self.decay))
        return jax.tree.map(lambda s: s / share, self.squares)


class TrainState(eqx.Module):
    """One member's state or, with a leading axis on every leaf, several members'."""

    params: PyTree
    optimiser: optax.OptState
    squares: GradientSquares
    best: PyTree
    best_loss: Float[Array, ""]
    stale: Float[Array, ""]  # evaluations since the best one

    @classmethod
    def start(
        cls, params: PyTree, optimiser: optax.GradientTransformation, decay: float, batch_size: int
    ) -> "TrainState":
        squares = GradientSquares.zero(params, decay, batch_size)
        return cls(params, optimiser.init(params), squares, params, jnp.array(jnp.inf), jnp.zeros(()))

    def restart(self, optimiser: optax.GradientTransformation) -> "TrainState":
        """For a new stage: the optimiser begins afresh, from the best weights so far."""
        return TrainState(
            self.best, optimiser.init(self.best), self.squares, self.best, self.best_loss, jnp.zeros(())
        )

    def judged(self, loss: Float[Array, ""]) -> "TrainState":
        """After an evaluation: remembers the weights if they are the best so far."""
        better = loss < self.best_loss
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), self.params, self.best)
        stale = jnp.where(better, 0.0, self.stale + 1)
        return TrainState(
            self.params, self.optimiser, self.squares, best, jnp.minimum(loss, self.best_loss), stale
        )


def make_update(
    frame: StepModel, optimiser: optax.GradientTransformation, *, dropout: float, remat: bool
) -> Update:
    """One batch: gradient, its square into the average, and the optimiser's step. `frame` is the model less its arrays."""

    def update(
        state: TrainState,
        batch: Cases,
        case_weights: Float[Array, " n"],
        key: Key[Array, ""],
        static: Static,
        weights: Float[Array, "lat lon channel"],
    ) -> tuple[TrainState, Float[Array, ""]]:
        masks = Dropout(key, dropout) if dropout > 0 else None

        def loss(params: PyTree) -> Float[Array, ""]:
            return batch_loss(
                eqx.combine(params, frame), batch, case_weights, static, weights, dropout=masks, remat=remat
            )

        value, gradient = jax.value_and_grad(loss)(state.params)
        change, moments = optimiser.update(gradient, state.optimiser, state.params)
        params = optax.apply_updates(state.params, change)
        squares = state.squares.add(gradient)
        return TrainState(params, moments, squares, state.best, state.best_loss, state.stale), value

    return update


def make_assess(frame: StepModel) -> Assess:
    """The mean loss of a batch at the present weights, without dropout."""

    def assess(
        state: TrainState, batch: Cases, static: Static, weights: Float[Array, "lat lon channel"]
    ) -> Float[Array, ""]:
        ones = jnp.ones(batch.state.shape[0])
        return batch_loss(eqx.combine(state.params, frame), batch, ones, static, weights)

    return assess
