"""Quantities of interest: what a person asks of a forecast, as functions of its trajectory.

A quantity is a pure JAX function of the trajectory in physical units `[steps, lat, lon, channels]` (entry
k is the state k+1 steps after the start) and returns a number. It carries its lead, so that a rollout that
serves only early quantities can stop early.

Extending the table takes a function and a name:

>>> from deltaweather.data import open_dataset
>>> paris = open_dataset()
>>> t = paris.channel("2m_temperature")
>>> frost = Quantity("first-night frost", "frost", "Paris", 4, "K", lambda x: 273.15 - x[:4, 0, 0, t].min())
>>> table = (*default_quantities(paris), frost)
>>> len(table), table[-1].lead
(22, 4)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltaweather.data.dataset import Dataset
from deltaweather.grid import Edge, Place, Square
from deltaweather.places import default_places

Trajectory = Float[Array, "steps lat lon channels"]

DAYS = (1, 2, 3, 4, 5)
INRADII = (1, 2, 3, 4, 5, 6)
MILLIMETRES = 1000.0
RAIN, TEMPERATURE = "total_precipitation_6hr", "2m_temperature"
WIND = ("10m_u_component_of_wind", "10m_v_component_of_wind")


@dataclass(frozen=True)
class Quantity:
    """A named number to be had from a trajectory.

    `lead` is the number of steps the function needs: it reads `trajectory[:lead]` only, and is given no
    more. `note` says what a reader of the result should know (for instance that a square was clipped).
    """

    name: str
    topic: str
    place: str
    lead: int
    unit: str
    function: Callable[[Trajectory], Float[Array, ""]] = field(repr=False)
    note: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("A quantity needs a name.")
        if self.lead < 1:
            raise ValueError(f"The lead of {self.name!r} is at least 1 step, but {self.lead} was given.")

    def __call__(
        self, trajectory: Trajectory | Float[np.ndarray, "steps lat lon channels"]
    ) -> Float[Array, ""]:
        """The number; the trajectory may be longer than the lead."""
        if trajectory.shape[0] < self.lead:
            raise ValueError(
                f"{self.name!r} needs a trajectory of {self.lead} steps, but the one given has "
                f"{trajectory.shape[0]}."
            )
        value = jnp.asarray(self.function(jnp.asarray(trajectory)[: self.lead]))
        if value.shape != ():
            raise ValueError(
                f"The function of {self.name!r} must return one number, but it returned an array of shape "
                f"{value.shape}."
            )
        return value


def evaluate(
    quantities: Sequence[Quantity], trajectory: Trajectory | Float[np.ndarray, "steps lat lon channels"]
) -> Float[Array, "quantities"]:
    """All quantities of one trajectory; differentiable, and under `vmap` for many.

    One rollout serves all of them: the cost is that of reading a few cells.
    """
    if not quantities:
        raise ValueError("There are no quantities to evaluate.")
    return jnp.stack([q(trajectory) for q in quantities])


def longest_lead(quantities: Sequence[Quantity]) -> int:
    """The steps a rollout needs to serve all of them."""
    return max(q.lead for q in quantities)


def by_lead(quantities: Sequence[Quantity]) -> Mapping[int, tuple[int, ...]]:
    """Positions of the quantities that share a lead, shortest first: cotangents of one lead end together."""
    leads = sorted({q.lead for q in quantities})
    return {lead: tuple(k for k, q in enumerate(quantities) if q.lead == lead) for lead in leads}


def default_quantities(dataset: Dataset, places: Sequence[Place] | None = None) -> tuple[Quantity, ...]:
    """21 quantities a place: the paper's table on a grid, the site table at a single point.

    On a regional domain squares that leave it are clipped to it, and their `note` says so: with 9 rows of
    cells there is no square of inradius 6. Use `paper_quantities` to refuse them instead.
    """
    if dataset.kind == "site":
        return site_quantities(dataset, places)
    on_edge: Edge = "clip" if dataset.kind == "regional" else "error"
    return paper_quantities(dataset, places, on_edge=on_edge)


def paper_quantities(
    dataset: Dataset,
    places: Sequence[Place] | None = None,
    *,
    days: Sequence[int] = DAYS,
    inradii: Sequence[int] = INRADII,
    on_edge: Edge = "error",
) -> tuple[Quantity, ...]:
    """The paper's four topics at every place; 5 + 5 + 5 + 6 = 21 a place.

    - rain: the six-hour sum that ends 1..5 days ahead, at the place's cell (mm);
    - wind: the third power of the wind speed 1..5 days ahead (m³ s⁻³);
    - rain area: rain averaged over squares of inradius 2..6 cells on the last day (inradius 1 is the cell
      itself, which is counted under rain);
    - heat: the highest temperature in squares of inradius 1..6 on the last day (K).
    """
    _check_days(days)
    places = default_places(dataset.grid) if places is None else tuple(places)
    return tuple(q for place in places for q in _paper_at(dataset, place, days, inradii, on_edge))


def _paper_at(
    dataset: Dataset, place: Place, days: Sequence[int], inradii: Sequence[int], on_edge: Edge
) -> Iterator[Quantity]:
    per_day = dataset.steps_per_day
    rain, heat = dataset.channel(RAIN), dataset.channel(TEMPERATURE)
    u, v = (dataset.channel(name) for name in WIND)
    point = dataset.grid.square(place, 1)
    for day in days:
        yield Quantity(
            f"rain at {place.name}, day {day}",
            "rain",
            place.name,
            day * per_day,
            "mm",
            area_mean(point, rain, MILLIMETRES),
        )
    for day in days:
        yield Quantity(
            f"wind cubed at {place.name}, day {day}",
            "wind",
            place.name,
            day * per_day,
            "m³ s⁻³",
            wind_cubed(point, u, v),
        )
    last = max(days)
    for topic, label, channel, unit in (
        ("rain area", "mean rain", rain, "mm"),
        ("heat", "highest temperature", heat, "K"),
    ):
        for inradius in inradii:
            if topic == "rain area" and inradius == 1:
                continue
            square = dataset.grid.square(place, inradius, on_edge)
            note = (
                f"clipped to the domain: {square.shape[0]} x {square.shape[1]} cells"
                if square.clipped
                else ""
            )
            take = (
                area_mean(square, channel, MILLIMETRES)
                if topic == "rain area"
                else area_maximum(square, channel)
            )
            yield Quantity(
                f"{label} within {inradius} of {place.name}, day {last}",
                topic,
                place.name,
                last * per_day,
                unit,
                take,
                note,
            )


def site_quantities(dataset: Dataset, places: Sequence[Place] | None = None) -> tuple[Quantity, ...]:
    """21 quantities of a single point, where squares would all be the same cell.

    Four topics of five days each: rain (sum of the day, mm), wind (mean of the day's cubed speed, m³ s⁻³),
    warmth (mean temperature of the day, K) and heat (the highest temperature of all days so far, K); and
    the heating needed over the five days (kelvin-hours below 18 °C).
    """
    places = default_places(dataset.grid) if places is None else tuple(places)
    return tuple(q for place in places for q in _site_at(dataset, place))


def _site_at(dataset: Dataset, place: Place) -> Iterator[Quantity]:
    n = dataset.steps_per_day
    rain, heat = dataset.channel(RAIN), dataset.channel(TEMPERATURE)
    u, v = (dataset.channel(name) for name in WIND)
    row, column = dataset.grid.nearest(place)

    def of_day(
        take: Callable[[Trajectory], Array], reduce: Callable[[Array], Array], day: int
    ) -> Callable[[Trajectory], Array]:
        return lambda x: reduce(take(x[(day - 1) * n : day * n, row, column]))

    for day in DAYS:
        yield Quantity(
            f"rain at {place.name}, day {day}",
            "rain",
            place.name,
            day * n,
            "mm",
            of_day(lambda x: x[..., rain] * MILLIMETRES, jnp.sum, day),
        )
    for day in DAYS:
        yield Quantity(
            f"mean wind cubed at {place.name}, day {day}",
            "wind",
            place.name,
            day * n,
            "m³ s⁻³",
            of_day(lambda x: speed_cubed(x[..., u], x[..., v]), jnp.mean, day),
        )
    for day in DAYS:
        yield Quantity(
            f"mean temperature at {place.name}, day {day}",
            "warmth",
            place.name,
            day * n,
            "K",
            of_day(lambda x: x[..., heat], jnp.mean, day),
        )
    for day in DAYS:
        yield Quantity(
            f"highest temperature at {place.name} to day {day}",
            "heat",
            place.name,
            day * n,
            "K",
            lambda x: jnp.max(x[:, row, column, heat]),
        )
    hours = 24 / n
    yield Quantity(
        f"heating at {place.name} to day {max(DAYS)}",
        "heating",
        place.name,
        max(DAYS) * n,
        "K h",
        lambda x: jnp.sum(jnp.maximum(291.15 - x[:, row, column, heat], 0.0)) * hours,
    )


def speed_cubed(u: Array, v: Array) -> Array:
    """`(u² + v²)^(3/2)`, with a gradient of zero in a calm."""
    squared = u**2 + v**2
    calm = squared == 0
    return jnp.where(calm, 0.0, jnp.where(calm, 1.0, squared) ** 1.5)


def area_mean(square: Square, channel: int, factor: float | int = 1.0) -> Callable[[Trajectory], Array]:
    """The area-weighted mean over a square in the last state, times a factor."""
    rows, columns = np.ix_(square.rows, square.columns)
    weights = np.asarray(square.weights, np.float32) * np.float32(factor)
    return lambda x: jnp.sum(weights * x[-1, rows, columns, channel])


def area_maximum(square: Square, channel: int) -> Callable[[Trajectory], Array]:
    """The highest value in a square in the last state."""
    rows, columns = np.ix_(square.rows, square.columns)
    return lambda x: jnp.max(x[-1, rows, columns, channel])


def wind_cubed(square: Square, u: int, v: int) -> Callable[[Trajectory], Array]:
    """The cubed wind speed averaged over a square in the last state."""
    rows, columns = np.ix_(square.rows, square.columns)
    weights = np.asarray(square.weights, np.float32)

    def take(x: Trajectory) -> Array:
        cells = x[-1, rows, columns]
        return jnp.sum(weights * speed_cubed(cells[..., u], cells[..., v]))

    return take


def _check_days(days: Sequence[int]) -> None:
    if len(days) == 0 or min(days) < 1:
        raise ValueError(f"Days are whole numbers from 1 on, but {list(days)} was given.")
