"""The optimisation behind block scales: `s = α + Σ_b f_b p_b`, factors drawn towards 1, all compiled once.

With `log f_b = μ + δ_b` the loss is the mean score over cases plus `(λ/n) (h(μ) + Σ_b h(δ_b))`, where
`h(x) = √(1 + x²) − 1`. So λ counts like cases; a common scale is one parameter and costs one penalty; and
since h grows in proportion to |x| for large x, a factor of a million is dear but not out of reach, nor is one
near zero.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float

from deltavariance.metrics.association import correlation
from deltavariance.metrics.cases import weighted_mean
from deltavariance.metrics.families import Family
from deltavariance.tune.noise import fit_noise

_MAX_STEPS = 400
_TINY = 1e-30  # below any variance here, which are in units of the mean squared error
_SMALLEST = 1e-6  # of the mean squared error: where a start at α = 0 or β = 0 is put, so that it can grow


class Problem(eqx.Module):
    """Cached variances by block, and what to fit them to; a `family` of None stands for correlation."""

    parts: Float[Array, "n q blocks"]
    errors: Float[Array, "n q"]
    family: Family | None

    def padded(self) -> "Problem":
        """The same with cases that weigh nothing and blocks that are zero, up to a round number of each.

        So that other folds, quantities and data sets of about the same size find the fit compiled already.
        """
        n, _, blocks = self.parts.shape
        round_n = 1 << max(6, (n - 1).bit_length()) if n <= 1024 else -(-n // 1024) * 1024
        parts = jnp.pad(self.parts, ((0, 0), (0, 0), (0, -blocks % 8)))
        parts, errors = (
            jnp.concatenate([x, jnp.broadcast_to(x[-1:], (round_n - n, *x.shape[1:]))])
            for x in (parts, self.errors)
        )
        return Problem(parts, errors, self.family)

    def quantity(self, q: int) -> "Problem":
        return Problem(self.parts[:, [q]], self.errors[:, [q]], self.family)


class _Unknowns(eqx.Module):
    common: Float[Array, ""]
    relative: Float[Array, " blocks"]
    log_alpha: Float[Array, " q"]

    @property
    def log_factors(self) -> Float[Array, " blocks"]:
        return self.common + self.relative


def fit_factors(
    problem: Problem, weights: Float[Array, "runs n"], strength: Float[Array, " runs"]
) -> Float[Array, "runs blocks"]:
    """Factors for each run: a choice of cases, by weights, and a regularisation λ. Compiled once for all runs."""
    return jnp.stack([_fit(problem, w, s) for w, s in zip(weights, strength, strict=True)])


@eqx.filter_jit
def _fit(problem: Problem, w: Float[Array, " n"], strength: Float[Array, ""]) -> Float[Array, " blocks"]:
    size = weighted_mean(problem.errors**2, w)
    unit = jnp.where(size > 0, size, 1.0)
    errors, parts = problem.errors / jnp.sqrt(unit), problem.parts / unit[:, None]
    pull = strength / jnp.sum(w)

    def loss(unknowns: _Unknowns, _: None) -> Array:
        shape = jnp.sqrt(1 + jnp.append(unknowns.relative, unknowns.common) ** 2) - 1
        return _misfit(problem.family, unknowns, errors, parts, w) + pull * jnp.sum(shape)

    solver: optx.AbstractMinimiser[_Unknowns, None, Any] = optx.BFGS(rtol=1e-5, atol=1e-6)

    def solve(start: _Unknowns) -> tuple[Array, Array]:
        found = optx.minimise(loss, solver, start, max_steps=_MAX_STEPS, throw=False).value
        value = loss(found, None)
        before = loss(start, None)
        better = jnp.isfinite(value) & (value <= before)
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), found, start)
        return kept.log_factors, jnp.where(better, value, before)

    factors, losses = jax.vmap(solve)(_starts(problem.family, errors, parts, w))
    return jnp.exp(factors[jnp.argmin(losses)])


def _misfit(family: Family | None, unknowns: _Unknowns, errors: Array, parts: Array, w: Array) -> Array:
    """What is to be small, on average over cases and quantities."""
    variance = parts @ jnp.exp(unknowns.log_factors)
    if family is None:
        # Half a correlation is worth about one nat a case at the values met in practice, so λ means the same.
        return -0.5 * jnp.mean(correlation(errors, jnp.maximum(variance, _TINY), weights=w))
    density = family.log_density(errors, jnp.exp(unknowns.log_alpha) + variance)
    return -jnp.mean(weighted_mean(density, w))


def _starts(family: Family | None, errors: Array, parts: Array, w: Array) -> _Unknowns:
    """Two starts, all factors alike and all blocks contributing alike, each at its best α and scale."""
    blocks = parts.shape[-1]
    means = jnp.mean(weighted_mean(parts, w), axis=0)
    alike = jnp.sum(means) / jnp.sum(means > 0)
    share = jnp.where(means > 0, alike / jnp.where(means > 0, means, 1.0), 1.0)

    def start(relative: Array) -> _Unknowns:
        variance = parts @ jnp.exp(relative)
        if family is None:
            return _Unknowns(jnp.zeros((), parts.dtype), relative, jnp.zeros(parts.shape[1], parts.dtype))
        model = fit_noise(family, errors, variance, jnp.ones_like(errors), w)
        total = jnp.maximum(weighted_mean(variance, w), _TINY)
        beta = jnp.maximum(model.beta, 0.01 / total)
        alpha = jnp.maximum(model.alpha, _SMALLEST)
        return _Unknowns(jnp.mean(jnp.log(beta)), relative, jnp.log(alpha))

    return jax.vmap(start)(jnp.stack([jnp.zeros(blocks, parts.dtype), jnp.clip(jnp.log(share), -20, 20)]))


def held_out_scores(
    problem: Problem,
    factors: Float[Array, "runs blocks"],
    train: Float[Array, "runs n"],
    test: Float[Array, "runs n"],
) -> Float[Array, "runs q"]:
    """The score of each run on its test cases; for a likelihood α and β are fitted on its training cases."""
    return jnp.stack([_held_out(problem, *run) for run in zip(factors, train, test, strict=True)])


@eqx.filter_jit
def _held_out(
    problem: Problem, factors: Float[Array, " blocks"], train: Float[Array, " n"], test: Float[Array, " n"]
) -> Float[Array, " q"]:
    variance = problem.parts @ factors
    if problem.family is None:
        return correlation(problem.errors, variance, weights=test)
    model = fit_noise(problem.family, problem.errors, variance, jnp.ones_like(variance), train)
    return weighted_mean(model.log_density(problem.errors, variance), test)
