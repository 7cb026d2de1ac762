"""Monte-Carlo dropout: of any network, after training, or of one that has its own."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance.estimators.base import PyTree, Quantity, arrays_of
from deltavariance.estimators.sampled import Sampled
from deltavariance.parameters import Layout, Where
from deltavariance.tracing.masking import masked


class MCDropout(Sampled):
    """The variance of u among random thinnings of a network that need not know of dropout.

    The inputs of u's products with parameters (matrix products and convolutions, found by tracing) are multiplied by
    a mask: each entry is zero with probability `rate`, and otherwise divided by `1 − rate`. One draw is one set of
    masks, used for all cases; each product has its own.

    Args:
        rate: between 0 and 1; to be chosen on validation data, since the variance is about proportional to
            `rate / (1 − rate)`. Another rate does not compile again: `estimator.with_rate(r)`.
        samples: draws of masks.
        inputs: whether what was computed from the case alone, the first layer's input, is masked as well.
        fixed: whether the steps of a rollout or recurrence share masks; by default each has its own. Layers that are
            run by a loop over stacked weights never share.
        where: the parameters whose products count, as everywhere; all by default.

    Training: nothing. Inference: one pass a sample.

    >>> import jax, jax.numpy as jnp
    >>> params = {"v": jnp.ones((3, 100)), "w": jnp.ones(100)}
    >>> estimator = MCDropout(params, rate=0.5, samples=400, key=jax.random.key(0))
    >>> v = estimator.variance(lambda p, x: (x @ p["v"]) @ p["w"], jnp.ones((1, 3)))
    >>> bool(700 < v[0] < 1100)  # 100 terms of 3, each 0 or 6
    True
    """

    params: PyTree
    rate: Float[Array, ""]
    keys: PRNGKeyArray
    layout: Layout = eqx.field(static=True)
    inputs: bool = eqx.field(static=True)
    fixed: bool = eqx.field(static=True)
    training_cost: float = eqx.field(static=True)

    def __init__(
        self,
        params: PyTree,
        *,
        rate: float,
        samples: int = 10,
        key: PRNGKeyArray,
        inputs: bool = False,
        fixed: bool = False,
        where: Where = None,
    ) -> None:
        self.params = arrays_of(params)
        self.rate = _checked(rate)
        self.keys = jax.random.split(key, samples)
        self.layout = Layout.of(self.params, where)
        self.inputs, self.fixed, self.training_cost = inputs, fixed, 0.0

    def with_rate(self, rate: float) -> "MCDropout":
        """The same draws at another rate."""
        return eqx.tree_at(lambda estimator: estimator.rate, self, _checked(rate))

    def draws(self) -> PyTree:
        return self.keys

    def evaluate(self, u: Quantity, draw: PyTree, case: PyTree) -> Any:
        return masked(
            u, self.params, case, draw, self.rate, layout=self.layout, inputs=self.inputs, fixed=self.fixed
        )

    def example_params(self) -> PyTree:
        return self.params


def _checked(rate: float) -> Float[Array, ""]:
    if not 0 < rate < 1:
        raise ValueError(f"A dropout rate lies between 0 and 1, and `rate` is {rate}.")
    return jnp.asarray(rate, jnp.result_type(float))


class OwnDropout(Sampled):
    """The variance of u among passes of a network that draws its own dropout: `u(params, z, key)`.

    Write `u` with `key=None` meaning "no dropout" and the same function serves the other estimators too. One draw
    hands one key to all cases.

    Training: nothing, if the network was trained with dropout. Inference: one pass a sample.
    """

    params: PyTree
    keys: PRNGKeyArray
    training_cost: float = eqx.field(static=True)

    def __init__(self, params: PyTree, *, samples: int = 10, key: PRNGKeyArray) -> None:
        self.params, self.keys, self.training_cost = arrays_of(params), jax.random.split(key, samples), 0.0

    def draws(self) -> PyTree:
        return self.keys

    def evaluate(self, u: Any, draw: PyTree, case: PyTree) -> Any:
        return u(self.params, case, draw)

    def example_params(self) -> PyTree:
        return self.params

    def plain(self, u: Any) -> Quantity:
        return _Keyed(u)


class _Keyed(eqx.Module):
    """A quantity that draws dropout as a function of two arguments, for shapes."""

    u: Any

    def __call__(self, params: PyTree, case: PyTree) -> Any:
        return self.u(params, case, jax.random.key(0))
