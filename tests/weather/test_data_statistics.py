"""Streaming statistics against plain NumPy in float64, the normaliser's inverse, and bounded memory."""

import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from deltaweather.data import Normaliser, open_dataset
from deltaweather.data.normaliser import transform
from deltaweather.data.statistics import Moments

from .records import record


def weighted(x: np.ndarray, area: np.ndarray) -> tuple[float, float]:
    """Mean and deviation over all present values, each weighted by its cell's area."""
    weights = np.broadcast_to(area, x.shape)
    present = np.isfinite(x)
    mean = np.average(x[present], weights=weights[present])
    return float(mean), float(np.sqrt(np.average((x[present] - mean) ** 2, weights=weights[present])))


@pytest.mark.parametrize("block", [2**30, 40 * 4 * 2 * 20 * 7, 1])  # all at once, 7 times a block, one by one
def test_statistics_against_numpy(block: int) -> None:
    ds = record(120)
    ds["2m_temperature"][11, 2, 3] = np.nan
    ds = ds.isel(time=[*range(40), *range(44, 120)])  # a gap: no difference across it
    opened = open_dataset(ds, block=block)
    first, last = opened.splits.train
    for k, channel in enumerate(opened.channels):
        x = ds[channel.variable].values[first:last].astype(np.float64)
        if channel.variable == "total_precipitation_6hr":
            x = np.log1p(x / 1e-3)
        mean, deviation = weighted(x, opened.grid.area_weights)
        change = np.diff(x, axis=0)[np.diff(ds["time"].values[first:last]) == np.timedelta64(6, "h")]
        _, of_change = weighted(change, opened.grid.area_weights)
        assert float(opened.normaliser.mean[k]) == pytest.approx(mean, rel=2e-6, abs=1e-6)
        assert float(opened.normaliser.std[k]) == pytest.approx(deviation, rel=2e-6)
        assert float(opened.normaliser.difference_std[k]) == pytest.approx(of_change, rel=2e-6)


def test_statistics_come_from_the_training_years_only() -> None:
    ds = record(100)
    changed = ds.copy(deep=True)
    changed["2m_temperature"][70:] += 10.0
    one, other = open_dataset(ds).normaliser, open_dataset(changed).normaliser
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.difference_std, other.difference_std)


def test_moments_do_not_cancel() -> None:
    rng = np.random.default_rng(0)
    x = (1e5 + rng.standard_normal((1000, 2, 3, 1))).astype(np.float32)
    area = np.ones((2, 3))
    moments = Moments.empty(1)
    for k in range(0, 1000, 13):
        moments.add(x[k : k + 13], area)
    np.testing.assert_allclose(moments.variance, x.astype(np.float64).var(), rtol=1e-9)
    np.testing.assert_allclose(moments.mean, x.astype(np.float64).mean(), rtol=1e-12)


@given(st.floats(0.0, 0.5), st.floats(1e-5, 1e-1))
def test_rain_goes_there_and_back(rain: float, scale: float) -> None:
    one = np.ones(1, np.float64)
    with jax.enable_x64(True):
        normaliser = Normaliser(0.2 * one, 0.7 * one, one, scale * one)
        x = np.array([rain])
        z = normaliser.normalise(x)
        np.testing.assert_allclose(z, (np.log1p(rain / scale) - 0.2) / 0.7, rtol=1e-12)
        np.testing.assert_allclose(normaliser.denormalise(z), x, rtol=1e-9, atol=1e-15)


def test_normaliser_on_all_channels_in_numpy_and_jax() -> None:
    opened = open_dataset(record(60))
    x = opened.states(np.arange(60))
    z = opened.normaliser.normalise_numpy(x)
    np.testing.assert_allclose(z, opened.normaliser.normalise(jnp.asarray(x)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(opened.normaliser.denormalise(z), x, rtol=2e-6, atol=2e-8)
    assert z.dtype == np.float32


def test_gradient_of_the_inverse_where_a_forecast_is_dry_or_absurd() -> None:
    two = np.ones(2, np.float32)
    normaliser = Normaliser(0 * two, two, two, np.array([0.0, 1e-3], np.float32))
    slope = jax.jacobian(normaliser.denormalise)
    np.testing.assert_allclose(slope(jnp.array([0.5, -0.5])), np.diag([1.0, 1e-3 * np.exp(-0.5)]), rtol=1e-6)
    # 300 in the linear channel would overflow exp: nothing of it may reach the other's gradient
    assert np.isfinite(slope(jnp.array([300.0, 0.0]))).all()


def test_dry_observations_below_zero_are_zero() -> None:
    assert transform(np.array([-1e-6]), np.array([1e-3]))[0] == 0.0


def test_the_size_of_a_step() -> None:
    normaliser = open_dataset(record(60)).normaliser
    np.testing.assert_allclose(
        normaliser.difference_scale, normaliser.difference_std / normaliser.std, rtol=1e-6
    )


def test_a_constant_channel_stays_unscaled() -> None:
    ds = record(60)
    ds["total_cloud_cover"] = 0 * ds["2m_temperature"] + 0.5
    opened = open_dataset(ds)
    k = opened.channel("total_cloud_cover")
    assert opened.normaliser.std[k] == 1.0
    assert np.all(opened.batch(np.array([3])).state[..., k] == 0.0)


def test_a_channel_that_is_always_missing_is_refused() -> None:
    ds = record(60)
    ds["total_cloud_cover"] = np.nan * ds["2m_temperature"]
    with pytest.raises(ValueError, match="'total_cloud_cover' has no value at all in the training part"):
        open_dataset(ds)


@pytest.mark.parametrize("resolution", [None, 10.0])
def test_memory_is_bounded_for_a_store_larger_than_the_limit(
    tmp_path: Path, resolution: float | None
) -> None:
    times, lat, lon = 2400, 30, 40
    at = np.datetime64("2001-01-01", "ns") + np.timedelta64(6, "h") * np.arange(times)
    rng = np.random.default_rng(0)
    values = (280 + rng.standard_normal((times, lat, lon))).astype(np.float32)
    ds = xr.Dataset(
        {"2m_temperature": (("time", "latitude", "longitude"), values)},
        coords={"time": at, "latitude": np.arange(lat) * 1.0, "longitude": np.arange(lon) * 1.0},
    )
    path = tmp_path / "large.zarr"
    ds.chunk(time=20).to_zarr(path)
    limit = 2 * 2**20
    assert values.nbytes > 5 * limit
    open_dataset(path, memory=0, block=limit, years=(2001, 2001))  # imports and caches are not counted
    tracemalloc.start()
    opened = open_dataset(path, memory=0, block=limit, resolution=resolution)
    for start in range(10, 2000, 200):
        opened.batch(np.arange(start, start + 4), steps=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * limit
    if resolution is None:
        np.testing.assert_allclose(
            opened.normaliser.mean[0], weighted(values[:1680], opened.grid.area_weights)[0], rtol=1e-6
        )
