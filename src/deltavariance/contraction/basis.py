"""An orthogonal basis for the gradients of one piece of a leaf: `G ↦ Lᵀ G R` in the frame of a product."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.tracing.gradients import Form, Products, Rows
from deltavariance.tracing.views import Path


class Basis(eqx.Module):
    """Rotations of the input side (`left`) and the output side (`right`); `None` leaves a side as it is.

    `path` leads from the leaf to the frame `[N, I, O]`. Pieces of a leaf that is not a single product have frame
    `[1, 1, size]`: rotated from the right alone, that is a dense block, and not rotated at all, a diagonal.
    """

    left: Float[Array, "N I I"] | None
    right: Float[Array, "N O O"] | None
    path: Path = eqx.field(static=True)
    frame: tuple[int, int, int] = eqx.field(static=True)

    @property
    def is_identity(self) -> bool:
        return self.left is None and self.right is None

    def matches(self, form: Form) -> bool:
        """Whether a form's factors are already in this basis's frame."""
        if isinstance(form, Products):
            return tuple(form.frame) == self.frame and form.path.key == self.path.key
        if isinstance(form, Rows):
            return (1, *form.frame) == self.frame and form.path.key == self.path.key and self.left is None
        return False

    def enter(self, leaf: Float[Array, "..."], shape: Sequence[int]) -> Float[Array, "... N I O"]:
        """An array like the leaf, with leading axes, as the frame sees it."""
        leading = leaf.shape[: leaf.ndim - len(shape)]
        return _over(lambda one: jnp.reshape(self.path.apply(one), self.frame), leaf, leading)

    def leave(self, value: Float[Array, "... N I O"], shape: Sequence[int]) -> Float[Array, "..."]:
        """Back from the frame to the leaf; entries of the leaf that the frame does not see are zero."""
        return _over(lambda one: self.path.transpose(one, shape), value, value.shape[:-3])

    def rotate(self, value: Float[Array, "... N I O"]) -> Float[Array, "... N I O"]:
        """`Lᵀ G R`. Cost: I²O + IO² each."""
        return self.rotate_right(self.rotate_left(value))

    def rotate_left(self, value: Float[Array, "... N I O"]) -> Float[Array, "... N I O"]:
        return value if self.left is None else jnp.einsum("nij,...nio->...njo", self.left, value)

    def rotate_right(self, value: Float[Array, "... N I O"]) -> Float[Array, "... N I O"]:
        return value if self.right is None else jnp.einsum("...nio,nop->...nip", value, self.right)

    def unrotate(self, value: Float[Array, "... N I O"]) -> Float[Array, "... N I O"]:
        """`L G Rᵀ`, the inverse of `rotate`."""
        if self.left is not None:
            value = jnp.einsum("nij,...njo->...nio", self.left, value)
        if self.right is not None:
            value = jnp.einsum("...nip,nop->...nio", value, self.right)
        return value


def _over(function: Callable[[Any], Array], value: Array, leading: tuple[int, ...]) -> Array:
    for _ in leading:
        function = jax.vmap(function)
    return function(value)
