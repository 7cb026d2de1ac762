"""Global weather made by a circulation model, so that there is data where none can be downloaded.

The model is `jcm` (PyPI, an optional extra): SPEEDY physics at T31 with eight levels, from an isothermal
atmosphere at rest, over the terrain and the climatological sea that its package contains. Nothing is
fetched. The record has the format the rest reads: 6-hourly, WeatherBench 2 names where they exist.

A run advances in chunks. After each, first the chunk's weather and then the state of the model are
written whole, so that a killed run loses at most one chunk, and a finished record can be made longer.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from deltaweather.cache import atomic_write
from deltaweather.circulation import VERSION, Circulation, CirculationModel

# Smallest step of the packed 16-bit integers, by variable.
PRECISION = {
    "2m_temperature": 0.05,
    "10m_u_component_of_wind": 0.05,
    "10m_v_component_of_wind": 0.05,
    "total_precipitation_6hr": 2e-5,
    "surface_pressure": 10.0,
    "geopotential_mid": 5.0,
}


@dataclass(frozen=True)
class Settings:
    """What decides a simulated record; the length is not part of it, so that it can grow.

    The first `spin_up_days` (and `seed` days more) are thrown away. Another seed starts the model on another
    day and so gives, weather being chaotic, another record of the same climate.
    """

    first_year: int = 2001
    spin_up_days: int = 90
    seed: int = 0
    chunk_days: int = 5

    def __post_init__(self) -> None:
        if self.spin_up_days < 0 or self.seed < 0 or self.chunk_days < 1:
            raise ValueError(
                f"spin_up_days and seed are at least 0 and chunk_days at least 1, but {self} was given."
            )

    @property
    def begin(self) -> np.datetime64:
        """When the record begins; its first state is six hours later."""
        return np.datetime64(f"{self.first_year:04d}-01-01T00:00:00")

    @property
    def model_start(self) -> np.datetime64:
        return self.begin - np.timedelta64(self.spin_up_days + self.seed, "D")


def simulate(
    path: str | Path,
    *,
    years: float | int = 4.0,
    settings: Settings = Settings(),
    progress: Callable[[int, int], None] | None = None,
    circulation: Callable[[np.datetime64], Circulation] = CirculationModel,
) -> Path:
    """Write `years` of simulated weather to a NetCDF file, continuing what is there.

    Work in progress lies in `<path>.parts`: one file a chunk, and the state of the model. Run again with
    more `years` to make the record longer. `progress(done, total)` counts simulated days, spin-up included;
    `circulation(start)` makes the model.

    **Cost** about ten minutes a simulated year on one core, 40 MB a year on disk, under 2 GB of memory.
    """
    path = Path(path)
    if not np.isfinite(years) or years <= 0:
        raise ValueError(f"The number of years must be positive, but {years} was given.")
    days = max(1, round(years * 365.25))
    parts = path.with_name(path.name + ".parts")
    _claim(parts, settings)
    checkpoint = parts / "state.msgpack"
    model = circulation(settings.model_start)
    if checkpoint.exists():
        model.restore(checkpoint)
    end = settings.begin + np.timedelta64(days, "D")
    total = int((end - settings.model_start) / np.timedelta64(1, "D"))
    while model.now < end:
        limit = settings.begin if model.now < settings.begin else end
        stop = min(model.now + np.timedelta64(settings.chunk_days, "D"), limit)
        spinning = model.now < settings.begin
        name = f"{str(model.now).replace(':', '')[:13]}.nc"
        weather = model.advance(int((stop - model.now) / np.timedelta64(1, "D")))
        _refuse_unstable(weather)
        if not spinning:
            with atomic_write(parts / name) as temporary:
                weather.to_netcdf(temporary, engine="netcdf4", encoding=_encoding(weather))
        with atomic_write(checkpoint) as temporary:
            model.save(temporary)
        if progress is not None:
            progress(int((model.now - settings.model_start) / np.timedelta64(1, "D")), total)
    _join(parts, path, settings, days, model.static())
    return path


def _claim(parts: Path, settings: Settings) -> None:
    """Make the folder of a run, or check that the run in it is the same one."""
    note = parts / "settings.json"
    wanted = asdict(settings) | {"jcm": VERSION}
    if not note.exists():
        with atomic_write(note) as temporary:
            temporary.write_text(json.dumps(wanted))
        return
    found = json.loads(note.read_text())
    if found != wanted:
        raise ValueError(
            f"{parts} holds a run with other settings ({found}) than those asked for ({wanted}). Continue "
            "with the same settings, choose another output, or remove that folder."
        )


def _refuse_unstable(weather: xr.Dataset) -> None:
    for name in weather.data_vars:
        finite = np.isfinite(weather[name].values)
        if not finite.all():
            when = weather["time"].values[np.flatnonzero(~finite.all((1, 2)))[0]]
            raise FloatingPointError(
                f"The simulation became unstable: {name!r} is not finite at {when!s:.16}. What was written "
                "before is kept; use another seed."
            )


def _encoding(weather: xr.Dataset) -> dict[str, dict[str, Any]]:
    _, lat, lon = weather[next(iter(PRECISION))].shape
    packed = {
        name: {
            "dtype": "int16",
            "scale_factor": step,
            "_FillValue": np.int16(-32768),
            "zlib": True,
            "complevel": 4,
            "chunksizes": (min(124, weather.sizes["time"]), lat, lon),
        }
        for name, step in PRECISION.items()
    }
    return packed | {"time": {"units": "hours since 1970-01-01", "dtype": "int64"}}


def _join(parts: Path, path: Path, settings: Settings, days: int, static: xr.Dataset) -> None:
    end = settings.begin + np.timedelta64(days, "D")
    files = sorted(parts.glob("*.nc"))
    with xr.open_mfdataset(files, combine="nested", concat_dim="time", data_vars="all") as whole:
        chosen = whole.sel(time=slice(None, end))
        expected = settings.begin + np.timedelta64(6, "h") * np.arange(1, 4 * days + 1)
        if not np.array_equal(
            chosen["time"].values.astype("datetime64[s]"), expected.astype("datetime64[s]")
        ):
            raise ValueError(
                f"The parts in {parts} do not make a whole record of {days} days: one was removed or "
                "changed. Remove the folder and run again."
            )
        record = chosen.assign({name: static[name].variable for name in static.data_vars})
        record.attrs = {
            "title": "Simulated global weather, 6-hourly, T31 (3.75 degree)",
            "source": f"jcm {VERSION} (JAX circulation model, SPEEDY physics, T31L8, packaged boundary "
            f"conditions, climatological sea surface), seed {settings.seed}, {settings.spin_up_days} days "
            "of spin-up dropped",
            "note": "states are instantaneous; total_precipitation_6hr is the sum over the six hours that "
            "end at the time stamp; 10m winds are the model's near-surface reference winds",
            "conventions": "names and units as in WeatherBench 2 where they exist",
        }
        for name in record.variables:
            record[name].encoding.clear()
        with atomic_write(path) as temporary:
            record.to_netcdf(temporary, engine="netcdf4", encoding=_encoding(record))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deltaweather simulate`."""
    parser.add_argument("--years", type=float, default=4.0, help="length of the record (default 4)")
    parser.add_argument("--out", type=Path, default=Path("speedy_global_6h.nc"), help="NetCDF file to write")
    parser.add_argument("--seed", type=int, default=0, help="another number, another record (default 0)")
    parser.add_argument(
        "--first-year", type=int, default=2001, help="calendar year it begins with (default 2001)"
    )
    parser.add_argument("--spin-up-days", type=int, default=90, help="days dropped at the start (default 90)")
    parser.add_argument(
        "--discard-parts",
        action="store_true",
        help="remove <out>.parts at the end: the record can then not grow",
    )


def run(arguments: argparse.Namespace) -> int:
    """`deltaweather simulate`: make simulated global weather, or continue it."""
    settings = Settings(arguments.first_year, arguments.spin_up_days, arguments.seed)
    began = time.monotonic()
    first: list[int] = []

    def show(done: int, total: int) -> None:
        first.append(done)
        elapsed = time.monotonic() - began
        pace = elapsed / max(len(first) - 1, 1) / settings.chunk_days if len(first) > 1 else float("nan")
        left = f", about {pace * (total - done) / 60:.0f} min left" if len(first) > 1 else ""
        print(f"day {done} of {total}{left}", flush=True)

    path = simulate(arguments.out, years=arguments.years, settings=settings, progress=show)
    if arguments.discard_parts:
        shutil.rmtree(path.with_name(path.name + ".parts"))
    print(f"Wrote {path}.")
    return 0
