"""The core table: the variance of any quantity, exactly, at the price of one gradient."""

import argparse
import time
from collections.abc import Callable

from ..harness import Cache, Row, describe, verdict, write
from ..harness.machine import code
from ..harness.results import table
from .measure import array_valued, dispatch, network
from .networks import NETWORKS
from .peers import laplax

TITLE = "The price of a variance"
TEXT = (
    "Ratios to one plain batched gradient, `jax.jit(jax.grad(lambda p: vmap(u, (None, 0))(p, Z).sum()))`,"
    " measured in the same process in float32: medians over interleaved repetitions of the public calls"
    " `dv.variance` and `dv.fisher`. Memory is the compiler's count of temporaries, by `compiled.memory_analysis()`."
)


def _measurements(seconds: float) -> dict[str, Callable[[], list[Row]]]:
    cases: dict[str, Callable[[], list[Row]]] = {
        case.name: (lambda case=case: network(case, seconds)) for case in NETWORKS
    }
    return cases | {
        "array": lambda: array_valued(seconds),
        "dispatch": lambda: dispatch(seconds),
        "laplax": lambda: laplax(seconds),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--case", action="append", choices=sorted(_measurements(0.0)), help="only these; repeatable"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="measuring time for each case (default 20)"
    )
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--fresh", action="store_true", help="measure again what was measured with this code")
    kept.add_argument("--keep", action="store_true", help="take what was measured, with whatever code")


def main(arguments: argparse.Namespace) -> None:
    """Print each case as it is measured; write docs/results/core.md and .json once all of them are."""
    cache = Cache(
        "core", None if arguments.keep else f"{code()} {arguments.seconds:g}", fresh=arguments.fresh
    )
    measurements = _measurements(arguments.seconds)
    rows: list[Row] = []
    for name in arguments.case or measurements:
        start = time.perf_counter()
        found = cache.get(name, measurements[name])
        rows += found
        print(f"{table(found)}\n{name}: {time.perf_counter() - start:.0f} s\n", flush=True)
    if any(row.asked is not None for row in rows):
        print(verdict(rows))
    if not arguments.case:
        words = "python -m benchmarks core" + (
            "" if arguments.seconds == 20 else f" --seconds {arguments.seconds:g}"
        )
        page = write("core", TITLE, TEXT, rows, describe(words, ["laplax"]))
        print(f"Written: {page.relative_to(page.parents[2])} and .json")
