"""The benchmark's numbers as tidy rows, files, and a table to read at a terminal."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ..cache import atomic_write
from .outcome import REFERENCE, Outcome
from .scores import SCORES, difference

ALL = "all"


def model_name(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    """The architecture, and the seed where there are several."""
    several = sum(o.architecture == outcome.architecture for o in outcomes) > 1
    return f"{outcome.architecture}, seed {outcome.seed}" if several else outcome.architecture


def summary_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row a model, estimator, score, topic and lead (days), "all" standing for the mean over them.

    `difference` is to the ensemble's score on the same cases, higher is better; its standard error comes from a
    block bootstrap over starts. Models that share their starts and quantities also get a mean over all of them.
    """
    rows = []
    for outcome in outcomes:
        rows += list(_rows(model_name(outcome, outcomes), [outcome]))
    if len(outcomes) > 1 and len({(o.times.tobytes(), o.quantities) for o in outcomes}) == 1:
        rows += list(_rows("all models", outcomes))
    return rows


def _rows(model: str, outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    first = outcomes[0]
    leads = np.array([q.lead / first.steps_per_day for q in first.quantities])
    topics = np.array([q.topic for q in first.quantities])
    groups: list[tuple[str, str, np.ndarray]] = []
    for topic in (ALL, *dict.fromkeys(topics.tolist())):
        for lead in (ALL, *sorted(set(leads.tolist()))):
            chosen = np.flatnonzero(
                ((topics == topic) | (topic == ALL)) & ((leads == lead) if lead != ALL else True)
            )
            if len(chosen):
                groups.append((topic, lead if lead == ALL else f"{lead:g}", chosen))
    for name, estimate in first.estimates.items():
        for score in SCORES:
            own = np.mean([getattr(o.scores[name], score) for o in outcomes], axis=0)
            reference = np.mean([getattr(o.scores[REFERENCE], score) for o in outcomes], axis=0)
            for topic, lead, chosen in groups:
                found = difference(own, reference, chosen)
                yield {
                    "model": model,
                    "estimator": name,
                    "kind": estimate.kind,
                    "score": score,
                    "topic": topic,
                    "lead_days": lead,
                    "quantities": len(chosen) * len(outcomes),
                    "value": found.value,
                    "ensemble": found.reference,
                    "difference": found.difference,
                    "standard_error": found.standard_error,
                }


def quantity_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row a model, estimator and quantity, with the three scores and what validation chose."""
    rows = []
    for outcome in outcomes:
        for name, estimate in outcome.estimates.items():
            for k, q in enumerate(outcome.quantities):
                row: dict[str, Any] = {
                    "model": model_name(outcome, outcomes),
                    "estimator": name,
                    "quantity": q.name,
                    "topic": q.topic,
                    "place": q.place,
                    "lead_days": q.lead / outcome.steps_per_day,
                    "unit": q.unit,
                    "chosen": estimate.chosen[k] if estimate.chosen else None,
                    "alpha": float(np.asarray(estimate.noise.alpha)[k]),
                    "beta": float(np.asarray(estimate.noise.beta)[k]),
                }
                for score in SCORES:
                    found = difference(
                        getattr(outcome.scores[name], score),
                        getattr(outcome.scores[REFERENCE], score),
                        np.array([k]),
                    )
                    row[score] = found.value
                    row[f"{score}_difference"] = found.difference
                    row[f"{score}_standard_error"] = found.standard_error
                rows.append(row)
    return rows


def cost_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Costs of inference in seconds and forward rollouts a start, and of training in seconds."""
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        model = model_name(outcome, outcomes)
        rows += [
            {
                "model": model,
                "stage": "inference",
                "what": cost.name,
                "quantities": cost.quantities,
                "seconds": cost.seconds,
                "rollouts": cost.rollouts,
            }
            for cost in outcome.costs
        ]
        for what, seconds in outcome.training.items():
            rows.append({"model": model, "stage": "training", "what": what, "seconds": seconds})
    return rows


def write_tables(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """summary, quantities, skill and costs as CSV, and the first two as parquet besides."""
    import pandas as pd

    tables = {
        "summary": summary_rows(outcomes),
        "quantities": quantity_rows(outcomes),
        "costs": cost_rows(outcomes),
        "skill": [{"model": model_name(o, outcomes), **row} for o in outcomes for row in o.skill],
    }
    written = []
    for name, rows in tables.items():
        path = folder / f"{name}.csv"
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with atomic_write(path) as temporary, open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        written.append(path)
    for name in ("summary", "quantities"):
        path = folder / f"{name}.parquet"
        with atomic_write(path) as temporary:
            pd.DataFrame(tables[name]).to_parquet(temporary)
        written.append(path)
    return written


def show(outcomes: Sequence[Outcome]) -> Table:
    """Differences to the ensemble's scores, averaged over all quantities, with standard errors."""
    rows = [r for r in summary_rows(outcomes) if r["topic"] == ALL and r["lead_days"] == ALL]
    model = rows[-1]["model"]
    table = Table(
        title=f"Scores on the hold-out years less the ensemble's ({model}; higher is better)",
        title_justify="left",
    )
    table.add_column("estimator")
    for title in ("removal AUC", "correlation", "log-likelihood"):
        table.add_column(title, justify="right")
    for name in dict.fromkeys(r["estimator"] for r in rows):
        own = {r["score"]: r for r in rows if r["estimator"] == name and r["model"] == model}
        cells = [
            f"{r['value']:.3f}"
            if name == REFERENCE
            else f"{r['difference']:+.3f} ± {r['standard_error']:.3f}"
            for r in (own[score] for score in SCORES)
        ]
        table.add_row(f"{name} (its scores)" if name == REFERENCE else name, *cells)
    return table
