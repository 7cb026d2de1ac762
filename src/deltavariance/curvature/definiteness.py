"""Where a curvature is not safely positive: how many eigenvalues, how negative, and what share of Δ lies there."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance.covariance.block import joined_leaves
from deltavariance.covariance.definite import Spectrum, not_safe, rounding
from deltavariance.parameters import Layout
from deltavariance.structures import Diagonal, Structure
from deltavariance.structures.prior import precisions
from deltavariance.variance import gradient_rows

PyTree = Any


@functools.singledispatch
def spectra_of(
    structure: Structure, mean: Any, layout: Layout, prior_precision: Any, num_data: Any
) -> list[Spectrum]:
    """The eigenpairs of `C + prior_precision/N`, block by block."""
    spectra: Any = getattr(structure, "spectra", None)
    if spectra is None:
        raise ValueError(
            f"The eigenvalues of a {type(structure).__name__} curvature are not at hand. Use `dv.Dense()`,"
            " `dv.Block()` or"
            " `dv.Diagonal()`."
        )
    found: list[Spectrum] = spectra(mean, layout, prior_precision=prior_precision, num_data=num_data)
    return found


@spectra_of.register
def _(structure: Diagonal, mean: Any, layout: Layout, prior_precision: Any, num_data: Any) -> list[Spectrum]:
    prior = precisions(prior_precision, layout)
    return [
        Spectrum(jnp.ravel(leaf + tau / num_data), None, (number,), name)
        for number, (leaf, tau, name) in enumerate(zip(mean, prior, layout.names, strict=True))
    ]


class Definiteness(eqx.Module):
    """Eigenvalues of `C + prior_precision/N`, and which of them, with damping added, are not safely positive."""

    spectra: list[Spectrum]
    unsafe: list[Array]
    layout: Layout = eqx.field(static=True)

    @staticmethod
    def of(spectra: Sequence[Spectrum], damping: Any, layout: Layout) -> "Definiteness":
        largest = functools.reduce(
            jnp.maximum, [jnp.max(jnp.abs(found.values), initial=0.0) for found in spectra]
        )
        unsafe = [not_safe(found.values, damping, largest) for found in spectra]
        return Definiteness(list(spectra), unsafe, layout)

    @property
    def is_known(self) -> bool:
        """Whether the numbers are at hand (they are not inside `jit`)."""
        return not any(isinstance(x, jax.core.Tracer) for x in self.unsafe)

    @property
    def count(self) -> int:
        """How many eigenvalues are not safely positive."""
        return sum(int(jnp.sum(x)) for x in self.unsafe)

    @property
    def negative(self) -> int:
        """How many eigenvalues of `C + prior_precision/N` are below zero by more than rounding."""
        largest = jnp.asarray(max(abs(self.largest), abs(self.lowest)))
        floor = -max(float(rounding(found.values, largest)) for found in self.spectra)
        return sum(int(jnp.sum(found.values < floor)) for found in self.spectra)

    @property
    def lowest(self) -> float:
        return min(float(jnp.min(found.values)) for found in self.spectra)

    @property
    def largest(self) -> float:
        return max(float(jnp.max(found.values)) for found in self.spectra)

    def share(
        self, u: Callable[[Any, Any], Any], params: PyTree, z: PyTree, **options: Any
    ) -> Float[Array, "n k"]:
        """The share of `|Δ|²` that lies along the eigenvectors that are not safely positive: 0 to 1.

        Where it is near 0, how they were treated does not matter to u. Cost: the gradients written out.
        """
        rows = gradient_rows(u, params, z, self.layout, **options)
        leaves = self.layout.unflatten(rows)
        inside = jnp.zeros(rows.shape[:2], rows.dtype)
        for found, unsafe in zip(self.spectra, self.unsafe, strict=True):
            if not found.members:
                continue  # what is left of a low-rank curvature has no directions of its own
            here = joined_leaves(leaves, self.layout, found.members)
            along = here if found.vectors is None else here @ found.vectors
            inside = inside + jnp.sum(jnp.where(unsafe, along**2, 0), axis=-1)
        whole = jnp.sum(rows**2, axis=-1)
        return jnp.where(whole > 0, inside / jnp.where(whole > 0, whole, 1), 0)

    def in_words(self, rule: str) -> str:
        """What was found and done, as a warning says it."""
        total = sum(int(np.size(x)) for x in self.unsafe)
        return (
            f"{self.count:,} of {total:,} eigenvalues of the Hessian (prior and damping included) are not safely"
            " positive;"
            f" {self.negative:,} are negative, the lowest {self.lowest:.3g} where the largest is {self.largest:.3g}."
            " They"
            f" were treated by the rule {rule}. The parameters are not at a strict minimum, or the data leave"
            " directions"
            " undetermined: `H.definiteness().share(u, params, z)` says how much of a quantity's gradient lies"
            " there. Train"
            " on, state the prior by `prior_precision=`, raise `damping=`, or use the Fisher or Gauss–Newton matrix,"
            " which"
            " cannot be negative."
        )
