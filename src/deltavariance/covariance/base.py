"""What every Σ can do. A structure adds how it is stored, multiplied and contracted with gradients."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients

LARGEST_DENSE = 20_000


class Covariance(eqx.Module):
    """A covariance Σ of the uncertain parameters. It holds its 1/N; it is immutable and a pytree.

    Vectors are either flat, `[..., P]` in the order of `layout`, or lists with one array `[..., *shape]` a leaf.
    """

    layout: eqx.AbstractVar[Layout]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks that `block_variances` reports and `scale` scales: the leaves."""
        return self.layout.names

    @abc.abstractmethod
    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        """`ΔᵀΣΔ` of each component and case, split by block; the parts sum to the whole."""

    @abc.abstractmethod
    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        """`Σ v` for `v` given leaf by leaf, with any leading axes in common."""

    @abc.abstractmethod
    def multiply_sqrt(self, noise: Float[Array, "... R"]) -> list[Array]:
        """`S ε` leaf by leaf, for a square root `S Sᵀ = Σ` with R = `sqrt_columns` columns."""

    @abc.abstractmethod
    def logdet(self) -> Float[Array, ""]:
        """log det Σ."""

    @abc.abstractmethod
    def scale(self, factors: "Mapping[str, Any] | Array | float") -> "Covariance":
        """Σ with each block multiplied by its factor (one number for all, or a mapping from block names).

        Between two blocks of one dense Σ the geometric mean of their factors applies, so that Σ stays a covariance.
        """

    @property
    def sqrt_columns(self) -> int:
        """R, the length of the noise that `multiply_sqrt` takes."""
        return self.layout.size

    def matvec(self, vector: Any) -> Any:
        """`Σ v` for a flat `[..., P]` or for the list of leaves, answered in kind."""
        if isinstance(vector, (list, tuple)):
            return self.multiply(list(vector))
        return self.layout.flatten(self.multiply(self.layout.unflatten(jnp.asarray(vector))))

    def sqrt_matvec(self, noise: Float[Array, "... R"]) -> Float[Array, "... P"]:
        """`S ε`, flat, for a square root `S Sᵀ = Σ`: standard normal noise becomes a draw."""
        return self.layout.flatten(self.multiply_sqrt(jnp.asarray(noise)))

    def sample(self, key: PRNGKeyArray, shape: int | Sequence[int] = ()) -> Float[Array, "... P"]:
        """Draws from the normal distribution with mean zero and covariance Σ, `[*shape, P]`."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return self.sqrt_matvec(jax.random.normal(key, (*shape, self.sqrt_columns), self.layout.dtypes[0]))

    def diagonal(self) -> Float[Array, " P"]:
        """The variances of the parameters, flat. The default multiplies by every unit vector: small cases."""
        return jnp.diagonal(self.to_dense())

    def to_dense(self) -> Float[Array, "P P"]:
        """Σ written out, refused above 20,000 parameters."""
        size = self.layout.size
        refuse_dense(size)
        return self.matvec(jnp.eye(size, dtype=self.layout.dtypes[0]))

    def cross(self, gradients: ExampleGradients) -> Float[Array, "B K K"]:
        """`Δ_k Σ Δ_l` among the components of each case. Cost: K·B·P numbers, and one multiplication by Σ."""
        rows = [gradients.leaf(number) for number in range(len(self.layout))]
        products = self.multiply(rows)
        terms = [
            jnp.einsum("kbp,lbp->bkl", _flat(row, shape), _flat(product, shape))
            for row, product, shape in zip(rows, products, self.layout.shapes, strict=True)
        ]
        return sum(terms[1:], terms[0])


def _flat(x: Array, shape: Sequence[int]) -> Array:
    return jnp.reshape(x, (*x.shape[: x.ndim - len(shape)], -1))


def refuse_dense(size: int, limit: int = LARGEST_DENSE) -> None:
    """Raise before a `[P, P]` matrix is made that would not be wanted."""
    if size > limit:
        raise MemoryError(
            f"A dense matrix for {size:,} parameters takes {4 * size**2:,} bytes in float32 and is refused above"
            f" {limit:,} parameters. Use `dv.Diagonal()`, `dv.EigenKronecker()` or `dv.LowRank(rank)`, or narrow the"
            " parameters with `where=`."
        )


def block_factors(factors: Mapping[str, Any] | Array | float, blocks: Sequence[str]) -> list[Any]:
    """One factor a block, from a number for all of them or a mapping from names."""
    if isinstance(factors, Mapping):
        unknown = sorted(set(factors) - set(blocks))
        if unknown:
            raise ValueError(f"No block is called {unknown}. The blocks of this Σ are {list(blocks)}.")
        return [factors.get(block, 1.0) for block in blocks]
    return [factors] * len(blocks)
