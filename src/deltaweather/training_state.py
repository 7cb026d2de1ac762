"""What changes during training, and the pure functions that change it."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from .cases import Cases
from .loss import batch_loss
from .models.layers import Dropout
from .models.step import Static, StepModel
from .training_config import Stage, TrainConfig


class GradientSquares(eqx.Module):
    """The moving average of squared batch gradients, `s ← (1 - δ) s + δ g²`, gathered at no second pass.

    These are gradients of the *mean* training loss over `batch_size` cases, before clipping and without
    weight decay. They are not yet a Fisher matrix: that takes the batch size and the scale of a
    log-likelihood.
    """

    squares: PyTree
    updates: Float[Array, "*members"]
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
    best_loss: Float[Array, "*members"]
    stale: Float[Array, "*members"]  # evaluations since the best one


def _lifted(function: Callable[..., Any], stacked: bool, in_axes: Any = 0) -> Callable[..., Any]:
    """Over the members' axis where there is one."""
    return jax.vmap(function, in_axes=in_axes) if stacked else function


# One compilation serves all members, and all refits, of one configuration: what decides the program is static.
@partial(jax.jit, static_argnames=("config", "stacked"))
def start(params: PyTree, *, config: TrainConfig, stacked: bool) -> TrainState:
    """Before the first update."""

    def one(params: PyTree) -> TrainState:
        squares = GradientSquares.zero(params, config.fisher_decay, config.batch_size)
        moments = config.optimiser(config.stages[0]).init(params)
        return TrainState(params, moments, squares, params, jnp.array(jnp.inf), jnp.zeros(()))

    return cast(TrainState, _lifted(one, stacked)(params))


@partial(jax.jit, static_argnames=("config", "stage", "stacked"))
def restart(state: TrainState, *, config: TrainConfig, stage: Stage, stacked: bool) -> TrainState:
    """For a new stage: the optimiser begins afresh, from the best weights so far."""

    def one(state: TrainState) -> TrainState:
        moments = config.optimiser(stage).init(state.best)
        return TrainState(state.best, moments, state.squares, state.best, state.best_loss, jnp.zeros(()))

    return cast(TrainState, _lifted(one, stacked)(state))


@partial(jax.jit, static_argnames=("stacked",))
def judge(state: TrainState, loss: Float[Array, "*members"], *, stacked: bool) -> TrainState:
    """After an evaluation: remembers the weights if they are the best so far."""

    def one(state: TrainState, loss: Float[Array, ""]) -> TrainState:
        better = loss < state.best_loss
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), state.params, state.best)
        stale = jnp.where(better, 0.0, state.stale + 1)
        lowest = jnp.minimum(loss, state.best_loss)
        return TrainState(state.params, state.optimiser, state.squares, best, lowest, stale)

    return cast(TrainState, _lifted(one, stacked)(state, loss))


@partial(jax.jit, static_argnames=("frame", "config", "stage", "stacked"))
def advance(
    state: TrainState,
    batch: Cases,
    case_weights: Float[Array, "*members n"],
    key: Key[Array, "*members"],
    static: Static,
    weights: Float[Array, "lat lon channel"],
    *,
    frame: StepModel,
    config: TrainConfig,
    stage: Stage,
    stacked: bool,
) -> tuple[TrainState, Float[Array, "*members"]]:
    """One batch: gradient, its square into the average, the optimiser's step; and the loss.

    `frame` is the model without its arrays.
    """
    optimiser = config.optimiser(stage)

    def one(
        state: TrainState, batch: Cases, case_weights: Float[Array, " n"], key: Key[Array, ""]
    ) -> tuple[TrainState, Float[Array, ""]]:
        dropout = Dropout(key, config.dropout) if config.dropout > 0 else None

        def loss(params: PyTree) -> Float[Array, ""]:
            model = eqx.combine(params, frame)
            return batch_loss(
                model, batch, case_weights, static, weights, dropout=dropout, remat=config.remat
            )

        value, gradient = jax.value_and_grad(loss)(state.params)
        change, moments = optimiser.update(gradient, state.optimiser, state.params)
        params = optax.apply_updates(state.params, change)
        squares = state.squares.add(gradient)
        return TrainState(params, moments, squares, state.best, state.best_loss, state.stale), value

    return cast(tuple[TrainState, Array], _lifted(one, stacked)(state, batch, case_weights, key))


@partial(jax.jit, static_argnames=("frame", "stacked"))
def assess(
    state: TrainState,
    batch: Cases,
    static: Static,
    weights: Float[Array, "lat lon channel"],
    *,
    frame: StepModel,
    stacked: bool,
) -> Float[Array, "*members"]:
    """The mean loss of a batch, the same for all members, at the present weights, without dropout."""

    def one(state: TrainState) -> Float[Array, ""]:
        ones = jnp.ones(batch.state.shape[0])
        return batch_loss(eqx.combine(state.params, frame), batch, ones, static, weights)

    return cast(Array, _lifted(one, stacked)(state))
