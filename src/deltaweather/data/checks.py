"""Refusing what cannot be right, with a sentence that says what to do."""

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float32, Int64

from deltaweather.data.reader import Channel
from deltaweather.data.variables import KNOWN, explain_missing

# Units written in files that contradict WeatherBench 2's, by the unit expected.
_WRONG_UNITS: dict[str, dict[str, str]] = {
    "K": dict.fromkeys(
        ("c", "degc", "deg_c", "celsius", "degrees_celsius", "degree_celsius", "°c"), "add 273.15"
    )
    | dict.fromkeys(("f", "degf", "fahrenheit", "°f"), "convert with (x - 32) / 1.8 + 273.15"),
    "Pa": dict.fromkeys(("hpa", "mb", "mbar", "millibar", "millibars"), "multiply by 100"),
    "m": dict.fromkeys(
        ("mm", "millimeter", "millimetre", "kg m**-2", "kg m-2", "kg/m2", "kg/m^2"), "divide by 1000"
    ),
    "m s**-1": dict.fromkeys(("km/h", "kmh", "km h-1", "km h**-1"), "divide by 3.6")
    | dict.fromkeys(("kt", "kts", "knots", "knot"), "multiply by 0.514444"),
    "1": dict.fromkeys(("%", "percent"), "divide by 100"),
    "kg kg**-1": dict.fromkeys(("g kg**-1", "g/kg", "g kg-1"), "divide by 1000"),
}


def check_variables(ds: xr.Dataset, variables: tuple[str, ...], where: str) -> None:
    """All wanted variables are there, on the grid, in the expected unit."""
    gridded = [str(v) for v in ds.data_vars if {"time", "latitude", "longitude"} <= set(ds[v].dims)]
    missing = [v for v in variables if v not in gridded]
    if missing:
        raise ValueError(explain_missing(missing, gridded, where))
    for name in variables:
        extra = set(ds[name].dims) - {"time", "level", "latitude", "longitude"}
        if extra:
            raise ValueError(
                f"{name!r} has the dimension {', '.join(map(str, sorted(extra, key=str)))} beside time, "
                "level, latitude and longitude: choose one entry of it with xarray's isel before opening."
            )
        if not np.issubdtype(ds[name].dtype, np.number):
            raise ValueError(f"{name!r} holds values of type {ds[name].dtype}, not numbers.")
        check_unit(name, str(ds[name].attrs.get("units", "")))


def check_unit(name: str, unit: str) -> None:
    """The unit a file declares is not one of those that are known to be wrong for the variable."""
    known = KNOWN.get(name)
    if known is None:
        return
    advice = _WRONG_UNITS.get(known.unit, {}).get(unit.strip().lower())
    if advice is not None:
        raise ValueError(
            f"{name!r} is declared in {unit!r}, but {known.unit!r} is expected: {advice}, and set its "
            f"attribute units to {known.unit!r}."
        )


def check_range(
    x: Float32[np.ndarray, "n lat lon channels"], channels: tuple[Channel, ...], times: np.ndarray
) -> None:
    """Values lie in the range their variable can take: this is where a temperature in Celsius shows."""
    for k, channel in enumerate(channels):
        known = KNOWN.get(channel.variable)
        values = x[..., k]
        if known is None:
            continue
        mean = float(values.mean(dtype=np.float64))  # not finite where a value is missing
        if (
            known.mean_low <= mean <= known.mean_high
            and known.low <= values.min()
            and values.max() <= known.high
        ):
            continue
        present = np.isfinite(values)
        if not present.any():
            continue
        mean = float(values[present].mean(dtype=np.float64))
        outside = present & ((values < known.low) | (values > known.high))
        if not outside.any() and known.mean_low <= mean <= known.mean_high:
            continue
        share = outside.sum() / present.sum()
        low, high = values[present].min(), values[present].max()
        seen = f"{str(channel)!r} runs from {low:g} to {high:g} (mean {mean:g})"
        span = f"between {times[0]!s:.16} and {times[-1]!s:.16}"
        wanted = f"but in {known.unit} it must lie within {known.low:g} to {known.high:g}"
        off_mean = not known.mean_low <= mean <= known.mean_high
        if (share > 0.01 or off_mean) and known.mistaken:
            raise ValueError(f"{seen} {span}, {wanted}. The unit is probably {' or '.join(known.mistaken)}.")
        first = times[np.flatnonzero(outside.any((1, 2)))[0]] if outside.any() else times[0]
        raise ValueError(
            f"{seen} {span}, {wanted}; {int(outside.sum())} values do not, the first at {first!s:.16}. If "
            "they stand for missing data, make them NaN; else correct their unit."
        )


