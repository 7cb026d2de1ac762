"""What can be opened, and what is said about what cannot."""

import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray as xr

from deltaweather.data import Channel, StoreError, attribution, embedded_path, open_dataset
from deltaweather.data.reader import MemoryReader, StoreReader

from .records import record


def test_the_embedded_record_ships_with_its_attribution() -> None:
    paris = open_dataset()
    assert paris.kind == "site"
    assert len(paris.times) == 14611
    assert paris.step == np.timedelta64(6, "h")
    assert "Contains modified Copernicus Climate Change Service information" in attribution()
    assert "ml4climate" in attribution()
    assert "Contains modified Copernicus Climate Change Service information" in paris.attribution
    assert embedded_path().stat().st_size < 400_000


def test_values_are_those_of_the_file() -> None:
    paris = open_dataset()
    with xr.open_dataset(embedded_path()) as raw:
        for variable in ("2m_temperature", "total_precipitation_6hr"):
            np.testing.assert_allclose(
                paris.states(np.arange(50))[:, 0, 0, paris.channel(variable)],
                raw[variable].values[:50, 0, 0],
                rtol=1e-6,
            )


@pytest.mark.parametrize("store", ["netcdf", "several", "zarr", "zarr v2", "memory"])
@pytest.mark.parametrize("memory", [2**30, 0])
def test_every_kind_of_store_gives_the_same(store: str, memory: int, tmp_path: Path) -> None:
    ds = record()
    path: str | Path = tmp_path / "record.nc"
    if store == "netcdf":
        ds.to_netcdf(path)
    elif store == "several":
        for k in range(2):
            ds.isel(time=slice(100 * k, 100 * (k + 1))).to_netcdf(tmp_path / f"part{k}.nc")
        path = str(tmp_path / "part*.nc")
    elif store == "memory":
        path = "memory://weather/record.zarr"
        ds.chunk(time=32).to_zarr(path, mode="w")
    else:
        path = tmp_path / "record.zarr"
        ds.chunk(time=32).to_zarr(path, zarr_format=2 if store == "zarr v2" else 3)
    opened = open_dataset(path, memory=memory)
    direct = open_dataset(ds)
    assert isinstance(opened.reader, MemoryReader if memory else StoreReader)
    assert opened.channels == direct.channels
    assert opened.fingerprint == direct.fingerprint
    indices = np.array([17, 3, 150, 3])  # neither sorted nor distinct
    np.testing.assert_array_equal(opened.states(indices), direct.states(indices))
    expected = np.stack([ds[str(c)].values[indices] for c in direct.channels], axis=-1)
    np.testing.assert_allclose(opened.states(indices), expected, rtol=1e-6)
    if store == "memory":
        fsspec.filesystem("memory").rm("/weather", recursive=True)


def test_either_latitude_and_longitude_direction() -> None:
    ds = record()
    turned = ds.isel(latitude=slice(None, None, -1), longitude=slice(None, None, -1))
    one, other = open_dataset(ds), open_dataset(turned)
    assert other.grid == one.grid
    assert one.grid.latitudes[0] < one.grid.latitudes[-1]
    np.testing.assert_array_equal(one.states(np.arange(9)), other.states(np.arange(9)))
    assert any("north to south" in f for f in other.findings)
    assert not any("north to south" in f for f in one.findings)


def test_dimensions_in_another_order_and_by_other_names() -> None:
    ds = record()
    odd = ds.transpose("time", "longitude", "latitude").rename(
        time="valid_time", latitude="lat", longitude="lon"
    )
    np.testing.assert_array_equal(
        open_dataset(odd).states(np.arange(5)), open_dataset(ds).states(np.arange(5))
    )


def test_a_domain_across_the_greenwich_meridian() -> None:
    ds = record(longitudes=(350.0, 355.0, 0.0, 5.0, 10.0))
    opened = open_dataset(ds)
    assert opened.grid.longitudes == (350.0, 355.0, 360.0, 365.0, 370.0)
    east = open_dataset(record(longitudes=(-10.0, -5.0, 0.0, 5.0, 10.0)))
    np.testing.assert_array_equal(opened.states(np.arange(5)), east.states(np.arange(5)))


