"""A record of weather, split, normalised, and read in batches."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from deltaweather.data.forcing import FORCINGS, forcing
from deltaweather.data.normaliser import Normaliser
from deltaweather.data.opening import StoreError
from deltaweather.data.reader import Channel, MemoryReader, Reader
from deltaweather.data.splits import SplitName, Splits, forecast_starts
from deltaweather.grid import Grid


class Batch(NamedTuple):
    """What one training step reads; normalised float32.

    `previous` is the state one step before `state`. `forcing[:, k]` describes the step from t+k to t+k+1
    (the times are those of its beginning, the sun is averaged over it). `target[:, k]` is the state at
    t+k+1. A single site has lat = lon = 1.
    """

    state: Float32[np.ndarray, "batch lat lon channels"]
    previous: Float32[np.ndarray, "batch lat lon channels"]
    forcing: Float32[np.ndarray, "batch steps lat lon forcings"]
    target: Float32[np.ndarray, "batch steps lat lon channels"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A record of weather on one grid, made by `open_dataset`.

    Latitudes run from south to north. Channels are variables and their levels in the order of `channels`.
    Nothing here holds more than one batch in memory, unless the record is small enough to be kept whole.

    >>> from deltaweather.data import open_dataset
    >>> paris = open_dataset()
    >>> paris.kind, paris.grid.shape, len(paris.channels)
    ('site', (1, 1), 8)
    >>> starts = paris.starts("validation", steps=20)
    >>> batch = paris.batch(starts[:4], steps=2)
    >>> batch.state.shape, batch.forcing.shape, batch.target.shape
    ((4, 1, 1, 8), (4, 2, 1, 1, 5), (4, 2, 1, 1, 8))
    """

    name: str
    grid: Grid
    channels: tuple[Channel, ...]
    times: np.ndarray = field(repr=False)
    step: np.timedelta64
    splits: Splits
    normaliser: Normaliser = field(repr=False)
    static: Float32[np.ndarray, "lat lon static"] = field(repr=False)
    static_names: tuple[str, ...]
    reader: Reader = field(repr=False)
    usable: Bool[np.ndarray, "times"] = field(repr=False)
    follows: Bool[np.ndarray, "pairs"] = field(repr=False)
    minimum: Float64[np.ndarray, "channels"] = field(repr=False)
    maximum: Float64[np.ndarray, "channels"] = field(repr=False)
    findings: tuple[str, ...] = field(repr=False)
    attribution: str = field(repr=False, default="")

    @property
    def kind(self) -> Literal["site", "regional", "global"]:
        return self.grid.kind

    @property
    def forcing_names(self) -> tuple[str, ...]:
        return FORCINGS

    @property
    def steps_per_day(self) -> int:
        """Steps in 24 hours; an error if a day is no whole number of steps."""
        day, step = np.timedelta64(86_400, "s"), self.step.astype("timedelta64[s]")
        if day % step != np.timedelta64(0, "s"):
            raise ValueError(
                f"A day is not a whole number of steps of {step}: open the data with another step=."
            )
        return int(day // step)

    def channel(self, variable: str, level: float | int | None = None) -> int:
        """The position of a variable (on a level) in the last axis."""
        from deltaweather.data.variables import explain_missing

        wanted = Channel(variable, level)
        if wanted not in self.channels:
            raise ValueError(
                explain_missing([str(wanted)], [str(c) for c in self.channels], f"{self.name!r}")
            )
        return self.channels.index(wanted)

    def starts(
        self, split: SplitName, steps: int = 1, history: int = 2, every: int = 1
    ) -> Int64[np.ndarray, "starts"]:
        """Time indices t from which a forecast of `steps` steps can be made and compared.

        All of the states t-history+1 .. t+steps lie inside the split, are whole and consecutive, so that
        no state serves two splits. `every=n` keeps the times that are multiples of n steps after
        midnight on 1970-01-01 UTC (n = 4 at six hours: one start a day, at 00 UTC).
        """
        if steps < 1 or history < 1 or every < 1:
            raise ValueError(
                f"steps, history and every are at least 1, but {steps}, {history}, {every} were given."
            )
        first, last = self.splits.range(split)
        found = forecast_starts(self.usable, self.follows, (first, last), steps, history)
        count = (self.times[found] - np.datetime64("1970-01-01T00:00:00")) // self.step
        found = found[count.astype(np.int64) % every == 0]
        if len(found) == 0:
            raise ValueError(
                f"The split {split!r} of {self.name!r} ({self.times[first]!s:.10} to "
                f"{self.times[last - 1]!s:.10}, {last - first} steps, {int(self.usable[first:last].sum())} "
                f"of them whole) has no start for a forecast of {steps} steps with {history} states of "
                "history: use a shorter forecast or other years."
            )
        return np.asarray(found)

    def states(self, indices: Int64[np.ndarray, "n"]) -> Float32[np.ndarray, "n lat lon channels"]:
        """States in physical units."""
        indices = np.asarray(indices, np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self.times)):
            raise IndexError(
                f"Time indices must lie within 0..{len(self.times) - 1}, but "
                f"{indices.min()}..{indices.max()} were given."
            )
        values = np.asarray(self.reader.read(indices))
        if not isinstance(self.reader, MemoryReader):
            self._refuse_changed(indices, values)
        return values

    def _refuse_changed(self, indices: np.ndarray, values: np.ndarray) -> None:
        """Zarr gives fill values for chunks that are gone: compare with what was seen when opening."""
        whole = values[self.usable[indices]]
        low, high = self.minimum.astype(np.float32), self.maximum.astype(np.float32)
        if not np.all((whole >= low) & (whole <= high)):
            raise StoreError(
                f"{self.name!r} gives other values than when it was opened, between "
                f"{self.times[indices.min()]!s:.16} and {self.times[indices.max()]!s:.16}: part of the "
                "store is gone or was overwritten. Results of finished stages are kept; restore the store "
                "and run the same command again to continue."
            )

    def trajectories(
        self, indices: Int64[np.ndarray, "n"], steps: int
    ) -> Float32[np.ndarray, "n steps lat lon channels"]:
        """What happened, in physical units: entry k is the state k+1 steps after the start."""
        wanted = np.asarray(indices, np.int64)[:, None] + np.arange(1, steps + 1)
        return self.states(wanted.ravel()).reshape(*wanted.shape, *self.grid.shape, len(self.channels))

    def forcing(
        self, indices: Int64[np.ndarray, "n"], steps: int = 1
    ) -> Float32[np.ndarray, "n steps lat lon forcings"]:
        """The forcings of `steps` steps from each start; computed, so they reach past the record's end."""
        indices = np.asarray(indices, np.int64)
        times = self.times[indices][:, None] + self.step * np.arange(steps)
        return forcing(times.ravel(), self.grid, self.step).reshape(len(indices), steps, *self.grid.shape, -1)

    def batch(self, indices: Int64[np.ndarray, "batch"], steps: int = 1) -> Batch:
        """State, the state before, forcings and targets for the starts `indices`, normalised."""
        indices = np.asarray(indices, np.int64)
        offsets = np.arange(-1, steps + 1)
        wanted = indices[:, None] + offsets
        raw = self.states(wanted.ravel())
        z = self.normaliser.normalise_numpy(raw).reshape(*wanted.shape, *self.grid.shape, len(self.channels))
        return Batch(z[:, 1], z[:, 0], self.forcing(indices, steps), z[:, 2:])

    @property
    def fingerprint(self) -> str:
        """A hash of what results depend on, for caches: the record, its channels, splits and statistics."""
        digest = hashlib.sha256()
        for part in (self.grid, tuple(map(str, self.channels)), self.splits, str(self.step)):
            digest.update(repr(part).encode())
        for array in (
            self.times.astype("datetime64[s]").astype(np.int64),
            np.asarray(self.normaliser.mean),
            np.asarray(self.normaliser.std),
            np.asarray(self.normaliser.difference_std),
            np.asarray(self.normaliser.log_scale),
            self.usable,
        ):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def summary(self) -> str:
        """What was opened, in a few lines: domain, channels with statistics, splits, findings."""
        lines = [
            f"{self.name}: {self.grid.describe()}",
            f"{len(self.times)} states every {self.step.astype('timedelta64[m]').astype(int) / 60:g} h, "
            f"{self.times[0]!s:.16} to {self.times[-1]!s:.16}",
            f"{'channel':<42}{'mean':>12}{'deviation':>12}{'of a step':>12}",
        ]
        n = self.normaliser
        for k, channel in enumerate(self.channels):
            label = f"{channel}" if n.log_scale[k] == 0 else f"log(1 + {channel} / {n.log_scale[k]:g})"
            lines.append(
                f"{label:<42}{float(n.mean[k]):>12.5g}{float(n.std[k]):>12.5g}{float(n.difference_std[k]):>12.5g}"
            )
        for label in ("train", "validation", "test"):
            first, last = self.splits.range(label)  # type: ignore[arg-type]
            lines.append(
                f"{label}: {self.times[first]!s:.16} to {self.times[last - 1]!s:.16}, {last - first} "
                f"states, {int(self.usable[first:last].sum())} whole"
            )
        return "\n".join(lines + list(self.findings))