def check_times(
    times: np.ndarray, step: np.timedelta64 | None
) -> tuple[Int64[np.ndarray, "kept"], np.timedelta64, Bool[np.ndarray, "pairs"], list[str]]:
    """Which times to keep, the step, whether each is followed by the next, and what was found.

    Missing steps are found and reported; duplicate, unordered and irregular times are refused. A record
    finer than `step` (default 6 hours) is thinned to the times that are multiples of the step after midnight.
    """
    if not np.issubdtype(times.dtype, np.datetime64):
        raise ValueError(
            f"The time axis holds {times.dtype} and not dates of the standard calendar. Convert it first, "
            "for instance with xarray's convert_calendar('standard') or by decoding its units."
        )
    if len(times) < 3:
        raise ValueError(f"The record has {len(times)} times; at least 3 are needed.")
    if np.any(np.isnat(times)):
        raise ValueError(f"{int(np.isnat(times).sum())} times are not dates (NaT): drop them first.")
    gaps = np.diff(times)
    zero = np.timedelta64(0, "s")
    if np.any(gaps == zero):
        twice = np.flatnonzero(gaps == zero)
        raise ValueError(
            f"{len(twice)} times are duplicates, the first {times[twice[0]]!s:.16} (positions {twice[0]} "
            f"and {twice[0] + 1}). Drop them, for instance with ds.drop_duplicates('time')."
        )
    if np.any(gaps < zero):
        at = int(np.flatnonzero(gaps < zero)[0])
        raise ValueError(
            f"Times are not in order: {times[at + 1]!s:.16} comes after {times[at]!s:.16} (position "
            f"{at + 1}). Sort them with ds.sortby('time') and drop duplicates."
        )
    seconds = np.round(gaps / np.timedelta64(1, "s")).astype(np.int64)
    values, counts = np.unique(seconds, return_counts=True)
    base = int(values[np.argmax(counts)])
    odd = np.flatnonzero(seconds % base)
    if len(odd):
        at = int(odd[0])
        raise ValueError(
            f"Times are irregular: most are {_hours(base)} apart, but {times[at]!s:.16} and "
            f"{times[at + 1]!s:.16} are {_hours(int(seconds[at]))} apart ({len(odd)} such places). Resample "
            "to a regular axis first, for instance with "
            f"ds.resample(time='{_hours(base).replace(' ', '')}')."
        )
    wanted = 21_600 if step is None else round(float(step / np.timedelta64(1, "s")))
    kept = np.arange(len(times))
    findings: list[str] = []
    if wanted % base and step is not None:
        raise ValueError(
            f"A step of {_hours(wanted)} was asked for, but the record's times are {_hours(base)} apart: "
            "choose a multiple of that."
        )
    if wanted % base:
        wanted = base
        findings.append(f"The record's step is {_hours(base)}, which is used in place of 6 h.")
    if wanted > base:
        since = np.round((times - times.astype("datetime64[D]")) / np.timedelta64(1, "s")).astype(np.int64)
        kept = np.flatnonzero(since % wanted == 0)
        if len(kept) < 3:
            raise ValueError(
                f"Fewer than 3 times of the record fall on multiples of {_hours(wanted)} after midnight "
                f"UTC: choose step={_hours(base)}."
            )
        findings.append(f"Every {_hours(wanted)} taken of a record with steps of {_hours(base)}.")
    between = np.round(np.diff(times[kept]) / np.timedelta64(1, "s")).astype(np.int64)
    follows = between == wanted
    if not follows.all():
        at = int(np.flatnonzero(~follows)[0])
        lost = int((between[~follows] // wanted - 1).sum())
        findings.append(
            f"{lost} time steps are missing in {int((~follows).sum())} gaps, the first after "
            f"{times[kept[at]]!s:.16}; no forecast crosses a gap."
        )
    return kept, np.timedelta64(wanted, "s"), follows, findings


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:g} h"
