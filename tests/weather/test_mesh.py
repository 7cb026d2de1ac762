"""Meshes: counts and geometry against what is known of the sphere, links against plain search."""

import numpy as np
import pytest

from deltaweather.grid import Grid
from deltaweather.lattice import lattice_lines, regional_grid_mesh
from deltaweather.mesh import (
    containing_triangles,
    edge_features,
    global_grid_mesh,
    icosahedral_mesh,
    node_features,
    unit_vectors,
)

GLOBAL = Grid(tuple(np.linspace(-85, 85, 18)), tuple(np.arange(0.0, 360.0, 10.0)))
REGIONAL = Grid(tuple(np.arange(26.5, 28.6, 0.25)), tuple(np.arange(88.5, 92.1, 0.25)))


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_icosahedral_mesh_is_a_closed_triangulation(level: int) -> None:
    mesh = icosahedral_mesh(level)
    finest = mesh.edges[-30 * 4**level :]
    assert len(mesh.points) == 10 * 4**level + 2
    assert len(mesh.triangles) == 20 * 4**level
    assert len(mesh.edges) == 10 * (4 ** (level + 1) - 1)
    assert len(np.unique(mesh.edges, axis=0)) == len(mesh.edges)
    assert len(mesh.points) - len(finest) + len(mesh.triangles) == 2  # Euler
    np.testing.assert_allclose(np.linalg.norm(mesh.points, axis=1), 1.0, atol=1e-14)
    # Triangles face outwards and tile the sphere.
    corners = mesh.points[mesh.triangles]
    volumes = np.linalg.det(corners)
    assert (volumes > 0).all()
    angles = 2 * np.arctan2(
        volumes,
        1 + sum((corners[:, i] * corners[:, j]).sum(1) for i, j in ((0, 1), (1, 2), (2, 0))),
    )
    np.testing.assert_allclose(angles.sum(), 4 * np.pi, rtol=1e-12)
    # No corner is a pole, where east has no meaning.
    assert np.abs(mesh.points[:12, 2]).max() < 0.99


def test_coarse_levels_are_prefixes_of_fine_ones() -> None:
    coarse, fine = icosahedral_mesh(1), icosahedral_mesh(3)
    np.testing.assert_array_equal(fine.points[: len(coarse.points)], coarse.points)
    np.testing.assert_array_equal(fine.edges[: len(coarse.edges)], coarse.edges)


def test_containing_triangles_hold_their_points() -> None:
    mesh = icosahedral_mesh(2)
    points = np.random.default_rng(0).normal(size=(700, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    for point, triangle in zip(points, containing_triangles(mesh, points), strict=True):
        shares = np.linalg.solve(mesh.points[triangle].T, point)
        assert shares.min() > -1e-9


def test_global_links() -> None:
    graph = global_grid_mesh(GLOBAL, 2)
    cells, nodes = 18 * 36, 162
    lat, lon = np.meshgrid(GLOBAL.latitudes, GLOBAL.longitudes, indexing="ij")
    where = unit_vectors(lat.ravel(), lon.ravel())
    mesh = icosahedral_mesh(2)
    finest = mesh.edges[-480:]
    longest = np.linalg.norm(mesh.points[finest[:, 0]] - mesh.points[finest[:, 1]], axis=1).max()
    wanted = {
        (c, n)
        for n in range(nodes)
        for c in range(cells)
        if np.linalg.norm(where[c] - mesh.points[n]) <= 0.6 * longest
    }
    found = set(zip(graph.to_mesh.senders.tolist(), graph.to_mesh.receivers.tolist(), strict=True))
    assert wanted <= found
    assert set(graph.to_mesh.receivers.tolist()) == set(range(nodes))
    assert set(graph.to_mesh.senders.tolist()) == set(range(cells))  # every cell is heard by some node
    np.testing.assert_array_equal(np.bincount(graph.to_grid.receivers), np.full(cells, 3))
    pairs = set(zip(graph.within.senders.tolist(), graph.within.receivers.tolist(), strict=True))
    assert pairs == {(b, a) for a, b in pairs}
    assert len(pairs) == 2 * 630
    for edges in (graph.to_mesh, graph.within, graph.to_grid):
        assert (np.diff(edges.receivers) >= 0).all()  # the sums rely on it


def test_edge_features_are_the_offset_in_the_receivers_frame() -> None:
    sender, receiver = (
        unit_vectors(np.array([10.0]), np.array([33.0])),
        unit_vectors(np.array([10.0]), np.array([30.0])),
    )
    length, east, north, up = edge_features(sender, receiver)[0]
    assert length == 1.0
    assert east == pytest.approx(np.cos(np.deg2rad(1.5)), abs=1e-3)  # due east, but for the curvature
    assert 0 < north < 0.01  # the parallel bends away from the great circle
    assert up == pytest.approx(
        -np.hypot(*(sender - receiver)[0, [0, 1]]) / 2 * np.cos(np.deg2rad(10)), rel=0.02
    )
    np.testing.assert_allclose(np.hypot(np.hypot(east, north), up), 1.0, rtol=1e-6)


def test_edge_features_do_not_depend_on_longitude() -> None:
    rng = np.random.default_rng(1)
    lat, lon = rng.uniform(-80, 80, (2, 50)), rng.uniform(0, 360, (2, 50))

    def features(turn: float) -> np.ndarray:
        return edge_features(unit_vectors(lat[0], lon[0] + turn), unit_vectors(lat[1], lon[1] + turn))

    np.testing.assert_allclose(features(0.0), features(77.0), atol=1e-6)


def test_features_are_finite_at_the_poles() -> None:
    poles = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])
    assert np.isfinite(edge_features(unit_vectors(np.array([80.0, -80.0]), np.zeros(2)), poles)).all()
    assert np.isfinite(node_features(poles)).all()


