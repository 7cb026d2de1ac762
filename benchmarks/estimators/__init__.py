"""Every estimator on six data sets and where the truth is known: quality, time, training time."""

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

import jax

from ..harness import Cache, Row, describe, verdict, write
from ..harness.machine import code
from ..harness.results import table
from .rivals import ENSEMBLE, GRADIENT, TUNED, UNTUNED, Fitted
from .sets import SETS, Set, likelihood
from .truth import study

TITLE = "Estimators of variance on six data sets"
TEXT = """Networks of two hidden layers of 24, trained to the maximum of the posterior under a standard normal prior.
All estimators are scored on the same errors of the same network, after each had α + βν fitted on validation cases. A
score is the mean of three: 1 − (error left as the most uncertain cases are removed, over the mean error), Pearson's
correlation of |error| with the standard deviation, and the Laplace log-likelihood. What is shown as *improvement* is
that score less the score of an ensemble of 10, with its standard error over paired draws of test cases. "In standard
errors" below −2 would be a significant loss. Time is that of a variance over the ensemble's, training time that of
fitting Σ over that of training nine more networks. In the simulated sets the targets of held-out cases are free of
noise."""
TRUTH = {"truth-1": 1, "truth-10": 10}


def run(one: Set) -> list[Row]:
    """All splits of a set; its quantities one after another."""
    tables: dict[str, list[Any]] = {}
    fits: list[float] = []
    fitted = None
    for number, part in enumerate(one.parts()):
        # The second half of a fold has the same training data, and so the same networks.
        if fitted is None or fitted.part.x.shape != part.x.shape or (fitted.part.x != part.x).any():
            fitted = Fitted(likelihood(one.kind, part), one.outputs, part, jax.random.key(number))
            fits.append(fitted.fit_seconds / fitted.training_seconds)
        else:
            fitted.part = part
        for name, found in fitted.compare(one.kind, timing=5 if number == 0 else 0).items():
            tables.setdefault(name, []).append(found)
    rows: list[Row] = []
    for name, found in tables.items():
        rows += _rows(f"{one.title}, {name}", found)
    rows.append(Row(one.title, "training time, Σ over ensemble", min(fits), 1 / 8))
    return rows


def _rows(case: str, tables: Sequence[Any]) -> list[Row]:
    rows = []
    for entry in tables[0]:
        name = entry.name
        gain, error = _mean([found[name].improvement for found in tables])
        shown = {what: _mean([getattr(found[name], what) for found in tables])[0] for what in SCORES}
        note = f"± {error:.3f}; " + ", ".join(f"{text} {shown[what]:.3f}" for what, text in SCORES.items())
        note += f"; {entry.time:.1f} passes"
        rows.append(Row(case, name, gain, 0.0 if name == TUNED else None, note, at_least=True))
        if name == UNTUNED:
            rows.append(Row(case, f"{name}, in standard errors", gain / error, -2.0, at_least=True))
    over = [found[UNTUNED].combined.value - found[GRADIENT].combined.value for found in tables]
    rows.append(Row(case, f"{UNTUNED} ahead of Σ = I by", sum(over) / len(over), 0.0, at_least=True))
    first = tables[0]
    rows.append(
        Row(case, "time of a variance over the ensemble's", first[UNTUNED].time / first[ENSEMBLE].time, 1 / 3)
    )
    return rows


SCORES = {"removal_auc": "error left", "correlation": "correlation", "log_likelihood": "log-likelihood"}


def _mean(scores: Sequence[Any]) -> tuple[float, float]:
    """The mean over tests that share no case, and its standard error."""
    value = sum(score.value for score in scores) / len(scores)
    return value, math.sqrt(sum(score.standard_error**2 for score in scores)) / len(scores)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [*(one.name for one in SETS), *TRUTH]
    parser.add_argument("--case", action="append", choices=names, help="only these; repeatable")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured with this code")
    parser.add_argument(
        "--keep", action="store_true", help="take what was measured before, whatever the code was"
    )


def main(arguments: argparse.Namespace) -> None:
    """Print each set as it is done; write docs/results/estimators.md and .json once all of them are."""
    cache = Cache("estimators", None if arguments.keep else code(), fresh=arguments.fresh)
    works = {one.name: (lambda one=one: run(one)) for one in SETS}
    works |= {name: (lambda times=times: study(times)) for name, times in TRUTH.items()}
    rows: list[Row] = []
    for name, work in works.items():
        if arguments.case and name not in arguments.case:
            continue
        start = time.perf_counter()
        found = cache.get(name, work)
        rows += found
        print(f"{table(found)}\n{name}: {time.perf_counter() - start:.0f} s\n", flush=True)
    print(verdict(rows))
    if not arguments.case:
        page = write("estimators", TITLE, TEXT, rows, describe("python -m benchmarks estimators"))
        print(f"Written: {page.relative_to(page.parents[2])} and .json")
