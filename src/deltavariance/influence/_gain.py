"""Which measurement to make next for one particular quantity."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from deltavariance import cases
from deltavariance.covariance import Covariance
from deltavariance.variance import covariance, gradient_rows

from ._directions import slopes, solved_gradients

PyTree = Any
Function = Callable[[Any, Any], Any]


class Picks(NamedTuple):
    """Candidates in the order in which they were picked, and the mean variance of u that is left after each."""

    indices: Int[Array, " picks"]
    variance: Float[Array, " picks"]


def gain(
    u: Function,
    params: PyTree,
    z: PyTree,
    candidates: PyTree,
    sigma: Covariance,
    response: Function,
    *,
    scale: float = 1.0,
    batch_size: int = 256,
) -> Float[Array, "n *u M"]:
    """How much the variance of u(z) would fall if each candidate were observed: `[n, *u.shape, M]`.

    With g the gradient of the candidate's `response(params, candidate)` divided by `scale`,

        gain = (ΔᵀΣg)² / (1 + gᵀΣg).

    - `response`: what would be measured. For a measurement with normal noise, the model's prediction, and `scale` the
        noise's standard deviation. In general any function whose gradient's outer product is the information that the
        measurement adds to N times the curvature: a log-likelihood, for an example whose label is known. An
        array-valued response counts as that many measurements made at once, `ΔᵀΣGᵀ(I + GΣGᵀ)⁻¹GΣΔ`.
    - `sigma`: the covariance before, its 1/N included; H⁻¹/N or F⁻¹/N.

    Exact where the model is linear and Gaussian; elsewhere to first order. Cost: a Delta Variance of the responses,
    and one linearised pass over the candidates for each case and component of u.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = jnp.array([1.0, 1.0])
    >>> sigma = dv.as_covariance(params, jnp.array([1.0, 4.0]))
    >>> line = lambda p, x: p[0] + p[1] * x
    >>> print(dv.influence.gain(line, params, jnp.array([2.0]), jnp.array([0.0, 2.0, -0.25]), sigma, line))
    [[ 0.5       16.055...  0.444...]]
    """
    value, solved = _solved(u, params, z, sigma)
    found = list(_gains(params, candidates, sigma, response, scale, batch_size, solved))
    return jnp.reshape(jnp.concatenate(found, axis=-1), (*value, -1))


def greedy(
    u: Function,
    params: PyTree,
    z: PyTree,
    candidates: PyTree,
    sigma: Covariance,
    response: Function,
    *,
    picks: int,
    scale: float = 1.0,
    batch_size: int = 256,
    replace: bool = False,
) -> Picks:
    """A batch of candidates for u, picked one by one, each with regard to those before.

    Each pick lowers the variance of u, averaged over cases and components, the most; Σ is then what it would be with
    that candidate observed. With `replace` a candidate may be measured again. Arguments are those of `gain`. Cost per
    pick: one gradient, one multiplication by Σ, and one linearised pass over the candidates.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = jnp.array([1.0, 1.0])
    >>> line = lambda p, x: p[0] + p[1] * x
    >>> sigma = dv.as_covariance(params, jnp.array([1.0, 4.0]))
    >>> x = jnp.array([0.0, 2.0, 3.0, -3.0])
    >>> print(dv.influence.greedy(line, params, jnp.array([2.0]), x, sigma, line, picks=2).indices)
    [2 1]
    """
    total = cases.count(candidates, "candidates")
    if not 1 <= picks <= (total if not replace else picks):
        raise ValueError(f"picks must lie between 1 and the number of candidates, {total}, and is {picks}.")
    layout = sigma.layout
    _, solved = _solved(u, params, z, sigma)
    rows = jnp.reshape(gradient_rows(u, params, z, layout), solved.shape)
    before = jnp.mean(jnp.sum(rows * solved, axis=-1))

    cross = jax.jit(lambda batch, directions: slopes(response, params, batch, directions, layout) / scale)

    def across_all(directions: Array) -> Array:
        parts = [
            cross(batch.cases, directions)[:, : batch.real]
            for batch in cases.batches(candidates, None, lambda _: batch_size, what="candidates")
        ]
        return jnp.concatenate(parts, axis=1)

    target = across_all(solved)  # ΔᵀΣGᵀ [d, M, o]
    spread = covariance(response, params, candidates, sigma) / scale**2  # GΣGᵀ [M, o, o]
    outputs = spread.shape[-1]
    # What the picks explain is kept in factors, Σ_now = Σ − LᵀL, of which rows still zero change nothing.
    factor = jnp.zeros((picks * outputs, layout.size), solved.dtype)
    free = jnp.ones(total, bool)
    chosen: list[int] = []
    left: list[Array] = []
    for number in range(picks):
        gains = _gains_now(target, spread)
        pick = int(jnp.argmax(jnp.where(free, gains, -jnp.inf)))
        before = before - gains[pick]
        chosen.append(pick)
        left.append(before)
        free = free.at[pick].set(replace)
        gradient = gradient_rows(response, params, cases.take(candidates, pick, pick + 1), layout)[0] / scale
        rise = _explained(sigma.matvec(gradient), gradient, factor, spread[pick])
        factor = factor.at[number * outputs : (number + 1) * outputs].set(rise)
        target, spread = _downdated(target, spread, rows, rise, across_all(rise))
    return Picks(jnp.asarray(chosen), jnp.stack(left))


@jax.jit
def _gains_now(target: Float[Array, "d M o"], spread: Float[Array, "M o o"]) -> Float[Array, " M"]:
    """Gain of each candidate, averaged over the d components of u."""
    identity = jnp.eye(spread.shape[-1], dtype=spread.dtype)
    inner = jnp.linalg.solve(identity + spread, jnp.moveaxis(target, 0, -1))  # [M, o, d]
    return jnp.einsum("dmo,mod->m", target, inner) / target.shape[0]


@jax.jit
def _explained(
    multiplied: Float[Array, "o P"],
    gradient: Float[Array, "o P"],
    factor: Float[Array, "r P"],
    spread: Float[Array, "o o"],
) -> Float[Array, "o P"]:
    """Rows `C⁻¹ G Σ_now` with `C Cᵀ = I + G Σ_now Gᵀ`: what observing G takes away from Σ, as a square root."""
    lower = jnp.linalg.cholesky(jnp.eye(len(spread), dtype=spread.dtype) + spread)
    now = multiplied - (gradient @ factor.T) @ factor
    return jax.scipy.linalg.solve_triangular(lower, now, lower=True)


@jax.jit
def _downdated(
    target: Array, spread: Array, rows: Array, rise: Array, across: Float[Array, "a M o"]
) -> tuple[Array, Array]:
    """`ΔᵀΣGᵀ` and `GΣGᵀ` after Σ lost `riseᵀ rise`."""
    target = target - jnp.einsum("dp,ap,amo->dmo", rows, rise, across)
    return target, spread - jnp.einsum("amo,amp->mop", across, across)


def _solved(u: Function, params: PyTree, z: PyTree, sigma: Covariance) -> tuple[tuple[int, ...], Array]:
    """The shape of u over the cases, and `ΣΔ` as rows."""
    n = cases.count(z, "z")
    first = jax.tree.map(lambda leaf: leaf[0], z)
    shape = (n, *jax.eval_shape(lambda case: jnp.asarray(u(params, case)), first).shape)
    solved = solved_gradients(u, params, z, sigma)
    return shape, jnp.reshape(solved, (-1, solved.shape[-1]))


def _gains(
    params: PyTree,
    candidates: PyTree,
    sigma: Covariance,
    response: Function,
    scale: float,
    batch_size: int,
    solved: Array,
) -> Iterator[Array]:
    @jax.jit
    def cross(batch: PyTree, directions: Array) -> Array:
        return slopes(response, params, batch, directions, sigma.layout) / scale

    for batch in cases.batches(candidates, None, lambda _: batch_size, what="candidates"):
        target = cross(batch.cases, solved)[:, : batch.real]
        spread = covariance(response, params, batch.cases, sigma)[: batch.real] / scale**2
        inner = jnp.linalg.solve(jnp.eye(spread.shape[-1]) + spread, jnp.moveaxis(target, 0, -1))  # [B, o, d]
        yield jnp.einsum("dbo,bod->db", target, inner)
