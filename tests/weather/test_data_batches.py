"""Batches against the record itself, and the forcings against the sky."""

import numpy as np
import pytest

from deltaweather.data import FORCINGS, open_dataset
from deltaweather.data.forcing import (
    SOLAR_CONSTANT,
    forcing,
    solar_declination,
    top_of_atmosphere_sun,
    year_phase,
)
from deltaweather.grid import Grid

from .records import record


@pytest.mark.parametrize("steps", [1, 3])
def test_a_batch_is_the_record_around_its_starts(steps: int) -> None:
    ds = record(100)
    opened = open_dataset(ds)
    indices = np.array([40, 7, 12])
    batch = opened.batch(indices, steps)
    assert batch.state.shape == (3, 4, 5, 4)
    assert batch.forcing.shape == (3, steps, 4, 5, 5)
    assert batch.target.shape == (3, steps, 4, 5, 4)
    for part in batch:
        assert part.dtype == np.float32
    t = opened.channel("2m_temperature")
    n = opened.normaliser
    for row, start in enumerate(indices):

        def expected(at: int) -> np.ndarray:
            return (ds["2m_temperature"].values[at] - float(n.mean[t])) / float(n.std[t])

        np.testing.assert_allclose(batch.state[row, ..., t], expected(start), atol=2e-5)
        np.testing.assert_allclose(batch.previous[row, ..., t], expected(start - 1), atol=2e-5)
        for k in range(steps):
            np.testing.assert_allclose(batch.target[row, k, ..., t], expected(start + k + 1), atol=2e-5)
            at = opened.times[start + k : start + k + 1]
            np.testing.assert_array_equal(batch.forcing[row, k], forcing(at, opened.grid, opened.step)[0])


def test_trajectories_are_what_happened() -> None:
    opened = open_dataset(record(100))
    x = opened.trajectories(np.array([10, 20]), 4)
    np.testing.assert_array_equal(x[0], opened.states(np.arange(11, 15)))
    np.testing.assert_array_equal(x[1], opened.states(np.arange(21, 25)))
    z = opened.batch(np.array([10, 20]), 4).target
    np.testing.assert_allclose(opened.normaliser.denormalise(z), x, rtol=1e-5, atol=1e-8)


def test_indices_outside_the_record() -> None:
    opened = open_dataset(record(100))
    with pytest.raises(IndexError, match=r"within 0\.\.99, but 95\.\.105"):
        opened.states(np.array([95, 105]))
    with pytest.raises(IndexError, match=r"but -1\.\.1"):
        opened.batch(np.array([0]))


def test_forcings_reach_past_the_record() -> None:
    opened = open_dataset(record(100))
    ahead = opened.forcing(np.array([99]), 20)
    later = opened.times[99] + 19 * opened.step
    np.testing.assert_array_equal(ahead[0, 19], forcing(np.array([later]), opened.grid, opened.step)[0])
    assert opened.forcing_names == FORCINGS
    assert np.abs(ahead).max() < 3


def test_the_fingerprint_knows_what_matters() -> None:
    ds = record(100)
    same = open_dataset(ds).fingerprint
    assert open_dataset(ds.copy(deep=True)).fingerprint == same
    other = ds.copy(deep=True)
    other["2m_temperature"][3] += 1.0
    assert open_dataset(other).fingerprint != same
    assert open_dataset(ds, split=(0.5, 0.25, 0.25)).fingerprint != same
    assert open_dataset(ds, variables=["2m_temperature"]).fingerprint != same


def test_the_summary_says_what_was_opened() -> None:
    text = open_dataset(record(100).isel(latitude=slice(None, None, -1))).summary()
    for part in (
        "regional grid of 4 x 5",
        "100 states every 6 h",
        "log(1 + total_precipitation_6hr / 0.001)",
        "north to south",
    ):
        assert part in text


GRID = Grid((-89.0, -45.0, -23.0, 0.0, 30.0, 60.0, 89.0), tuple(np.arange(0.0, 360.0, 30.0)))


@pytest.mark.parametrize("day", ["2003-03-21", "2003-06-21", "2003-09-01", "2003-12-21"])
@pytest.mark.parametrize("hours", [1, 6, 24])
def test_the_sun_against_a_sum_over_minutes(day: str, hours: int) -> None:
    step = np.timedelta64(3600 * hours, "s")
    times = np.datetime64(day, "s") + np.timedelta64(6, "h") * np.arange(4)
    fast = top_of_atmosphere_sun(times, GRID, step)
    lat, lon = np.deg2rad(GRID.latitudes)[:, None], np.asarray(GRID.longitudes)[None, :]
    for k, begin in enumerate(times):
        total = np.zeros(GRID.shape)
        minutes = np.arange(0.5, 60 * hours)
        declination, lag, nearness = (float(v[0]) for v in solar_declination(np.array([begin + step // 2])))
        for minute in minutes:
            at = begin + np.timedelta64(int(60 * minute), "s")
            clock = (at - at.astype("datetime64[D]")) / np.timedelta64(1, "h")
            angle = np.deg2rad(15 * (clock + lag - 12) + lon)
            sine = np.sin(lat) * np.sin(declination) + np.cos(lat) * np.cos(declination) * np.cos(angle)
            total += SOLAR_CONSTANT * nearness * np.maximum(sine, 0)
        np.testing.assert_allclose(fast[k], total / len(minutes), atol=0.02)


def test_the_sun_over_the_globe_and_year() -> None:
    grid = Grid(tuple(np.arange(-88.0, 89.0, 4.0)), tuple(np.arange(0.0, 360.0, 30.0)))
    times = np.datetime64("2001-01-01", "s") + np.timedelta64(6, "h") * np.arange(1460)
    sun = top_of_atmosphere_sun(times, grid, np.timedelta64(6, "h"))
    # A sphere meets a quarter of the sunlight that its surface would.
    assert np.average(sun.mean(0), weights=grid.area_weights) == pytest.approx(SOLAR_CONSTANT / 4, rel=2e-3)
    june = np.abs(times - np.datetime64("2001-06-21")) < np.timedelta64(3, "D")
    assert sun[june][:, 0].max() == 0.0  # polar night
    assert sun[june][:, -1].min() > 400.0  # midnight sun


def test_the_declination_turns_at_the_solstices() -> None:
    days = np.arange("2004-01-01", "2005-01-01", dtype="datetime64[D]").astype("datetime64[s]")
    declination, lag, nearness = solar_declination(days)
    assert np.rad2deg(declination).max() == pytest.approx(23.44, abs=0.05)
    assert str(days[np.argmax(declination)])[:7] == "2004-06"
    assert 60 * lag.max() == pytest.approx(16.5, abs=0.5)  # early November
    assert str(days[np.argmax(nearness)])[:7] == "2004-01"  # perihelion


def test_the_phases_of_day_and_year() -> None:
    times = np.array(["2000-01-01T00", "2007-01-01T12"], "datetime64[s]")
    noon = forcing(times, Grid((0.0,), (0.0, 90.0)), np.timedelta64(6, "h"))
    np.testing.assert_allclose(noon[0, 0, 0, 2:4], [0, 1], atol=1e-6)  # midnight at Greenwich
    np.testing.assert_allclose(noon[0, 0, 1, 2:4], [1, 0], atol=1e-6)  # six in the morning at 90 E
    np.testing.assert_allclose(noon[1, 0, 0, 2:4], [0, -1], atol=1e-6)
    year = np.datetime64("2000-01-01", "s") + np.array([0, 365.2422 * 86400]).astype("timedelta64[s]")
    np.testing.assert_allclose(np.cos(year_phase(year)), 1.0, atol=1e-9)
