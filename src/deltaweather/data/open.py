"""`open_dataset`: from a path to a checked, split and normalised record."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from deltaweather.data.checks import check_times, check_variables
from deltaweather.data.coarsen import coarsening
from deltaweather.data.dataset import Dataset
from deltaweather.data.forcing import static_fields
from deltaweather.data.opening import StoreError, open_store, standardise
from deltaweather.data.reader import Channel, MemoryReader, Reader, StoreReader
from deltaweather.data.splits import (
    FRACTIONS,
    PAPER_YEARS,
    Splits,
    default_splits,
    split_by_fractions,
    split_by_years,
)
from deltaweather.data.statistics import scan
from deltaweather.data.variables import KNOWN
from deltaweather.grid import Grid

PAPER_VARIABLES = (
    "2m_temperature",
    "mean_sea_level_pressure",
    "10m_u_component_of_wind",
    "10m_v_component_of_wind",
    "total_precipitation_6hr",
    "temperature",
    "geopotential",
    "u_component_of_wind",
    "v_component_of_wind",
    "vertical_velocity",
    "specific_humidity",
)

Split = (
    Literal["auto", "paper", "fractions"]
    | tuple[float | int, float | int, float | int]
    | tuple[tuple[int | None, int | None], tuple[int | None, int | None], tuple[int | None, int | None]]
    | Splits
)


def open_dataset(
    path: str | Path | xr.Dataset | None = None,
    *,
    variables: Sequence[str] | None = None,
    levels: Sequence[float | int] | None = None,
    years: tuple[int | None, int | None] | None = None,
    resolution: float | int | None = None,
    split: Split = "auto",
    step_hours: float | int | None = None,
    memory: int = 2**30,
    block: int = 256 * 2**20,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Open a record of weather: NetCDF, Zarr, WeatherBench 2, local or remote; None is the Paris record.

    **Arguments**

    - `path`: a file, a pattern of files, a Zarr store, any fsspec address, or an `xarray.Dataset`.
    - `variables`: WeatherBench 2 names, in the order the channels shall have; default all that lie on
      (time, latitude, longitude), in a fixed order.
      `PAPER_VARIABLES` are the paper's eleven.
    - `levels`: pressure levels of the variables that have them; default all.
    - `years`: first and last calendar year to keep, None for an open end.
    - `resolution`: degrees; cells are averaged conservatively to it.
    - `split`: "auto" (the paper's years where the record has them, else 70 / 15 / 15 %), "paper",
      "fractions", three fractions, three pairs of years, or `Splits`.
    - `step_hours`: default 6, or the record's own step if that is not a part of 6.
    - `memory`: records of at most this many bytes are kept in memory; larger ones are read batch by batch.
    - `block`: bytes of working memory of the pass that collects statistics.
    - `storage_options`: for fsspec; `progress(done, total)` is called during the pass.

    Every state is read once, in blocks: fill values and gaps are found and reported in `findings`, and
    implausible values refused.

    >>> open_dataset(variables=["2m_temperature", "total_precipitation_6hr"]).splits
    Splits(train=(0, 10228), validation=(10228, 12419), test=(12419, 14611))
    """
    source = path if isinstance(path, xr.Dataset) else open_store(path, storage_options)
    if isinstance(path, xr.Dataset):
        name = str(path.attrs.get("title", "dataset"))
    else:
        name = "Paris (embedded)" if path is None else str(path)
    source, findings = standardise(source)
    source, found = _choose_years(source, years)
    findings += found
    channels = _channels(source, variables, levels, name)
    asked = None if step_hours is None else np.timedelta64(round(step_hours * 3600), "s")
    positions, step, follows, found = check_times(source["time"].values, asked)
    findings += found
    _refuse_thinned_sums(channels, source["time"].values, positions)
    times = source["time"].values[positions].astype("datetime64[s]")
    splits = _splits(times, split)
    grid = Grid(tuple(map(float, source["latitude"].values)), tuple(map(float, source["longitude"].values)))
    coarsen = None if resolution is None else coarsening(grid, resolution)
    if coarsen is not None:
        findings.append(
            f"Averaged from {grid.shape[0]} x {grid.shape[1]} to {coarsen.target.shape[0]} x "
            f"{coarsen.target.shape[1]} cells."
        )
        grid = coarsen.target
    store: Reader = StoreReader(source, channels, positions, coarsen, name)
    size = 4 * int(np.prod([len(times), *grid.shape, len(channels)], dtype=np.int64))
    whole = np.empty((len(times), *grid.shape, len(channels)), np.float32) if size <= memory else None

    def keep(indices: np.ndarray, values: np.ndarray) -> None:
        if whole is not None:
            whole[indices] = values

    log_scale = np.array(
        [(KNOWN[c.variable].log_scale if c.variable in KNOWN else None) or 0.0 for c in channels], np.float32
    )
    result = scan(
        store,
        channels,
        times,
        follows,
        grid.area_weights,
        log_scale,
        splits.train,
        budget_bytes=block,
        keep=keep,
        progress=progress,
    )
    if not result.usable.all() and not isinstance(path, xr.Dataset):
        _refuse_vanished(path, storage_options)
    findings += _missing(channels, result.missing, result.usable, times)
    static_names, static = static_fields(source, grid, coarsen)
    return Dataset(
        name=name,
        grid=grid,
        channels=channels,
        times=times,
        step=step,
        splits=splits,
        normaliser=result.normaliser,
        static=static,
        static_names=static_names,
        reader=store if whole is None else MemoryReader(whole),
        usable=result.usable,
        follows=follows,
        minimum=result.minimum,
        maximum=result.maximum,
        findings=tuple(findings),
        attribution=str(source.attrs.get("source", "")),
    )


