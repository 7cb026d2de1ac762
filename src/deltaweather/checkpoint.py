"""Any tree of arrays in a safetensors file, written whole or not at all."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jax.tree_util import keystr
from jaxtyping import PyTree

T = TypeVar("T")


def save(path: str | Path, tree: PyTree, metadata: Mapping[str, Any] | None = None) -> None:
    """Writes the array leaves under their path in the tree, and `metadata` as JSON beside them.

    The file appears under its name only when it is complete, so a full disk or a killed process leaves an
    earlier checkpoint as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # ascontiguousarray makes one dimension of none
    arrays = {name: np.ascontiguousarray(leaf).reshape(np.shape(leaf)) for name, leaf in _named(tree).items()}
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        safetensors.numpy.save_file(arrays, partial, {"metadata": json.dumps(dict(metadata or {}))})
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | Path, like: T) -> tuple[T, dict[str, Any]]:
    """A tree of the structure of `like` with the saved arrays in it, to the bit, and the metadata."""
    path = Path(path)
    arrays = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = json.loads((file.metadata() or {}).get("metadata", "{}"))
    wanted = _named(like)
    if set(arrays) != set(wanted):
        missing, extra = sorted(set(wanted) - set(arrays)), sorted(set(arrays) - set(wanted))
        raise ValueError(
            f"{path.name} does not hold what was asked for: missing {missing[:5]}, unexpected {extra[:5]}. It "
            "was saved from a model of another configuration."
        )
    for name, leaf in wanted.items():
        if arrays[name].shape != np.shape(leaf) or arrays[name].dtype != leaf.dtype:
            raise ValueError(
                f"In {path.name} the array {name} is {arrays[name].dtype}{list(arrays[name].shape)}, "
                f"but {leaf.dtype}{list(np.shape(leaf))} was expected. It was saved from a model of another "
                "configuration."
            )
    flat, treedef = jax.tree_util.tree_flatten_with_path(like)
    leaves = [jnp.asarray(arrays[keystr(where)]) if eqx.is_array(leaf) else leaf for where, leaf in flat]
    return jax.tree_util.tree_unflatten(treedef, leaves), metadata


def _named(tree: Any) -> dict[str, Any]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {keystr(where): leaf for where, leaf in flat if eqx.is_array(leaf)}
