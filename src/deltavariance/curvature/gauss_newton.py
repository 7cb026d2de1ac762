"""The Gauss–Newton matrix, which is the true Fisher information: exact, without labels."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from deltavariance.curvature.base import Curvature
from deltavariance.curvature.outer import outer_products
from deltavariance.curvature.outputs import output_and_distribution
from deltavariance.likelihood.base import flatten
from deltavariance.parameters import Layout, Where
from deltavariance.structures import Structure

PyTree = Any


class Rooted(eqx.Module):
    """`u(params, x) = S(f)ᵀ f(params, x)` with S held fixed: its r gradients are the columns of JᵀS."""

    predict: Callable[[Any, Any], Any]

    def __call__(self, params: PyTree, x: PyTree) -> Float[Array, " r"]:
        output, distribution = output_and_distribution(self.predict, params, x)
        fixed = jax.lax.stop_gradient(distribution)
        noise = jax.ShapeDtypeStruct((fixed.rank,), fixed.dtype)
        (rooted,) = jax.linear_transpose(fixed.information_root_times, noise)(
            flatten(output).astype(fixed.dtype)
        )
        found: Array = rooted
        return found


def gauss_newton(
    predict: Callable[[Any, Any], Any],
    params: PyTree,
    inputs: PyTree,
    *,
    structure: Structure | None = None,
    where: Where | Layout = None,
    weights: Any = None,
    mask: Any = None,
    num_data: int | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
) -> Curvature:
    """`G = (1/N) Σ_n J_nᵀ S_n S_nᵀ J_n`, with J the Jacobian of the outputs and `S Sᵀ` the information about them.

    `predict` is a log-likelihood made by this library (`dv.gaussian_log_likelihood`, `categorical_log_likelihood`,
    `bernoulli_log_likelihood`, `poisson_log_likelihood`, ...; its prediction and its noise are used), or a function
    `predict(params, x)` that returns a normal, categorical, Bernoulli or Poisson distribution of numpyro or distrax.
    Labels are not needed: G is the true Fisher information exactly, and for these families in their natural
    parameters it is also the Hessian less the part that comes from the curvature of f.

    Cost: one gradient for each column of S (each output), where the empirical Fisher information takes one in all.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> ll = dv.poisson_log_likelihood(lambda p, x: p["rate"] * x)
    >>> G = dv.gauss_newton(ll, {"rate": jnp.array(0.0)}, jnp.array([1.0, 3.0]), structure=dv.Dense())
    >>> G.mean.tolist()
    [[5.0]]
    """
    return outer_products(
        Rooted(predict),
        params,
        inputs,
        structure=structure,
        where=where,
        weights=weights,
        mask=mask,
        num_data=num_data,
        batch_size=batch_size,
        memory_budget=memory_budget,
    )
