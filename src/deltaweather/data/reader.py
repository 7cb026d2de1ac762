"""Reading states: arrays [n, lat, lon, channels] for chosen times, from a store or from memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import xarray as xr
from jaxtyping import Float32, Int64

from deltaweather.data.coarsen import Coarsening
from deltaweather.data.opening import StoreError
from deltaweather.data.variables import KNOWN

# Values that stand for "missing" in files that do not declare them. Far outside any physical range.
SENTINELS = (-9999.0, -99999.0, -999.0, -32768.0, -32767.0, 9999.0, 99999.0, 9.96921e36, 1e20, 1e30)
ABSURD = 1e9


@dataclass(frozen=True)
class Channel:
    """One variable on one level (None: at the surface); printed as `name` or `name@level`."""

    variable: str
    level: float | int | None = None

    def __str__(self) -> str:
        return self.variable if self.level is None else f"{self.variable}@{self.level:g}"


@runtime_checkable
class Reader(Protocol):
    """Anything that gives states in physical units for sorted or unsorted time indices."""

    @property
    def shape(self) -> tuple[int, int, int, int]: ...

    @property
    def values_per_time(self) -> int:
        """Numbers held at once while one time is read: more than a state's where fields are averaged."""
        ...

    def read(self, indices: Int64[np.ndarray, "n"]) -> Float32[np.ndarray, "n lat lon channels"]: ...


@dataclass(frozen=True)
class MemoryReader:
    """The whole record in memory."""

    values: Float32[np.ndarray, "times lat lon channels"] = field(repr=False)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        n, lat, lon, c = self.values.shape
        return n, lat, lon, c

    @property
    def values_per_time(self) -> int:
        return int(np.prod(self.values.shape[1:]))

    def read(self, indices: Int64[np.ndarray, "n"]) -> Float32[np.ndarray, "n lat lon channels"]:
        return np.asarray(self.values[indices])


@dataclass(frozen=True)
class StoreReader:
    """A lazily opened store: only the asked-for times are read, each distinct time once.

    `positions[t]` is where time t of the record lies in the store.
    """

    source: xr.Dataset = field(repr=False)
    channels: tuple[Channel, ...]
    positions: Int64[np.ndarray, "times"] = field(repr=False)
    coarsen: Coarsening | None
    name: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        if self.coarsen is None:
            lat, lon = self.source.sizes["latitude"], self.source.sizes["longitude"]
        else:
            lat, lon = self.coarsen.target.shape
        return len(self.positions), lat, lon, len(self.channels)

    @property
    def values_per_time(self) -> int:
        _, lat, lon, count = self.shape
        fine = self.source.sizes["latitude"] * self.source.sizes["longitude"]
        levels = max(len(ats) for ats in _by_variable(self.channels).values())
        return lat * lon * count + fine * levels

    def read(self, indices: Int64[np.ndarray, "n"]) -> Float32[np.ndarray, "n lat lon channels"]:
        distinct, back = np.unique(indices, return_inverse=True)
        _, lat, lon, _ = self.shape
        out = np.empty((len(distinct), lat, lon, len(self.channels)), np.float32)
        for variable, ats in _by_variable(self.channels).items():
            levels = [self.channels[k].level for k in ats]
            fields = mask_sentinels(self._load(variable, self.positions[distinct], levels), variable)
            for place, k in enumerate(ats):
                values = fields[:, place]
                out[..., k] = values if self.coarsen is None else self.coarsen(values)
        return out[back] if len(distinct) != len(indices) or np.any(distinct != indices) else out

    def _load(self, variable: str, times: np.ndarray, levels: list[float | None]) -> np.ndarray:
        """Values [time, level, latitude, longitude] from the store."""
        array = self.source[variable]
        contiguous = len(times) > 0 and times[-1] - times[0] == len(times) - 1
        array = array.isel(time=slice(int(times[0]), int(times[-1]) + 1) if contiguous else times)
        if levels[0] is not None:
            array = array.sel(level=levels)
        else:
            array = array.expand_dims("level", axis=1)
        array = array.transpose("time", "level", "latitude", "longitude")
        span = (
            f"{self.source['time'].values[times[0]]!s:.16} to {self.source['time'].values[times[-1]]!s:.16}"
        )
        return _attempt(
            lambda: np.array(array.values, dtype=np.float32),
            f"{self.name!r} stopped answering while {variable!r} was read for {span}",
        )


def _attempt(load: Callable[[], np.ndarray], what: str) -> np.ndarray:
    try:
        return load()
    except MemoryError:
        raise
    except Exception as error:  # backends raise KeyError, RuntimeError, OSError, aiohttp's own ...
        raise StoreError(
            f"{what} ({type(error).__name__}: {error}). Results of finished stages are kept; check that the "
            "store is still there and run the same command again to continue."
        ) from error


def mask_sentinels(x: np.ndarray, variable: str) -> np.ndarray:
    """Undeclared fill values made missing: absurd magnitudes, and -9999 and its kin where impossible."""
    known = KNOWN.get(variable)
    bad = np.abs(x) >= ABSURD
    for value in SENTINELS:
        if known is None or not known.low <= value <= known.high:
            bad |= np.isclose(x, value, rtol=1e-6, atol=0.0)
    x[bad | ~np.isfinite(x)] = np.nan
    return x


def _by_variable(channels: tuple[Channel, ...]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for k, channel in enumerate(channels):
        groups.setdefault(channel.variable, []).append(k)
    return groups
