"""`deltaweather forecast`: a forecast for a place with its bands, and how much of them is the model's own ignorance."""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ..bands import LEVEL, Band, fit_bands, forecast_bands, summary
from ..benchmark import demo_settings, grid_settings, result_folder
from ..benchmark.members import Workshop, on_device
from ..benchmark.settings import BenchmarkSettings
from ..data import Dataset
from ..grid import Place
from ..info import add_data_arguments, open_from
from ..prepare import prepare
from ..quantities import Quantity, site_quantities


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deltaweather forecast`."""
    add_data_arguments(parser)
    parser.add_argument(
        "--at", default="48.85,2.35", help='latitude and longitude, for instance "48.85,2.35"'
    )
    parser.add_argument("--days", type=int, default=5, help="days ahead, 1 to 5 (default 5)")
    parser.add_argument(
        "--start", default=None, help="when the forecast begins (default: the last day that can be checked)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/weather-demo"), help="folder with the trained model, or for it"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train if need be, forecast, print."""
    place = parse_place(arguments.at)
    if not 1 <= arguments.days <= 5:
        raise ValueError(f"--days lies between 1 and 5, but {arguments.days} was given.")
    dataset = open_from(arguments)
    dataset.grid.nearest(place)  # says at once if the place lies outside
    console = Console(stderr=True)
    shop = workshop(dataset, arguments.out, progress=console.is_terminal)
    table = tuple(
        q
        for q in site_quantities(dataset, [place])
        if q.lead <= arguments.days * dataset.steps_per_day and q.topic != "heating"
    )
    start = start_index(dataset, arguments.start, shop.architecture.model.history, max(q.lead for q in table))
    console.print("the model (trained once, then kept)", style="dim")
    model = on_device(shop.base().value.model)
    console.print("its uncertainty, fitted on the validation years (once, then kept)", style="dim")
    inputs = shop.inputs(bands=[(q.name, q.lead) for q in table], version=1)
    fitted = shop.cache.stage("bands", lambda: fit_bands(shop, model, table), inputs)
    bands = forecast_bands(shop, model, fitted, table, start)
    out = Console()
    out.print(f"From {dataset.times[start]!s:.16} UTC at {place}, by {dataset.name}", highlight=False)
    out.print(show(bands))
    shares = ", ".join(f"{topic} {share:.0%}" for topic, share in summary(bands).items())
    out.print(f"Epistemic share of the variance, mean by topic: {shares}", highlight=False)
    if dataset.attribution:
        out.print(dataset.attribution.strip(), style="dim", highlight=False)
    return 0


def parse_place(text: str) -> Place:
    """From "latitude,longitude".

    >>> parse_place("48.85, 2.35").latitude
    48.85
    """
    try:
        latitude, longitude = (float(word) for word in text.split(","))
    except ValueError:
        raise ValueError(
            f'--at takes a latitude and a longitude in degrees, for instance "48.85,2.35", but {text!r} was given.'
        ) from None
    if not (-90 <= latitude <= 90 and -180 <= longitude < 360):
        raise ValueError(
            f"Latitudes lie within -90..90 and longitudes within -180..360 degrees, but {text!r} was given."
        )
    return Place("the place", latitude, longitude)


def workshop(dataset: Dataset, folder: Path, *, progress: bool) -> Workshop:
    """The first architecture that suits the record, as the benchmark trains it: its model is found again."""
    settings: BenchmarkSettings = demo_settings() if dataset.kind == "site" else grid_settings()
    architecture = settings.architectures[0]
    task, sizes = prepare(
        dataset, architecture.model, validation_steps=architecture.training.validation_steps
    )
    steps = max(s.steps for s in architecture.training.stages)
    starts = dataset.starts("train", steps=steps, history=architecture.model.history)
    cache = result_folder(folder)
    return Workshop(dataset, task, sizes, starts, architecture, settings, cache, 0, progress)


def start_index(dataset: Dataset, wanted: str | None, history: int, steps: int) -> int:
    """The time of the record at which a forecast begins, with what it needs before and after it."""
    possible = dataset.starts("all", steps=steps, history=history)
    if wanted is None:
        return int(possible[-1])
    try:
        time = np.datetime64(wanted)
    except ValueError:
        raise ValueError(f"--start is a date such as 2009-07-14, but {wanted!r} was given.") from None
    found = possible[np.argmin(np.abs(dataset.times[possible] - time))]
    if abs(dataset.times[found] - time) > np.timedelta64(1, "D"):
        raise ValueError(
            f"There is no start within a day of {wanted}: forecasts can begin from "
            f"{dataset.times[possible[0]]!s:.10} to {dataset.times[possible[-1]]!s:.10}."
        )
    return int(found)


def show(bands: list[Band]) -> Table:
    """One row a quantity."""
    table = Table()
    table.add_column("quantity")
    for title in ("forecast", f"{LEVEL:.0%} interval", "± model's own", "± whole", "epistemic", "happened"):
        table.add_column(title, justify="right")
    for band in bands:
        value, low, high = (shown(band.quantity, x) for x in (band.forecast, band.low, band.high))
        truth = "" if band.happened is None else shown(band.quantity, band.happened)
        unit = "°C" if band.quantity.unit == "K" else band.quantity.unit
        table.add_row(
            f"{band.quantity.name} ({unit})",
            value,
            f"{low} to {high}",
            f"{band.own:.2g}",
            f"{band.whole:.2g}",
            f"{band.share:.0%}",
            truth,
        )
    return table


def shown(quantity: Quantity, value: float) -> str:
    """In degrees Celsius where the unit is kelvin; rain and cubed winds are not below zero."""
    if quantity.unit == "K":
        return f"{value - 273.15:.1f}"
    return f"{max(value, 0.0):.3g}"