def test_a_repeated_meridian_is_left_out() -> None:
    longitudes = tuple(np.arange(0.0, 361.0, 30.0))
    opened = open_dataset(record(40, tuple(np.arange(-75.0, 76.0, 30.0)), longitudes))
    assert opened.grid.shape == (6, 12)
    assert opened.kind == "global"


def test_levels_become_channels() -> None:
    ds = record(50)
    values = ds["2m_temperature"] - xr.DataArray([60.0, 30.0, 5.0], dims="level")
    ds["temperature"] = values.transpose("time", "level", "latitude", "longitude")
    ds = ds.assign_coords(level=[300, 500, 850])
    opened = open_dataset(ds, variables=["temperature", "2m_temperature"], levels=[850, 300])
    assert [str(c) for c in opened.channels] == ["temperature@850", "temperature@300", "2m_temperature"]
    states = opened.states(np.arange(50))
    np.testing.assert_allclose(states[..., 0], states[..., 2] - 5.0, rtol=1e-6)
    np.testing.assert_allclose(states[..., 1], states[..., 2] - 60.0, rtol=1e-6)
    assert opened.channel("temperature", 300) == 1
    assert Channel("temperature", 500.0) in open_dataset(ds).channels
    with pytest.raises(ValueError, match=r"no level 700; its levels are 300, 500, 850"):
        open_dataset(ds, variables=["temperature"], levels=[700])


def test_static_fields() -> None:
    ds = record(30)
    height = np.linspace(0, 4000, 20).reshape(4, 5)
    ds["geopotential_at_surface"] = (("latitude", "longitude"), 9.80665 * height)
    ds["land_sea_mask"] = (("longitude", "latitude"), np.linspace(0, 1, 20).reshape(5, 4))
    opened = open_dataset(ds)
    assert opened.static_names == ("latitude_sin", "longitude_sin", "longitude_cos", "orography", "land")
    np.testing.assert_allclose(opened.static[..., 3], height / 1000, rtol=1e-6)
    np.testing.assert_allclose(opened.static[..., 4], np.linspace(0, 1, 20).reshape(5, 4).T, rtol=1e-6)
    assert all(c.variable != "land_sea_mask" for c in opened.channels)
    assert open_dataset(record(30)).static_names == ("latitude_sin", "longitude_sin", "longitude_cos")


def test_missing_variables_are_named_with_near_matches() -> None:
    ds = record(30).rename({"2m_temperature": "t2m"})
    with pytest.raises(ValueError, match=r"'2m_temperature' is missing from 'made up'. Did you mean 't2m'\?"):
        open_dataset(ds, variables=["2m_temperature"])
    with pytest.raises(ValueError, match="Did you mean '10m_u_component_of_wind'"):
        open_dataset(ds, variables=["10m_u_componet_of_wind"])
    with pytest.raises(ValueError, match="It holds: 10m_u_component_of_wind, 10m_v_component_of_wind, t2m"):
        open_dataset(ds, variables=["snowfall"])
    with pytest.raises(ValueError, match="2m_temperature"):
        open_dataset(record(30)).channel("2m_temprature")
    with pytest.raises(TypeError, match=r"use variables=\['2m_temperature'\]"):
        open_dataset(record(30), variables="2m_temperature")


@pytest.mark.parametrize(
    ("variable", "change", "says"),
    [
        ("2m_temperature", lambda x: x - 273.15, "probably degrees Celsius: add 273.15"),
        ("total_precipitation_6hr", lambda x: 1000 * x, "probably mm: divide by 1000"),
    ],
)
def test_wrong_units_are_noticed_from_values(variable: str, change, says: str) -> None:  # type: ignore[no-untyped-def]
    ds = record(30)
    ds[variable] = change(ds[variable])
    with pytest.raises(ValueError, match=says):
        open_dataset(ds)


@pytest.mark.parametrize("unit", ["degC", "Celsius", "°C"])
def test_wrong_units_are_noticed_from_attributes(unit: str) -> None:
    ds = record(30)
    ds["2m_temperature"].attrs["units"] = unit
    with pytest.raises(ValueError, match=r"declared in .* but 'K' is expected: add 273.15"):
        open_dataset(ds)


