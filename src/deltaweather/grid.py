"""Places on a latitude-longitude grid: distances, areas, nearest cells and squares of cells."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64

EARTH_RADIUS_KM = 6371.0
SITE_TOLERANCE_KM = 50.0

Edge = Literal["error", "clip"]


@dataclass(frozen=True)
class Place:
    """A named point, in degrees north and east (negative: south and west)."""

    name: str
    latitude: float | int
    longitude: float | int

    def __str__(self) -> str:
        ns, ew = "NS"[self.latitude < 0], "EW"[self.longitude < 0]
        return f"{self.name} ({abs(self.latitude):g} {ns}, {abs(self.longitude):g} {ew})"


@dataclass(frozen=True)
class Square:
    """A square of cells: `rows` x `columns` of the grid, and area weights that sum to one.

    `clipped` says that the domain's edge cut part of the square away.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    clipped: bool

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)


def haversine_km(
    latitude_a: np.ndarray | float | int,
    longitude_a: np.ndarray | float | int,
    latitude_b: np.ndarray | float | int,
    longitude_b: np.ndarray | float | int,
) -> np.ndarray:
    """Great-circle distance in kilometres; broadcasts.

    `hav(d/R) = hav(b - a) + cos a cos b hav(lambda_b - lambda_a)` with `hav x = sin²(x/2)`.

    >>> float(haversine_km(0.0, 0.0, 0.0, 90.0).round())
    10008.0
    """
    a, b = np.deg2rad(latitude_a), np.deg2rad(latitude_b)
    turn = np.deg2rad(np.asarray(longitude_b) - np.asarray(longitude_a))
    half = np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(turn / 2) ** 2
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0))))


def longitude_difference(to: np.ndarray | float | int, start: np.ndarray | float | int) -> np.ndarray:
    """`to - start` the short way round, in [-180, 180)."""
    return np.asarray((np.asarray(to) - np.asarray(start) + 180.0) % 360.0 - 180.0)


def cell_edges(centres: np.ndarray, low: float | int = -np.inf, high: float | int = np.inf) -> np.ndarray:
    """The n+1 edges half-way between n ascending centres, the outer ones mirrored and kept in [low, high]."""
    if len(centres) == 1:
        return np.asarray(np.clip(np.array([centres[0] - 0.5, centres[0] + 0.5]), low, high))
    middle = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middle[0], 2 * centres[-1] - middle[-1]
    return np.asarray(np.clip(np.concatenate([[first], middle, [last]]), low, high))


