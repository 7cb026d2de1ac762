"""`deltaweather train`: a forecaster from a record, and what it is worth beside forecasts that need no network."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..benchmark import result_folder
from ..benchmark.members import Workshop, on_device
from ..benchmark.skills import skill_rows
from ..info import add_data_arguments, open_from
from ..prepare import prepare
from .benchmark import chosen_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deltaweather train`."""
    add_data_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("out/weather-benchmark"), help="folder for results")
    parser.add_argument("--models", default=None, help="of site, mesh, convolution, separated by commas")
    parser.add_argument("--updates", type=int, default=None, help="batches of one stage, for a trial run")
    parser.set_defaults(members=10, seeds=1, every=4)


def run(arguments: argparse.Namespace) -> int:
    """Train the base models that a benchmark in the same folder would use, and print their skill."""
    dataset = open_from(arguments)
    settings = chosen_settings(arguments, dataset)
    console, out = Console(stderr=True), Console()
    for architecture in settings.architectures:
        task, sizes = prepare(
            dataset, architecture.model, validation_steps=architecture.training.validation_steps
        )
        history, steps = architecture.model.history, 5 * dataset.steps_per_day
        starts = dataset.starts(
            "train", steps=max(s.steps for s in architecture.training.stages), history=history
        )
        shop = Workshop(
            dataset,
            task,
            sizes,
            starts,
            architecture,
            settings,
            result_folder(arguments.out),
            0,
            console.is_terminal,
        )
        trained = shop.base()
        held_out = dataset.starts("test", steps=steps, history=history, every=settings.test_every)
        rows = skill_rows(dataset, task, on_device(trained.value.model), held_out, steps=steps)
        out.print(
            f"{architecture.name}: validation loss {trained.value.validation_loss:.4f}, {trained.seconds:.0f} s"
        )
        out.print(_show(rows))
    return 0


def _show(rows: list[dict[str, float | str]]) -> Table:
    """Squared error over climatology's at 1, 2, 3 and 5 days."""
    days = (24.0, 48.0, 72.0, 120.0)
    table = Table(
        title="Squared error over climatology's, hold-out years (1: no skill)", title_justify="left"
    )
    table.add_column("variable")
    table.add_column("forecast")
    for hours in days:
        table.add_column(f"{hours / 24:g} d", justify="right")
    found = {(r["channel"], r["forecast"], r["lead_hours"]): r["relative_mse"] for r in rows}
    for channel in dict.fromkeys(r["channel"] for r in rows):
        for forecast in dict.fromkeys(r["forecast"] for r in rows):
            cells = [
                f"{found[channel, forecast, h]:.3f}" if (channel, forecast, h) in found else "" for h in days
            ]
            table.add_row(str(channel), str(forecast), *cells)
    return table
