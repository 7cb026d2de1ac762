"""Finding Adam's moments inside any nesting of Optax states."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu
import optax

PyTree = Any


class AdamMoments(NamedTuple):
    """One Adam state: where it lies, its step count and moments, and what the states around it say."""

    path: str
    count: Any
    mu: PyTree
    nu: PyTree
    b2: Any  # from inject_hyperparams, or None
    accumulated: bool  # inside optax.MultiSteps


# Optimisers that keep a second moment of something else: not Adam's, and named so in the error.
_RELATIVES = (
    "ScaleByAdanState",
    "ScaleByBeliefState",
    "ScaleByRmsState",
    "ScaleByRmsWithCountState",
    "ScaleByRStdDevState",
    "ScaleByNovogradState",
    "FactoredState",
    "ScaleByLionState",
)


def find_adam_states(opt_state: Any) -> list[AdamMoments]:
    """Every Adam or AMSGrad state inside `opt_state`; where there is none, an error says what was found."""
    found = list(_walk(opt_state, path="", b2=None, accumulated=False))
    if not found:
        seen = sorted(set(_state_names(opt_state)))
        relatives = [name for name in seen if name in _RELATIVES]
        raise ValueError(
            "No Adam state was found in `opt_state`"
            + (f", which holds {', '.join(seen)}" if seen else f", a {type(opt_state).__name__}")
            + ". "
            + (f"{relatives[0]} keeps another moving average than Adam's. " if relatives else "")
            + "Pass the state of optax.adam, adamw, nadam or amsgrad after training, or fit with `dv.fisher`."
        )
    return found


def merge_masked(trees: Sequence[PyTree]) -> PyTree:
    """One tree from several that cover different parts of the parameters; None where none has anything."""
    merged = trees[0]
    for tree in trees[1:]:
        merged = _merge(merged, tree, path="")
    return jtu.tree_map(lambda node: None if _is_masked(node) else node, merged, is_leaf=_is_masked)


def _walk(node: Any, path: str, b2: Any, accumulated: bool) -> Iterator[AdamMoments]:
    if isinstance(node, (optax.ScaleByAdamState, optax.ScaleByAmsgradState)):
        yield AdamMoments(path, node.count, node.mu, node.nu, b2, accumulated)
        return
    if isinstance(node, optax.MultiStepsState):
        accumulated = True
    hyperparams = getattr(
        node, "hyperparams", None
    )  # inject_hyperparams has two kinds of state, both with this
    if isinstance(hyperparams, dict) and "b2" in hyperparams:
        scheduled = getattr(node, "hyperparams_states", None) or {}
        if "b2" in scheduled:
            raise ValueError(
                "Adam's b2 follows a schedule here, so its bias correction cannot be undone from the state"
                " alone. Fit with `dv.fisher` instead."
            )
        b2 = hyperparams["b2"]
    for name, child in _children(node):
        yield from _walk(child, path + name, b2, accumulated)


def _children(node: Any) -> list[tuple[str, Any]]:
    """The children of a pytree node, each with its step of the path; none for a leaf."""
    children, _ = jtu.tree_flatten_with_path(node, is_leaf=lambda child: child is not node)
    return [(jtu.keystr(path), child) for path, child in children if path]


def _state_names(node: Any) -> Iterator[str]:
    if type(node).__name__.endswith("State") and type(node).__name__ != "EmptyState":
        yield type(node).__name__
    for _, child in _children(node):
        yield from _state_names(child)


def _merge(a: Any, b: Any, path: str) -> Any:
    if _is_masked(a):
        return b
    if _is_masked(b):
        return a
    children_a, children_b = _children(a), _children(b)
    if not children_a and not children_b and not _is_leaf(a):
        return a  # both empty containers
    names_a, names_b = [name for name, _ in children_a], [name for name, _ in children_b]
    if not children_a or names_a != names_b:
        raise ValueError(
            f"Several Adam states hold a second moment for the same parameter {path or 'at the root'!r}. Say"
            " which is meant with `select=`, a part of its path in `opt_state`, as in"
            " `select=\"['generator']\"`."
        )
    merged = [_merge(x, y, path + name) for (name, x), (_, y) in zip(children_a, children_b, strict=True)]
    _, treedef = jtu.tree_flatten(a, is_leaf=lambda child: child is not a)
    return jtu.tree_unflatten(treedef, merged)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode) or node is None


def _is_leaf(node: Any) -> bool:
    return bool(jtu.all_leaves([node]))
