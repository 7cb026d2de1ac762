"""The rollout: one step of a model, again and again."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .models.layers import Dropout, split_dropout
from .models.step import Forcing, Static, StepModel


def rollout(
    model: StepModel,
    state: Float[Array, "history lat lon channel"],
    forcings: Forcing,
    steps: int,
    *,
    static: Static,
    unrolled: bool | None = None,
    remat: bool = False,
    dropout: Dropout | None = None,
) -> Float[Array, "steps lat lon channel"]:
    """The next `steps` states of one case, all in normalised units.

    **Shapes** `state` ends with the present state; `forcings` covers the times of `state` and the `steps`
    after it (`history + steps` in all). Step k maps the window of the last `history` states to the next one.

    **Cost** `steps` calls of the model; keeping the activations of all of them for the backward pass, or,
    with `remat`, only the states, at the price of one more forward pass. `unrolled` repeats the step in the
    program instead of looping over it: convolutions inside a loop are many times slower on a CPU, while for
    dense layers the loop only saves compilation. By default the model decides (`StepModel.unrolled`).
    """
    times = forcings.time.shape[0]
    if state.shape[0] != model.history:
        raise ValueError(f"The model looks back on {model.history} states, but {state.shape[0]} were given.")
    if times != model.history + steps:
        raise ValueError(
            f"A forecast of {steps} steps from {model.history} states needs the forcing at "
            f"{model.history + steps} times (those of the states and of the forecast), but {times} were given."
        )
    windows = model.history + 1

    def step(
        state: Float[Array, "history lat lon channel"], k: Array | int, part: Dropout | None
    ) -> Float[Array, "lat lon channel"]:
        window = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, k, windows), forcings)
        return model(state, window, static, dropout=part)

    if remat:
        step = jax.checkpoint(step)
    parts = split_dropout(dropout, steps)
    if model.unrolled if unrolled is None else unrolled:
        frames = []
        for k in range(steps):
            frames.append(step(state, k, parts[k]))
            state = jnp.concatenate([state[1:], frames[-1][None]])
        return jnp.stack(frames)

    def body(
        state: Float[Array, "history lat lon channel"], inputs: tuple[Array, Dropout | None]
    ) -> tuple[Float[Array, "history lat lon channel"], Float[Array, "lat lon channel"]]:
        frame = step(state, *inputs)
        return jnp.concatenate([state[1:], frame[None]]), frame

    stacked = (
        None if dropout is None else jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *parts)
    )
    return jax.lax.scan(body, state, (jnp.arange(steps), stacked))[1]


def rollouts(
    model: StepModel,
    state: Float[Array, "n history lat lon channel"],
    forcings: Forcing,
    steps: int,
    *,
    static: Static,
) -> Float[Array, "n steps lat lon channel"]:
    """`rollout` for many cases."""
    return jax.vmap(lambda s, f: rollout(model, s, f, steps, static=static))(state, forcings)
