"""How well is a learned pendulum's future known? Delta Variances against an ensemble and the truth.

A small network learns one time step of a damped pendulum from noisy examples. The quantity of interest is
something that it was never trained on: the angle after 20 of its own steps. How different could that answer
have been, had other data been seen? The truth is found by brute force: training again on fresh data sets.

Run with `make demo`; the figure is written to out/demo.png.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from rich.console import Console
from rich.table import Table

import deltavariance as dv

mpl.use("Agg")
from matplotlib import pyplot as plt

OUT = Path("out")
N = 1000  # examples in a data set
NOISE = 0.02  # standard deviation of the noise on each observed state
PRIOR = 1.0  # precision of the L2 penalty on the parameters
STEPS = 20  # length of a rollout
REFITS = 48  # fresh data sets that make up the truth
MEMBERS = 10
BATCH = 100

State = Float[Array, "2"]
Data = tuple[Float[Array, "n 2"], Float[Array, "n 2"]]


def pendulum(state: State, dt: float = 0.2) -> State:
    """The true system: one midpoint step of a damped pendulum, (angle, angular velocity)."""

    def slope(s: State) -> State:
        return jnp.stack([s[1], -jnp.sin(s[0]) - 0.2 * s[1]])

    return state + dt * slope(state + 0.5 * dt * slope(state))


def observe(key: Key[Array, ""]) -> Data:
    """A data set: random states, and the noisy states one step later."""
    key_state, key_noise = jax.random.split(key)
    states = jax.random.uniform(key_state, (N, 2), minval=-2.5, maxval=2.5)
    return states, jax.vmap(pendulum)(states) + NOISE * jax.random.normal(key_noise, (N, 2))


def new_network(key: Key[Array, ""]) -> eqx.nn.MLP:
    return eqx.nn.MLP(2, 2, width_size=32, depth=1, activation=jnp.tanh, key=key)


def predict(network: eqx.nn.MLP, state: State) -> State:
    """The model f: the state one step later."""
    return state + network(state)


def trajectory(network: eqx.nn.MLP, start: State) -> Float[Array, "steps"]:
    """The angle after each step of the model's own rollout."""

    def step(state: State, _: None) -> tuple[State, Array]:
        state = predict(network, state)
        return state, state[0]

    return jax.lax.scan(step, start, None, length=STEPS)[1]


def final_angle(network: eqx.nn.MLP, start: State) -> Float[Array, ""]:
    """The quantity of interest u."""
    return trajectory(network, start)[-1]


log_likelihood = dv.gaussian_log_likelihood(predict, scale=NOISE)


def train(key: Key[Array, ""], network: eqx.nn.MLP, data: Data, steps: int = 12_000) -> eqx.nn.MLP:
    """Adam on the penalised negative log-likelihood, in batches."""
    start, static = eqx.partition(network, eqx.is_inexact_array)
    adam = optax.adam(optax.cosine_decay_schedule(1e-2, steps))

    def loss(params: eqx.nn.MLP, batch: Data) -> Float[Array, ""]:
        network = eqx.combine(params, static)
        fit = jnp.mean(jax.vmap(log_likelihood, (None, 0))(network, batch))
        size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return -fit + 0.5 * PRIOR / N * size

    def step(carry, key):
        params, state = carry
        rows = jax.random.randint(key, (BATCH,), 0, N)
        gradient = jax.grad(loss)(params, jax.tree.map(lambda a: a[rows], data))
        updates, state = adam.update(gradient, state)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (start, adam.init(start)), jax.random.split(key, steps))
    return eqx.combine(params, static)


def train_member(key: Key[Array, ""], data: Data) -> eqx.nn.MLP:
    """A member of a bootstrapped deep ensemble: own start, own order, own resampled data."""
    key_start, key_rows, key_train = jax.random.split(key, 3)
    rows = jax.random.randint(key_rows, (N,), 0, N)
    return train(key_train, new_network(key_start), jax.tree.map(lambda a: a[rows], data))


