"""Draws from a normal posterior, put through u without any linearisation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance.covariance import Covariance
from deltavariance.estimators.base import BACKWARD, PyTree, Quantity, arrays_of
from deltavariance.estimators.ensemble import stack, unstack
from deltavariance.estimators.sampled import Sampled
from deltavariance.parameters import Layout, Where


class SampledPosterior(Sampled):
    """The variance of u among draws of the parameters from `N(params, Σ)`.

    What the Delta Variance linearises, with sampling error in place of the linearisation's. Training: the fit of Σ.
    Inference: one pass a sample, and each draw multiplies noise by a square root of Σ once.

    >>> import jax, jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"w": jnp.array(1.0)}
    >>> estimator = SampledPosterior(params, dv.as_covariance(params, 0.01), samples=4000, key=jax.random.key(0))
    >>> v = estimator.variance(lambda p, z: p["w"] * z, jnp.array([1.0, 10.0]))
    >>> bool(jnp.allclose(v, jnp.array([0.01, 1.0]), rtol=0.1))
    True
    """

    params: PyTree
    sigma: Covariance
    keys: PRNGKeyArray
    training_cost: float = eqx.field(static=True)

    def __init__(
        self,
        params: PyTree,
        sigma: Covariance,
        *,
        samples: int = 10,
        key: PRNGKeyArray,
        training_cost: float = 1 + BACKWARD,
    ) -> None:
        self.params, self.sigma = arrays_of(params), sigma
        self.sigma.layout.check(self.params)
        self.keys, self.training_cost = jax.random.split(key, samples), training_cost

    def draws(self) -> PyTree:
        return self.keys

    def evaluate(self, u: Quantity, draw: PyTree, case: PyTree) -> Any:
        return u(moved(self.params, self.sigma.layout, self.sigma.sample(draw)), case)

    def example_params(self) -> PyTree:
        return self.params


class SWAG(Sampled):
    """The variance of u among draws from a normal distribution fitted to snapshots of a training's last stretch.

    With the snapshots' mean `θ̄`, their variance by coordinate `d` and the deviations `D` of the last `rank` of them,
    a draw is `θ̄ + √(s/2) · (√d ∘ ε₁ + D ε₂ / √(rank − 1))`. `scale` s is 1 in the original; the size of SWAG's variance
    follows the learning rate, so it is often fitted.

    `snapshots` is a list of parameter pytrees or one pytree with them along the leading axis of its arrays. Training:
    nothing if the snapshots were taken on the way, otherwise give `training_cost`. Inference: one pass a sample.
    """

    params: PyTree
    variances: Float[Array, " P"]
    deviations: Float[Array, "rank P"]
    scale: Float[Array, ""]
    keys: PRNGKeyArray
    layout: Layout = eqx.field(static=True)
    training_cost: float = eqx.field(static=True)

    def __init__(
        self,
        snapshots: Any,
        *,
        samples: int = 10,
        key: PRNGKeyArray,
        rank: int = 20,
        scale: float = 1.0,
        where: Where = None,
        training_cost: float = 0.0,
    ) -> None:
        stacked = stack(snapshots) if isinstance(snapshots, list) else snapshots
        models = unstack(stacked)
        if len(models) < 2 or rank < 2:
            raise ValueError(
                f"A spread needs at least 2 snapshots and a rank of at least 2; there are {len(models)} snapshots and"
                f" `rank` is {rank}."
            )
        self.layout = Layout.of(models[-1], where)
        rows = jnp.stack([self.layout.flatten(self.layout.take(model)) for model in models])
        mean = jnp.mean(rows, axis=0)
        self.params = self.layout.put(arrays_of(models[-1]), self.layout.unflatten(mean))
        self.variances = jnp.mean((rows - mean) ** 2, axis=0)
        self.deviations = (rows - mean)[-rank:]
        self.scale = jnp.asarray(scale, rows.dtype)
        self.keys, self.training_cost = jax.random.split(key, samples), training_cost

    def draws(self) -> PyTree:
        return self.keys

    def evaluate(self, u: Quantity, draw: PyTree, case: PyTree) -> Any:
        first, second = jax.random.split(draw)
        count, size = self.deviations.shape
        own = jnp.sqrt(self.variances) * jax.random.normal(first, (size,), self.variances.dtype)
        shared = jax.random.normal(second, (count,), self.variances.dtype) @ self.deviations
        step = jnp.sqrt(self.scale / 2) * (own + shared / jnp.sqrt(count - 1))
        return u(moved(self.params, self.layout, step), case)

    def example_params(self) -> PyTree:
        return self.params


def moved(params: PyTree, layout: Layout, step: Float[Array, " P"]) -> PyTree:
    """`params` with `step` added to its uncertain leaves."""
    steps = layout.unflatten(step)
    return layout.put(
        params, [leaf + add.astype(leaf.dtype) for leaf, add in zip(layout.take(params), steps, strict=True)]
    )
