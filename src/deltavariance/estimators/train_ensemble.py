"""Train the members of an ensemble, side by side or one after another, so that a run can be taken up again."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from safetensors import safe_open
from safetensors.numpy import save_file

from deltavariance import cases
from deltavariance.estimators.base import PyTree
from deltavariance.estimators.ensemble import Ensemble, stack, unstack
from deltavariance.parameters import freeze

Train = Callable[[Any, Any], Any]


def train_ensemble(
    train: Train,
    key: PRNGKeyArray,
    members: int,
    data: PyTree,
    *,
    bootstrap: bool = False,
    side_by_side: int = 1,
    folder: str | Path | None = None,
    training_passes: float = math.nan,
) -> Ensemble:
    """An ensemble of `train(key, data) -> params`, each member with a key of its own.

    Args:
        data: what all members are trained on, arrays with one row an example.
        bootstrap: each member gets as many rows, drawn with replacement, in place of the data themselves.
        side_by_side: how many members to train at once by `vmap`, which needs a `train` made of JAX operations only.
        folder: where each finished member is kept as safetensors. A run that was cut off goes on from there; members
            of another key, data size or kind of ensemble are refused, not mixed in.
        training_passes: the cost of one training in plain passes over the data, for `training_cost`.

    Member k is the same whatever `members`, `side_by_side` and interruptions are: its key is `fold_in(key, k)`.

    >>> import jax, jax.numpy as jnp
    >>> x = jnp.arange(100.0)
    >>> ensemble = train_ensemble(lambda k, x: {"mean": x.mean()}, jax.random.key(0), 50, x, bootstrap=True)
    >>> v = ensemble.variance(lambda p, z: p["mean"], jnp.zeros(1))
    >>> bool(0.5 < v[0] / (x.var() / 100) < 2)
    True
    """
    if members < 2:
        raise ValueError(f"An ensemble needs at least 2 members, and `members` is {members}.")
    if side_by_side < 1:
        raise ValueError(f"`side_by_side` counts members, at least 1, and is {side_by_side}.")
    rows = cases.count(data, "data")
    mark = {"key": _text(key), "bootstrap": str(bootstrap), "rows": str(rows)}

    def one(number: Any) -> PyTree:
        drawing, training = jax.random.split(jax.random.fold_in(key, number))
        picked = data
        if bootstrap:
            index = jax.random.randint(drawing, (rows,), 0, rows)
            picked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], data)
        return train(training, picked)

    kept: dict[int, PyTree] = {}
    if folder is not None:
        kept = _read(Path(folder), members, mark, one)
    missing = [number for number in range(members) if number not in kept]
    for start in range(0, len(missing), side_by_side):
        group = missing[start : start + side_by_side]
        if len(group) == 1:
            found = [one(group[0])]
        else:
            found = unstack(eqx.filter_vmap(one)(jnp.asarray(group)))
        for number, params in zip(group, found, strict=True):
            kept[number] = params
            if folder is not None:
                _write(Path(folder), number, params, mark)
    return Ensemble(stack([kept[number] for number in range(members)]), training_passes=training_passes)


def _text(key: PRNGKeyArray) -> str:
    return ",".join(str(word) for word in np.ravel(np.asarray(jax.random.key_data(key))))


def _path(folder: Path, number: int) -> Path:
    return folder / f"member-{number:03d}.safetensors"


def _write(folder: Path, number: int, params: PyTree, mark: dict[str, str]) -> None:
    """Written under another name first, so that a file that is there is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays, _ = freeze(params)
    tensors = {f"{k:04d}": np.array(array, order="C") for k, array in enumerate(arrays)}
    unfinished = _path(folder, number).with_suffix(".part")
    save_file(tensors, str(unfinished), metadata=mark)
    unfinished.replace(_path(folder, number))


def _read(
    folder: Path, members: int, mark: dict[str, str], one: Callable[[Any], PyTree]
) -> dict[int, PyTree]:
    there = [number for number in range(members) if _path(folder, number).exists()]
    if not there:
        return {}
    # The pytree that the arrays belong to, by tracing one training without running it.
    shapes = eqx.filter_eval_shape(one, jnp.asarray(0))
    leaves, treedef = jax.tree.flatten(shapes)
    return {
        number: jax.tree.unflatten(treedef, _leaves(_path(folder, number), leaves, mark)) for number in there
    }


def _leaves(path: Path, shapes: list[Any], mark: dict[str, str]) -> list[Any]:
    with safe_open(str(path), framework="numpy") as file:
        found = file.metadata() or {}
        if found != mark:
            differ = [name for name in mark if found.get(name) != mark[name]]
            raise ValueError(
                f"{path} was trained in another run: {', '.join(differ)} differ. Give another `folder`, or remove"
                " this one."
            )
        arrays = iter([jnp.asarray(file.get_tensor(name)) for name in sorted(file.keys())])
    return [next(arrays) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in shapes]
