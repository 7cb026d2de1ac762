"""Many diagonal covariances against the same gradients: one backward pass serves a whole grid of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

import deltavariance as dv

TOTAL = "total"
BLOCK = "block"


class SeveralDiagonals(dv.Covariance):
    """A stack of diagonal Σ_m that answers with `ΔᵀΣ_mΔ` of each, in place of the parts of one.

    `block_variances` then returns `total m` for every Σ and `block m name` for the Σ in `detailed`, split by the
    model's layers.

    **Cost** the gradients once, written out, and `2 M` operations for each of their entries.
    """

    variances: tuple[Float[Array, "m ..."], ...]
    detailed: tuple[int, ...] = eqx.field(static=True)
    layout: Any = eqx.field(static=True)

    @classmethod
    def of(cls, members: Sequence[dv.Covariance], detailed: Sequence[int] = ()) -> "SeveralDiagonals":
        """From diagonal Σ of the same parameters."""
        layout = members[0].layout
        if any(m.layout != layout for m in members):
            raise ValueError("All covariances must be of the same parameters.")
        leaves = layout.unflatten(jnp.stack([m.diagonal() for m in members]))
        return cls(variances=tuple(leaves), detailed=tuple(detailed), layout=layout)

    def block_quadratic(self, gradients: Any) -> dict[str, Float[Array, "K B"]]:
        count = self.variances[0].shape[0]
        total: Any = 0.0
        blocks: dict[str, Any] = {}
        for number, (name, variances) in enumerate(zip(self.layout.names, self.variances, strict=True)):
            rows = gradients.leaf(number)
            squares = rows.reshape(*rows.shape[: rows.ndim - variances.ndim + 1], -1) ** 2
            part = squares @ variances.reshape(count, -1).T
            total = total + part
            for m in self.detailed:
                key = f"{BLOCK} {m} {layer_of(name)}"
                blocks[key] = blocks.get(key, 0.0) + part[..., m]
        return {f"{TOTAL} {m}": total[..., m] for m in range(count)} | blocks

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        raise TypeError("This is a stack of covariances, and not one: use the members themselves.")

    def multiply_sqrt(self, noise: Float[Array, "... R"]) -> list[Array]:
        return self.multiply([])

    def logdet(self) -> Float[Array, ""]:
        raise TypeError("A stack of covariances has no single determinant.")

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "SeveralDiagonals":
        raise TypeError("Scale a member, and not the stack.")


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: its path without the last part.

    >>> layer_of("hidden/0/weight"), layer_of("scale")
    ('hidden/0', 'scale')
    """
    return name.rpartition("/")[0] or name
