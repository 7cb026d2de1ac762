"""Figure 2: eigenvalues of a chain of masses and springs whose constants are known only roughly.

Five masses of 1 kg hang between two walls on six springs of 1 to 6 N/m. The 11 constants have a normal posterior
of variance 10⁻² (in their own units) about these values. The eigenvalues of A = M⁻¹K, the squared angular frequencies
of the chain, have no formula; their sampled distributions are compared with the Delta Variance's normal.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib import pyplot as plt

import deltavariance as dv

from . import style

MASSES, SPRINGS = 5, 6
VARIANCE = 1e-2
SAMPLES = 200_000

Constants = dict[str, Array]


class Spectrum(NamedTuple):
    """Eigenvalues at the mean, their predicted standard deviations, and samples."""

    values: Float[np.ndarray, " 5"]
    delta: Float[np.ndarray, " 5"]
    bias: Float[np.ndarray, " 5"]
    second_order: Float[np.ndarray, " 5"]
    samples: Float[np.ndarray, "samples 5"]


def chain() -> Constants:
    """Masses in kg and stiffnesses in N/m."""
    return {"mass": jnp.ones(MASSES), "stiffness": jnp.arange(1.0, SPRINGS + 1.0)}


def eigenvalues(constants: Constants, _: Array) -> Float[Array, " 5"]:
    """Of `K x = λ M x`: those of A = M⁻¹K, ascending, in 1/s²."""
    k = constants["stiffness"]
    stiffness = jnp.diag(k[:-1] + k[1:]) - jnp.diag(k[1:-1], 1) - jnp.diag(k[1:-1], -1)
    return dv.implicit.eigenvalues(stiffness, jnp.diag(constants["mass"]))


def compute(samples: int = SAMPLES, seed: int = 0) -> Spectrum:
    """Predicted and sampled distributions, in double precision."""
    with jax.enable_x64(True):
        mean, case = chain(), jnp.zeros(1)
        sigma = dv.as_covariance(mean, VARIANCE)
        first = dv.variance(eigenvalues, mean, case, sigma)[0]
        bias, second = dv.second_order(eigenvalues, mean, case, sigma)
        keys = dict(zip(mean, jax.random.split(jax.random.key(seed), len(mean)), strict=True))
        drawn = {
            name: value + VARIANCE**0.5 * jax.random.normal(keys[name], (samples, *value.shape))
            for name, value in mean.items()
        }
        sampled = jax.jit(jax.vmap(eigenvalues, (0, None)))(drawn, case)
        return Spectrum(
            np.asarray(eigenvalues(mean, case)),
            np.sqrt(first),
            np.asarray(bias[0]),
            np.sqrt(second[0]),
            np.asarray(sampled),
        )


HEADER = (
    "eigenvalue", "value", "delta_std", "sampled_std", "delta_over_sampled",
    "second_order_std", "second_order_over_sampled", "second_order_bias", "sampled_bias",
)  # fmt: skip


def table(result: Spectrum) -> list[list[object]]:
    """One row for each eigenvalue, from the smallest."""
    rows: list[list[object]] = []
    for i, value in enumerate(result.values):
        sampled = result.samples[:, i]
        std = float(sampled.std())
        delta, second = float(result.delta[i]), float(result.second_order[i])
        rows.append(
            [i + 1, float(value), delta, std, delta / std, second, second / std,
             float(result.bias[i]), float(sampled.mean() - value)]
        )  # fmt: skip
    return rows


def draw(folder: Path) -> list[Path]:
    """Compute, draw and write the figure and its numbers."""
    result = compute()
    with plt.rc_context(dict(style.SETTINGS)):
        figure, axes = plt.subplots(1, MASSES, figsize=(7.0, 2.1), layout="constrained")
        for i, ax in enumerate(axes):
            sampled, std = result.samples[:, i], result.samples[:, i].std()
            grid = np.linspace(sampled.mean() - 4 * std, sampled.mean() + 4 * std, 201)
            normal = np.exp(-0.5 * ((grid - result.values[i]) / result.delta[i]) ** 2)
            normal /= np.sqrt(2 * np.pi) * result.delta[i]
            ax.hist(
                sampled, bins=60, range=(grid[0], grid[-1]), density=True, color="#B0B0B0",
                label=f"{len(result.samples):,} samples",
            )  # fmt: skip
            bent = np.exp(-0.5 * ((grid - result.values[i] - result.bias[i]) / result.second_order[i]) ** 2)
            bent /= np.sqrt(2 * np.pi) * result.second_order[i]
            ax.plot(grid, normal, color=style.DELTA, label="Delta Variance")
            ax.plot(grid, bent, color="#0072B2", linestyle="--", linewidth=1.2, label="to second order")
            first, second = result.delta[i] / std, result.second_order[i] / std
            ax.set_title(
                f"$\\lambda_{i + 1}$, std / sampled std:\n{first:.3f} (2nd order {second:.3f})", fontsize=7.5
            )
            ax.set_xlabel("eigenvalue (1/s²)")
            ax.set_yticks([])
            ax.set_ylim(0, None)
            ax.spines["left"].set_visible(False)
        axes[0].set_ylabel("density")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        paths = style.save(figure, folder, "figure2_eigenvalues")
    return [*paths, style.write_csv(folder, "figure2_eigenvalues", HEADER, table(result))]
