"""Which leaves of a parameter pytree are uncertain, and how the rest passes through `jit`.

A model's parameters may be any pytree: dictionaries, tuples, an Equinox module full of activation functions.
Three views of it are needed: the arrays that can be traced, everything else (kept as a hashable `Frozen`), and,
among the arrays, the inexact ones that the data left uncertain, each with a readable name (`Layout`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

PyTree = Any
Where = Callable[[Any], Any] | PyTree | None


def is_array(leaf: object) -> bool:
    """Whether a leaf can be traced: a JAX or NumPy array, or a NumPy scalar."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def dtype_of(leaf: Any) -> Any:
    """The type that a leaf has inside JAX: of a NumPy array, with double precision only where that is switched on."""
    return leaf.dtype if isinstance(leaf, jax.Array) else jnp.result_type(leaf)


def is_inexact(leaf: object) -> bool:
    """Whether a leaf is an array of floating-point or complex numbers."""
    return is_array(leaf) and jnp.issubdtype(dtype_of(leaf), jnp.inexact)


@dataclass(frozen=True)
class Frozen:
    """The hashable remainder of a pytree once its arrays have been taken out; `thaw` puts arrays back."""

    treedef: Any
    dynamic: tuple[bool, ...]
    static: tuple[Any, ...]

    def __str__(self) -> str:
        """The name of the function or class that was frozen, for messages."""
        thing = self.static[0] if self.static else self.treedef
        return str(getattr(thing, "__qualname__", thing))[:80]

    def thaw(self, arrays: Sequence[Any]) -> PyTree:
        found = iter(arrays)
        rest = iter(self.static)
        leaves = [next(found) if dynamic else next(rest) for dynamic in self.dynamic]
        return jtu.tree_unflatten(self.treedef, leaves)


def freeze(tree: PyTree) -> tuple[list[Any], Frozen]:
    """Split a pytree into its arrays and a hashable rest, so that both can be given to `jit`."""
    leaves, treedef = jtu.tree_flatten(tree)
    dynamic = tuple(is_array(leaf) for leaf in leaves)
    arrays = [leaf for leaf, is_dynamic in zip(leaves, dynamic, strict=True) if is_dynamic]
    static = tuple(leaf for leaf, is_dynamic in zip(leaves, dynamic, strict=True) if not is_dynamic)
    return arrays, Frozen(treedef, dynamic, static)