@dataclass(frozen=True)
class Grid:
    """A rectilinear grid; latitudes ascend from the south, longitudes ascend (they may pass 360).

    >>> grid = Grid((-60.0, -20.0, 20.0, 60.0), tuple(np.arange(0.0, 360.0, 40.0)))
    >>> grid.kind, grid.shape
    ('global', (4, 9))
    >>> grid.nearest(Place("Quito", -0.2, -78.5))
    (1, 7)
    """

    latitudes: tuple[float | int, ...]
    longitudes: tuple[float | int, ...]

    def __post_init__(self) -> None:
        for name, values in (("latitudes", self.latitudes), ("longitudes", self.longitudes)):
            if len(values) == 0:
                raise ValueError(f"The grid has no {name}.")
            if np.any(np.diff(values) <= 0):
                raise ValueError(f"The grid's {name} must ascend, but they are {values}.")
        if abs(self.latitudes[0]) > 90 or abs(self.latitudes[-1]) > 90:
            raise ValueError(
                f"Latitudes must lie within -90..90 degrees, but they run from {self.latitudes[0]} to "
                f"{self.latitudes[-1]}."
            )
        if self.longitudes[-1] - self.longitudes[0] >= 360:
            raise ValueError(
                f"Longitudes must cover less than 360 degrees, but they run from {self.longitudes[0]} to "
                f"{self.longitudes[-1]}: drop the repeated meridian."
            )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.latitudes), len(self.longitudes)

    @property
    def periodic(self) -> bool:
        """Whether the last longitude is a neighbour of the first."""
        lon = self.longitudes
        if len(lon) < 3:
            return False
        seam = lon[0] + 360 - lon[-1]
        return bool(seam < 1.5 * float(np.diff(lon).max()))

    @property
    def kind(self) -> Literal["site", "regional", "global"]:
        if self.shape == (1, 1):
            return "site"
        reach = 1.5 * self.spacing[0]
        polar = self.latitudes[0] - reach <= -90 and self.latitudes[-1] + reach >= 90
        return "global" if self.periodic and polar else "regional"

    @property
    def spacing(self) -> tuple[float, float]:
        """Mean distance in degrees between neighbouring centres (latitude, longitude); else 1."""
        return tuple(  # type: ignore[return-value]
            float((v[-1] - v[0]) / (len(v) - 1)) if len(v) > 1 else 1.0
            for v in (self.latitudes, self.longitudes)
        )

    @cached_property
    def latitude_edges(self) -> Float64[np.ndarray, "lat_edges"]:
        return cell_edges(np.asarray(self.latitudes), -90.0, 90.0)

    @cached_property
    def longitude_edges(self) -> Float64[np.ndarray, "lon_edges"]:
        edges = cell_edges(np.asarray(self.longitudes))
        if self.periodic:  # the seam is one edge seen from both sides
            edges[0] = (self.longitudes[0] + self.longitudes[-1] - 360) / 2
            edges[-1] = edges[0] + 360
        return edges

    @cached_property
    def area_weights(self) -> Float64[np.ndarray, "lat lon"]:
        """Exact cell areas on the sphere, scaled to a mean of one."""
        heights = np.diff(np.sin(np.deg2rad(self.latitude_edges)))
        areas = heights[:, None] * np.diff(self.longitude_edges)[None, :]
        return np.asarray(areas / areas.mean())

    def distances_km(self, place: Place) -> Float64[np.ndarray, "lat lon"]:
        """Great-circle distance of every cell centre from a place."""
        lat, lon = np.meshgrid(self.latitudes, self.longitudes, indexing="ij")
        return haversine_km(place.latitude, place.longitude, lat, lon)

    def contains(self, place: Place) -> bool:
        """Whether the place lies in some cell (for a single site: within 50 km of it)."""
        if self.kind == "site":
            return bool(self.distances_km(place)[0, 0] <= SITE_TOLERANCE_KM)
        low, high = self.latitude_edges[[0, -1]]
        east = (place.longitude - self.longitude_edges[0]) % 360
        width = self.longitude_edges[-1] - self.longitude_edges[0]
        return bool(low <= place.latitude <= high and east <= width + 1e-9)

    def nearest(self, place: Place) -> tuple[int, int]:
        """Row and column of the cell that holds the place; an error if none does."""
        if not self.contains(place):
            raise ValueError(
                f"{place} lies outside the domain, which is {self.describe()}. Choose a place inside it."
            )
        row = int(np.argmin(np.abs(np.asarray(self.latitudes) - place.latitude)))
        column = int(np.argmin(np.abs(longitude_difference(np.asarray(self.longitudes), place.longitude))))
        return row, column

    def square(self, place: Place, inradius: int, on_edge: Edge = "error") -> Square:
        """The (2r-1) x (2r-1) cells around a place; r = 1 is the place's own cell.

        Longitude wraps on a global grid. Where the square would leave the domain, `on_edge="error"`
        refuses and `"clip"` keeps the part inside.
        """
        if inradius < 1:
            raise ValueError(f"The inradius of a square is at least 1 cell, but {inradius} was given.")
        row, column = self.nearest(place)
        reach = inradius - 1
        rows = np.arange(row - reach, row + reach + 1)
        columns = np.arange(column - reach, column + reach + 1)
        inside_rows = rows[(rows >= 0) & (rows < self.shape[0])]
        if self.periodic:  # once round at most
            inside_columns = columns[: self.shape[1]] % self.shape[1]
        else:
            inside_columns = columns[(columns >= 0) & (columns < self.shape[1])]
        clipped = len(inside_rows) < len(rows) or len(inside_columns) < len(columns)
        if clipped and on_edge == "error":
            raise ValueError(
                f"A square of inradius {inradius} cells around {place} needs {len(rows)} x {len(columns)} "
                f"cells and leaves the domain, which is {self.describe()}; only {len(inside_rows)} x "
                f"{len(inside_columns)} lie "
                'inside. Choose a smaller inradius, a place further inside, or on_edge="clip" to keep the '
                "part inside."
            )
        weights = self.area_weights[np.ix_(inside_rows, inside_columns)]
        weights = weights / weights.sum()
        return Square(
            tuple(int(i) for i in inside_rows),
            tuple(int(j) for j in inside_columns),
            tuple(tuple(float(w) for w in line) for line in weights),
            clipped,
        )

    @cached_property
    def neighbours(self) -> Int64[np.ndarray, "edges 2"]:
        """Directed pairs (from, to) of flat indices of cells that share a side; wraps where periodic."""
        n, m = self.shape
        index = np.arange(n * m).reshape(n, m)
        pairs = [(index[:-1], index[1:]), (index[:, :-1], index[:, 1:])]
        if self.periodic:
            pairs.append((index[:, -1:], index[:, :1]))
        forward = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])
        return np.concatenate([forward, forward[:, ::-1]])

    def describe(self) -> str:
        if self.kind == "site":
            return f"a single site at {self.latitudes[0]:g} N, {self.longitudes[0]:g} E"
        s, n = self.latitude_edges[[0, -1]]
        w, e = self.longitude_edges[[0, -1]]
        span = "all longitudes" if self.periodic else f"{w:g} to {e:g} E"
        return f"a {self.kind} grid of {self.shape[0]} x {self.shape[1]} cells, {s:g} to {n:g} N, {span}"
