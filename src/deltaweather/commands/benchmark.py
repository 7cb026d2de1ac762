"""`deltaweather benchmark`: which estimator of a forecast's uncertainty is worth its price, on your own record."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ..benchmark import (
    Architecture,
    BenchmarkSettings,
    Outcome,
    demo_settings,
    grid_settings,
    result_folder,
    run_benchmark,
)
from ..benchmark.table import show, write_tables
from ..data import Dataset
from ..info import add_data_arguments, open_from
from ..report import report_payload, write_report
from ..training_config import Stage

MODELS = ("site", "mesh", "convolution")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deltaweather benchmark`."""
    add_data_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("out/weather-benchmark"), help="folder for results")
    parser.add_argument("--models", default=None, help=f"of {', '.join(MODELS)}, separated by commas")
    parser.add_argument("--members", type=int, default=10, help="members of the ensemble (default 10)")
    parser.add_argument("--seeds", type=int, default=1, help="base models, each judged by itself (default 1)")
    parser.add_argument("--every", type=int, default=4, help="steps between starts (default 4: one a day)")
    parser.add_argument(
        "--updates", type=int, default=None, help="batches of the first stage of training, for a trial run"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run all stages, print the table, write tables and report."""
    dataset = open_from(arguments)
    settings = chosen_settings(arguments, dataset)
    benchmark(dataset, settings, arguments.out, title=f"Uncertainty of forecasts: {dataset.name}")
    return 0


def chosen_settings(arguments: argparse.Namespace, dataset: Dataset) -> BenchmarkSettings:
    """Presets for the kind of record, changed by the options."""
    preset = demo_settings(arguments.members) if dataset.kind == "site" else grid_settings(arguments.members)
    known = {a.name: a for a in (*grid_settings().architectures, *demo_settings().architectures)}
    architectures = preset.architectures
    if arguments.models is not None:
        names = [w.strip() for w in arguments.models.split(",") if w.strip()]
        unknown = [n for n in names if n not in known]
        if unknown or not names:
            raise ValueError(f"--models names {unknown or 'nothing'}; choose among {', '.join(MODELS)}.")
        architectures = tuple(known[n] for n in names)
    if arguments.updates is not None:
        if arguments.updates < 1:
            raise ValueError(f"--updates is at least 1, but {arguments.updates} was given.")
        architectures = tuple(_shortened(a, arguments.updates) for a in architectures)
    # Two weeks of neighbouring starts are drawn together, however far apart they lie.
    block = max(2, round(14 * dataset.steps_per_day / arguments.every))
    return replace(
        preset,
        architectures=architectures,
        seeds=arguments.seeds,
        validation_every=arguments.every,
        test_every=arguments.every,
        block_length=block,
    )


def _shortened(architecture: Architecture, updates: int) -> Architecture:
    """With one short stage of training."""
    first = Stage(updates, 1, architecture.training.stages[0].learning_rate)
    return replace(architecture, training=replace(architecture.training, stages=(first,)))


def benchmark(
    dataset: Dataset,
    settings: BenchmarkSettings,
    folder: Path,
    *,
    title: str,
    notes: Sequence[str] = (),
    command: str | None = None,
) -> list[Outcome]:
    """All stages, with what is going on told on the error stream; results under `folder`."""
    console, out = Console(stderr=True), Console()
    outcomes = run_benchmark(
        dataset,
        settings,
        result_folder(folder),
        say=lambda line: console.print(line, style="dim", highlight=False),
        progress=console.is_terminal,
    )
    written = write_tables(folder, outcomes)
    made = "deltaweather " + shlex.join(sys.argv[1:]) if command is None else command
    page = write_report(
        folder / "report.html", report_payload(dataset, outcomes, title=title, command=made, notes=notes)
    )
    out.print(show(outcomes))
    out.print(f"Report: {page}", soft_wrap=True, highlight=False)
    out.print(f"Tables: {', '.join(p.name for p in written)} beside it", soft_wrap=True, highlight=False)
    return outcomes
