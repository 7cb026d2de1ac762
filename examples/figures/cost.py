"""Figure 3: what it costs to know the variance, in training and at inference.

A network learns one time step of a pendulum; the quantity of interest is where it is after 20 of its own steps.
Three ways to the variance of that quantity are timed against what is needed anyway, which is to train one network and to
evaluate the quantity once: the Delta Variance from Adam's second moments, Monte-Carlo dropout with 10 samples, and a
bootstrapped ensemble of 10 members. All run in one process, taking turns; medians are reported as ratios.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

import deltavariance as dv

from . import style

WIDTH, EXAMPLES, BATCH, UPDATES, ROLLOUT, CASES = 256, 2048, 64, 300, 20, 256
MEMBERS, RATE, NOISE = 10, 0.1, 0.02
SECONDS = 20.0  # of measurement, for each of training and inference

Params = list[tuple[Array, Array]]


def start(key: Array) -> Params:
    """A network with two hidden layers."""
    sizes = (2, WIDTH, WIDTH, 2)
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (i, o)) / jnp.sqrt(i), jnp.zeros(o))
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def step(params: Params, state: Array, key: Array | None = None) -> Array:
    """The next state; with a key, hidden units are dropped out."""
    hidden = state
    for number, (weight, bias) in enumerate(params[:-1]):
        hidden = jnp.tanh(hidden @ weight + bias)
        if key is not None:
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - RATE, hidden.shape)
            hidden = jnp.where(kept, hidden / (1 - RATE), 0.0)
    return state + 0.1 * (hidden @ params[-1][0] + params[-1][1])


def quantity(params: Params, state: Array, key: Array | None = None) -> Array:
    """The angle after `ROLLOUT` steps."""
    end, _ = jax.lax.scan(lambda s, _: (step(params, s, key), None), state, None, length=ROLLOUT)
    return end[0]


def log_likelihood(params: Params, example: tuple[Array, Array]) -> Array:
    """Normal, with known noise, up to a constant."""
    state, following = example
    return -0.5 * jnp.sum((following - step(params, state)) ** 2) / NOISE**2


def examples(key: Array) -> tuple[Array, Array]:
    """Noisy transitions of a damped pendulum."""
    one, two = jax.random.split(key)
    state = jax.random.uniform(one, (EXAMPLES, 2), minval=-2.0, maxval=2.0)
    speed = state[:, 1]
    change = jnp.stack([speed, -jnp.sin(state[:, 0]) - 0.1 * speed], axis=1)
    return state, state + 0.1 * change + NOISE * jax.random.normal(two, state.shape)


OPTIMISER = optax.adam(1e-3)


@partial(jax.jit, static_argnames="dropout")
def train(key: Array, data: tuple[Array, Array], weights: Array, dropout: bool = False) -> tuple[Params, Any]:
    """Adam on weighted batches; returns the parameters and the optimiser's state."""

    def loss(params: Params, rows: Array, key: Array) -> Array:
        state, following = data[0][rows], data[1][rows]
        keys = jax.random.split(key, BATCH) if dropout else None
        predicted = jax.vmap(step, (None, 0, 0 if dropout else None))(params, state, keys)
        each = jnp.sum((following - predicted) ** 2, axis=-1) / NOISE**2
        return 0.5 * jnp.mean(weights[rows] * each)

    def update(carry: tuple[Params, Any], key: Array) -> tuple[tuple[Params, Any], None]:
        params, state = carry
        draw, drop = jax.random.split(key)
        rows = jax.random.randint(draw, (BATCH,), 0, EXAMPLES)
        gradient = jax.grad(loss)(params, rows, drop)
        change, state = OPTIMISER.update(gradient, state)
        return (optax.apply_updates(params, change), state), None

    begin, run = jax.random.split(key)
    params = start(begin)
    (params, state), _ = jax.lax.scan(
        update, (params, OPTIMISER.init(params)), jax.random.split(run, UPDATES)
    )
    return params, state


