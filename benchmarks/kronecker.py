"""The price of Kronecker-factored covariances, against one plain batched gradient."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import deltavariance as dv

from .core.measure import plain_gradient
from .core.networks import NETWORKS, Network
from .harness import Cache, Row, Timing, compiled, describe, interleaved, once, ratio, verdict, write
from .harness.machine import code
from .harness.results import table

TITLE = "The price of Kronecker factors"
TEXT = (
    "Ratios to one plain batched gradient over the same data, measured in the same process in float32: medians over"
    " interleaved repetitions. `fit` is `dv.fisher` with `dv.Kronecker()`, its eigendecomposition apart; `variance` is"
    " `dv.variance` with the Σ that results (EKFAC's Σ has the same form, so it costs the same)."
)


@dataclass(frozen=True)
class Asked:
    """The ratios asked for a network's fit and variances, where any are."""

    fit: float | None
    kfac: float | None
    ekfac: float | None


ASKED = {
    "mlp": Asked(2.0, 2.0, 2.3),
    "cnn": Asked(3.0, 1.6, None),
    "transformer": Asked(2.5, 1.6, None),
    "rollout": Asked(None, 2.0, None),
    "stacked": Asked(None, None, None),
    "graph": Asked(None, None, None),
}


def network(case: Network, seconds: float) -> list[Row]:
    """Fit and variances of one network."""
    asked = ASKED[case.name]
    u, params, z = case.build()
    gradient = compiled(plain_gradient(u), params, z)
    structures: dict[str, Any] = {
        "KFAC": dv.Kronecker(),
        "KFAC, split damping": dv.Kronecker(split_damping=True),
        "EKFAC": dv.EigenKronecker(),
    }
    fits = {name: dv.fisher(u, params, z, structure=structure) for name, structure in structures.items()}
    # An undecomposed copy each time would decompose again: here it is measured once, and then kept.
    decomposition = once(lambda: fits["KFAC"].inverse(damping=1e-6))
    sigmas = {name: F.inverse(damping=1e-6) for name, F in fits.items()}
    works: dict[str, Callable[[], Any]] = {
        "plain": lambda: gradient.call(params, z),
        "fit": lambda: dv.fisher(u, params, z, structure=dv.Kronecker()),
    }
    works |= {name: (lambda s=sigma: dv.variance(u, params, z, s)) for name, sigma in sigmas.items()}
    times = interleaved(works, seconds=seconds)
    base = times["plain"]
    limits = {"fit": asked.fit, "KFAC": asked.kfac, "KFAC, split damping": asked.kfac, "EKFAC": asked.ekfac}
    rows = [
        Row(
            case.title,
            "fit, time" if name == "fit" else f"variance with {name}, time",
            ratio(found, base),
            limits.get(name),
            _note(found, base),
        )
        for name, found in times.items()
        if name != "plain"
    ]
    note = f"{1e3 * decomposition:.0f} ms, in float64, once"
    return [*rows, Row(case.title, "eigendecomposition", decomposition / base.median, None, note)]


def _note(times: Timing, base: Timing) -> str:
    return f"{1e3 * times.median:.1f} ms against {1e3 * base.median:.1f} ms"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", action="append", choices=sorted(ASKED), help="only these; repeatable")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="measuring time for each case (default 20)"
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured with this code")


def main(arguments: argparse.Namespace) -> None:
    """Print each case as it is measured; write docs/results/kronecker.md and .json once all of them are."""
    cache = Cache("kronecker", f"{code()} {arguments.seconds:g}", fresh=arguments.fresh)
    rows: list[Row] = []
    for case in NETWORKS:
        if arguments.case and case.name not in arguments.case:
            continue
        start = time.perf_counter()
        found = cache.get(case.name, lambda case=case: network(case, arguments.seconds))
        rows += found
        print(f"{table(found)}\n{case.name}: {time.perf_counter() - start:.0f} s\n", flush=True)
    print(verdict(rows))
    if not arguments.case:
        page = write("kronecker", TITLE, TEXT, rows, describe("python -m benchmarks kronecker"))
        print(f"Written: {page.relative_to(page.parents[2])} and .json")
