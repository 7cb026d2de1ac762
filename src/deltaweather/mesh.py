"""Meshes for message passing: an icosahedron refined over the globe, and a nested lattice for small domains.

Both end in a `GridMesh`: three sets of directed edges (grid to mesh, within the mesh on all its levels at
once, mesh to grid) with what each edge and node knows of its geometry.
"""

from dataclasses import dataclass

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Float64, Int, Int64

from .grid import Grid


class Edges(eqx.Module):
    """Directed edges, sorted by receiver; `features` are length and relative position (see `edge_features`)."""

    senders: Int[Array | np.ndarray, " edges"]
    receivers: Int[Array | np.ndarray, " edges"]
    features: Float[Array | np.ndarray, "edges 4"]


class GridMesh(eqx.Module):
    """A mesh tied to a grid whose cells are numbered row by row. Node features are those of `node_features`."""

    grid_features: Float[Array | np.ndarray, "cells feature"]
    mesh_features: Float[Array | np.ndarray, "nodes feature"]
    to_mesh: Edges
    within: Edges
    to_grid: Edges


@dataclass(frozen=True)
class Mesh:
    """Points on the sphere and undirected edges; coarse points come first, so level l uses a prefix of them."""

    points: Float64[np.ndarray, "nodes 3"]
    edges: Int64[np.ndarray, "edges 2"]  # of all levels, each once
    triangles: Int64[np.ndarray, "faces 3"]  # of the finest level; empty for a lattice


def unit_vectors(latitude: np.ndarray, longitude: np.ndarray) -> Float64[np.ndarray, "points 3"]:
    """Points on the unit sphere from degrees north and east."""
    lat, lon = np.deg2rad(latitude), np.deg2rad(longitude)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def icosahedron() -> tuple[Float64[np.ndarray, "12 3"], Int64[np.ndarray, "20 3"]]:
    """Corners and faces of the regular icosahedron, turned so that no corner is a pole.

    A corner at a pole would give a node whose east is undefined.
    """
    golden = (1 + 5**0.5) / 2
    corners = np.array([(0, s, t * golden) for s in (-1, 1) for t in (-1, 1)], dtype=np.float64)
    corners = np.concatenate([np.roll(corners, k, axis=1) for k in range(3)]) / np.hypot(1, golden)
    near = np.linalg.norm(corners[:, None] - corners[None], axis=-1) < 1.2
    np.fill_diagonal(near, False)
    faces = [
        (i, j, k) if np.linalg.det(corners[[i, j, k]]) > 0 else (i, k, j)
        for i in range(12)
        for j in range(i + 1, 12)
        for k in range(j + 1, 12)
        if near[i, j] and near[j, k] and near[i, k]
    ]
    return corners, np.array(faces, dtype=np.int64)


def _sides(triangles: Int64[np.ndarray, "faces 3"]) -> Int64[np.ndarray, "edges 2"]:
    pairs = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    return np.unique(np.sort(pairs, axis=1), axis=0)


def icosahedral_mesh(level: int) -> Mesh:
    """The icosahedron with every triangle split into four `level` times, and the edges of all levels.

    Level l has `10·4^l + 2` points and adds `30·4^l` edges.

    >>> mesh = icosahedral_mesh(2)
    >>> mesh.points.shape[0], mesh.edges.shape[0]
    (162, 630)
    """
    if level < 0:
        raise ValueError(f"The level of a mesh is 0 (the icosahedron itself) or more, but {level} was given.")
    points, triangles = icosahedron()
    edges = [_sides(triangles)]
    for _ in range(level):
        sides = edges[-1]
        middle = points[sides[:, 0]] + points[sides[:, 1]]
        number = {(int(a), int(b)): len(points) + i for i, (a, b) in enumerate(sides)}
        points = np.concatenate([points, middle / np.linalg.norm(middle, axis=1, keepdims=True)])
        split = []
        for a, b, c in triangles.tolist():
            ab, bc, ca = (number[min(p), max(p)] for p in ((a, b), (b, c), (c, a)))
            split += [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
        triangles = np.array(split, dtype=np.int64)
        edges.append(_sides(triangles))
    return Mesh(points, np.concatenate(edges), triangles)


def edge_features(
    senders: Float64[np.ndarray, "edges 3"], receivers: Float64[np.ndarray, "edges 3"]
) -> Float[np.ndarray, "edges 4"]:
    """Length and relative position (east, north, up as seen from the receiver), over the longest length.

    The frame is the receiver's own, so that equal neighbourhoods look equal wherever they lie.
    """
    up = receivers
    east = np.cross([0.0, 0.0, 1.0], up)
    norm = np.linalg.norm(east, axis=1, keepdims=True)
    # At a pole east is undefined; any direction will do as long as it is always the same.
    east = np.where(norm > 1e-9, east / np.maximum(norm, 1e-9), [0.0, 1.0, 0.0])
    north = np.cross(up, east)
    offset = senders - receivers
    length = np.linalg.norm(offset, axis=1)
    parts = [length, *(np.sum(offset * axis, axis=1) for axis in (east, north, up))]
    return (np.stack(parts, axis=1) / max(float(length.max()), 1e-12)).astype(np.float32)


def make_edges(
    pairs: Int64[np.ndarray, "edges 2"],
    senders: Float64[np.ndarray, "m 3"],
    receivers: Float64[np.ndarray, "n 3"],
) -> Edges:
    """Edges from (sender, receiver) pairs and the positions of both sides."""
    pairs = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]
    features = edge_features(senders[pairs[:, 0]], receivers[pairs[:, 1]])
    return Edges(pairs[:, 0].astype(np.int32), pairs[:, 1].astype(np.int32), features)


