"""What the data say about the parameters: a curvature matrix in some structure, with N kept beside it, never inside."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.covariance import Covariance
from deltavariance.parameters import Layout
from deltavariance.structures import Structure

PyTree = Any


class Curvature(eqx.Module):
    """A mean over examples: a Fisher information, a Hessian or a Gauss–Newton matrix, none of which grows with N.

    `mean` is the structure's statistic, `weight` the Σw over which it was taken, `num_data` the N that `inverse`
    divides by (`None` if it cannot be told from what was seen).
    """

    structure: Structure
    mean: Any
    weight: Float[Array, ""]
    num_data: Float[Array, ""] | None
    layout: Layout = eqx.field(static=True)

    def inverse(
        self, damping: Any = 1e-8, *, prior_precision: Any = None, num_data: Any = None
    ) -> Covariance:
        """`Σ = (C + damping·I + prior_precision/N)⁻¹ / N`.

        `damping` is added to the curvature, whose entries do not grow with N; `prior_precision` is a Gaussian
        prior's (a number, a mapping from block names, or one array a leaf) and is in units of the parameters.
        """
        if isinstance(damping, (int, float)) and damping < 0:
            raise ValueError(f"damping must be at least 0, and it is {damping}.")
        count = self.num_data if num_data is None else num_data
        if count is None:
            raise ValueError(
                "N is not known, and Σ = C⁻¹ / N needs it: this curvature is a moving average, or was made without the"
                " data. Give `num_data=`, the number of training examples."
            )
        return self.structure.covariance(
            self.mean,
            self.layout,
            damping=damping,
            prior_precision=prior_precision,
            num_data=jnp.asarray(count),
        )

    def merge(self, other: "Curvature") -> "Curvature":
        """The curvature of both data sets together, as from several workers: means weighted by what each saw."""
        if (
            not isinstance(other, Curvature)
            or other.layout != self.layout
            or other.structure != self.structure
        ):
            raise ValueError(
                "Only curvatures of the same parameters in the same structure can be merged:"
                f" {self.structure} of {self.layout.names} and {getattr(other, 'structure', other)} of"
                f" {getattr(getattr(other, 'layout', None), 'names', None)} were given."
            )
        total = self.weight + other.weight
        mean = jax.tree.map(lambda a, b: (self.weight * a + other.weight * b) / total, self.mean, other.mean)
        counted = None if self.num_data is None or other.num_data is None else self.num_data + other.num_data
        return eqx.tree_at(
            lambda c: (c.mean, c.weight, c.num_data),
            self,
            (mean, total, counted),
            is_leaf=lambda x: x is None,
        )

    def diagonal(self) -> Float[Array, " P"]:
        """The diagonal of C, flat."""
        return self.layout.flatten(self.structure.diagonal(self.mean, self.layout))

    def trace(self) -> Float[Array, ""]:
        """tr C."""
        return jnp.sum(self.diagonal())


Accumulate = Callable[..., Any]
