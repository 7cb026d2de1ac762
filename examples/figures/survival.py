"""Figure 1: the variance of a survival rate, and of ten years of it, as the data grow.

The model is f = θ, the chance to survive one year; u = θ¹⁰ is the chance to survive ten. A data set of N
patients of whom k survive gives θ̂ = k / N. The actual variance is that of θ̂ and of θ̂¹⁰ over data sets, an exact
sum over k. The Delta Variance is a function of k, so its median and its 95 % band over data sets are exact too.
The bootstrap, ten resampled data sets for each data set, is drawn at random.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from scipy import stats

import deltavariance as dv

from . import style

RATE = 0.9  # true chance to survive a year
YEARS = np.array([1.0, 10.0])  # the powers: f itself, and u
SIZES = (3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
FOLDS = 10
DATA_SETS = 20_000  # for the bootstrap's band
LEVELS = (0.025, 0.5, 0.975)


class Survival(NamedTuple):
    """For each quantity and each N: [2, sizes], and the three levels of a band last."""

    actual: Float[np.ndarray, "2 sizes"]
    delta: Float[np.ndarray, "2 sizes 3"]
    bootstrap: Float[np.ndarray, "2 sizes 3"]


def log_likelihood(theta: Array, survived: Array) -> Array:
    """Of one patient: log θ if alive after a year, log (1 − θ) if not."""
    return jnp.log(jnp.where(survived > 0, theta, 1 - theta))


def quantity(theta: Array, years: Array) -> Array:
    """The chance to survive that many years."""
    return theta**years


def delta_variances(size: int) -> Float[np.ndarray, "k 2"]:
    """The Delta Variance of both quantities for each k = 0..size survivors, with Σ = F̂⁻¹/N.

    F̂ averages squared scores over the data set, here over its two kinds of patients.
    """

    def one(survivors: Array) -> Array:
        theta = survivors / size
        scores = jax.vmap(jax.grad(log_likelihood), (None, 0))(theta, jnp.array([1.0, 0.0]))
        fisher = (survivors * scores[0] ** 2 + (size - survivors) * scores[1] ** 2) / size
        gradients = jax.vmap(jax.grad(quantity), (None, 0))(theta, jnp.asarray(YEARS))
        return gradients**2 / (fisher * size)

    inside = jax.vmap(one)(jnp.arange(1.0, size))
    # With no deaths, or none but deaths, every score of a patient that occurs is as small as can be while θ̂ sits on
    # the edge: F̂ is infinite along θ(1 − θ) → 0, and the variance is zero.
    edge = np.zeros((1, 2))
    return np.concatenate([edge, np.asarray(inside), edge])


def library_variance(survivors: int, size: int) -> Float[np.ndarray, " 2"]:
    """The same number for one data set, by the library's own calls."""
    data = jnp.concatenate([jnp.ones(survivors), jnp.zeros(size - survivors)])
    theta = jnp.asarray(survivors / size)
    sigma = dv.fisher(log_likelihood, theta, data, structure=dv.Diagonal()).inverse(damping=0.0)
    return np.asarray(dv.variance(quantity, theta, jnp.asarray(YEARS), sigma))


def weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Smallest value at which the cumulated weight reaches each level."""
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order])
    index = np.minimum(np.searchsorted(cumulated, np.array(LEVELS) - 1e-12), len(values) - 1)
    return values[order][index]


def compute(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Survival:
    """All three variances for each N."""
    rng = np.random.default_rng(seed)
    actual, delta, bootstrap = [], [], []
    with jax.enable_x64(True):
        for size in sizes:
            survivors = np.arange(size + 1)
            chance = stats.binom.pmf(survivors, size, RATE)
            powers = (survivors[:, None] / size) ** YEARS
            mean = chance @ powers
            actual.append(chance @ (powers - mean) ** 2)
            predicted = delta_variances(size)
            delta.append([weighted_quantiles(column, chance) for column in predicted.T])
            # Resampling N patients of whom k survive draws survivors from a binomial distribution with rate k / N.
            rates = rng.binomial(size, RATE, DATA_SETS)[:, None] / size
            resampled = rng.binomial(size, np.broadcast_to(rates, (DATA_SETS, FOLDS))) / size
            spread = (resampled[..., None] ** YEARS).var(axis=1, ddof=1)
            bootstrap.append(np.quantile(spread, LEVELS, axis=0).T)
    return Survival(np.array(actual).T, np.array(delta).swapaxes(0, 1), np.array(bootstrap).swapaxes(0, 1))


def table(result: Survival, sizes: tuple[int, ...] = SIZES) -> list[list[object]]:
    """One row for each quantity and N."""
    rows: list[list[object]] = []
    for which, name in enumerate(("theta", "theta^10")):
        for index, size in enumerate(sizes):
            actual = float(result.actual[which, index])
            delta = [float(x) for x in result.delta[which, index]]
            bootstrap = [float(x) for x in result.bootstrap[which, index]]
            rows.append([name, size, actual, *delta, *bootstrap, delta[1] / actual])
    return rows


HEADER = (
    "quantity", "N", "actual", "delta_2.5%", "delta_median", "delta_97.5%",
    "bootstrap_2.5%", "bootstrap_median", "bootstrap_97.5%", "delta_median_over_actual",
)  # fmt: skip


def draw(folder: Path) -> list[Path]:
    """Compute, draw and write the figure and its numbers."""
    result = compute()
    with plt.rc_context(dict(style.SETTINGS)):
        figure, axes = plt.subplots(1, 2, figsize=(7.0, 3.0), layout="constrained")
        titles = ("(a) learned function  f = θ", "(b) quantity of interest  u = θ¹⁰")
        for which, (ax, title) in enumerate(zip(axes, titles, strict=True)):
            delta = np.where(result.delta[which] > 0, result.delta[which], np.nan)
            bootstrap = np.where(result.bootstrap[which] > 0, result.bootstrap[which], np.nan)
            floor = 0.15 * np.nanmin(delta[:, 1])
            ax.fill_between(
                SIZES, np.nan_to_num(bootstrap[:, 0], nan=floor / 10), bootstrap[:, 2],
                color=style.BOOTSTRAP, alpha=0.30, linewidth=0, label="10-fold bootstrap, 95 % band",
            )  # fmt: skip
            ax.fill_between(
                SIZES, np.nan_to_num(delta[:, 0], nan=floor / 10), delta[:, 2],
                facecolor="none", edgecolor=style.DELTA, hatch="////", linewidth=0.6, alpha=0.8,
                label="Delta Variance, 95 % band",
            )  # fmt: skip
            ax.plot(SIZES, bootstrap[:, 1], color="#0072B2", linestyle=":", label="10-fold bootstrap, median")
            ax.plot(SIZES, delta[:, 1], color=style.DELTA, label="Delta Variance, median", linewidth=2.2)
            ax.plot(SIZES, result.actual[which], color=style.TRUTH, linestyle="--", label="actual variance")
            ax.set(xscale="log", yscale="log", xlabel="data set size N", title=title)
            ax.set_xlim(SIZES[0], SIZES[-1])
            ax.set_ylim(floor, 3 * np.nanmax(delta))
            ax.xaxis.set_major_locator(FixedLocator([3, 10, 30, 100, 300, 1000]))
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
            ax.xaxis.set_minor_locator(NullLocator())
        axes[0].set_ylabel("variance (squared probability)")
        handles, labels = axes[0].get_legend_handles_labels()
        order = [4, 3, 1, 2, 0]
        figure.legend(
            [handles[i] for i in order], [labels[i] for i in order], loc="outside lower center", ncols=3
        )
        paths = style.save(figure, folder, "figure1_survival")
    return [*paths, style.write_csv(folder, "figure1_survival", HEADER, table(result))]