def test_pressure_in_hectopascal() -> None:
    ds = record(30)
    ds["surface_pressure"] = 1000 + 0 * ds["2m_temperature"]
    with pytest.raises(ValueError, match="probably hPa: multiply by 100"):
        open_dataset(ds)


def test_a_single_impossible_value_is_located() -> None:
    ds = record(30)
    ds["2m_temperature"][7, 1, 2] = 900.0
    with pytest.raises(ValueError, match=r"1 values do not, the first at 2005-01-02T18:00"):
        open_dataset(ds)


def test_duplicate_unordered_and_irregular_times() -> None:
    ds = record(30)
    twice = xr.concat([ds.isel(time=slice(0, 5)), ds.isel(time=slice(4, 30))], dim="time")
    with pytest.raises(
        ValueError, match=r"1 times are duplicates, the first 2005-01-02T00:00 .*drop_duplicates"
    ):
        open_dataset(twice)
    with pytest.raises(ValueError, match="not in order: 2005-01-01T00:00 comes after 2005-01-01T06:00"):
        open_dataset(ds.isel(time=[1, 0, *range(2, 30)]))
    late = ds["time"].values.copy()
    late[10] += np.timedelta64(1, "h")
    with pytest.raises(ValueError, match=r"irregular: most are 6 h apart, but 2005-01-03T06:00 and"):
        open_dataset(ds.assign_coords(time=late))
    nowhere = ds["time"].values.copy()
    nowhere[3] = np.datetime64("NaT")
    with pytest.raises(ValueError, match="1 times are not dates"):
        open_dataset(ds.assign_coords(time=nowhere))
    with pytest.raises(ValueError, match="not dates of the standard calendar"):
        open_dataset(ds.assign_coords(time=np.arange(30)))


def test_gaps_are_reported_and_no_forecast_crosses_one() -> None:
    ds = record(100)
    opened = open_dataset(ds.isel(time=[*range(30), *range(33, 100)]), split=(0.9, 0.05, 0.05))
    assert any(
        "3 time steps are missing in 1 gaps, the first after 2005-01-08T06:00" in f for f in opened.findings
    )
    starts = opened.starts("train", steps=4)
    for t in starts:
        window = opened.times[t - 1 : t + 5]
        assert np.all(np.diff(window) == np.timedelta64(6, "h"))
    # positions 29 | 30 straddle the gap: windows of six states that hold both are gone
    assert set(range(1, 83)) - set(starts.tolist()) >= {26, 27, 28, 29, 30}
    assert {25, 31} <= set(starts.tolist())


@pytest.mark.parametrize("fill", [np.nan, -9999.0, 9.96921e36, 1e20])
def test_fill_values_are_found_and_reported(fill: float) -> None:
    ds = record(100)
    ds["2m_temperature"][20, 1, 1] = fill
    opened = open_dataset(ds, split=(0.5, 0.25, 0.25))
    assert any("2m_temperature: 0.05 % of the values are missing" in f for f in opened.findings)
    assert any(
        "1 of 100 states have missing values, the first at 2005-01-06T00:00" in f for f in opened.findings
    )
    assert np.flatnonzero(~opened.usable).tolist() == [20]
    starts = opened.starts("train", steps=3)
    assert not set(starts.tolist()) & {17, 18, 19, 20, 21}
    assert {16, 22} <= set(starts.tolist())


def test_declared_fill_values_in_packed_files(tmp_path: Path) -> None:
    ds = record(100)
    ds["2m_temperature"][20, 1, 1] = np.nan
    path = tmp_path / "packed.nc"
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 290.0, "_FillValue": np.int16(-32768)}
    ds.to_netcdf(path, encoding={"2m_temperature": packing})
    opened = open_dataset(path)
    assert np.flatnonzero(~opened.usable).tolist() == [20]
    np.testing.assert_allclose(
        opened.states(np.array([5]))[0, ..., 0], ds["2m_temperature"].values[5], atol=0.006
    )


