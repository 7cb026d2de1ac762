"""Conservative coarsening against sums over tiny cells, and its conservation laws."""

import numpy as np
import pytest

from deltaweather.data import open_dataset
from deltaweather.data.coarsen import coarse_grid, coarsening
from deltaweather.grid import Grid

from .records import record

GLOBE = Grid(tuple(np.linspace(-87.5, 87.5, 36)), tuple(np.arange(0.0, 360.0, 5.0)))
POLES = Grid(tuple(np.linspace(-90.0, 90.0, 37)), tuple(np.arange(0.0, 360.0, 5.0)))
GAUSSIAN = Grid(
    tuple(np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(20)[0]))), tuple(np.arange(0, 360.0, 9))
)
REGION = Grid(tuple(np.arange(26.5, 28.6, 0.25)), tuple(np.arange(88.5, 92.1, 0.25)))


@pytest.mark.parametrize(
    ("source", "resolution"),
    [(GLOBE, 10.0), (GLOBE, 12.0), (POLES, 10.0), (POLES, 4 * 5.0), (GAUSSIAN, 22.5)],
)
def test_the_integral_over_the_globe_is_kept(source: Grid, resolution: float) -> None:
    coarsen = coarsening(source, resolution)
    x = np.random.default_rng(0).standard_normal((3, *source.shape)).astype(np.float32)
    before = (x * np.diff(np.sin(np.deg2rad(source.latitude_edges)))[:, None]).sum((1, 2)) / source.shape[1]
    heights = coarsen.rows.sum(1)  # what is covered: a Gaussian grid ends a little before the poles
    after = (coarsen(x) * heights[:, None]).sum((1, 2)) / coarsen.target.shape[1]
    np.testing.assert_allclose(after, before, atol=2e-7)
    np.testing.assert_allclose(coarsen(np.full((1, *source.shape), 3.25, np.float32)), 3.25, rtol=1e-7)


def test_quarter_degree_gives_the_papers_grid() -> None:
    era5 = Grid(tuple(np.linspace(-90.0, 90.0, 721)), tuple(np.arange(0.0, 360.0, 0.25)))
    grid = coarse_grid(era5, 4.0)
    assert grid.shape == (46, 90)
    assert (grid.latitudes[0], grid.latitudes[-1]) == (-90.0, 90.0)
    assert coarse_grid(GLOBE, 10.0).shape == (18, 36)


@pytest.mark.parametrize(
    ("source", "resolution"), [(REGION, 0.6), (REGION, 0.75), (POLES, 12.0), (GLOBE, 7.5)]
)
def test_a_cell_is_the_mean_of_what_lies_in_it(source: Grid, resolution: float) -> None:
    x = np.random.default_rng(1).standard_normal(source.shape).astype(np.float32)
    coarsen = coarsening(source, resolution)
    target = coarsen.target
    for row, column in ((0, 0), (target.shape[0] // 2, target.shape[1] - 1), (target.shape[0] - 1, 1)):
        south, north = target.latitude_edges[row : row + 2]
        west, east = target.longitude_edges[column : column + 2]
        # midpoints of 300 x 300 slices of the coarse cell, equal in area; what the source holds at each
        sines = np.linspace(*np.sin(np.deg2rad([south, north])), 301)
        lats = np.rad2deg(np.arcsin((sines[1:] + sines[:-1]) / 2))
        lons = west + (np.arange(300) + 0.5) / 300 * (east - west)
        i = np.searchsorted(source.latitude_edges, lats) - 1
        if source.periodic:
            lons = (lons - source.longitude_edges[0]) % 360 + source.longitude_edges[0]
        j = np.searchsorted(source.longitude_edges, lons) - 1
        assert coarsen(x)[row, column] == pytest.approx(x[np.ix_(i, j)].mean(), abs=0.02)


def test_missing_values_leave_the_mean_of_the_rest() -> None:
    coarsen = coarsening(GLOBE, 10.0)
    x = np.ones((1, *GLOBE.shape), np.float32)
    i = np.flatnonzero(coarsen.rows[4] > 0)
    j = np.flatnonzero(coarsen.columns[7] > 1e-9)
    x[0, i[0], :] = np.nan
    x[0, i[1], :] = 5.0
    assert coarsen(x)[0, 4, 7] == pytest.approx(5.0)  # about half the cell is left, all of it 5
    x[0, i[1], j[0]] = np.nan
    out = coarsen(x)
    assert np.isnan(out[0, 4, 7])  # less than half is left


def test_refusals() -> None:
    with pytest.raises(ValueError, match="finer than the data's 5 degrees"):
        coarsening(GLOBE, 2.0)
    with pytest.raises(ValueError, match="less than one cell of 5 degrees"):
        coarsening(REGION, 5.0)
    with pytest.raises(ValueError, match="single site cannot be coarsened"):
        open_dataset(resolution=1.0)


def test_a_record_is_coarsened_as_it_is_read() -> None:
    ds = record(60, tuple(np.arange(10.0, 18.0)), tuple(np.arange(100.0, 112.0)))
    fine, coarse = open_dataset(ds), open_dataset(ds, resolution=2.0)
    assert coarse.grid.shape == (4, 6)
    indices = np.array([5, 2])
    weights = fine.grid.area_weights[:, 0]
    x = fine.states(indices)
    pairs = (x * weights[:, None, None]).reshape(2, 4, 2, 6, 2, 4).sum((2, 4))
    expected = pairs / (2 * weights.reshape(4, 2).sum(1)[:, None, None])
    np.testing.assert_allclose(coarse.states(indices), expected, rtol=1e-5)
    assert any("Averaged from 8 x 12 to 4 x 6" in f for f in coarse.findings)
