"""A view: a value inside a function that is one parameter leaf, seen through casts, reshapes, slices and the like.

The gradient with respect to a view is carried back to the leaf by the transpose of its path. When the path neither
repeats nor drops an element's only copy (`injective`), squares may be taken in the view's own frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive


@dataclass(frozen=True)
class Step:
    """One structural primitive on the way from a leaf to a view."""

    primitive: Primitive
    params: dict[str, Any] = field(hash=False)

    @property
    def key(self) -> tuple[str, str]:
        return self.primitive.name, repr(sorted(self.params.items(), key=lambda item: item[0]))

    def apply(self, value: jax.Array) -> jax.Array:
        result = self.primitive.bind(value, **self.params)
        return result[0] if self.primitive.multiple_results else result


@dataclass(frozen=True)
class Reshape:
    """A rearrangement that a rule adds to reach `[N, I, O]`: transpose, then reshape."""

    order: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return "rearrange", self.order, self.shape

    def apply(self, value: jax.Array) -> jax.Array:
        return jnp.reshape(jnp.transpose(value, self.order), self.shape)


@dataclass(frozen=True)
class Scanned:
    """From here on the path describes one slice of the leading axis: the value is scanned over."""

    key: tuple[str, ...] = ("scanned",)


@dataclass(frozen=True)
class Path:
    """The steps from a leaf to a view, in order."""

    steps: tuple[Step | Reshape | Scanned, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(step.key for step in self.steps)

    def then(self, step: Step | Reshape | Scanned) -> "Path":
        return Path((*self.steps, step))

    def apply(self, leaf: jax.Array) -> jax.Array:
        """The leaf as the view sees it; slices taken by scans stay stacked in front."""
        for position, step in enumerate(self.steps):
            if isinstance(step, Scanned):
                return jax.vmap(Path(self.steps[position + 1 :]).apply)(leaf)
            leaf = step.apply(leaf)
        return leaf

    def transpose(self, value: jax.Array, leaf_shape: Sequence[int]) -> jax.Array:
        """Carry a gradient in the view's frame back to the leaf's: the adjoint of `apply`."""
        leaf = jax.ShapeDtypeStruct(tuple(leaf_shape), value.dtype)
        value = jnp.reshape(value, jax.eval_shape(self.apply, leaf).shape)
        (result,) = jax.linear_transpose(self.apply, leaf)(value)
        return result


@dataclass(frozen=True)
class View:
    """Leaf number `leaf` seen through `path`; `mapped[d]` says whether the d-th enclosing scan slices it."""

    leaf: int
    path: Path = Path()
    mapped: tuple[bool, ...] = ()
    injective: bool = True

    def through(self, step: Step, injective: bool = True) -> "View":
        return replace(self, path=self.path.then(step), injective=self.injective and injective)

    def enter_scan(self, sliced: bool) -> "View":
        path = self.path.then(Scanned()) if sliced else self.path
        return replace(self, path=path, mapped=(*self.mapped, sliced))


# Primitives that only move elements: applied to a view they give a view.
_MOVES = frozenset(
    {
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "slice",
        "rev",
        "copy",
        "copy_p",
        "optimization_barrier",
    }
)


def follow(eqn: Any, view: View) -> View | None:
    """The view that a structural equation makes of `view`, or None if the equation is not structural."""
    name = eqn.primitive.name
    if len(eqn.invars) != 1 or len(eqn.outvars) != 1:
        return None
    source, target = eqn.invars[0].aval, eqn.outvars[0].aval
    if name == "convert_element_type":
        # Between real types a cast is the identity as far as gradients go; to complex numbers it is not.
        return view if jnp.issubdtype(target.dtype, jnp.floating) else None
    if name in _MOVES:
        return view.through(Step(eqn.primitive, dict(eqn.params)))
    if name == "broadcast_in_dim":
        return view.through(Step(eqn.primitive, dict(eqn.params)), injective=source.size == target.size)
    return None