def take_turns(works: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median seconds of each, all run in turn until the time is up, at least three times each after one to compile."""
    for work in works.values():
        jax.block_until_ready(work())
    times: dict[str, list[float]] = {name: [] for name in works}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
        for name, work in works.items():
            begin = time.perf_counter()
            jax.block_until_ready(work())
            times[name].append(time.perf_counter() - begin)
    return {name: median(each) for name, each in times.items()}


METHODS = ("Delta Variance", "MC dropout, 10 samples", "bootstrapped ensemble of 10")


def compute(seconds: float = SECONDS) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Ratios of training time, of inference time, and of numbers kept, each to what one plain network needs."""
    keys = jax.random.split(jax.random.key(0), MEMBERS)
    data = examples(jax.random.key(1))
    even = jnp.ones(EXAMPLES)
    uneven = dv.resampling.bootstrap_weights(jax.random.key(2), MEMBERS, EXAMPLES, "poisson")
    params, state = train(keys[0], data, even)

    def delta_training() -> Any:
        _, state = train(keys[0], data, even)
        return (
            dv.fisher_from_adam(state, num_data=EXAMPLES, batch_size=BATCH, reduction="mean")
            .inverse()
            .diagonal()
        )

    def ensemble_training() -> list[Any]:
        # One after the other: on a processor that one training keeps busy, side by side is no faster.
        return [train(key, data, row) for key, row in zip(keys, uneven, strict=True)]

    training = take_turns(
        {
            "plain": lambda: train(keys[0], data, even),
            METHODS[0]: delta_training,
            METHODS[1]: lambda: train(keys[0], data, even, dropout=True),
            METHODS[2]: ensemble_training,
        },
        seconds,
    )

    z = jax.random.uniform(jax.random.key(3), (CASES, 2), minval=-1.0, maxval=1.0)
    sigma = dv.fisher_from_adam(state, num_data=EXAMPLES, batch_size=BATCH, reduction="mean").inverse()
    members = [train(key, data, row)[0] for key, row in zip(keys, uneven, strict=True)]
    forward = jax.jit(jax.vmap(quantity, (None, 0)))
    dropped = jax.jit(jax.vmap(quantity, (None, 0, 0)))
    # A fresh mask for each case and sample, held fixed along its rollout.
    masks = jax.random.split(jax.random.key(4), (MEMBERS, CASES))
    inference = take_turns(
        {
            "plain": lambda: forward(params, z),
            METHODS[0]: lambda: dv.variance(quantity, params, z, sigma),
            METHODS[1]: lambda: jnp.var(
                jnp.stack([dropped(params, z, mask) for mask in masks]), axis=0, ddof=1
            ),
            METHODS[2]: lambda: jnp.var(
                jnp.stack([forward(member, z) for member in members]), axis=0, ddof=1
            ),
        },
        seconds,
    )
    memory = dict(zip(METHODS, (2.0, 1.0, float(MEMBERS)), strict=True))
    ratios = lambda times: {name: times[name] / times["plain"] for name in METHODS}  # noqa: E731
    return ratios(training), ratios(inference), memory


HEADER = ("method", "training_ratio", "inference_ratio", "parameters_kept_ratio")


def draw(folder: Path) -> list[Path]:
    """Measure, draw and write the figure and its numbers."""
    training, inference, memory = compute()
    marks = dict(zip(METHODS, (("o", style.DELTA), ("s", style.DROPOUT), ("^", "#0072B2")), strict=True))
    with plt.rc_context(dict(style.SETTINGS)):
        figure, ax = plt.subplots(figsize=(3.6, 2.9), layout="constrained")
        for name, (mark, colour) in marks.items():
            ax.plot(
                training[name], inference[name], mark, color=colour, markersize=9, markeredgecolor="black",
                markeredgewidth=0.6, label=name, linestyle="none",
            )  # fmt: skip
            ax.annotate(
                f"{training[name]:.1f}× , {inference[name]:.1f}×", (training[name], inference[name]),
                textcoords="offset points", xytext=(0, -14), ha="center", fontsize=7,
            )  # fmt: skip
        ax.axhline(1.0, color="#808080", linewidth=0.8, linestyle=":")
        ax.axvline(1.0, color="#808080", linewidth=0.8, linestyle=":")
        ax.set(xscale="log", yscale="log", xlim=(0.6, 20), ylim=(0.6, 40))
        for axis, ticks in ((ax.xaxis, [1, 2, 5, 10, 20]), (ax.yaxis, [1, 2, 5, 10, 20, 40])):
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(StrMethodFormatter("{x:.0f}×"))
        ax.set_xlabel("training time (one training = 1×)")
        ax.set_ylabel("inference time (one evaluation = 1×)")
        figure.legend(loc="outside upper center", ncols=1, handletextpad=0.2)
        paths = style.save(figure, folder, "figure3_cost")
    rows = [[name, training[name], inference[name], memory[name]] for name in METHODS]
    return [*paths, style.write_csv(folder, "figure3_cost", HEADER, rows)]
