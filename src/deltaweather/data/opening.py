"""Opening what xarray opens, and giving it the names and the order the rest expects."""

import glob
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "time": ("time", "valid_time", "datetime", "date"),
    "latitude": ("latitude", "lat", "y", "nav_lat"),
    "longitude": ("longitude", "lon", "x", "nav_lon"),
    "level": ("level", "pressure_level", "isobaricInhPa", "plev", "lev"),
}


class StoreError(OSError):
    """A store that cannot be opened or that stopped answering; what was computed before is kept."""


def embedded_path() -> Path:
    """The ERA5 record of one grid point near Paris, 2000-2009, that ships with the package."""
    return Path(str(resources.files("deltaweather.data") / "era5_paris_6h.nc"))


def attribution() -> str:
    """The notice that must accompany the embedded record wherever it is shown."""
    return (resources.files("deltaweather.data") / "ATTRIBUTION.txt").read_text(encoding="utf-8")


def open_store(path: str | Path | None, storage_options: Mapping[str, Any] | None = None) -> xr.Dataset:
    """A NetCDF file, a pattern of NetCDF files, or a Zarr store, local or behind any fsspec address, lazily.

    None opens the embedded record. `storage_options` go to fsspec (`{"token": "anon"}` for public buckets).
    """
    if path is None:
        path = embedded_path()
    name = str(path)
    options = dict(storage_options or {})
    remote = "://" in name
    try:
        if _is_zarr(name):
            zarr: xr.Dataset = xr.open_zarr(name, storage_options=options or None, decode_timedelta=False)
            return zarr
        if remote:
            import fsspec

            return xr.open_dataset(
                fsspec.open(name, **options).open(), engine="h5netcdf", chunks={}, decode_timedelta=False
            )
        if any(c in name for c in "*?["):
            files = sorted(glob.glob(name))
            if not files:
                raise StoreError(f"No file matches the pattern {name!r}.")
            return xr.open_mfdataset(files, combine="by_coords", decode_timedelta=False)
        if not Path(name).exists():
            raise StoreError(
                f"{name!r} does not exist. Give a NetCDF file, a pattern of files, or a Zarr store."
            )
        return xr.open_dataset(name, chunks={}, decode_timedelta=False)
    except StoreError:
        raise
    except ImportError as error:
        raise StoreError(
            f"{name!r} cannot be opened because a package is missing: {error}. Zarr needs zarr; gs:// needs "
            "gcsfs, s3:// needs s3fs, http(s):// needs aiohttp."
        ) from error
    except Exception as error:  # every backend raises its own kinds
        raise StoreError(
            f"{name!r} cannot be opened: {type(error).__name__}: {error} Expected a NetCDF file, a pattern "
            "of NetCDF files, or a Zarr store (local, or an address that fsspec understands)."
        ) from error


def _is_zarr(name: str) -> bool:
    bare = name.split("::")[0].rstrip("/")
    if bare.endswith(".zarr") or ".zarr/" in name:
        return True
    if "://" in name:  # WeatherBench 2 stores end in .zarr; other remote files are NetCDF by their suffix
        return not bare.endswith((".nc", ".nc4", ".h5", ".hdf5", ".grib", ".cdf"))
    return any((Path(name) / marker).exists() for marker in (".zgroup", "zarr.json", ".zmetadata"))


def standardise(ds: xr.Dataset) -> tuple[xr.Dataset, list[str]]:
    """The same data with dimensions time, [level], latitude, longitude; both of the latter ascending.

    Returns the lazily reordered dataset and sentences about what was changed.
    """
    findings: list[str] = []
    rename = {}
    for wanted, known in DIMENSIONS.items():
        if wanted in ds.dims:
            continue
        for name in known:
            if name in ds.dims:
                rename[name] = wanted
                break
    ds = ds.rename(rename)
    if rename:
        findings.append("Renamed " + ", ".join(f"{a} to {b}" for a, b in rename.items()) + ".")
    for name in ("time", "latitude", "longitude"):
        if name in ds.coords and name not in ds.dims and ds.coords[name].ndim == 0:
            ds = ds.expand_dims(name)
        if name not in ds.dims or name not in ds.coords:
            raise ValueError(
                f"The data have no coordinate {name!r} (also looked for: "
                f"{', '.join(DIMENSIONS[name][1:])}); their dimensions are "
                f"{', '.join(map(str, ds.dims)) or 'none'}. A rectilinear latitude-longitude grid with a "
                "time axis is needed."
            )
        if ds.coords[name].ndim != 1:
            raise ValueError(
                f"The coordinate {name!r} has {ds.coords[name].ndim} dimensions; only rectilinear grids "
                "(one latitude per row, one longitude per column) can be read. Interpolate the data to "
                "such a grid first."
            )
    ds = _ascending_latitude(ds, findings)
    ds = _ascending_longitude(ds, findings)
    return ds, findings


def _ascending_latitude(ds: xr.Dataset, findings: list[str]) -> xr.Dataset:
    values = ds["latitude"].values.astype(float)
    steps = np.diff(values)
    if len(steps) and np.all(steps < 0):
        findings.append("Latitudes run from north to south in the store; they are read from south to north.")
        return ds.isel(latitude=slice(None, None, -1))
    if np.any(steps <= 0):
        raise ValueError(f"Latitudes must ascend or descend, but they are {_short(values)}.")
    return ds


def _ascending_longitude(ds: xr.Dataset, findings: list[str]) -> xr.Dataset:
    values = ds["longitude"].values.astype(float)
    if len(values) > 1 and np.isclose(values[-1] - values[0], 360.0):
        findings.append("The last meridian repeats the first and is left out.")
        ds, values = ds.isel(longitude=slice(0, -1)), values[:-1]
    if len(values) > 1 and np.all(np.diff(values) < 0):
        ds, values = ds.isel(longitude=slice(None, None, -1)), values[::-1]
        findings.append("Longitudes run from east to west in the store; they are read from west to east.")
    if np.any(np.diff(values) <= 0):
        # 350, 355, 0, 5: one passage through the Greenwich meridian or the date line
        unwrapped = values[0] + np.cumsum(np.concatenate([[0.0], np.diff(values) % 360.0]))
        if np.any(np.diff(unwrapped) <= 0) or unwrapped[-1] - unwrapped[0] >= 360.0:
            raise ValueError(f"Longitudes must ascend or descend, but they are {_short(values)}.")
        ds = ds.assign_coords(longitude=unwrapped)
    return ds


def _short(values: np.ndarray) -> str:
    shown = ", ".join(f"{v:g}" for v in values[:6])
    return shown + (", ..." if len(values) > 6 else "")
