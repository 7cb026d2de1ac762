"""`deltaweather info`: what a record holds, what was found in it, and what could be asked of it."""

import argparse

from deltaweather.data import Dataset, open_dataset
from deltaweather.data.open import Split
from deltaweather.quantities import default_quantities

SPLITS: tuple[str, ...] = ("auto", "paper", "fractions")


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that choose a record, shared by all commands that read one."""
    parser.add_argument(
        "--data",
        default=None,
        help="NetCDF file, pattern of files, or Zarr store, local or remote; default the Paris record",
    )
    parser.add_argument("--variables", default=None, help="names separated by commas; default all")
    parser.add_argument("--levels", default=None, help="pressure levels separated by commas; default all")
    parser.add_argument("--years", dest="years_kept", default=None, help="first-last, for instance 1979-2021")
    parser.add_argument("--resolution", type=float, default=None, help="average to cells of so many degrees")
    parser.add_argument("--split", choices=SPLITS, default="auto", help="how years train, validate and test")


def open_from(arguments: argparse.Namespace) -> Dataset:
    """The record that the shared options choose."""
    split: Split = arguments.split
    return open_dataset(
        arguments.data,
        variables=None if arguments.variables is None else _words(arguments.variables),
        levels=None if arguments.levels is None else [float(w) for w in _words(arguments.levels)],
        years=None if arguments.years_kept is None else _years(arguments.years_kept),
        resolution=arguments.resolution,
        split=split,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deltaweather info`."""
    add_data_arguments(parser)
    parser.add_argument("--quantities", action="store_true", help="list the quantities of interest too")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary of a record."""
    dataset = open_from(arguments)
    print(dataset.summary())
    for split in ("train", "validation", "test"):
        try:
            count = len(dataset.starts(split, steps=5 * dataset.steps_per_day))
        except ValueError:  # a short record: worth knowing, no reason to stop
            count = 0
        print(f"{split}: {count} starts of a forecast of 5 days")
    if dataset.attribution:
        print("\n" + dataset.attribution.strip())
    if arguments.quantities:
        table = default_quantities(dataset)
        print(f"\n{len(table)} quantities of interest:")
        for q in table:
            print(f"  {q.name} ({q.unit}){f' - {q.note}' if q.note else ''}")
    return 0


def _words(text: str) -> list[str]:
    return [w.strip() for w in text.split(",") if w.strip()]


def _years(text: str) -> tuple[int | None, int | None]:
    first, dash, last = text.strip().partition("-")
    try:
        if not dash:
            return int(first), int(first)
        return (int(first) if first else None), (int(last) if last else None)
    except ValueError:
        raise ValueError(
            f"Years are given as first-last, for instance 1979-2021, 2018- or 2020, but {text!r} was given."
        ) from None
