"""Small made-up records for the tests of this folder."""

import numpy as np
import xarray as xr

LATITUDES = (10.0, 12.0, 14.0, 16.0)
LONGITUDES = (100.0, 102.0, 104.0, 106.0, 108.0)


def record(
    times: int = 200,
    latitudes: tuple[float, ...] = LATITUDES,
    longitudes: tuple[float, ...] = LONGITUDES,
    start: str = "2005-01-01T00",
    hours: int = 6,
    seed: int = 0,
) -> xr.Dataset:
    """Plausible random fields of the five variables that the quantities need."""
    rng = np.random.default_rng(seed)
    shape = (times, len(latitudes), len(longitudes))
    at = np.datetime64(start, "ns") + np.timedelta64(hours, "h") * np.arange(times)
    dims = ("time", "latitude", "longitude")
    return xr.Dataset(
        {
            "2m_temperature": (dims, 290 + 8 * rng.standard_normal(shape), {"units": "K"}),
            "10m_u_component_of_wind": (dims, 1 + 3 * rng.standard_normal(shape), {"units": "m s**-1"}),
            "10m_v_component_of_wind": (dims, 3 * rng.standard_normal(shape), {"units": "m s**-1"}),
            "total_precipitation_6hr": (dims, 1e-3 * rng.gamma(0.3, 2.0, shape), {"units": "m"}),
        },
        coords={"time": at, "latitude": list(latitudes), "longitude": list(longitudes)},
        attrs={"title": "made up"},
    )
