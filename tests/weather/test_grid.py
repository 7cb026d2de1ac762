"""The grid: distances and areas against closed forms, squares and neighbours against plain loops."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaweather.grid import EARTH_RADIUS_KM, Grid, Place, cell_edges, haversine_km, longitude_difference
from deltaweather.places import BHUTAN, CAPITALS, default_places

GLOBE = Grid(tuple(np.arange(-84.0, 85.0, 12.0)), tuple(np.arange(0.0, 360.0, 20.0)))
REGION = Grid(tuple(np.arange(26.5, 28.6, 0.25)), tuple(np.arange(88.5, 92.1, 0.25)))
SITE = Grid((48.85,), (2.35,))

latitudes = st.floats(-90, 90)
longitudes = st.floats(-180, 540)


@given(latitudes, longitudes, latitudes, longitudes)
def test_haversine_is_the_angle_between_unit_vectors(a: float, b: float, c: float, d: float) -> None:
    def vector(lat: float, lon: float) -> np.ndarray:
        lat, lon = np.deg2rad(lat), np.deg2rad(lon)
        return np.array([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])

    x, y = vector(a, b), vector(c, d)
    angle = np.arctan2(np.linalg.norm(np.cross(x, y)), x @ y)
    # arcsin of a half-angle loses digits near the antipode, where its slope is infinite
    assert float(haversine_km(a, b, c, d)) == pytest.approx(EARTH_RADIUS_KM * angle, abs=1e-3)


def test_a_known_distance() -> None:
    # Paris to New York, as given by great-circle calculators: 5837 km.
    assert float(haversine_km(48.8566, 2.3522, 40.7128, -74.0060)) == pytest.approx(5837, abs=2)


@given(longitudes, longitudes)
def test_longitude_difference_is_the_short_way(a: float, b: float) -> None:
    turn = float(longitude_difference(a, b))
    assert -180 <= turn < 180
    assert np.cos(np.deg2rad(b + turn)) == pytest.approx(np.cos(np.deg2rad(a)), abs=1e-9)
    assert np.sin(np.deg2rad(b + turn)) == pytest.approx(np.sin(np.deg2rad(a)), abs=1e-9)


@pytest.mark.parametrize(("grid", "kind"), [(GLOBE, "global"), (REGION, "regional"), (SITE, "site")])
def test_kinds(grid: Grid, kind: str) -> None:
    assert grid.kind == kind


def test_a_band_round_the_equator_is_periodic_but_not_global() -> None:
    band = Grid(tuple(np.arange(-30.0, 31.0, 10.0)), tuple(np.arange(0.0, 360.0, 10.0)))
    assert band.periodic
    assert band.kind == "regional"


@pytest.mark.parametrize("grid", [GLOBE, REGION, SITE])
def test_area_weights_are_integrals_of_the_cosine(grid: Grid) -> None:
    edges = np.deg2rad(grid.latitude_edges)
    fine = [np.linspace(a, b, 2001) for a, b in itertools.pairwise(edges)]
    heights = np.array([np.trapezoid(np.cos(x), x) for x in fine])
    expected = heights[:, None] * np.diff(grid.longitude_edges)
    np.testing.assert_allclose(grid.area_weights, expected / expected.mean(), rtol=1e-6)
    assert grid.area_weights.mean() == pytest.approx(1.0)


def test_pole_cells_end_at_the_pole() -> None:
    edges = cell_edges(np.array([-90.0, -60, -30, 0, 30, 60, 90]), -90, 90)
    np.testing.assert_allclose(edges, [-90, -75, -45, -15, 15, 45, 75, 90])


@given(st.floats(-80, 80), st.floats(-360, 360))
def test_nearest_is_the_cell_that_holds_the_place(latitude: float, longitude: float) -> None:
    row, column = GLOBE.nearest(Place("somewhere", latitude, longitude))
    rows = [abs(lat - latitude) for lat in GLOBE.latitudes]
    columns = [min((lon - longitude) % 360, (longitude - lon) % 360) for lon in GLOBE.longitudes]
    assert rows[row] == min(rows)
    assert columns[column] == pytest.approx(min(columns), abs=1e-9)


def test_thimphu_falls_where_the_data_say() -> None:
    row, column = REGION.nearest(BHUTAN[0])
    assert (REGION.latitudes[row], REGION.longitudes[column]) == (27.5, 89.75)


def test_the_places_in_bhutan_have_cells_of_their_own() -> None:
    cells = {REGION.nearest(p) for p in BHUTAN}
    assert len(cells) == 6


@pytest.mark.parametrize("inradius", [1, 2, 3])
def test_a_square_is_the_cells_within_reach(inradius: int) -> None:
    place = Place("near the seam", 13.0, 359.0)
    row, column = GLOBE.nearest(place)
    square = GLOBE.square(place, inradius)
    n = GLOBE.shape[1]
    expected = {
        (i, j)
        for i in range(GLOBE.shape[0])
        for j in range(n)
        if abs(i - row) < inradius and min((j - column) % n, (column - j) % n) < inradius
    }
    assert {(i, j) for i in square.rows for j in square.columns} == expected
    assert not square.clipped
    weights = np.asarray(square.weights)
    assert weights.sum() == pytest.approx(1.0)
    areas = GLOBE.area_weights[np.ix_(square.rows, square.columns)]
    np.testing.assert_allclose(weights / weights[0, 0], areas / areas[0, 0], rtol=1e-12)


def test_a_square_that_leaves_the_domain_is_refused_or_clipped() -> None:
    thimphu = BHUTAN[0]
    assert REGION.square(thimphu, 5).shape == (9, 9)
    with pytest.raises(
        ValueError, match=r"inradius 6 .*Thimphu.* needs 11 x 11 .* leaves the domain.* 9 x 11"
    ):
        REGION.square(thimphu, 6)
    clipped = REGION.square(thimphu, 6, on_edge="clip")
    assert clipped.shape == (9, 11)
    assert clipped.clipped
    assert np.asarray(clipped.weights).sum() == pytest.approx(1.0)


def test_a_square_near_the_pole_leaves_the_globe() -> None:
    with pytest.raises(ValueError, match="leaves the domain"):
        GLOBE.square(Place("pole", 89.0, 0.0), 2)


def test_a_square_goes_round_the_globe_once_at_most() -> None:
    square = GLOBE.square(Place("equator", 0.0, 0.0), 12, on_edge="clip")
    assert sorted(square.columns) == list(range(GLOBE.shape[1]))
    assert square.clipped


def test_squares_and_places_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="at least 1 cell"):
        REGION.square(BHUTAN[0], 0)
    with pytest.raises(ValueError, match=r"London .* outside the domain, which is a regional grid of 9 x 15"):
        REGION.nearest(CAPITALS[2])
    with pytest.raises(ValueError, match="outside the domain, which is a single site"):
        SITE.nearest(CAPITALS[2])
    assert SITE.nearest(Place("Orly", 48.72, 2.38)) == (0, 0)


@pytest.mark.parametrize("longitude", [89.75, 89.75 - 360, 89.75 + 360])
def test_longitudes_may_be_given_in_any_turn(longitude: float) -> None:
    assert REGION.nearest(Place("Thimphu", 27.5, longitude)) == (4, 5)


@pytest.mark.parametrize("grid", [GLOBE, REGION])
def test_neighbours_against_a_loop(grid: Grid) -> None:
    n, m = grid.shape
    expected = set()
    for i in range(n):
        for j in range(m):
            for a, b in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
                if grid.periodic:
                    b %= m
                if 0 <= a < n and 0 <= b < m:
                    expected.add((i * m + j, a * m + b))
    pairs = [tuple(pair) for pair in grid.neighbours.tolist()]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == expected


def test_bad_grids_are_refused() -> None:
    with pytest.raises(ValueError, match="latitudes must ascend"):
        Grid((10.0, 0.0), (0.0, 1.0))
    with pytest.raises(ValueError, match=r"within -90\.\.90"):
        Grid((80.0, 100.0), (0.0, 1.0))
    with pytest.raises(ValueError, match="less than 360"):
        Grid((0.0, 1.0), (0.0, 180.0, 360.0))
    with pytest.raises(ValueError, match="no longitudes"):
        Grid((0.0,), ())


def test_tables_of_places() -> None:
    assert default_places(REGION) == BHUTAN
    assert default_places(GLOBE) == CAPITALS
    assert [p.name for p in default_places(SITE)] == ["Paris"]
    (other,) = default_places(Grid((-45.0,), (170.0,)))
    assert (other.latitude, other.longitude) == (-45.0, 170.0)
    ocean = Grid(tuple(np.arange(-50.0, -40.0, 1.0)), tuple(np.arange(200.0, 210.0, 1.0)))
    (middle,) = default_places(ocean)
    assert ocean.contains(middle)
