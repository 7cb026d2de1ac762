"""Simulated records with a stand-in for the circulation model: what is written, resumed, refused.

The real model takes half a minute to compile; it runs here when DELTAWEATHER_SIMULATE is set.
"""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from deltaweather.cache import CacheFullError
from deltaweather.circulation import UNITS, to_weather
from deltaweather.data import open_dataset
from deltaweather.simulate import PRECISION, Settings, simulate

LATITUDES = np.array([-60.0, 0.0, 60.0])
LONGITUDES = np.arange(0.0, 360.0, 90.0)
SHORT = Settings(spin_up_days=3, chunk_days=2)


class Drift:
    """Weather that is a function of a state that every step advances, so that a bad resumption shows."""

    fail_after: int | None = None
    full_after: int | None = None
    unstable_after: int | None = None
    advanced: list[int]

    def __init__(self, start: np.datetime64) -> None:
        self._now = start.astype("datetime64[s]")
        self._state = 0.5
        self.advanced = []

    @property
    def now(self) -> np.datetime64:
        return self._now

    def advance(self, days: int) -> xr.Dataset:
        if self.fail_after is not None and len(self.advanced) >= self.fail_after:
            raise KeyboardInterrupt
        self.advanced.append(days)
        rows = []
        for _ in range(4 * days):
            self._state = 3.9 * self._state * (1 - self._state)  # chaotic: no digit may be lost
            rows.append(self._state)
        times = self._now + np.timedelta64(6, "h") * np.arange(1, 4 * days + 1)
        self._now = times[-1]
        base = np.array(rows)[:, None, None] * np.ones((1, 3, 4))
        if self.unstable_after is not None and len(self.advanced) > self.unstable_after:
            base[-1] = np.nan
        fields = {
            "2m_temperature": 280 + 10 * base,
            "10m_u_component_of_wind": base,
            "10m_v_component_of_wind": -base,
            "total_precipitation_6hr": 1e-3 * base,
            "surface_pressure": 1e5 + 100 * base,
            "geopotential_mid": 5e4 + 100 * base,
        }
        dims = ("time", "latitude", "longitude")
        return xr.Dataset(
            {k: (dims, v.astype(np.float32), {"units": UNITS[k]}) for k, v in fields.items()},
            coords={"time": times.astype("datetime64[ns]"), "latitude": LATITUDES, "longitude": LONGITUDES},
        )

    def save(self, path: Path) -> None:
        if self.full_after is not None and len(self.advanced) >= self.full_after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        np.savez(path.with_suffix(".npz"), now=self._now, state=self._state)
        path.with_suffix(".npz").replace(path)

    def restore(self, path: Path) -> None:
        with open(path, "rb") as file:
            saved = np.load(file)
            self._now, self._state = saved["now"][()], float(saved["state"])

    def static(self) -> xr.Dataset:
        dims = ("latitude", "longitude")
        return xr.Dataset(
            {"geopotential_at_surface": (dims, np.ones((3, 4))), "land_sea_mask": (dims, np.zeros((3, 4)))},
            coords={"latitude": LATITUDES, "longitude": LONGITUDES},
        )


def breaking(**when: int) -> type[Drift]:
    return type("Breaking", (Drift,), when)


def states(path: Path) -> np.ndarray:
    with xr.open_dataset(path) as ds:
        return np.asarray(ds["2m_temperature"].values[:, 0, 0])


