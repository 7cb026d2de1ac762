"""Figure 3: what it costs to know the variance, in training and at inference.

A network learns one time step of a pendulum; quantities of interest are its prediction, and where the pendulum is after
20 of its own steps. Three ways to their variance are timed against what is needed anyway, which is to train one network
and to evaluate the quantity once: the Delta Variance from Adam's second moments, Monte-Carlo dropout with 10 samples,
and a bootstrapped ensemble of 10 members. All run in one process, taking turns; medians are reported as ratios.
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
SECONDS = 15.0  # of measurement, for training and for the inference of each quantity

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


def prediction(params: Params, state: Array, key: Array | None = None) -> Array:
    """The angle after one step: what the network was trained for."""
    return step(params, state, key)[0]


QUANTITIES = {"prediction": prediction, "rollout": quantity}


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


def training_ratios(seconds: float) -> dict[str, float]:
    """Training time of each method, in trainings of one plain network."""
    keys, data, even, uneven = setting()

    def delta() -> Any:
        _, state = train(keys[0], data, even)
        return covariance(state).diagonal()

    def ensemble() -> list[Any]:
        # One after the other: on a processor that one training keeps busy, side by side is no faster.
        return [train(key, data, row) for key, row in zip(keys, uneven, strict=True)]

    works = (delta, lambda: train(keys[0], data, even, dropout=True), ensemble)
    return ratios(
        {"plain": lambda: train(keys[0], data, even), **dict(zip(METHODS, works, strict=True))}, seconds
    )


def inference_ratios(name: str, seconds: float) -> dict[str, float]:
    """Inference time of each method, and of a plain gradient, in evaluations of the quantity."""
    u = QUANTITIES[name]
    keys, data, even, uneven = setting()
    params, state = train(keys[0], data, even)
    sigma = covariance(state)
    members = [train(key, data, row)[0] for key, row in zip(keys, uneven, strict=True)]
    z = jax.random.uniform(jax.random.key(3), (CASES, 2), minval=-1.0, maxval=1.0)
    forward = jax.jit(jax.vmap(u, (None, 0)))
    dropped = jax.jit(jax.vmap(u, (None, 0, 0)))
    gradient = jax.jit(jax.grad(lambda p, z: jnp.sum(jax.vmap(u, (None, 0))(p, z))))
    # A fresh mask for each case and sample, held fixed along its rollout.
    masks = jax.random.split(jax.random.key(4), (MEMBERS, CASES))
    works: dict[str, Callable[[], Any]] = {
        "plain": lambda: forward(params, z),
        GRADIENT: lambda: gradient(params, z),
        METHODS[0]: lambda: dv.variance(u, params, z, sigma),
        METHODS[1]: lambda: jnp.var(jnp.stack([dropped(params, z, mask) for mask in masks]), axis=0, ddof=1),
        METHODS[2]: lambda: jnp.var(jnp.stack([forward(member, z) for member in members]), axis=0, ddof=1),
    }
    return ratios(works, seconds)


GRADIENT = "one plain gradient"


def setting() -> tuple[Array, tuple[Array, Array], Array, Array]:
    """Keys of the members, the data, and their even and their bootstrapped weights."""
    keys = jax.random.split(jax.random.key(0), MEMBERS)
    uneven = dv.resampling.bootstrap_weights(jax.random.key(2), MEMBERS, EXAMPLES, "poisson")
    return keys, examples(jax.random.key(1)), jnp.ones(EXAMPLES), uneven


def covariance(state: Any) -> dv.Covariance:
    """Σ from the optimiser's state, which training leaves behind anyway."""
    fisher = dv.fisher_from_adam(state, num_data=EXAMPLES, batch_size=BATCH, reduction="mean")
    return fisher.inverse()


def ratios(works: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median times over the median time of `plain`."""
    times = take_turns(works, seconds)
    return {name: times[name] / times["plain"] for name in works if name != "plain"}


HEADER = (
    "method",
    "training_ratio",
    "prediction_inference_ratio",
    "rollout_inference_ratio",
    "parameters_kept_ratio",
)


def draw(folder: Path) -> list[Path]:
    """Measure, draw and write the figure and its numbers."""
    training = training_ratios(SECONDS)
    inference = {name: inference_ratios(name, SECONDS) for name in QUANTITIES}
    marks = dict(zip(METHODS, (("o", style.DELTA), ("s", style.DROPOUT), ("^", "#0072B2")), strict=True))
    titles = {
        "prediction": "(a) prediction of the network",
        "rollout": f"(b) after {ROLLOUT} of its own steps",
    }
    with plt.rc_context(dict(style.SETTINGS)):
        figure, axes = plt.subplots(1, 2, figsize=(7.0, 2.9), layout="constrained", sharey=True)
        for ax, (quantity_name, title) in zip(axes, titles.items(), strict=True):
            found = inference[quantity_name]
            for (name, (mark, colour)), below in zip(marks.items(), (True, False, True), strict=True):
                x, y = training[name], found[name]
                ax.plot(
                    x,
                    y,
                    mark,
                    color=colour,
                    markersize=9,
                    markeredgecolor="black",
                    markeredgewidth=0.6,
                    label=name,
                )
                ax.annotate(
                    f"({x:.1f}×, {y:.1f}×)", (x, y), textcoords="offset points", fontsize=7, ha="center",
                    xytext=(0, -15 if below else 9),
                )  # fmt: skip
            ax.axhline(
                found[GRADIENT], color="#808080", linewidth=1.0, linestyle="--",
                label=f"{GRADIENT}",
            )  # fmt: skip
            ax.axhline(
                1.0, color="#808080", linewidth=0.8, linestyle=":", label="one evaluation; one training"
            )
            ax.axvline(1.0, color="#808080", linewidth=0.8, linestyle=":")
            ax.set(xscale="log", yscale="log", xlim=(0.6, 20), ylim=(0.6, 40), title=title)
            for axis, ticks in ((ax.xaxis, [1, 2, 5, 10, 20]), (ax.yaxis, [1, 2, 5, 10, 20, 40])):
                axis.set_major_locator(FixedLocator(ticks))
                axis.set_minor_locator(NullLocator())
                axis.set_major_formatter(StrMethodFormatter("{x:.0f}×"))
            ax.set_xlabel("training time (one training = 1×)")
        axes[0].set_ylabel("inference time\n(one evaluation = 1×)")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        paths = style.save(figure, folder, "figure3_cost")
    kept = dict(zip(METHODS, (2.0, 1.0, float(MEMBERS)), strict=True))
    rows: list[list[object]] = [
        [name, training[name], *(inference[q][name] for q in QUANTITIES), kept[name]] for name in METHODS
    ]
    rows.append([GRADIENT, "", *(inference[q][GRADIENT] for q in QUANTITIES), ""])
    return [*paths, style.write_csv(folder, "figure3_cost", HEADER, rows)]
