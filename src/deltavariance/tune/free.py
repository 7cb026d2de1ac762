"""What may change when Σ is learned: an unconstrained pytree θ, and Σ as a function of it."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance.covariance import Covariance
from deltavariance.covariance.base import block_factors
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients
from deltavariance.tune.own_variances import own_variances, with_variances

LOW_RANK = "low rank"


class Free(eqx.Module):
    """Which numbers of Σ are learned."""

    @abc.abstractmethod
    def start(self, sigma: Covariance, key: PRNGKeyArray) -> Any:
        """The θ to start from."""

    @abc.abstractmethod
    def build(self, sigma: Covariance, theta: Any) -> Covariance:
        """Σ at θ, positive semi-definite for every θ."""


class EachBlock(Free):
    """One factor a block, as `block_scales` fits them, but with any loss."""

    def start(self, sigma: Covariance, key: PRNGKeyArray) -> Any:
        return {block: jnp.zeros(()) for block in sigma.blocks}

    def build(self, sigma: Covariance, theta: Any) -> Covariance:
        return sigma.scale({block: jnp.exp(value) for block, value in theta.items()})


class EachVariance(Free):
    """A factor for each variance in Σ's own basis: each parameter of a diagonal, each eigenvector of a block."""

    def start(self, sigma: Covariance, key: PRNGKeyArray) -> Any:
        return [jnp.zeros(v.shape, v.dtype) for v in _variances(sigma)]

    def build(self, sigma: Covariance, theta: Any) -> Covariance:
        return with_variances(sigma, [v * jnp.exp(t) for v, t in zip(_variances(sigma), theta, strict=True)])


class EachSide(Free):
    """A factor for each row times a factor for each column of the variances of a weight: a Kronecker factor.

    In a Kronecker Σ these are the eigenvectors of its two sides, `(A ⊗ G)`-fashion I + O numbers for a weight
    of I·O; in a diagonal Σ they are inputs and outputs.
    """

    def start(self, sigma: Covariance, key: PRNGKeyArray) -> Any:
        return [
            (jnp.zeros((*v.shape[:-1], 1), v.dtype), jnp.zeros((*v.shape[:-2], 1, v.shape[-1]), v.dtype))
            if v.ndim >= 2
            else (jnp.zeros(v.shape, v.dtype),)
            for v in _variances(sigma)
        ]

    def build(self, sigma: Covariance, theta: Any) -> Covariance:
        return with_variances(
            sigma, [v * jnp.exp(sum(sides)) for v, sides in zip(_variances(sigma), theta, strict=True)]
        )


class AddLowRank(Free):
    """`Σ + A Aᵀ` with A `[P, rank]` learned, beside one factor for Σ as a whole; Σ itself may be diagonal.

    A starts at random, and so small that `A Aᵀ` adds a hundredth of Σ's own trace.
    """

    rank: int = eqx.field(static=True)

    def start(self, sigma: Covariance, key: PRNGKeyArray) -> Any:
        if not 1 <= self.rank <= sigma.layout.size:
            raise ValueError(f"The rank is {self.rank} for {sigma.layout.size} parameters.")
        shapes = sigma.layout.shapes
        keys = jax.random.split(key, len(shapes))
        columns = [
            jax.random.normal(k, (self.rank, *shape), dtype)
            for k, shape, dtype in zip(keys, shapes, sigma.layout.dtypes, strict=True)
        ]
        return {"whole": jnp.zeros(()), "columns": columns}

    def build(self, sigma: Covariance, theta: Any) -> Covariance:
        # θ is in units of the start, so that one learning rate serves all.
        unit = jnp.sqrt(0.01 * jnp.mean(sigma.diagonal()) / self.rank)
        columns = tuple(unit * column for column in theta["columns"])
        return WithLowRank(base=sigma.scale(jnp.exp(theta["whole"])), columns=columns, layout=sigma.layout)


class WithLowRank(Covariance):
    """`Σ = B + A Aᵀ`; `columns[l]` is A's share of leaf l, `[rank, *shape]`. Cost: `Δ·A`, rank numbers a
    parameter.

    What `A Aᵀ` adds is reported as a block of its own.
    """

    base: Covariance
    columns: tuple[Array, ...]
    layout: Layout = eqx.field(static=True)

    @property
    def blocks(self) -> tuple[str, ...]:
        return (*self.base.blocks, LOW_RANK)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        along = [
            jnp.einsum("kbp,rp->kbr", _flat(gradients.leaf(number), 2), _flat(column, 1))
            for number, column in enumerate(self.columns)
        ]
        added = jnp.sum(sum(along[1:], along[0]) ** 2, axis=-1)
        return {**self.base.block_quadratic(gradients), LOW_RANK: added}

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        a = self._columns()
        inside = self.layout.flatten(leaves) @ a.T @ a
        return [x + y for x, y in zip(self.base.multiply(leaves), self.layout.unflatten(inside), strict=True)]

    @property
    def sqrt_columns(self) -> int:
        return self.base.sqrt_columns + self.columns[0].shape[0]

    def multiply_sqrt(self, noise: Float[Array, "... R"]) -> list[Array]:
        first = self.base.multiply_sqrt(noise[..., : self.base.sqrt_columns])
        rest = self.layout.unflatten(noise[..., self.base.sqrt_columns :] @ self._columns())
        return [x + y for x, y in zip(first, rest, strict=True)]

    def logdet(self) -> Float[Array, ""]:
        return jnp.linalg.slogdet(self.to_dense())[1]

    def diagonal(self) -> Float[Array, " P"]:
        return self.base.diagonal() + jnp.sum(self._columns() ** 2, axis=0)

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "WithLowRank":
        *chosen, last = block_factors(factors, self.blocks)
        return WithLowRank(
            base=self.base.scale(dict(zip(self.base.blocks, chosen, strict=True))),
            columns=tuple(jnp.sqrt(jnp.asarray(last)) * column for column in self.columns),
            layout=self.layout,
        )

    def _columns(self) -> Float[Array, "rank P"]:
        return self.layout.flatten(list(self.columns))


def _flat(x: Array, leading: int) -> Array:
    return jnp.reshape(x, (*x.shape[:leading], -1))


def _variances(sigma: Covariance) -> list[Array]:
    found = own_variances(sigma)
    if found is None:
        raise TypeError(
            f"A {type(sigma).__name__} has no basis of its own in which its variances could be learned. Start from"
            " a diagonal, Kronecker, block or dense Σ, as `F.inverse()` makes them, or use `EachBlock()` or"
            " `AddLowRank(rank)`."
        )
    return found