def test_a_record_opens_like_any_other(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = simulate(
        tmp_path / "world.nc",
        years=20 / 365.25,
        settings=SHORT,
        circulation=Drift,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (23, 23)
    opened = open_dataset(path)
    assert opened.kind == "global"
    assert [str(c) for c in opened.channels] == list(UNITS_IN_ORDER)
    assert str(opened.times[0])[:13] == "2001-01-01T06"
    assert len(opened.times) == 80
    assert "orography" in opened.static_names
    assert "land" in opened.static_names
    with xr.open_dataset(path) as ds:
        assert all(ds[v].encoding["dtype"] == np.int16 for v in PRECISION)
        assert all(ds[v].attrs["units"] == UNITS[v] for v in UNITS)
    # the spin-up is dropped, and values are kept to the packing's precision
    free = Drift(SHORT.model_start)
    free.advance(3)
    expected = free.advance(20)["2m_temperature"].values[:, 0, 0]
    np.testing.assert_allclose(states(path), expected, atol=0.5 * PRECISION["2m_temperature"] + 1e-5)


UNITS_IN_ORDER = (
    "2m_temperature",
    "10m_u_component_of_wind",
    "10m_v_component_of_wind",
    "geopotential_mid",
    "surface_pressure",
    "total_precipitation_6hr",
)


@pytest.mark.parametrize("chunks", [0, 1, 2, 4, 7])
def test_an_interrupted_run_continues_to_the_same_record(tmp_path: Path, chunks: int) -> None:
    days = 15 / 365.25
    whole = simulate(tmp_path / "whole.nc", years=days, settings=SHORT, circulation=Drift)
    path = tmp_path / "broken.nc"
    with pytest.raises(KeyboardInterrupt):
        simulate(path, years=days, settings=SHORT, circulation=breaking(fail_after=chunks))
    assert not path.exists()
    simulate(path, years=days, settings=SHORT, circulation=Drift)
    np.testing.assert_array_equal(states(path), states(whole))


def test_a_finished_record_grows(tmp_path: Path) -> None:
    path = simulate(tmp_path / "world.nc", years=5 / 365.25, settings=SHORT, circulation=Drift)
    first = states(path)
    simulate(path, years=12 / 365.25, settings=SHORT, circulation=Drift)
    assert len(states(path)) == 48
    np.testing.assert_array_equal(states(path)[:20], first)
    simulate(path, years=3 / 365.25, settings=SHORT, circulation=Drift)
    assert len(states(path)) == 12


def test_a_full_disk_loses_one_chunk_at_most(tmp_path: Path) -> None:
    days = 15 / 365.25
    path = tmp_path / "world.nc"
    with pytest.raises(CacheFullError, match="disk is full"):
        simulate(path, years=days, settings=SHORT, circulation=breaking(full_after=5))
    simulate(path, years=days, settings=SHORT, circulation=Drift)
    whole = simulate(tmp_path / "whole.nc", years=days, settings=SHORT, circulation=Drift)
    np.testing.assert_array_equal(states(path), states(whole))


def test_another_seed_is_another_record() -> None:
    assert Settings(seed=1).model_start == Settings().model_start - np.timedelta64(1, "D")
    assert Settings(seed=1).begin == Settings().begin


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "world.nc"
    simulate(path, years=5 / 365.25, settings=SHORT, circulation=Drift)
    with pytest.raises(ValueError, match="holds a run with other settings"):
        simulate(
            path, years=5 / 365.25, settings=Settings(spin_up_days=3, chunk_days=2, seed=4), circulation=Drift
        )
    with pytest.raises(ValueError, match="must be positive"):
        simulate(path, years=0, settings=SHORT, circulation=Drift)
    with pytest.raises(ValueError, match="at least 0"):
        Settings(seed=-1)
    with pytest.raises(FloatingPointError, match="'2m_temperature' is not finite at 2001-01-03T00:00"):
        simulate(
            tmp_path / "wild.nc", years=9 / 365.25, settings=SHORT, circulation=breaking(unstable_after=2)
        )
    (tmp_path / "world.nc.parts" / "2001-01-03T00.nc").unlink()
    with pytest.raises(ValueError, match="do not make a whole record of 5 days"):
        simulate(path, years=5 / 365.25, settings=SHORT, circulation=Drift)


def test_the_models_output_becomes_weather() -> None:
    n = 6
    rng = np.random.default_rng(0)
    sigma = np.array([0.95, 0.835, 0.685, 0.51, 0.34, 0.2, 0.095, 0.025])  # counted from the surface
    flat = ("time", "lon", "lat")
    names = ("surface_flux.t0", "surface_flux.u0", "surface_flux.v0", "normalized_surface_pressure")
    output = xr.Dataset(
        {name: (flat, rng.random((n, 4, 3))) for name in (*names, "surface_exchange.precipitation")}
        | {"geopotential": (("time", "level", "lon", "lat"), rng.random((n, 8, 4, 3)))},
        coords={
            "time": np.datetime64("2001-01-01T02", "ns") + np.timedelta64(2, "h") * np.arange(n),
            "lat": LATITUDES,
            "lon": LONGITUDES,
            "hybrid_b_full": ("level", sigma),
        },
    )
    weather = to_weather(output)
    assert [str(t)[:13] for t in weather["time"].values] == ["2001-01-01T06", "2001-01-01T12"]
    assert weather["2m_temperature"].dims == ("time", "latitude", "longitude")
    np.testing.assert_allclose(
        weather["2m_temperature"].values[1], output["surface_flux.t0"].values[5].T, rtol=1e-6
    )
    # kg m-2 s-1 for six hours is 21600 mm for each unit of the mean rate
    rate = output["surface_exchange.precipitation"].values[:3].mean(0).T
    np.testing.assert_allclose(weather["total_precipitation_6hr"].values[0], rate * 21.6, rtol=1e-6)
    np.testing.assert_allclose(
        weather["surface_pressure"].values[0],
        1e5 * output["normalized_surface_pressure"].values[2].T,
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        weather["geopotential_mid"].values[0], output["geopotential"].values[2, 3].T, rtol=1e-6
    )
    with pytest.raises(ValueError, match="no whole number of six hours"):
        to_weather(output.isel(time=slice(0, 4)))


@pytest.mark.skipif(
    "DELTAWEATHER_SIMULATE" not in os.environ,
    reason="compiles a circulation model: set DELTAWEATHER_SIMULATE to run",
)
def test_the_real_model(tmp_path: Path) -> None:
    pytest.importorskip("jcm")
    settings = Settings(spin_up_days=1, chunk_days=1)
    path = simulate(tmp_path / "world.nc", years=2 / 365.25, settings=settings)
    opened = open_dataset(path)
    assert opened.grid.shape == (48, 96)
    x = opened.states(np.arange(8))
    heat, middle = opened.channel("2m_temperature"), opened.channel("geopotential_mid")
    mean = (x * opened.grid.area_weights[None, :, :, None]).mean((0, 1, 2))
    assert 270 < mean[heat] < 300
    assert 45_000 < mean[middle] < 65_000
