"""Times as ratios to a plain pass: all take turns, so that a machine that slows down slows every one of them."""

import math
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import jax

Work = Callable[[], Any]


def ratios(works: Mapping[str, Work], base: Work, repeats: int) -> tuple[dict[str, float], float]:
    """The median over rounds of each work's time over the base's in the same round, and the base's seconds.

    Everything must have run once before: compilation is no part of a pass.
    """
    if repeats == 0:
        return dict.fromkeys(works, math.nan), math.nan
    names = list(works)
    found: dict[str, list[float]] = {name: [] for name in names}
    plain: list[float] = []
    for turn in range(repeats):
        start = turn % max(1, len(names))
        unit = min(_seconds(base) for _ in range(3))
        plain.append(unit)
        for name in names[start:] + names[:start]:
            found[name].append(_seconds(works[name]) / unit)
    return {name: median(values) for name, values in found.items()}, median(plain)


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - start
