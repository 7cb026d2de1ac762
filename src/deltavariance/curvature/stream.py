"""Weighted means over data of any size, one batch at a time, for what needs no per-example gradients."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance import cases as _cases
from deltavariance.memory import largest_batch
from deltavariance.parameters import Frozen, Layout, freeze
from deltavariance.variance import hashable

PyTree = Any
# From (log-likelihood, parameters, a batch, its weights, the layout, further arguments) to the batch's weighted sum.
BatchSum = Callable[[Callable[..., Any], PyTree, PyTree, Array, Layout, Any], Any]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 7))
def _one(
    what: BatchSum,
    log_likelihood: Frozen,
    params: Frozen,
    ll_arrays: list[Array],
    arrays: list[Array],
    batch: PyTree,
    weights: Float[Array, " B"],
    layout: Layout,
    arguments: Any,
) -> tuple[Any, Array]:
    function = log_likelihood.thaw(ll_arrays)
    return what(function, params.thaw(arrays), batch, weights, layout, arguments), jnp.sum(weights)


def mean_over(
    what: BatchSum,
    log_likelihood: Callable[..., Any],
    params: PyTree,
    data: PyTree,
    layout: Layout,
    *,
    arguments: Any = None,
    weights: Any = None,
    mask: Any = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
) -> tuple[Any, Float[Array, ""]]:
    """`Σ_batches what(...) / Σ w`, and Σ w. `what` must be a function of a module, for it is compiled once and kept."""
    ll_arrays, ll = hashable(log_likelihood)
    arrays, frozen = freeze(params)

    def largest(batch: PyTree) -> int:
        return largest_batch((ll_arrays, ll), (arrays, frozen), batch, layout, batch_size, memory_budget)

    total, count = None, jnp.zeros(())
    for batch in _cases.batches(data, _cases.combined(weights, mask), largest):
        part, weight = _one(
            what,
            ll,
            frozen,
            ll_arrays,
            arrays,
            batch.cases,
            jnp.asarray(batch.weights, float),
            layout,
            arguments,
        )
        total = part if total is None else jax.tree.map(jnp.add, total, part)
        count = count + weight
    return jax.tree.map(lambda x: x / count, total), count


def negative_log_likelihood(
    log_likelihood: Callable[..., Any], params: PyTree, batch: PyTree, weights: Array, layout: Layout
) -> Callable[[list[Array]], Array]:
    """The weighted sum `−Σ w log p` of a batch as a function of the uncertain leaves."""

    def loss(leaves: list[Array]) -> Array:
        values = jax.vmap(log_likelihood, (None, 0))(layout.put(params, leaves), batch)
        return -jnp.sum(weights * jnp.reshape(values, weights.shape))

    return loss


def gradient_sum(
    log_likelihood: Callable[..., Any], params: PyTree, batch: PyTree, weights: Array, layout: Layout, _: Any
) -> list[Array]:
    """The gradient of the batch's negative log-likelihood, leaf by leaf."""
    return jax.grad(negative_log_likelihood(log_likelihood, params, batch, weights, layout))(
        layout.take(params)
    )


def hessian_products(
    log_likelihood: Callable[..., Any],
    params: PyTree,
    batch: PyTree,
    weights: Array,
    layout: Layout,
    vectors: list[Array],
) -> list[Array]:
    """`H v` of the batch's negative log-likelihood for each of the stacked `vectors`, `[R, *shape]` a leaf."""
    gradient = jax.grad(negative_log_likelihood(log_likelihood, params, batch, weights, layout))
    leaves = layout.take(params)
    return jax.lax.map(lambda vector: jax.jvp(gradient, (leaves,), (vector,))[1], vectors)


def mean_gradient(
    log_likelihood: Callable[..., Any], params: PyTree, data: PyTree, layout: Layout, **options: Any
) -> list[Array]:
    """The gradient of the average negative log-likelihood: zero where training has converged. Cost: one gradient."""
    return mean_over(gradient_sum, log_likelihood, params, data, layout, **options)[0]


def hessian_trace(
    log_likelihood: Callable[..., Any],
    params: PyTree,
    data: PyTree,
    layout: Layout,
    *,
    key: Array,
    probes: int = 8,
    **options: Any,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Hutchinson's estimate of tr H of the average negative log-likelihood, and its standard error.

    `tr H = E vᵀHv` over random signs v. Cost: `probes` Hessian-vector products, about four gradients each.
    """
    signs = jax.random.rademacher(key, (probes, layout.size), layout.dtypes[0])
    vectors = layout.unflatten(signs)
    products, _ = mean_over(
        hessian_products, log_likelihood, params, data, layout, arguments=vectors, **options
    )
    values = jnp.sum(layout.flatten(products) * signs, axis=1)
    return jnp.mean(values), jnp.std(values, ddof=1) / jnp.sqrt(probes)
