"""Conservative coarsening: cell means weighted by the exact area of overlap."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64

from deltaweather.grid import Grid


@dataclass(frozen=True)
class Coarsening:
    """Overlap areas between a fine and a coarse grid, which separate into rows and columns.

    A coarse value is `sum_ij R[I,i] C[J,j] x[i,j] / sum_ij R[I,i] C[J,j]`, the sums over present values;
    where less than half of a coarse cell's area is present it is missing. The integral over the globe is
    kept exactly.
    """

    target: Grid
    rows: Float64[np.ndarray, "coarse_lat lat"]
    columns: Float64[np.ndarray, "coarse_lon lon"]

    def __call__(
        self, x: Float32[np.ndarray, "*n lat lon"]
    ) -> Float32[np.ndarray, "*n coarse_lat coarse_lon"]:
        present = np.isfinite(x)
        area = self.rows.sum(1)[:, None] * self.columns.sum(1)[None, :]
        if present.all():
            return np.asarray(self._sum(x) / area, dtype=np.float32)
        covered = self._sum(present)
        total = self._sum(np.where(present, x, 0.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(covered >= 0.5 * area, total / covered, np.nan), dtype=np.float32)

    def _sum(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.rows @ x.astype(np.float64) @ self.columns.T)


def coarsening(source: Grid, resolution: float | int) -> Coarsening:
    """To cells of `resolution` degrees that tile the source's domain.

    Global grids keep the convention of the source: cells centred on the poles if the source has them (so
    that 0.25° on 721 x 1440 gives 4° on 46 x 90), else half a cell away from them.
    """
    if source.kind == "site":
        raise ValueError("A single site cannot be coarsened: leave resolution out.")
    finest = max(source.spacing)
    if not np.isfinite(resolution) or resolution < finest - 1e-9:
        raise ValueError(
            f"The resolution of {resolution:g} degrees is finer than the data's {finest:g} degrees; "
            "coarsening needs a larger value."
        )
    target = coarse_grid(source, resolution)
    sines = np.sin(np.deg2rad(source.latitude_edges)), np.sin(np.deg2rad(target.latitude_edges))
    rows = _overlaps(*sines)
    columns = _overlaps(source.longitude_edges, target.longitude_edges)
    if source.periodic:  # a coarse cell may reach round the seam
        for turn in (-360.0, 360.0):
            columns += _overlaps(source.longitude_edges + turn, target.longitude_edges)
    return Coarsening(target, rows, columns)


def coarse_grid(source: Grid, resolution: float | int) -> Grid:
    """The grid of `resolution` degrees that `coarsening` fills."""
    if source.kind == "global":
        poles = abs(source.latitudes[0]) > 90 - 1e-6 and abs(source.latitudes[-1]) > 90 - 1e-6
        count = round(180 / resolution)
        step = 180 / count
        start = -90.0 if poles else -90.0 + step / 2
        latitudes = start + step * np.arange(count + 1 if poles else count)
    else:
        latitudes = _tile(source.latitude_edges, resolution, "latitude")
    if source.periodic:
        count = round(360 / resolution)
        longitudes = source.longitudes[0] + 360 / count * np.arange(count)
    else:
        longitudes = _tile(source.longitude_edges, resolution, "longitude")
    return Grid(tuple(map(float, latitudes)), tuple(map(float, longitudes)))


def _tile(edges: np.ndarray, resolution: float | int, axis: str) -> np.ndarray:
    extent = edges[-1] - edges[0]
    count = int(np.floor(extent / resolution + 1e-6))
    if count < 1:
        raise ValueError(
            f"The domain spans {extent:g} degrees of {axis}, less than one cell of {resolution:g} degrees: "
            "choose a smaller resolution."
        )
    first = (edges[0] + edges[-1] - (count - 1) * resolution) / 2
    return np.asarray(first + resolution * np.arange(count))


def _overlaps(fine: np.ndarray, coarse: np.ndarray) -> np.ndarray:
    low = np.maximum(fine[None, :-1], coarse[:-1, None])
    high = np.minimum(fine[None, 1:], coarse[1:, None])
    return np.asarray(np.maximum(high - low, 0.0))