def test_lattice_includes_both_ends() -> None:
    for length in range(1, 20):
        for stride in (1, 2, 3, 4, 8):
            lines = lattice_lines(length, stride)
            assert lines[0] == 0
            assert lines[-1] == length - 1
            assert np.diff(lines).max(initial=0) <= 2 * stride


def test_regional_links_stay_inside_and_reach_every_cell() -> None:
    graph = regional_grid_mesh(REGIONAL, stride=2, levels=3)
    rows, columns = REGIONAL.shape
    cells = rows * columns
    assert set(graph.to_grid.receivers.tolist()) == set(range(cells))
    assert set(graph.to_mesh.senders.tolist()) == set(range(cells))
    nodes = graph.mesh_features.shape[0]
    assert set(graph.within.receivers.tolist()) == set(range(nodes))
    # Node positions, recovered from the cell with the shortest link to each.
    position = np.full(nodes, -1)
    length = np.full(nodes, np.inf)
    for s, r, f in zip(graph.to_mesh.senders, graph.to_mesh.receivers, graph.to_mesh.features, strict=True):
        if f[0] < length[r]:
            length[r], position[r] = f[0], s
    np.testing.assert_allclose(length, 0.0, atol=1e-7)  # nodes are cells
    at = np.stack([position // columns, position % columns], axis=1)
    here = np.stack(np.divmod(graph.to_grid.receivers, columns), axis=1)
    assert np.abs(at[graph.to_grid.senders] - here).max() <= 2
    # Nothing wraps: no link joins the eastern and the western side.
    assert np.abs(at[graph.within.senders] - at[graph.within.receivers])[:, 1].max() < columns - 1
    corners = {(0, 0), (0, columns - 1), (rows - 1, 0), (rows - 1, columns - 1)}
    assert corners <= {tuple(p) for p in at.tolist()}


def test_side_features_tell_how_near_each_side_is() -> None:
    graph = regional_grid_mesh(REGIONAL, stride=2, levels=2)
    south_west = graph.grid_features[0]
    assert south_west[:2].tolist() == [1.0, 1.0]  # on the southern and the western side
    assert south_west[2] == pytest.approx(np.exp(-8 / 4))
    assert south_west[3] == pytest.approx(np.exp(-14 / 4))


def test_bad_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="level of a mesh"):
        icosahedral_mesh(-1)
    with pytest.raises(ValueError, match="stride"):
        regional_grid_mesh(REGIONAL, stride=0)
