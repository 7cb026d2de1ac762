"""Fewer dampings than were asked for, from which the others follow.

A variance is `v(c) = Σ_p q_p / (x_p + c)` with squares q ≥ 0, the precisions x of Σ in its own basis and c
what the damping adds to them. If `1/(x + c) = (1 ± ε) Σ_j w_j / (x + c_j)` holds at every x that occurs, then
v(c) follows from the v(c_j) with a relative error of at most ε, whatever the squares. Far below the smallest
x and far above the largest the functions are nearly alike, so that a grid over 24 powers of ten needs little
more than one node for each power of ten that the spectrum spans.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ACCURACY = 1e-4
_LARGEST_CODE = 8 * 300  # beyond the range of double precision
_PER_DECADE = 8


class Nodes(NamedTuple):
    """`chosen [r]` of the dampings to compute, and `mixing [dampings, r]` from them to all."""

    chosen: np.ndarray
    mixing: np.ndarray


def occurring(precisions: Sequence[np.ndarray]) -> np.ndarray:
    """Values that stand for every eighth of a decade in which some precision lies, in rising order."""
    seen = np.zeros(2 * _LARGEST_CODE, bool)
    zero = False
    for x in precisions:
        positive = x[x > 0]
        zero |= positive.size < x.size
        codes = np.rint(np.log10(positive) * _PER_DECADE).astype(np.int32)
        seen[np.clip(codes + _LARGEST_CODE, 0, 2 * _LARGEST_CODE - 1)] = True
    # The edges of each eighth besides its middle: what lies within is never far from one of the three.
    halves = np.unique(2 * (np.flatnonzero(seen) - _LARGEST_CODE)[:, None] + np.array([-1, 0, 1]))
    values = 10.0 ** (halves / (2 * _PER_DECADE))
    return np.concatenate([[0.0], values]) if zero else values


def choose_nodes(precisions: Sequence[np.ndarray], added: np.ndarray, accuracy: float = ACCURACY) -> Nodes:
    """The fewest nodes that a greedy search finds, starting from the ends of the grid.

    `added` is c for each damping, in rising order. Where nothing is saved every damping is its own node.
    """
    count = len(added)
    everything = Nodes(np.arange(count), np.eye(count))
    if count <= 2:
        return everything
    x = occurring(precisions)
    with np.errstate(divide="ignore", invalid="ignore"):
        kernel = 1 / (x[:, None] + added)
    if not np.isfinite(kernel).all():
        return everything
    chosen = _start(x, added)
    while len(chosen) < count:
        mixing = np.stack([_weights(kernel, chosen, d) for d in range(count)])
        relative = np.abs(kernel[:, chosen] @ mixing.T / kernel - 1).max(axis=0)
        # Rounding in single precision is amplified by weights of both signs.
        rounding = 1e-7 * (np.abs(kernel[:, chosen]) @ np.abs(mixing.T) / kernel).max(axis=0)
        error = relative + rounding
        if error.max() <= accuracy:
            return Nodes(np.asarray(chosen), mixing)
        free = [d for d in range(count) if d not in chosen]
        chosen = sorted([*chosen, max(free, key=lambda d: error[d])])
    return everything


def _start(x: np.ndarray, added: np.ndarray) -> list[int]:
    """Both ends of the grid, and between them what the spectrum spans, at least a power of ten apart."""
    chosen = [0]
    low, high = x[x > 0][0], x[-1]
    for d in range(1, len(added) - 1):
        if low < added[d] < high and added[d] >= 9.99 * added[chosen[-1]]:
            chosen.append(d)
    return [*chosen, len(added) - 1]


def _weights(kernel: np.ndarray, chosen: Sequence[int], target: int) -> np.ndarray:
    """The combination of chosen columns next to the target's in relative terms; a chosen one is itself."""
    if target in chosen:
        return np.eye(len(chosen))[chosen.index(target)]
    relative = kernel[:, chosen] / kernel[:, [target]]
    size = np.linalg.norm(relative, axis=0)
    return np.linalg.lstsq(relative / size, np.ones(len(relative)), rcond=1e-10)[0] / size
