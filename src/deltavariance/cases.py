"""Cases and data: pytrees whose leaves share a leading axis, cut into batches of equal size."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from deltavariance.parameters import is_array

PyTree = Any


def count(cases: PyTree, what: str) -> int:
    """The common length of the leading axes of `cases`, or an error that names the leaves that differ."""
    paths = [
        (jtu.keystr(path, simple=True, separator="/") or what, leaf)
        for path, leaf in jtu.tree_flatten_with_path(cases)[0]
    ]
    if not paths:
        raise ValueError(f"{what} is empty: it has no array in it. Give arrays with one row for each case.")
    for name, leaf in paths:
        if not is_array(leaf) or np.ndim(leaf) == 0:
            kind = "a number without an axis" if is_array(leaf) else f"a {type(leaf).__name__}"
            raise ValueError(
                f"{what} must have a leading axis of cases in every leaf, and {name!r} is {kind}. For one case, add an"
                " axis: `jax.tree.map(lambda x: x[None], case)`; what all cases share belongs into the function."
            )
    lengths = {name: int(np.shape(leaf)[0]) for name, leaf in paths}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"{what} has leading axes of different lengths: {lengths}. Each leaf needs one row a case."
        )
    length = next(iter(lengths.values()))
    if length == 0:
        raise ValueError(f"{what} holds no case: its leading axis has length 0.")
    return length


@dataclass(frozen=True)
class Batch:
    """Some cases, a weight for each (0 for padding), and how the batch is called in messages."""

    cases: PyTree
    weights: Array | np.ndarray
    real: int
    number: int


def take(cases: PyTree, start: int, stop: int) -> PyTree:
    """Some consecutive cases; all of them are taken without a copy."""
    return jax.tree.map(lambda leaf: leaf if (start, stop) == (0, len(leaf)) else leaf[start:stop], cases)


def pad(cases: PyTree, size: int) -> PyTree:
    """Repeat the last case until there are `size` of them."""

    def one(leaf: Any) -> Any:
        missing = size - leaf.shape[0]
        if missing == 0:
            return leaf
        if isinstance(leaf, np.ndarray):
            return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])
        return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)])

    return jax.tree.map(one, cases)


def even_size(total: int, largest: int) -> int:
    """The batch size that cuts `total` cases into the fewest batches of at most `largest`, as evenly as may be."""
    return math.ceil(total / math.ceil(total / max(1, largest)))


def is_tree_of_arrays(data: PyTree) -> bool:
    """Whether `data` is one pytree of arrays, rather than an iterable of batches.

    A list whose items are containers, and anything that is no pytree but can be iterated over, is taken for batches.
    """
    if isinstance(data, list) and data and not is_array(data[0]):
        return False
    if not is_array(data) and jtu.default_registry.flatten_one_level(data) is None:
        return False
    leaves = jax.tree.leaves(data)
    return all(is_array(leaf) for leaf in leaves)


def batches(data: PyTree, weights: Any, largest: Any, *, what: str = "data") -> Iterator[Batch]:
    """Cut `data` into batches of one size each, padded where ragged.

    `largest` is a function from a batch to the most cases that may be run at once. `weights` is `None`, an array
    that belongs to the rows of `data`, or an iterable of such arrays that runs beside an iterable of batches.
    """
    if is_tree_of_arrays(data):
        total = count(data, what)
        given = None if weights is None else as_weights(weights, total)
        size = even_size(total, largest(data))
        for number, start in enumerate(range(0, total, size)):
            stop = min(start + size, total)
            part = None if given is None else given[start:stop]
            yield _padded(take(data, start, stop), part, stop - start, size, number)
        return
    if not isinstance(data, Iterable):
        raise TypeError(
            f"{what} must be a pytree of arrays or an iterable of batches, and it is a {type(data).__name__}."
        )
    beside = None if weights is None else iter(weights)
    size = 0
    number = -1
    for number, batch in enumerate(data):
        total = count(batch, f"{what}, batch {number}")
        given = None if beside is None else as_weights(next(beside), total)
        size = max(size, min(total, largest(batch)))
        for start in range(0, total, size):
            stop = min(start + size, total)
            part = None if given is None else given[start:stop]
            yield _padded(take(batch, start, stop), part, stop - start, size, number)
    if number < 0:
        raise ValueError(
            f"{what} held no batch. An iterator can be read only once: if it was read before, make it again, or give an"
            " object whose `__iter__` starts afresh (a list, or a data loader)."
        )


def combined(weights: Any, mask: Any) -> Any:
    """Weights and a mask as one: arrays, or iterables that run beside an iterable of batches."""
    if mask is None:
        return weights
    if weights is None:
        return mask
    if isinstance(weights, (list, tuple)):
        return [np.asarray(w) * np.asarray(m) for w, m in zip(weights, mask, strict=True)]
    return jnp.asarray(weights) * jnp.asarray(mask)


def total_weight(data: PyTree, weights: Any) -> Array | np.ndarray | None:
    """Σw over `data`, 1 where it is 0; `None` for an iterable of batches, of which nothing is known beforehand."""
    if not is_tree_of_arrays(data):
        return None
    total = count(data, "data")
    if weights is None:
        return np.asarray(total, float)
    summed = jnp.sum(jnp.asarray(as_weights(weights, total), float))
    return jnp.where(summed > 0, summed, 1)


def as_weights(weights: Any, total: int) -> Any:
    """Weights or a mask as an array of `total` numbers ≥ 0."""
    array = weights if is_array(weights) else np.asarray(weights)
    if array.shape != (total,):
        raise ValueError(
            f"The weights have shape {array.shape}, and there are {total} examples: give one a row."
        )
    if array.dtype == bool:
        array = array.astype(np.float32)
    if not isinstance(array, jax.core.Tracer) and bool((np.asarray(array) < 0).any()):
        raise ValueError(
            "A weight is negative. Weights count examples: give numbers ≥ 0 (0 leaves an example out)."
        )
    return array


def _padded(cases: PyTree, weights: Any, real: int, size: int, number: int) -> Batch:
    ones = np.ones(real, np.float32) if weights is None else weights
    if real == size:
        return Batch(cases, ones, real, number)
    zeros = np.zeros(size - real, np.float32)
    padded = np.concatenate([ones, zeros]) if isinstance(ones, np.ndarray) else jnp.concatenate([ones, zeros])
    return Batch(pad(cases, size), padded, real, number)
