"""Interleaved timing: functions take turns, so that a drifting machine slows all of them alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax

Work = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one number a repetition."""

    seconds: Sequence[float]

    @property
    def median(self) -> float:
        return median(self.seconds)


def once(work: Work, calls: int = 1) -> float:
    """Seconds a call, each until its results are ready."""
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(work())
    return (time.perf_counter() - start) / calls


def interleaved(
    works: Mapping[str, Work], *, repeats: int = 15, calls: int = 1, seconds: float = 60.0, warm: int = 2
) -> dict[str, Timing]:
    """Every function once a repetition, in an order that rotates; `warm` unmeasured repetitions first.

    Stops early after `seconds`, but not before five repetitions.
    """
    names = list(works)
    for _ in range(warm):
        for work in works.values():
            jax.block_until_ready(work())
    found: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for repeat in range(repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(once(works[name], calls))
        if repeat >= 4 and time.perf_counter() - start > seconds:
            break
    return {name: Timing(times) for name, times in found.items()}


def ratio(times: Timing, base: Timing) -> float:
    """The median over repetitions of the ratio within one repetition."""
    return median(a / b for a, b in zip(times.seconds, base.seconds, strict=True))