def _choose_years(
    ds: xr.Dataset, years: tuple[int | None, int | None] | None
) -> tuple[xr.Dataset, list[str]]:
    if years is None:
        return ds, []
    first, last = years
    if not np.issubdtype(ds["time"].dtype, np.datetime64):
        return ds, []  # refused with an explanation by check_times
    of_time = ds["time"].values.astype("datetime64[Y]").astype(int) + 1970
    inside = (of_time >= (-10_000 if first is None else first)) & (
        of_time <= (10_000 if last is None else last)
    )
    if not inside.any():
        raise ValueError(
            f"The record covers {of_time.min()} to {of_time.max()}; none of it falls in the years {first} "
            f"to {last}."
        )
    chosen = np.flatnonzero(inside)
    return ds.isel(time=slice(int(chosen[0]), int(chosen[-1]) + 1)), [f"Years {first} to {last} chosen."]


def _channels(
    ds: xr.Dataset, variables: Sequence[str] | None, levels: Sequence[float | int] | None, name: str
) -> tuple[Channel, ...]:
    if isinstance(variables, str):
        raise TypeError(f"variables is a sequence of names; use variables=[{variables!r}].")
    if variables is None:
        variables = [
            str(v)
            for v in ds.data_vars
            if {"time", "latitude", "longitude"}
            <= set(ds[v].dims)
            <= {"time", "level", "latitude", "longitude"}
            and np.issubdtype(ds[v].dtype, np.number)
        ]
        order = {known: k for k, known in enumerate(KNOWN)}  # stores list them in orders of their own
        variables = sorted(variables, key=lambda v: (order.get(v, len(order)), v))
    if len(variables) == 0:
        raise ValueError(
            f"{name!r} has no variable on (time, latitude, longitude); it holds {', '.join(map(str, ds))}."
        )
    if len(set(variables)) < len(variables):
        raise ValueError(f"variables names one twice: {', '.join(variables)}.")
    check_variables(ds, tuple(variables), repr(name))
    chosen: list[Channel] = []
    for variable in variables:
        if "level" not in ds[variable].dims:
            chosen.append(Channel(variable))
            continue
        there = [float(v) for v in ds["level"].values]
        wanted = there if levels is None else [float(v) for v in levels]
        absent = [v for v in wanted if v not in there]
        if absent:
            raise ValueError(
                f"{variable!r} has no level {', '.join(f'{v:g}' for v in absent)}; its levels are "
                f"{', '.join(f'{v:g}' for v in there)}."
            )
        chosen += [Channel(variable, v) for v in wanted]
    return tuple(chosen)


def _refuse_thinned_sums(channels: tuple[Channel, ...], times: np.ndarray, positions: np.ndarray) -> None:
    if len(positions) < len(times) and any(c.variable == "total_precipitation" for c in channels):
        raise ValueError(
            "'total_precipitation' is a sum over one step of the store, and taking every few steps would "
            "lose the rain between. Make the six-hour sum first, for instance "
            "ds['total_precipitation_6hr'] = ds['total_precipitation'].rolling(time=6).sum() for hourly "
            "data, or leave it out with variables=."
        )


def _splits(times: np.ndarray, split: Split) -> Splits:
    if isinstance(split, Splits):
        bounds = [*split.train, *split.validation, *split.test]
        if sorted(bounds) != bounds or bounds[0] < 0 or bounds[-1] > len(times):
            raise ValueError(
                f"Splits must be in order, disjoint and within 0..{len(times)}, but {split} was given."
            )
        return split
    if split == "auto":
        return default_splits(times)
    if split == "paper":
        return split_by_years(times, PAPER_YEARS)
    if split == "fractions":
        return split_by_fractions(times, FRACTIONS)
    if isinstance(split, tuple) and len(split) == 3:
        if all(isinstance(s, tuple) for s in split):
            return split_by_years(times, split)  # type: ignore[arg-type]
        if all(isinstance(s, int | float) for s in split):
            return split_by_fractions(times, split)  # type: ignore[arg-type]
    raise ValueError(
        "split is 'auto', 'paper', 'fractions', three fractions, three pairs of years, or Splits, but "
        f"{split!r} was given."
    )


def _refuse_vanished(path: str | Path | None, storage_options: Mapping[str, Any] | None) -> None:
    """A Zarr store that is deleted while it is read looks like missing values: see whether it is still there."""
    try:
        open_store(path, storage_options)
    except StoreError as error:
        raise StoreError(
            f"{str(path)!r} disappeared while it was read, so that its statistics cannot be trusted. "
            "Restore it and run the same command again."
        ) from error


def _missing(
    channels: tuple[Channel, ...], share: np.ndarray, usable: np.ndarray, times: np.ndarray
) -> list[str]:
    sentences = [
        f"{channel}: {100 * part:.3g} % of the values are missing."
        for channel, part in zip(channels, share, strict=True)
        if part > 0
    ]
    if not usable.all():
        first = times[int(np.flatnonzero(~usable)[0])]
        sentences.append(
            f"{int((~usable).sum())} of {len(times)} states have missing values, the first at "
            f"{first!s:.16}; no forecast reads them or is compared with them."
        )
    return sentences