def both_ways(edges: Int64[np.ndarray, "edges 2"]) -> Int64[np.ndarray, "2*edges 2"]:
    """Every undirected edge in both directions."""
    return np.concatenate([edges, edges[:, ::-1]])


def containing_triangles(mesh: Mesh, points: Float64[np.ndarray, "n 3"]) -> Int64[np.ndarray, "n 3"]:
    """For each point the triangle of the finest level whose cone it lies in (on a side: one of the two)."""
    corners = mesh.points[mesh.triangles]  # [faces, corner, 3]
    inward = np.stack([np.cross(corners[:, k], corners[:, (k + 1) % 3]) for k in range(3)], axis=1)
    found = np.empty(len(points), dtype=np.int64)
    for first in range(0, len(points), 512):  # bounds the table of points by faces
        depth = np.einsum("fkd,nd->nfk", inward, points[first : first + 512]).min(axis=-1)
        found[first : first + 512] = depth.argmax(axis=1)
    return mesh.triangles[found]


def global_grid_mesh(grid: Grid, level: int, *, reach: float = 0.6) -> GridMesh:
    """Ties an icosahedral mesh to a global grid.

    A mesh node hears from the cells within `reach` times the longest edge of the finest level, and from its
    nearest cell whatever the distance; a cell hears from the three corners of its triangle.
    """
    mesh = icosahedral_mesh(level)
    cells = _cell_points(grid)
    finest = mesh.edges[-30 * 4**level :]
    radius = reach * np.linalg.norm(mesh.points[finest[:, 0]] - mesh.points[finest[:, 1]], axis=1).max()
    pairs = []
    for first in range(0, len(mesh.points), 512):
        nodes = mesh.points[first : first + 512]
        distance = np.linalg.norm(nodes[:, None] - cells[None], axis=-1)
        near = distance <= radius
        near[np.arange(len(nodes)), distance.argmin(axis=1)] = True
        node, cell = np.nonzero(near)
        pairs.append(np.stack([cell, node + first], axis=1))
    corners = containing_triangles(mesh, cells)
    back = np.stack([corners.ravel(), np.repeat(np.arange(len(cells)), 3)], axis=1)
    return GridMesh(
        node_features(cells),
        node_features(mesh.points),
        make_edges(np.concatenate(pairs), cells, mesh.points),
        make_edges(both_ways(mesh.edges), mesh.points, mesh.points),
        make_edges(back, mesh.points, cells),
    )


def node_features(points: Float64[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    """sin(latitude), and cosine and sine of the longitude (zero on the axis, where there is none)."""
    across = np.linalg.norm(points[:, :2], axis=1, keepdims=True)
    around = points[:, :2] / np.maximum(across, 1e-9)
    return np.concatenate([points[:, 2:], around], axis=1).astype(np.float32)


def _cell_points(grid: Grid) -> Float64[np.ndarray, "cells 3"]:
    lat, lon = np.meshgrid(grid.latitudes, grid.longitudes, indexing="ij")
    return unit_vectors(lat.ravel(), lon.ravel())