@dataclass(frozen=True)
class Layout:
    """The uncertain leaves of a parameter pytree: their positions, names, shapes and types.

    A layout is hashable and holds no arrays. Every curvature and covariance carries the one it was made for, which
    is how a Σ that belongs to another model is noticed.

    >>> import jax.numpy as jnp
    >>> layout = Layout.of({"w": jnp.ones((3, 2)), "steps": 4})
    >>> layout.names, layout.size
    (('w',), 6)
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @staticmethod
    def of(params: PyTree, where: Where = None) -> "Layout":
        """The inexact leaves of `params`, or those of them that `where` selects.

        `where` is a function from `params` to one of its subtrees or a sequence of them (`lambda p: p["head"]`), or
        a pytree of booleans that is `params` or a prefix of it.
        """
        paths, _ = jtu.tree_flatten_with_path(params)
        chosen = _chosen(params, where)
        uncertain = [
            (position, jtu.keystr(path, simple=True, separator="/") or "params", leaf)
            for position, (path, leaf) in enumerate(paths)
            if is_inexact(leaf) and position in chosen
        ]
        if not uncertain:
            kinds = sorted({type(leaf).__name__ for _, leaf in paths}) or ["nothing"]
            raise ValueError(
                "No uncertain parameter was found: `params`"
                + ("" if where is None else ", narrowed by `where`,")
                + f" holds no array of floating-point numbers, only {', '.join(kinds)}. Give the trained parameters"
                " as arrays (a Python float is taken for a setting: wrap it in `jnp.asarray`)"
                + ("." if where is None else ", or widen `where`.")
            )
        for _, name, leaf in uncertain:
            if jnp.issubdtype(dtype_of(leaf), jnp.complexfloating):
                raise TypeError(
                    f"Parameter {name!r} is complex, and a variance needs real parameters. Keep its real and imaginary"
                    " parts as two real leaves and combine them inside the function."
                )
        return Layout(
            positions=tuple(position for position, _, _ in uncertain),
            names=tuple(name for _, name, _ in uncertain),
            shapes=tuple(tuple(np.shape(leaf)) for _, _, leaf in uncertain),
            dtypes=tuple(str(dtype_of(leaf)) for _, _, leaf in uncertain),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """P, the number of uncertain parameters."""
        return sum(self.sizes)

    def __len__(self) -> int:
        return len(self.names)

    def take(self, params: PyTree) -> list[jax.Array]:
        """The uncertain leaves of `params`, in this layout's order."""
        leaves = jtu.tree_leaves(params)
        return [jnp.asarray(leaves[position]) for position in self.positions]

    def put(self, params: PyTree, values: Sequence[Any]) -> PyTree:
        """`params` with its uncertain leaves replaced by `values`."""
        leaves, treedef = jtu.tree_flatten(params)
        for position, value in zip(self.positions, values, strict=True):
            leaves[position] = value
        return jtu.tree_unflatten(treedef, leaves)

    def flatten(self, leaves: Sequence[Any]) -> jax.Array:
        """Leaves with any leading axes in common, `[..., *shape]` each, joined to `[..., P]`."""
        return jnp.concatenate(
            [
                jnp.reshape(leaf, (*leaf.shape[: leaf.ndim - len(shape)], -1))
                for leaf, shape in zip(leaves, self.shapes, strict=True)
            ],
            axis=-1,
        )

    def unflatten(self, vector: jax.Array) -> list[jax.Array]:
        """The inverse of `flatten`: `[..., P]` to a list of `[..., *shape]`."""
        cuts = np.cumsum(self.sizes)[:-1].tolist()
        pieces = jnp.split(vector, cuts, axis=-1)
        return [
            jnp.reshape(piece, (*vector.shape[:-1], *shape))
            for piece, shape in zip(pieces, self.shapes, strict=True)
        ]

    def check(self, params: PyTree, owner: str = "Σ") -> None:
        """Raise unless `params` has these leaves: `owner` was made for another model otherwise."""
        leaves = jtu.tree_leaves(params)
        for position, name, shape in zip(self.positions, self.names, self.shapes, strict=True):
            found = (
                np.shape(leaves[position]) if position < len(leaves) and is_array(leaves[position]) else None
            )
            if found != shape:
                what = "is missing" if found is None else f"has shape {found}"
                raise ValueError(
                    f"{owner} was made for another model: it expects parameter {name!r} with shape {shape}, which"
                    f" {what} in the parameters given. Fit it again for these parameters, or pass the parameters it was"
                    " fitted with."
                )


def _chosen(params: PyTree, where: Where) -> set[int]:
    """The positions of the leaves that `where` selects."""
    leaves, treedef = jtu.tree_flatten(params)
    everything = set(range(len(leaves)))
    if where is None:
        return everything
    if callable(where) and not _is_boolean_tree(where):
        marks = jtu.tree_unflatten(treedef, [_Mark(position) for position in range(len(leaves))])
        found = jtu.tree_leaves(where(marks), is_leaf=lambda node: isinstance(node, _Mark))
        chosen = {node.position for node in found if isinstance(node, _Mark)}
        if not chosen:
            raise ValueError(
                f"`where` returned {where(params)!r:.200}, in which none of the parameters' leaves stands. Return a"
                " subtree of the parameters unchanged, as in `where=lambda p: p['head']`."
            )
        return chosen
    flags = jax.tree.broadcast(where, params)
    return {position for position, flag in enumerate(jtu.tree_leaves(flags)) if bool(flag)}


def _is_boolean_tree(where: Any) -> bool:
    leaves = jtu.tree_leaves(where)
    return bool(leaves) and all(isinstance(leaf, (bool, np.bool_)) for leaf in leaves)


@dataclass(frozen=True, eq=False)
class _Mark:
    """Stands in for a leaf while `where` picks subtrees: only its position matters."""

    position: int
