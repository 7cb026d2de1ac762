"""A refit for likelihoods with few parameters: Newton's method from the fitted parameters."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree


def newton_refit(
    log_likelihood: Callable[[Any, Any], Any],
    params: PyTree,
    data: PyTree,
    *,
    steps: int = 30,
    damping: float = 0.0,
) -> Callable[[Float[Array, " N"]], PyTree]:
    """`refit(weights) -> params`: the minimiser of `−1/N Σ_i w_i log_likelihood(params, data[i])` near `params`.

    Newton's method with halved steps, started from `params`, on the weighted average. With `damping` the term
    `damping/2 · |θ − params|²` holds directions that the data leave open. All P × P of the Hessian are written
    out, so this is for models with up to some thousand parameters; give larger ones a refit of their own.
    Refits with different weights run side by side under `vmap`.

    A refit that has not converged after `steps` gives NaN.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> y = jnp.array([1.0, 2.0, 6.0])
    >>> refit = dv.resampling.newton_refit(lambda m, y: -0.5 * (y - m) ** 2, jnp.array(0.0), y)
    >>> print(refit(jnp.array([1.0, 1.0, 0.0])))
    1.5
    """
    uncertain, fixed = eqx.partition(params, eqx.is_inexact_array)
    start, unravel = ravel_pytree(uncertain)
    count = jax.tree.leaves(data)[0].shape[0]

    def loss(theta: Array, weights: Array) -> Array:
        model = eqx.combine(unravel(theta), fixed)
        each = jax.vmap(lambda example: log_likelihood(model, example))(data)
        return -jnp.sum(weights * each) / count + 0.5 * damping * jnp.sum((theta - start) ** 2)

    gradient, hessian = jax.grad(loss), jax.hessian(loss)
    tolerance = float(jnp.sqrt(jnp.asarray(jnp.finfo(start.dtype).eps)))

    def advance(carry: tuple[Array, Array, Array], weights: Array) -> tuple[Array, Array, Array]:
        theta, _, count = carry
        slope = gradient(theta, weights)
        step = jnp.linalg.solve(hessian(theta, weights), slope)
        # Where the Hessian is not positive the step would lead uphill: descend instead.
        step = jnp.where(step @ slope > 0, step, slope)
        fractions = 0.5 ** jnp.arange(12, dtype=start.dtype)
        losses = jax.vmap(lambda f: loss(theta - f * step, weights))(fractions)
        here = loss(theta, weights)
        rounding = 10 * jnp.finfo(start.dtype).eps * jnp.abs(here)
        good = losses <= here + rounding
        fraction = jnp.where(jnp.any(good), fractions[jnp.argmax(good)], 0.0)
        size = jnp.max(jnp.abs(step)) / (1.0 + jnp.max(jnp.abs(theta)))
        return theta - fraction * step, size, count + 1

    def refit(weights: Float[Array, " N"]) -> PyTree:
        # Newton's last step squares the error before it, so that steps below √ε end at ε.
        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            return (carry[1] > tolerance) & (carry[2] < steps)

        begin = (start, jnp.asarray(jnp.inf, start.dtype), jnp.asarray(0))
        theta, size, _ = jax.lax.while_loop(unfinished, lambda carry: advance(carry, weights), begin)
        theta = jnp.where(size <= tolerance, theta, jnp.nan)
        return eqx.combine(unravel(theta), fixed)

    return refit
