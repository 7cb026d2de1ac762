"""From the eigenvalues of a curvature to variances, with a named rule for those that are not safely positive."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Spectrum(eqx.Module):
    """Eigenvalues of one block of `C + prior_precision/N`, with eigenvectors (`None`: the unit vectors)."""

    values: Float[Array, " R"]
    vectors: Float[Array, "G R"] | None
    members: tuple[int, ...] = eqx.field(static=True)
    name: str = eqx.field(static=True)


class Rule(eqx.Module):
    """What becomes of an eigenvalue that is not safely positive."""

    @abc.abstractmethod
    def variances(
        self, values: Float[Array, " G"], unsafe: Bool[Array, " G"], damping: Any, num_data: Any
    ) -> Float[Array, " G"]:
        """The variance along each eigenvector."""


class Clip(Rule):
    """A negative eigenvalue counts as 0, and damping is added to that: the direction keeps a large variance.

    This inverts the nearest positive semi-definite matrix. It never claims to know what the data do not say.
    """

    def variances(
        self, values: Float[Array, " G"], unsafe: Bool[Array, " G"], damping: Any, num_data: Any
    ) -> Float[Array, " G"]:
        kept = jnp.where(unsafe, jnp.maximum(values, 0), values)
        return 1 / positive(num_data * (kept + damping))


class Drop(Rule):
    """The direction gets variance 0: what is said of a quantity leaves that direction out (a pseudo-inverse)."""

    def variances(
        self, values: Float[Array, " G"], unsafe: Bool[Array, " G"], damping: Any, num_data: Any
    ) -> Float[Array, " G"]:
        return jnp.where(unsafe, 0, 1 / jnp.where(unsafe, 1, num_data * (values + damping)))


def rounding(values: Float[Array, " G"], largest: Float[Array, ""]) -> Float[Array, ""]:
    """What an eigenvalue may be off by for rounding alone: G·eps of the largest."""
    return values.shape[0] * jnp.finfo(values.dtype).eps * largest


def not_safe(values: Float[Array, " G"], damping: Any, largest: Float[Array, ""]) -> Bool[Array, " G"]:
    """Which eigenvalues, damping included, are not above what rounding could make of zero."""
    return values + damping <= rounding(values, largest)


def semidefinite_variances(values: Float[Array, " G"], damping: Any, num_data: Any) -> Float[Array, " G"]:
    """For a mean of outer products: an eigenvalue below 0 is a rounding error."""
    return 1 / positive(num_data * (jnp.maximum(values, 0) + damping))


def positive(precisions: Array) -> Array:
    """`precisions`, or an error where one is 0 and Σ would be infinite. Inside a trace nothing can be said."""
    if not isinstance(precisions, jax.core.Tracer) and not bool(jnp.all(precisions > 0)):
        raise ValueError(
            "The curvature is singular: the data leave some directions undetermined, and without damping or a prior"
            " their variance is infinite. Give `damping=` or `prior_precision=`, or, for a Hessian,"
            " `indefinite=dv.Drop()`."
        )
    return precisions
