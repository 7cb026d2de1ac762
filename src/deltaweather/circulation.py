"""The circulation model `jcm` behind the few things a simulated record needs of it."""

from importlib import metadata, resources
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xarray as xr

VERSION = "3.0.0"
REFERENCE_PRESSURE = 1e5  # Pa, the model's normalisation of surface pressure
MIDDLE_SIGMA = 0.51
GRAVITY = 9.80665
STEP_SECONDS = 21_600
WATER_DENSITY = 1000.0  # kg m-3
_SAMPLES = 3  # of the rain rate in six hours

UNITS = {
    "2m_temperature": "K",
    "10m_u_component_of_wind": "m s**-1",
    "10m_v_component_of_wind": "m s**-1",
    "total_precipitation_6hr": "m",
    "surface_pressure": "Pa",
    "geopotential_mid": "m**2 s**-2",
}


class Circulation(Protocol):
    """What makes weather: it starts at a date, advances by days, and can be saved and restored."""

    @property
    def now(self) -> np.datetime64: ...

    def advance(self, days: int) -> xr.Dataset: ...

    def save(self, path: Path) -> None: ...

    def restore(self, path: Path) -> None: ...

    def static(self) -> xr.Dataset: ...


class CirculationModel:
    """`jcm` with SPEEDY physics at T31, from rest at `start`; a `Circulation`."""

    def __init__(self, start: np.datetime64) -> None:
        try:
            from jcm import configurations
        except ImportError as error:
            raise ImportError(
                "Simulating weather needs the package jcm: pip install 'deltavariance[simulate]'."
            ) from error
        installed = metadata.version("jcm")
        if installed != VERSION:
            raise ImportError(
                f"Simulated records are made with jcm {VERSION}, but {installed} is installed: pip install "
                f"jcm=={VERSION}."
            )
        boundary = resources.files("jcm") / "data" / "bc" / "t63"
        loaded = configurations.load(
            "speedy-t31",
            **{
                "terrain.file": str(boundary / "terrain.nc"),
                "forcing.file": str(boundary / "forcing.nc"),
                "run.start_time": str(start.astype("datetime64[D]")),
            },
        )
        self._model: Any = loaded.model
        self._forcing = loaded.forcing
        self._model.bootstrap_state()

    @property
    def now(self) -> np.datetime64:
        since = self._model.run_state.time.delta
        return np.datetime64("1970-01-01T00:00:00") + np.timedelta64(
            86_400 * int(since.days) + int(since.seconds), "s"
        )

    def advance(self, days: int) -> xr.Dataset:
        """Integrate; the weather every six hours."""
        predictions = self._model.resume(
            forcing=self._forcing, save_interval=f"{24 // (4 * _SAMPLES)} hours", total_time=days
        )
        return to_weather(predictions.to_xarray())

    def save(self, path: Path) -> None:
        from jcm.checkpoint import save_checkpoint

        save_checkpoint(self._model, path)

    def restore(self, path: Path) -> None:
        from jcm.checkpoint import load_checkpoint

        load_checkpoint(self._model, path)

    def static(self) -> xr.Dataset:
        """Orography and land, on the model's grid."""
        terrain, coords = self._model.terrain, self._model.coords.horizontal
        orography = np.asarray(terrain.orog, np.float32).T
        land = np.asarray(terrain.fmask, np.float32).T
        grid = {
            "latitude": np.rad2deg(np.asarray(coords.latitudes, np.float64)),
            "longitude": np.rad2deg(np.asarray(coords.longitudes, np.float64)),
        }
        dims = ("latitude", "longitude")
        return xr.Dataset(
            {
                "geopotential_at_surface": (dims, GRAVITY * orography, {"units": "m**2 s**-2"}),
                "land_sea_mask": (dims, land, {"units": "1"}),
            },
            coords=grid,
        )


def to_weather(output: xr.Dataset) -> xr.Dataset:
    """The model's output every two hours as weather every six: states at the end, rain summed.

    The rain of six hours is the mean of three samples of its rate (kg m⁻² s⁻¹) times six hours, in metres.
    """
    if output.sizes["time"] % _SAMPLES:
        raise ValueError(
            f"{output.sizes['time']} samples of the model's output are no whole number of six hours "
            f"({_SAMPLES} each)."
        )
    last = slice(_SAMPLES - 1, None, _SAMPLES)
    level = int(np.argmin(np.abs(output["hybrid_b_full"].values - MIDDLE_SIGMA)))
    rate = output["surface_exchange.precipitation"].coarsen(time=_SAMPLES).mean()
    fields = {
        "2m_temperature": output["surface_flux.t0"].isel(time=last),
        "10m_u_component_of_wind": output["surface_flux.u0"].isel(time=last),
        "10m_v_component_of_wind": output["surface_flux.v0"].isel(time=last),
        "total_precipitation_6hr": rate * (STEP_SECONDS / WATER_DENSITY),
        "surface_pressure": output["normalized_surface_pressure"].isel(time=last) * REFERENCE_PRESSURE,
        "geopotential_mid": output["geopotential"].isel(time=last, level=level),
    }
    times = output["time"].values[last].astype("datetime64[ns]")
    coords = {
        "time": times,
        "latitude": output["lat"].values.astype(np.float64),
        "longitude": output["lon"].values.astype(np.float64),
    }
    dims = ("time", "latitude", "longitude")
    data = {
        name: (dims, array.transpose("time", "lat", "lon").values.astype(np.float32), {"units": UNITS[name]})
        for name, array in fields.items()
    }
    data["geopotential_mid"][2]["level"] = f"sigma {MIDDLE_SIGMA}"
    return xr.Dataset(data, coords=coords)
