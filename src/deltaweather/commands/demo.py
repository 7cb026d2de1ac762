"""`deltaweather demo`: the whole benchmark on ten years of Paris, in minutes and without a download."""

import argparse
from pathlib import Path

from ..benchmark import demo_settings
from ..data import open_dataset
from .benchmark import benchmark


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deltaweather demo`."""
    parser.add_argument("--out", type=Path, default=Path("out/weather-demo"), help="folder for results")
    parser.add_argument("--members", type=int, default=10, help="members of the ensemble (default 10)")


def run(arguments: argparse.Namespace) -> int:
    """Train, ask, score, report."""
    benchmark(
        open_dataset(),
        demo_settings(arguments.members),
        arguments.out,
        title="How sure is a forecast for Paris?",
        command="deltaweather demo",
        notes=(
            "A small network on a single point: it shows the machinery, and its scores are those of a small network.",
            "Hyper-parameters, α and β were chosen on the validation years and scored once on the hold-out years.",
        ),
    )
    return 0
