"""What every estimator with several answers shares: evaluate u once a draw, and take the variance."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from deltavariance import cases as _cases
from deltavariance.estimators.base import Estimator, PyTree, Quantity
from deltavariance.memory import largest_batch
from deltavariance.parameters import Layout, freeze
from deltavariance.tracing import as_real_array
from deltavariance.variance import hashable


class Sampled(Estimator):
    """Several models' answers to the same question: the unbiased variance among them (ddof = 1).

    With S draws of a normal quantity the estimate has a relative standard error of `√(2/(S−1))`: 47 % for ten.
    Draws are evaluated one after another, cases together, in batches that keep within `memory_budget` bytes.
    """

    @abc.abstractmethod
    def draws(self) -> PyTree:
        """What tells one draw from another, with the draws along the leading axis."""

    @abc.abstractmethod
    def evaluate(self, u: Quantity, draw: PyTree, case: PyTree) -> Any:
        """u of one case by one draw."""

    @abc.abstractmethod
    def example_params(self) -> PyTree:
        """Parameters of one model, for shapes."""

    def plain(self, u: Quantity) -> Quantity:
        """u as a function of parameters and case, for its shapes."""
        return u

    @property
    def count(self) -> int:
        """S, the number of draws."""
        return int(jnp.shape(jax.tree.leaves(self.draws())[0])[0])

    def values(
        self, u: Quantity, z: PyTree, *, batch_size: int | None = None, memory_budget: int | None = None
    ) -> Float[Array, "draws n *u"]:
        """u of every case by every draw."""
        n = _cases.count(z, "z")
        params = self.example_params()
        if batch_size is None:
            batch_size = largest_batch(
                hashable(self.plain(u)), freeze(params), z, Layout.of(params), None, memory_budget
            )
        return _values(self, u, z, n if n <= batch_size else batch_size)

    def variance(
        self, u: Quantity, z: PyTree, *, batch_size: int | None = None, memory_budget: int | None = None
    ) -> Float[Array, "n *u"]:
        if self.count < 2:
            raise ValueError(f"A variance among draws needs at least 2 of them, and there is {self.count}.")
        values = self.values(u, z, batch_size=batch_size, memory_budget=memory_budget)
        return jnp.var(values, axis=0, ddof=1)

    def mean(self, u: Quantity, z: PyTree, **options: Any) -> Float[Array, "n *u"]:
        """The mean answer of the draws."""
        return jnp.mean(self.values(u, z, **options), axis=0)

    def inference_cost(self, u: Quantity, z: PyTree | None = None) -> float:
        return float(self.count)


@eqx.filter_jit
def _values(estimator: Sampled, u: Quantity, z: PyTree, batch_size: int) -> Float[Array, "draws n *u"]:
    n = jax.tree.leaves(z)[0].shape[0]

    def of_draw(draw: PyTree) -> Array:
        def one(case: PyTree) -> Array:
            return as_real_array(estimator.evaluate(u, draw, case))

        return jax.vmap(one)(z) if n <= batch_size else lax.map(one, z, batch_size=batch_size)

    return lax.map(of_draw, estimator.draws())
