"""The true Fisher information, by labels drawn from the model."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance.cases import count, is_tree_of_arrays
from deltavariance.curvature.base import Curvature
from deltavariance.curvature.outer import outer_products
from deltavariance.curvature.outputs import distribution_of
from deltavariance.likelihood import OutputDistribution, WrappedDistribution
from deltavariance.parameters import Layout, Where
from deltavariance.structures import Structure

PyTree = Any


class DrawnLabels(eqx.Module):
    """`u(params, (x, number))[s] = log p(y_s | x) / √S` for S labels y_s, drawn with a key of this input's own."""

    predict: Callable[[Any, Any], Any]
    key: Array
    samples: int = eqx.field(static=True)

    def __call__(self, params: PyTree, numbered: tuple[PyTree, Array]) -> Float[Array, " S"]:
        x, number = numbered
        found = distribution_of(self.predict, params, x)
        known = isinstance(found, (OutputDistribution, WrappedDistribution))
        distribution = found if known else WrappedDistribution(found)
        own = jax.random.fold_in(jax.random.wrap_key_data(self.key), number)

        def one(key: Array) -> Array:
            label = jax.tree.map(jax.lax.stop_gradient, distribution.sample(key))
            return distribution.log_prob(label)

        return jnp.stack([one(key) for key in jax.random.split(own, self.samples)]) / np.sqrt(self.samples)


class Numbered:
    """Batches of inputs, each input with its number in the order they come."""

    def __init__(self, batches: Iterable[PyTree]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[PyTree, np.ndarray]]:
        start = 0
        for batch in self.batches:
            stop = start + count(batch, "inputs")
            yield batch, np.arange(start, stop, dtype=np.uint32)
            start = stop


def model_fisher(
    predict: Callable[[Any, Any], Any],
    params: PyTree,
    inputs: PyTree,
    *,
    key: PRNGKeyArray,
    samples: int = 1,
    structure: Structure | None = None,
    where: Where | Layout = None,
    weights: Any = None,
    mask: Any = None,
    num_data: int | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
) -> Curvature:
    """`F = (1/N) Σ_n E_y s_n s_nᵀ` with y drawn from `predict(params, x_n)`: the true Fisher information, by sampling.

    `predict(params, x)` returns a distribution with `log_prob(y)` and `sample(key)` (numpyro, distrax, TensorFlow
    Probability, or this library's); a log-likelihood of this library will do too. Each input has `samples` labels,
    whose outer products are averaged; labels depend on `key` and the input's place in the data alone, not on batches.
    Where the family is known, `gauss_newton` is the same without the sampling error.

    Cost: `samples` gradients an input.

    >>> import jax, jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import deltavariance as dv
    >>> def predict(p, x):
    ...     return dist.Normal(p["slope"] * x, 2.0)
    >>> F = dv.model_fisher(predict, {"slope": jnp.array(1.0)}, jnp.ones(4000), key=jax.random.key(0))
    >>> abs(float(F.trace()) - 0.25) < 0.02
    True
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, and it is {samples}.")
    data: Any
    if is_tree_of_arrays(inputs):
        data = (inputs, np.arange(count(inputs, "inputs"), dtype=np.uint32))
    else:
        data = iter(Numbered(inputs)) if hasattr(inputs, "__next__") else Numbered(inputs)
    raw = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return outer_products(
        DrawnLabels(predict, raw, samples),
        params,
        data,
        structure=structure,
        where=where,
        weights=weights,
        mask=mask,
        num_data=num_data,
        batch_size=batch_size,
        memory_budget=memory_budget,
    )