def test_an_hourly_record_is_thinned_at_synoptic_hours() -> None:
    ds = record(100, hours=1, start="2005-01-01T01")
    opened = open_dataset(ds)
    hours = (opened.times - opened.times.astype("datetime64[D]")).astype("timedelta64[h]").astype(int)
    assert set(hours.tolist()) == {0, 6, 12, 18}
    np.testing.assert_allclose(
        opened.states(np.array([0]))[0, ..., 0], ds["2m_temperature"].values[5], rtol=1e-6
    )
    assert open_dataset(ds, step_hours=1).step == np.timedelta64(1, "h")
    with pytest.raises(ValueError, match=r"a step of 1.5 h|A step of 1.5 h"):
        open_dataset(ds, step_hours=1.5)
    ds["total_precipitation"] = ds["total_precipitation_6hr"]
    with pytest.raises(ValueError, match="would lose the rain between"):
        open_dataset(ds)


def test_daily_records_keep_their_step() -> None:
    opened = open_dataset(record(100, hours=24))
    assert opened.step == np.timedelta64(24, "h")
    assert opened.steps_per_day == 1


def test_years() -> None:
    ds = record(3 * 1461, hours=6, start="2004-01-01")
    opened = open_dataset(ds, years=(2005, 2005))
    assert str(opened.times[0])[:10] == "2005-01-01"
    assert str(opened.times[-1])[:10] == "2005-12-31"
    assert len(opened.times) == 1460
    assert len(open_dataset(ds, years=(None, 2004)).times) == 1464
    with pytest.raises(ValueError, match="covers 2004 to 2006; none of it falls in the years 1990 to 1995"):
        open_dataset(ds, years=(1990, 1995))


def test_stores_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing.nc' does not exist"):
        open_dataset(tmp_path / "nothing.nc")
    with pytest.raises(StoreError, match="No file matches"):
        open_dataset(str(tmp_path / "*.nc"))
    with pytest.raises(StoreError, match="cannot be opened"):
        open_dataset("memory://nowhere/record.zarr")
    broken = tmp_path / "broken.nc"
    broken.write_bytes(b"not a file of this kind")
    with pytest.raises(StoreError, match=r"broken.nc' cannot be opened"):
        open_dataset(broken)


def test_a_store_that_disappears_while_training_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "record.zarr"
    record().chunk(time=16).to_zarr(path)
    opened = open_dataset(path, memory=0)
    starts = opened.starts("train")
    opened.batch(starts[:4])
    shutil.rmtree(path)
    with pytest.raises(StoreError, match=r"(part of the store is gone|stopped answering)"):
        opened.batch(starts[-4:])


def test_a_store_that_disappears_while_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "record.zarr"
    record().chunk(time=16).to_zarr(path)

    def remove(done: int, total: int) -> None:
        if done > total // 2:
            shutil.rmtree(path, ignore_errors=True)

    with pytest.raises(StoreError, match=r"disappeared|stopped answering"):
        open_dataset(path, block=40 * 4 * 20 * 16, progress=remove)


def test_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "record.nc"
    record(2000).to_netcdf(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=r"cannot be opened|stopped answering"):
        open_dataset(path)


def test_grids_that_cannot_be_read() -> None:
    ds = record(30)
    with pytest.raises(ValueError, match="no coordinate 'latitude'"):
        open_dataset(ds.isel(latitude=0, drop=True))
    with pytest.raises(ValueError, match="Latitudes must ascend or descend"):
        open_dataset(ds.assign_coords(latitude=[1.0, 5.0, 3.0, 7.0]))
    curved = ds.rename(latitude="y", longitude="x").drop_vars(["y", "x"])
    curved = curved.assign_coords(lat=(("y", "x"), np.zeros((4, 5))), lon=(("y", "x"), np.zeros((4, 5))))
    with pytest.raises(ValueError, match="no coordinate 'latitude'"):
        open_dataset(curved)
    with pytest.raises(ValueError, match="dimension number"):
        open_dataset(ds.expand_dims(number=2), variables=["2m_temperature"])


def test_a_point_without_dimensions_is_a_site() -> None:
    opened = open_dataset(record(60).isel(latitude=0, longitude=0))
    assert opened.kind == "site"
    assert opened.batch(opened.starts("train")[:3]).state.shape == (3, 1, 1, 4)
