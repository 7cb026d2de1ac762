"""The mesh of a small domain: nested lattices of its own grid cells."""

import numpy as np
from jaxtyping import Float, Float64, Int64

from .grid import Grid
from .mesh import GridMesh, both_ways, make_edges, unit_vectors


def lattice_lines(length: int, stride: int) -> Int64[np.ndarray, " lines"]:
    """Rows (or columns) `stride` apart, centred, with the first and last always among them.

    >>> lattice_lines(9, 2).tolist(), lattice_lines(15, 4).tolist()
    ([0, 2, 4, 6, 8], [0, 4, 7, 10, 14])
    """
    count = max(2, round((length - 1) / stride) + 1) if length > 1 else 1
    return np.unique(np.round(np.linspace(0, length - 1, count)).astype(np.int64))


def regional_grid_mesh(grid: Grid, *, stride: int = 2, levels: int = 3) -> GridMesh:
    """A mesh for a domain with sides: lattices with strides `stride`, twice that, and so on, joined.

    Nodes are grid cells. Within a level a node is tied to its up to eight neighbours; each node hears from
    the cells no further than half a stride (rounded up) in rows and columns, and each cell from the corners
    of the lattice square it lies in.

    **The boundary.** Lattices include the domain's outermost rows and columns, so that no cell lies outside
    the mesh; nothing wraps and nothing is invented beyond the sides, where nodes simply have fewer
    neighbours. What the weather does there is unknown to the model. That a node is near a side it is told:
    node features are the distances to the four sides, each as exp(-distance / (2 · stride) cells), so that it
    can learn how much to trust persistence and climatology there.
    """
    if stride < 1 or levels < 1:
        raise ValueError(
            f"A lattice needs a stride and a number of levels of at least 1, but got {stride}, {levels}."
        )
    rows, columns = grid.shape
    strides = [stride * 2**k for k in range(levels)]
    lines = [(lattice_lines(rows, s), lattice_lines(columns, s)) for s in strides]
    # A coarse line that rounds to a row between fine ones brings nodes of its own.
    cells = sorted({(int(i), int(j)) for ys, xs in lines for i in ys for j in xs})
    number = {cell: n for n, cell in enumerate(cells)}
    edges: set[tuple[int, int]] = set()
    for ys, xs in lines:
        edges |= _neighbours(ys.tolist(), xs.tolist(), number)
    fine_rows, fine_columns = lines[0]
    positions = np.array(cells, dtype=np.int64)
    grid_cells = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1).reshape(
        -1, 2
    )
    apart = np.abs(positions[:, None] - grid_cells[None]).max(axis=-1)
    node, cell = np.nonzero(apart <= (stride + 1) // 2)
    corners = sorted(
        {
            (number[y, x], n)
            for n, (i, j) in enumerate(grid_cells.tolist())
            for y in _around(fine_rows, i)
            for x in _around(fine_columns, j)
        }
    )
    lat, lon = np.asarray(grid.latitudes), np.asarray(grid.longitudes)
    grid_points = unit_vectors(lat[grid_cells[:, 0]], lon[grid_cells[:, 1]])
    mesh_points = unit_vectors(lat[positions[:, 0]], lon[positions[:, 1]])
    within = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)
    return GridMesh(
        _side_features(grid_cells, grid.shape, stride),
        _side_features(positions, grid.shape, stride),
        make_edges(np.stack([cell, node], axis=1), grid_points, mesh_points),
        make_edges(both_ways(within), mesh_points, mesh_points),
        make_edges(np.array(corners, dtype=np.int64), mesh_points, grid_points),
    )


def _neighbours(
    rows: list[int], columns: list[int], number: dict[tuple[int, int], int]
) -> set[tuple[int, int]]:
    found = set()
    for a, y in enumerate(rows):
        for b, x in enumerate(columns):
            for da, db in ((0, 1), (1, 0), (1, 1), (1, -1)):
                if a + da < len(rows) and 0 <= b + db < len(columns):
                    pair = number[y, x], number[rows[a + da], columns[b + db]]
                    found.add((min(pair), max(pair)))
    return found


def _around(lines: Int64[np.ndarray, " lines"], position: int) -> set[int]:
    """The line at or before a position and the line at or behind it."""
    after = int(np.searchsorted(lines, position))
    before = after if lines[after] == position else after - 1
    return {int(lines[before]), int(lines[after])}


def _side_features(
    cells: Int64[np.ndarray, "n 2"], shape: tuple[int, int], stride: int
) -> Float[np.ndarray, "n 4"]:
    ends = np.array(shape) - 1
    distance: Float64[np.ndarray, "n 4"] = np.concatenate([cells, ends - cells], axis=1).astype(np.float64)
    return np.exp(-distance / (2 * stride)).astype(np.float32)
