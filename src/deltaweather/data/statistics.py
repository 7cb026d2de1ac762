"""One pass over a record, in blocks: what is missing, what is implausible, and the statistics of the rest."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64

from deltaweather.data.checks import check_range
from deltaweather.data.normaliser import Normaliser, transform
from deltaweather.data.reader import Channel, Reader


@dataclass
class Moments:
    """Weighted count, mean and sum of squared deviations per channel, merged block by block in float64.

    `M = M_a + M_b + (m_b - m_a)² w_a w_b / (w_a + w_b)`: no cancellation, however long the record.
    """

    weight: Float64[np.ndarray, "channels"]
    mean: Float64[np.ndarray, "channels"]
    squares: Float64[np.ndarray, "channels"]

    @classmethod
    def empty(cls, channels: int) -> "Moments":
        return cls(np.zeros(channels), np.zeros(channels), np.zeros(channels))

    def add(self, x: Float32[np.ndarray, "n lat lon channels"], area: Float64[np.ndarray, "lat lon"]) -> None:
        """Take in a block; missing values are left out."""
        n, channels = len(x), x.shape[-1]
        cells = x.reshape(n, area.size, channels).astype(np.float64)
        flat = area.reshape(-1)
        present = np.isfinite(cells)
        if present.all():  # no masks: several times faster
            weight = np.full(channels, n * flat.sum())
            mean = (flat @ cells).sum(0) / weight
            cells -= mean
            squares = (flat @ np.square(cells, out=cells)).sum(0)
        else:
            weight = (flat @ present).sum(0)
            mean = (flat @ np.where(present, cells, 0.0)).sum(0) / np.where(weight > 0, weight, 1.0)
            squares = (flat @ np.where(present, (cells - mean) ** 2, 0.0)).sum(0)
        total = self.weight + weight
        safe_total = np.where(total > 0, total, 1.0)
        shift = mean - self.mean
        self.squares = self.squares + squares + shift**2 * self.weight * weight / safe_total
        self.mean = self.mean + shift * weight / safe_total
        self.weight = total

    @property
    def variance(self) -> Float64[np.ndarray, "channels"]:
        return self.squares / np.where(self.weight > 0, self.weight, 1.0)


@dataclass(frozen=True)
class Scan:
    """What one pass over the record found."""

    usable: Bool[np.ndarray, "times"]
    missing: Float64[np.ndarray, "channels"]  # share of values that are missing
    minimum: Float64[np.ndarray, "channels"]
    maximum: Float64[np.ndarray, "channels"]
    normaliser: Normaliser


def blocks(reader: Reader, budget_bytes: int) -> Iterator[np.ndarray]:
    """Consecutive time indices whose states take about the budget."""
    times = reader.shape[0]
    # float32 states, float64 weights, squares and differences, masks: about 40 bytes a value while in use
    length = max(1, min(times, budget_bytes // (40 * reader.values_per_time)))
    for first in range(0, times, length):
        yield np.arange(first, min(first + length, times))


def scan(
    reader: Reader,
    channels: tuple[Channel, ...],
    times: np.ndarray,
    follows: Bool[np.ndarray, "pairs"],
    area: Float64[np.ndarray, "lat lon"],
    log_scale: Float32[np.ndarray, "channels"],
    train: tuple[int, int],
    *,
    budget_bytes: int = 256 * 2**20,
    keep: Callable[[np.ndarray, np.ndarray], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scan:
    """Read the record once. Statistics come from the training range; checks and gaps from all of it.

    `keep(indices, values)` sees each block as it passes, so that a small record is read once only.
    Memory stays near `budget_bytes` whatever the length of the record.
    """
    n, count = reader.shape[0], len(channels)
    usable = np.zeros(n, bool)
    absent = np.zeros(count)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    state, change = Moments.empty(count), Moments.empty(count)
    previous: np.ndarray | None = None
    for indices in blocks(reader, budget_bytes):
        x = reader.read(indices)
        if keep is not None:
            keep(indices, x)
        present = np.isfinite(x)
        usable[indices] = present.all((1, 2, 3))
        absent += (~present).sum((0, 1, 2))
        check_range(x, channels, times[indices])
        low = np.minimum(low, np.where(present, x, np.inf).min((0, 1, 2)))
        high = np.maximum(high, np.where(present, x, -np.inf).max((0, 1, 2)))
        y = transform(x, log_scale)
        inside = (indices >= train[0]) & (indices < train[1])
        if inside.any():
            state.add(y[inside], area)
        if previous is not None:
            y, indices = np.concatenate([previous, y]), np.concatenate([[indices[0] - 1], indices])
            inside = (indices >= train[0]) & (indices < train[1])
        pairs = inside[1:] & inside[:-1] & follows[indices[:-1]]
        if pairs.any():
            change.add((y[1:] - y[:-1])[pairs], area)
        previous = y[-1:].copy()
        if progress is not None:
            progress(int(indices[-1]) + 1, n)
    deviations = []
    for moments, what in ((state, "value"), (change, "six-hour change")):
        deviation = np.sqrt(moments.variance)
        for k in np.flatnonzero(~(deviation > 0)):
            if moments.weight[k] == 0:
                raise ValueError(
                    f"{str(channels[k])!r} has no {what} at all in the training part of the record "
                    f"({times[train[0]]!s:.10} to {times[train[1] - 1]!s:.10}): leave it out with "
                    "variables= or choose other years."
                )
            deviation[k] = 1.0  # a constant channel: keep it, unscaled
        deviations.append(deviation.astype(np.float32))
    normaliser = Normaliser(state.mean.astype(np.float32), deviations[0], deviations[1], log_scale)
    cells = n * area.size
    return Scan(usable, absent / cells, low, high, normaliser)
