"""What the page shows, as plain numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import deltavariance as dv

from ..benchmark.costs import break_even
from ..benchmark.outcome import REFERENCE, Outcome
from ..benchmark.table import ALL, model_name, summary_rows
from ..data import Dataset

SHOWN = 150  # starts of the forecast plot
FORECASTS = 63  # quantities of the forecast plot
FRACTIONS = np.arange(0.0, 0.96, 0.05)
BINS = 8


def report_payload(
    dataset: Dataset, outcomes: Sequence[Outcome], *, title: str, command: str, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything the page needs; nothing else is read when it is opened."""
    rows = summary_rows(outcomes)
    return rounded(
        {
            "title": title,
            "command": command,
            "notes": list(notes),
            "record": dataset.summary().splitlines()[:2],
            "attribution": dataset.attribution.strip(),
            "reference": REFERENCE,
            "models": list(dict.fromkeys(r["model"] for r in rows)),
            "estimators": [{"name": n, "kind": e.kind} for n, e in outcomes[0].estimates.items()],
            "summary": [
                [
                    r["model"],
                    r["estimator"],
                    r["score"],
                    r["topic"],
                    r["lead_days"],
                    r["value"],
                    r["difference"],
                    r["standard_error"],
                    r["quantities"],
                ]
                for r in rows
            ],
            "runs": {model_name(o, outcomes): _run(o) for o in outcomes},
        }
    )


def _run(outcome: Outcome) -> dict[str, Any]:
    topics = (ALL, *dict.fromkeys(q.topic for q in outcome.quantities))
    return {
        "parameters": outcome.size,
        "starts": len(outcome.times),
        "first": str(outcome.times[0])[:10],
        "last": str(outcome.times[-1])[:10],
        "quantities": [
            {
                "name": q.name,
                "topic": q.topic,
                "place": q.place,
                "lead": q.lead / outcome.steps_per_day,
                "unit": q.unit,
                "note": q.note,
            }
            for q in outcome.quantities
        ],
        "skill": outcome.skill,
        "costs": [[c.name, c.quantities, c.seconds, c.rollouts] for c in outcome.costs],
        "estimator_costs": estimator_costs(outcome),
        "break_even": break_even(outcome.costs),
        "training": outcome.training,
        "residual_correlation": outcome.residual_correlation,
        "removal": {name: _removal(outcome, name, topics) for name in outcome.estimates},
        "sizes": {name: _sizes(outcome, name, topics) for name in outcome.estimates},
        "forecasts": _forecasts(outcome),
    }


def estimator_costs(outcome: Outcome) -> Mapping[str, float]:
    """Forward rollouts a start for all quantities. Estimators that draw k forecasts cost k members' share of the
    measured ensemble; all diagonal Σ cost the same."""
    by_name = {c.name: c.rollouts for c in outcome.costs}
    count, ensemble = next(
        (int(name.rpartition(" ")[2]), cost)
        for name, cost in by_name.items()
        if name.startswith("ensemble of ")
    )
    delta = by_name["Delta, diagonal, all quantities"]
    costs = {}
    for name, estimate in outcome.estimates.items():
        if estimate.kind == "delta" or name == "gradient norm":
            costs[name] = delta
        elif estimate.kind == "baseline":
            costs[name] = 1.0
        elif name == "ensemble of 3":
            costs[name] = 3 / count * ensemble
        else:
            costs[name] = ensemble
    costs.pop("Delta, EKFAC", None)  # costs more than a diagonal, and was not measured
    return costs


def _removal(outcome: Outcome, name: str, topics: Sequence[str]) -> dict[str, list[float]]:
    """The error left as the most uncertain starts are removed, in units of the error of all; by topic."""
    estimate = outcome.estimates[name]
    errors = outcome.judged.errors_test if estimate.errors is None else estimate.errors
    curve = dv.metrics.sparsification_curve(errors, estimate.test, fractions=FRACTIONS)
    relative = np.asarray(curve.error) / np.asarray(curve.random)
    return {t: relative[:, _of(outcome, t)].mean(1).tolist() for t in topics}


def _sizes(outcome: Outcome, name: str, topics: Sequence[str]) -> dict[str, list[list[float]]]:
    """Predicted against actual root mean square errors, in bins of the prediction; means over a topic's quantities."""
    estimate = outcome.estimates[name]
    errors = outcome.judged.errors_test if estimate.errors is None else estimate.errors
    total = np.asarray(estimate.noise.total(estimate.test))
    order = np.argsort(total, axis=0, kind="stable")
    pairs = np.array(
        [
            [
                [np.sqrt(np.mean(total[chunk, k])), np.sqrt(np.mean(errors[chunk, k] ** 2))]
                for chunk in np.array_split(order[:, k], BINS)
            ]
            for k in range(errors.shape[1])
        ]
    )
    return {t: pairs[_of(outcome, t)].mean(0).tolist() for t in topics}


def _forecasts(outcome: Outcome) -> dict[str, Any]:
    """Forecast, truth, and standard deviations of the model's part and of the whole, for the last starts."""
    chosen = range(min(FORECASTS, len(outcome.quantities)))
    last = slice(max(0, len(outcome.times) - SHOWN), None)
    wanted = [n for n in ("Delta, diagonal by layer", "Delta, EKFAC", REFERENCE) if n in outcome.estimates]
    bands = {}
    for name in wanted:
        noise, own = outcome.calibrated(name)
        bands[name] = {
            "own": [np.sqrt(own[last, k]).tolist() for k in chosen],
            "all": [np.sqrt(noise[last, k] + own[last, k]).tolist() for k in chosen],
        }
    return {
        "times": [str(t)[:10] for t in outcome.times[last]],
        "forecast": [outcome.forecast[last, k].tolist() for k in chosen],
        "target": [outcome.target[last, k].tolist() for k in chosen],
        "bands": bands,
    }


def _of(outcome: Outcome, topic: str) -> np.ndarray:
    return np.array([k for k, q in enumerate(outcome.quantities) if topic in (ALL, q.topic)])


def rounded(value: Any, digits: int = 4) -> Any:
    """Numbers to a few significant digits, so that the page stays small; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(k): rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v, digits) for v in value]
    if isinstance(value, float | np.floating):
        number = float(value)
        return float(f"{number:.{digits}g}") if math.isfinite(number) else None
    if isinstance(value, np.integer):
        return int(value)
    return value
