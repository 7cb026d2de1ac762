"""Inputs and cotangents by themselves, after a rotation say: what else the ways to square a product can be given."""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import Array, Float


@runtime_checkable
class Paired(Protocol):
    """`G = Σ_t a_t g_tᵀ` for each case and component: `tracing.Products`, or `Factors`."""

    @property
    def frame(self) -> tuple[int, ...]: ...
    @property
    def components(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def pairs(self) -> int: ...
    def factors(self) -> tuple[Array, Array]: ...
    def cases(self, start: Any, size: int) -> "Paired": ...
    def component(self, k: Any, size: int = 1) -> "Paired": ...


class Factors(eqx.Module):
    """The two factors of each case, held as arrays."""

    a: Float[Array, "B N T I"]
    g: Float[Array, "K B N T O"]

    @property
    def frame(self) -> tuple[int, ...]:
        return (self.a.shape[1], self.a.shape[3], self.g.shape[4])

    @property
    def components(self) -> int:
        return self.g.shape[0]

    @property
    def count(self) -> int:
        return self.a.shape[0]

    @property
    def pairs(self) -> int:
        return self.a.shape[2]

    def factors(self) -> tuple[Array, Array]:
        return self.a, self.g

    def cases(self, start: Any, size: int) -> "Factors":
        return Factors(
            jax.lax.dynamic_slice_in_dim(self.a, start, size, axis=0),
            jax.lax.dynamic_slice_in_dim(self.g, start, size, axis=1),
        )

    def component(self, k: Any, size: int = 1) -> "Factors":
        return Factors(self.a, jax.lax.dynamic_slice_in_dim(self.g, k, size, axis=0))
