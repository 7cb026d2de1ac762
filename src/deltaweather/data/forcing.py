"""What is known in advance: the time of day and year, the sun, and what the ground looks like."""

import numpy as np
import xarray as xr
from jaxtyping import Float32, Float64

from deltaweather.data.coarsen import Coarsening
from deltaweather.data.variables import STATIC
from deltaweather.grid import Grid

SOLAR_CONSTANT = 1361.0  # W m-2
FORCINGS = ("year_sin", "year_cos", "day_sin", "day_cos", "sun")
GRAVITY = 9.80665


def year_phase(times: np.ndarray) -> Float64[np.ndarray, "n"]:
    """Fraction of the tropical year since the start of 2000, times 2 pi."""
    days = (times - np.datetime64("2000-01-01T00:00:00")) / np.timedelta64(1, "s") / 86_400
    return np.asarray(2 * np.pi * (days / 365.2422 % 1.0))


def solar_declination(times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sun's declination (rad), equation of time (h) and inverse squared distance (Spencer's series)."""
    day = (times - times.astype("datetime64[Y]")) / np.timedelta64(1, "s") / 86_400
    g = 2 * np.pi * day / 365.2422
    declination = (
        0.006918
        - 0.399912 * np.cos(g)
        + 0.070257 * np.sin(g)
        - 0.006758 * np.cos(2 * g)
        + 0.000907 * np.sin(2 * g)
        - 0.002697 * np.cos(3 * g)
        + 0.00148 * np.sin(3 * g)
    )
    minutes = 229.18 * (
        0.000075
        + 0.001868 * np.cos(g)
        - 0.032077 * np.sin(g)
        - 0.014615 * np.cos(2 * g)
        - 0.040849 * np.sin(2 * g)
    )
    nearness = (
        1.00011
        + 0.034221 * np.cos(g)
        + 0.00128 * np.sin(g)
        + 0.000719 * np.cos(2 * g)
        + 0.000077 * np.sin(2 * g)
    )
    return declination, minutes / 60, nearness


def top_of_atmosphere_sun(
    times: np.ndarray, grid: Grid, step: np.timedelta64
) -> Float32[np.ndarray, "n lat lon"]:
    """Mean sunlight on a horizontal plane above the air, W m-2, from each time to one step later.

    The mean of `S / r² max(0, a + b cos h)` with `a = sin φ sin δ`, `b = cos φ cos δ` over the hour angles h
    of the step, in closed form: the integral from noon is `a h + b sin h` up to the sunset `cos h = -a / b`
    and constant after it. The declination δ is that of the middle of the step.
    """
    at = times.astype("datetime64[ns]")
    half = np.timedelta64(round(step / np.timedelta64(1, "s") * 5e8), "ns")
    declination, lag, nearness = (v[:, None, None] for v in solar_declination(at + half))
    lat = np.deg2rad(np.asarray(grid.latitudes))[None, :, None]
    a = np.sin(lat) * np.sin(declination)
    b = np.maximum(np.cos(lat) * np.cos(declination), 1e-12)
    sunset = np.arccos(np.clip(-a / b, -1.0, 1.0))
    hours = ((at - at.astype("datetime64[D]")) / np.timedelta64(1, "s") / 3600)[:, None, None]
    begin = np.deg2rad((hours + lag - 12) * 15 + np.asarray(grid.longitudes)[None, None, :])
    swept = step / np.timedelta64(1, "h") * np.pi / 12

    def integral(h: np.ndarray) -> np.ndarray:
        turns = np.round(h / (2 * np.pi))
        today = np.clip(h - 2 * np.pi * turns, -sunset, sunset)
        return np.asarray(a * today + b * np.sin(today) + 2 * turns * (a * sunset + b * np.sin(sunset)))

    mean = (integral(begin + swept) - integral(begin)) / swept
    return np.asarray(SOLAR_CONSTANT * nearness * np.maximum(mean, 0.0), dtype=np.float32)


def forcing(times: np.ndarray, grid: Grid, step: np.timedelta64) -> Float32[np.ndarray, "n lat lon forcings"]:
    """`FORCINGS` for the step that begins at each time; the day is the local solar day of the longitude.

    The sun is divided by 500 W m-2, so that all five are of order one.
    """
    shape = (len(times), *grid.shape)
    year = year_phase(times)[:, None, None]
    day_fraction = (times - times.astype("datetime64[D]")) / np.timedelta64(1, "s") / 86_400
    day = 2 * np.pi * day_fraction[:, None, None] + np.deg2rad(np.asarray(grid.longitudes))[None, None, :]
    parts = [
        np.sin(year),
        np.cos(year),
        np.sin(day),
        np.cos(day),
        top_of_atmosphere_sun(times, grid, step) / 500,
    ]
    return np.stack([np.broadcast_to(p, shape) for p in parts], axis=-1).astype(np.float32)


def static_fields(
    source: xr.Dataset, grid: Grid, coarsen: Coarsening | None
) -> tuple[tuple[str, ...], Float32[np.ndarray, "lat lon static"]]:
    """Where each cell is (sin lat, sin and cos lon); orography (km) and land share if the store has them."""
    lat, lon = np.meshgrid(np.deg2rad(grid.latitudes), np.deg2rad(grid.longitudes), indexing="ij")
    fields = {"latitude_sin": np.sin(lat), "longitude_sin": np.sin(lon), "longitude_cos": np.cos(lon)}
    for name, candidates in STATIC.items():
        for candidate in candidates:
            if candidate not in source or {"latitude", "longitude"} - set(source[candidate].dims):
                continue
            array = source[candidate]
            array = array.isel({d: 0 for d in array.dims if d not in ("latitude", "longitude")})
            values = np.array(array.transpose("latitude", "longitude").values, np.float32)
            values = values if coarsen is None else coarsen(values)
            if name == "orography":
                geopotential = "geopotential" in candidate
                values = values / (GRAVITY * 1000 if geopotential else 1000)
            fields[name] = np.nan_to_num(values)
            break
    return tuple(fields), np.stack(list(fields.values()), axis=-1).astype(np.float32)
