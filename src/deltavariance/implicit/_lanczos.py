"""Lanczos iteration with thick restarts: the largest eigenvalues of a symmetric operator, by products alone."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


class Ritz(NamedTuple):
    """The `count` largest approximate eigenvalues, ascending, with their vectors as columns."""

    values: Float[Array, " count"]
    vectors: Float[Array, "size count"]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]


class _Basis(NamedTuple):
    vectors: Float[Array, "m1 size"]  # orthonormal rows; the last continues the basis
    projected: Float[Array, "m m"]  # the operator in this basis
    filled: Int[Array, ""]
    coupling: Float[Array, ""]  # length of what sticks out of the basis
    key: PRNGKeyArray
    restarts: Int[Array, ""]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]


def largest_ritz_pairs(
    matvec: Callable[[Array], Array],
    size: int,
    count: int,
    key: PRNGKeyArray,
    rtol: float,
    max_restarts: int,
    dtype: jnp.dtype,
) -> Ritz:
    """Restarted with the best Ritz vectors until `‖A x − λ x‖ ≤ rtol max|λ|` for each of the `count`.

    Full reorthogonalisation, twice, keeps the basis orthogonal to rounding. Where the basis turns out to be
    invariant a fresh random direction continues it, so that copies of a multiple eigenvalue are found too.
    """
    m = min(size, max(2 * count + 20, 40))
    if size <= m:
        values, vectors = jnp.linalg.eigh(jax.vmap(matvec)(jnp.eye(size, dtype=dtype)))
        zero = jnp.zeros((), dtype)
        return Ritz(values[-count:], vectors[:, -count:], zero, jnp.all(jnp.isfinite(values)))
    keep = count + (m - count) // 3

    def orthogonalised(vector: Array, basis: Array) -> tuple[Array, Array]:
        first = basis @ vector
        vector = vector - first @ basis
        second = basis @ vector
        return vector - second @ basis, first + second

    def expand(index: int | Array, state: _Basis) -> _Basis:
        image = matvec(state.vectors[index])
        rest, column = orthogonalised(image, state.vectors)
        length = jnp.linalg.norm(rest)
        invariant = length <= 10 * jnp.finfo(dtype).eps * jnp.linalg.norm(image)
        key, draw = jax.random.split(state.key)
        fresh, _ = orthogonalised(jax.random.normal(draw, (size,), dtype), state.vectors)
        following = jnp.where(
            invariant, fresh / jnp.linalg.norm(fresh), rest / jnp.where(invariant, 1.0, length)
        )
        column = column[:m]
        projected = state.projected.at[:, index].set(column).at[index, :].set(column)
        coupling = jnp.where(invariant, 0.0, length)
        vectors = state.vectors.at[index + 1].set(following)
        return state._replace(vectors=vectors, projected=projected, coupling=coupling, key=key)

    def sweep(state: _Basis) -> _Basis:
        state = jax.lax.fori_loop(state.filled, m, expand, state)
        values, rotation = jnp.linalg.eigh(state.projected)
        left_over = jnp.abs(state.coupling * rotation[-1, -count:])
        residual = jnp.max(left_over)
        converged = residual <= rtol * jnp.max(jnp.abs(values))
        kept = rotation[:, -keep:].T @ state.vectors[:m]
        vectors = jnp.zeros_like(state.vectors).at[:keep].set(kept).at[keep].set(state.vectors[m])
        projected = jnp.zeros_like(state.projected).at[jnp.arange(keep), jnp.arange(keep)].set(values[-keep:])
        return state._replace(
            vectors=vectors,
            projected=projected,
            filled=jnp.asarray(keep),
            restarts=state.restarts + 1,
            residual=residual,
            converged=converged,
        )

    def unfinished(state: _Basis) -> Bool[Array, ""]:
        return ~state.converged & (state.restarts < max_restarts) & ~jnp.isnan(state.residual)

    key, draw = jax.random.split(key)
    start = jax.random.normal(draw, (size,), dtype)
    empty = jnp.zeros((m + 1, size), dtype).at[0].set(start / jnp.linalg.norm(start))
    zero = jnp.zeros((), dtype)
    begin = _Basis(
        empty, jnp.zeros((m, m), dtype), jnp.asarray(0), zero, key, jnp.asarray(0), zero, jnp.asarray(False)
    )
    end = jax.lax.while_loop(unfinished, sweep, begin)
    values = jnp.diagonal(end.projected)[keep - count : keep]
    return Ritz(values, end.vectors[keep - count : keep].T, end.residual, end.converged)