def seconds(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median time of each job. The jobs take turns, so that a busy machine slows all of them."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        jax.block_until_ready(job())  # compiled before the clock starts
    for _ in range(rounds):
        for name, job in jobs.items():
            began = time.perf_counter()
            jax.block_until_ready(job())
            taken[name].append(time.perf_counter() - began)
    return {name: median(times) for name, times in taken.items()}


def rank_correlation(a: Array, b: Array) -> float:
    def ranks(v: Array) -> np.ndarray:
        return np.argsort(np.argsort(np.asarray(v)))

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


# The colours of Okabe and Ito can be told apart with any colour vision; markers and dashes do it in grey.
STYLES = {
    "ensemble": ("#E69F00", "s"),
    "diagonal": ("#56B4E9", "^"),
    "EKFAC": ("#0072B2", "v"),
    "full": ("#D55E00", "o"),
}


def draw(
    path: Path,
    true_std: Array,
    predicted: dict[str, Array],
    bands: dict[str, Array],
    refits: Array,
) -> None:
    """Left: one rollout with its uncertainty. Right: predicted against actual, one point a start."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    time_axis = 0.2 * np.arange(1, STEPS + 1)

    left.plot(time_axis, np.asarray(refits - jnp.mean(refits, axis=0)).T, color="0.72", linewidth=0.6)
    left.plot([], [], color="0.72", linewidth=0.6, label=f"trained again on {REFITS} fresh data sets")
    for (name, std), dash in zip(bands.items(), ["-", "--", ":", "-."], strict=False):
        colour, _ = STYLES[name]
        for sign in (-2, 2):
            label = f"±2 std, {name}" if sign > 0 else None
            left.plot(time_axis, sign * np.asarray(std), dash, color=colour, linewidth=2, label=label)
    left.set_xlabel("time (s)")
    left.set_ylabel("angle, difference to the mean of the refits (rad)")
    left.set_title("One rollout")
    left.legend(fontsize=8, loc="upper left")

    for name, std in predicted.items():
        colour, marker = STYLES[name]
        right.scatter(
            np.asarray(true_std),
            np.asarray(std),
            s=14,
            marker=marker,
            color=colour,
            alpha=0.6,
            linewidths=0,
            label=name,
        )
    low, high = float(jnp.min(true_std)), float(jnp.max(true_std))
    right.plot([low, high], [low, high], color="black", linewidth=1, label="equal")
    for axis, set_scale in ((right.xaxis, right.set_xscale), (right.yaxis, right.set_yscale)):
        set_scale("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    right.set_xlabel("actual standard deviation over fresh data sets (rad)")
    right.set_ylabel("predicted standard deviation (rad)")
    right.set_title(f"Angle after {STEPS} steps, one point a start")
    right.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    console = Console()
    key_data, key_base, key_truth, key_ensemble, key_starts = jax.random.split(jax.random.key(0), 5)
    data = observe(key_data)
    starts = jax.random.uniform(key_starts, (500, 2), minval=-2.0, maxval=2.0)

    console.print(f"Training the base model on {N} noisy steps of a pendulum ...")
    train_base = eqx.filter_jit(lambda: train(key_base, new_network(key_base), data))
    network = train_base()

    console.print(f"Finding the truth: {REFITS} fresh data sets, each trained to the end ...")
    truth_keys = jax.random.split(key_truth, REFITS)
    refits = eqx.filter_jit(eqx.filter_vmap(lambda key: train(key, network, observe(key))))(truth_keys)

    console.print(f"Training an ensemble of {MEMBERS} ...")
    members = jax.random.split(key_ensemble, MEMBERS)
    train_ensemble = eqx.filter_jit(lambda: eqx.filter_vmap(lambda key: train_member(key, data))(members))
    ensemble = train_ensemble()

    console.print("Delta Variances ...")
    # An L2 penalty of precision p on the summed loss is a damping of p / N on the averaged curvature.
    damping = PRIOR / N

    def fit_diagonal():
        F = dv.fisher(log_likelihood, network, data, structure=dv.Diagonal())
        return F.inverse(damping=damping)

    def fit_ekfac():
        F = dv.fisher(log_likelihood, network, data, structure=dv.EigenKronecker())
        return F.inverse(damping=damping)

    params, static = eqx.partition(network, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    @jax.jit
    def scores(flat: Array, data: Data) -> Array:
        def log_density(flat, example):
            return log_likelihood(eqx.combine(unravel(flat), static), example)

        return jax.vmap(jax.grad(log_density), (None, 0))(flat, data)

    def fit_full():
        # The whole matrix, which only a small network affords; in double precision, since it is inverted.
        rows = np.asarray(scores(flat, data), np.float64)
        inverse = np.linalg.inv(rows.T @ rows / N + damping * np.eye(flat.size))
        return dv.as_covariance(network, jnp.asarray(inverse / N))

    fits = {"diagonal": fit_diagonal, "EKFAC": fit_ekfac, "full": fit_full}
    sigmas = {name: fit() for name, fit in fits.items()}

    def of_each(networks: eqx.nn.MLP, u: Callable, z: Array) -> Array:
        return eqx.filter_vmap(lambda network: jax.vmap(u, (None, 0))(network, z))(networks)

    rollouts = eqx.filter_jit(lambda: jax.vmap(final_angle, (None, 0))(network, starts))
    spread = eqx.filter_jit(lambda: jnp.var(of_each(ensemble, final_angle, starts), axis=0, ddof=1))
    answers = {"ensemble": spread} | {
        name: lambda sigma=sigma: dv.variance(final_angle, network, starts, sigma)
        for name, sigma in sigmas.items()
    }
    variances = {name: answer() for name, answer in answers.items()}
    actual = jnp.var(of_each(refits, final_angle, starts), axis=0, ddof=1)

    console.print("Timing, in turns ...")
    training = seconds({"base": train_base, "ensemble": train_ensemble} | fits, rounds=3)
    inference = seconds({"base": rollouts} | answers, rounds=15)

    table = Table(title=f"Angle after {STEPS} steps of the learned model, {len(starts)} starts")
    table.add_column("", no_wrap=True)
    for column in (
        "median\nstd",
        "predicted /\nactual var.",
        "rank\ncorr.",
        "training\ncost",
        "answer\ncost",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_row(f"truth, {REFITS} refits", f"{float(jnp.median(jnp.sqrt(actual))):.4f}", "1", "1", "", "")
    for name, variance in variances.items():
        table.add_row(
            f"ensemble of {MEMBERS}" if name == "ensemble" else f"Delta, {name}",
            f"{float(jnp.median(jnp.sqrt(variance))):.4f}",
            f"{float(jnp.median(variance / actual)):.2f}",
            f"{rank_correlation(variance, actual):.2f}",
            f"×{training[name] / training['base']:.3f}",
            f"×{inference[name] / inference['base']:.1f}",
        )
    console.print(table)
    console.print(
        "Training cost: what comes on top of training the base model, over the time of training it once.\n"
        "Answer cost: over the time of the base model's own rollouts of the same starts."
    )

    one = starts[jnp.argsort(actual)[len(starts) * 9 // 10]][None]  # an uncertain start, not the worst
    shown = {"ensemble": jnp.var(of_each(ensemble, trajectory, one), axis=0, ddof=1)[0]}
    for name in ("EKFAC", "full"):
        shown[name] = dv.variance(trajectory, network, one, sigmas[name])[0]
    draw(
        OUT / "demo.png",
        jnp.sqrt(actual),
        {name: jnp.sqrt(variance) for name, variance in variances.items()},
        {name: jnp.sqrt(variance) for name, variance in shown.items()},
        of_each(refits, trajectory, one)[:, 0],
    )
    console.print(f"Figure: {OUT / 'demo.png'}")


if __name__ == "__main__":
    main()
