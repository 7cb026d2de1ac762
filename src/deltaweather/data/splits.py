"""Which times train, which validate and which are held out."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64

SplitName = Literal["train", "validation", "test", "all"]
PAPER_YEARS = ((None, 2013), (2014, 2017), (2018, 2021))
FRACTIONS = (0.7, 0.15, 0.15)


@dataclass(frozen=True)
class Splits:
    """Half-open ranges of time indices, in order and disjoint.

    A forecast belongs to a split only if every state it reads and every state it is compared with lies
    inside, so no two splits share a state, however long the forecast.
    """

    train: tuple[int, int]
    validation: tuple[int, int]
    test: tuple[int, int]

    def range(self, name: SplitName) -> tuple[int, int]:
        if name == "all":
            return self.train[0], self.test[1]
        if name not in ("train", "validation", "test"):
            raise ValueError(f"There is no split {name!r}: choose 'train', 'validation', 'test' or 'all'.")
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]


def split_by_years(
    times: np.ndarray, years: tuple[tuple[int | None, int | None], ...] = PAPER_YEARS
) -> Splits:
    """Ranges of calendar years, first and last included; None leaves an end open.

    The default is the paper's: train to 2013, validate 2014-2017, hold out 2018-2021.
    """
    of_time = times.astype("datetime64[Y]").astype(int) + 1970
    ranges = []
    previous = -10_000
    for label, (first, last) in zip(("train", "validation", "test"), years, strict=True):
        low, high = previous + 1 if first is None else first, 10_000 if last is None else last
        if low <= previous or high < low:
            raise ValueError(
                f"The years of the splits must be in order and must not overlap, but {years} was given "
                f"(seen at {label!r})."
            )
        previous = high
        inside = np.flatnonzero((of_time >= low) & (of_time <= high))
        if len(inside) == 0:
            raise ValueError(
                f"No time of the record ({times[0]} to {times[-1]}) falls in the years {low} to {high} of "
                f"the split {label!r}. Give years that the record covers, or split='fractions'."
            )
        ranges.append((int(inside[0]), int(inside[-1]) + 1))
    return Splits(*ranges)


def split_by_fractions(
    times: np.ndarray, fractions: tuple[float | int, float | int, float | int] = FRACTIONS
) -> Splits:
    """Consecutive parts of the record, in the order train, validation, test.

    >>> split_by_fractions(np.arange(10), (0.6, 0.2, 0.2))
    Splits(train=(0, 6), validation=(6, 8), test=(8, 10))
    """
    if len(fractions) != 3 or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
        raise ValueError(
            "Three positive fractions with a sum of at most 1 are needed (train, validation, test), but "
            f"{fractions} was given."
        )
    ends = [round(sum(fractions[:k]) * len(times)) for k in range(4)]
    if min(np.diff(ends)) < 1:
        raise ValueError(f"A record of {len(times)} steps is too short to split into {fractions}.")
    return Splits((ends[0], ends[1]), (ends[1], ends[2]), (ends[2], ends[3]))


def default_splits(times: np.ndarray) -> Splits:
    """The paper's years where the record has at least one full year in each split, else fractions."""
    years, counts = np.unique(times.astype("datetime64[Y]").astype(int) + 1970, return_counts=True)
    full = set(years[counts >= 0.9 * counts.max()].tolist())
    covered = (
        any(y <= 2013 for y in full)
        and all(y in full for y in range(2014, 2018))
        and all(y in full for y in range(2018, 2022))
    )
    return split_by_years(times) if covered else split_by_fractions(times)


def forecast_starts(
    usable: Bool[np.ndarray, "times"],
    follows: Bool[np.ndarray, "pairs"],
    bounds: tuple[int, int],
    steps: int,
    history: int,
) -> Int64[np.ndarray, "starts"]:
    """Indices t whose states t-history+1 .. t+steps lie in the bounds, are whole, and are consecutive.

    `usable[t]` says that state t has no missing value, `follows[t]` that state t+1 comes one step after it.
    """
    first, last = bounds
    window = history + steps
    if last - first < window:
        return np.zeros(0, np.int64)
    broken = np.concatenate([[0], np.cumsum(~usable[first:last])])
    jumps = np.concatenate([[0], np.cumsum(~follows[first : last - 1])])
    whole = broken[window:] == broken[:-window]
    whole &= jumps[window - 1 :] == jumps[: len(jumps) - window + 1]
    return np.flatnonzero(whole) + first + history - 1
