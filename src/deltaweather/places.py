"""Places at which quantities are taken; users add their own."""

from deltaweather.grid import Grid, Place

BHUTAN = (
    Place("Thimphu", 27.4728, 89.6390),
    Place("Paro", 27.4305, 89.4133),
    Place("Punakha", 27.5914, 89.8774),
    Place("Trongsa", 27.5026, 90.5072),
    Place("Jakar", 27.5492, 90.7525),
    Place("Gangtok", 27.3314, 88.6138),
)

CAPITALS = (
    Place("Washington", 38.8951, -77.0364),
    Place("Brasília", -15.7797, -47.9297),
    Place("London", 51.5085, -0.1257),
    Place("Nairobi", -1.2833, 36.8167),
    Place("New Delhi", 28.6358, 77.2245),
    Place("Tokyo", 35.6895, 139.6917),
)

NORTH_AMERICA = (
    Place("Washington", 38.8951, -77.0364),
    Place("Ottawa", 45.4112, -75.6981),
    Place("Mexico City", 19.4285, -99.1277),
    Place("Denver", 39.7392, -104.9847),
    Place("Winnipeg", 49.8844, -97.1470),
    Place("Sacramento", 38.5816, -121.4944),
)

PARIS = (Place("Paris", 48.85, 2.35),)

_TABLES = (CAPITALS, BHUTAN, NORTH_AMERICA, PARIS)


def default_places(grid: Grid) -> tuple[Place, ...]:
    """The table that fits a grid: six capitals of the globe, six places in a known region, or the site.

    A domain without a table gets the places of all tables that lie in it or, where none does, its
    middle: pass `places` to choose.
    """
    if grid.kind == "site":
        (latitude,), (longitude,) = grid.latitudes, grid.longitudes
        near = [p for p in PARIS if grid.contains(p)]
        return tuple(near) or (Place("the site", latitude, longitude),)
    for table in _TABLES:
        if all(grid.contains(p) for p in table):
            return table
    inside = tuple(dict.fromkeys(p for table in _TABLES for p in table if grid.contains(p)))
    if inside:
        return inside
    latitude, longitude = grid.latitudes[grid.shape[0] // 2], grid.longitudes[grid.shape[1] // 2]
    return (Place("the middle of the domain", latitude, (longitude + 180) % 360 - 180),)
