"""The benchmark: from a record to scores, stage by stage, each kept and never done twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

import deltavariance as dv

from ..cache import Cache
from ..data import Dataset
from ..prepare import prepare
from ..quantities import Quantity, default_quantities, longest_lead
from ..train import Trained
from .costs import measure_costs
from .curvatures import (
    adam_fisher,
    average_fisher,
    exact_fisher,
    model_fisher,
    spread,
    step_noise,
)
from .delta import damped_variances, diagonal_variances, plain_variances
from .estimates import Estimate, Judged, best_of, block_scaled, plain
from .members import Workshop, on_device, timed
from .outcome import REFERENCE, Asked, Outcome
from .question import Question, Start, ask, observed, starts_of
from .rivals import dropout_curves, ensemble_values, swag_variance
from .scores import Scored, draws_of, score
from .settings import Architecture, BenchmarkSettings
from .skills import skill_rows

VERSION = 2  # of what stages compute: raise it when a stage's meaning changes
Say = Callable[[str], None]


@dataclass(frozen=True)
class Cases:
    """Validation and hold-out starts behind each other, what was asked of them, and what happened."""

    question: Question
    starts: Start
    indices: np.ndarray
    validation: int
    target: np.ndarray


def run_benchmark(
    dataset: Dataset,
    settings: BenchmarkSettings,
    cache: Cache,
    *,
    quantities: Sequence[Quantity] | None = None,
    say: Say = lambda line: None,
    progress: bool = False,
) -> list[Outcome]:
    """Every architecture and seed in turn. A killed run continues with the stage that it was in."""
    table = tuple(default_quantities(dataset) if quantities is None else quantities)
    return [
        _one(dataset, table, architecture, seed, settings, cache, say, progress)
        for architecture in settings.architectures
        for seed in range(settings.seeds)
    ]


def _one(
    dataset: Dataset,
    table: tuple[Quantity, ...],
    architecture: Architecture,
    seed: int,
    settings: BenchmarkSettings,
    cache: Cache,
    say: Say,
    progress: bool,
) -> Outcome:
    label = f"{architecture.name} (seed {seed})"
    history = architecture.model.history
    last = max(s.steps for s in architecture.training.stages)
    learned = dataset.starts("train", steps=last, history=history)
    task, sizes = prepare(
        dataset, architecture.model, validation_steps=architecture.training.validation_steps
    )
    shop = Workshop(dataset, task, sizes, learned, architecture, settings, cache, seed, progress)
    say(f"{label}: base model")
    base_timed = shop.base()
    base: Trained = base_timed.value
    model = on_device(base.model)
    say(f"{label}: skill")
    cases = _cases(dataset, task.static, task.source, table, history, settings)
    steps = longest_lead(table)
    held_out = cases.indices[cases.validation :]
    skill = cache.stage(
        "skill",
        lambda: skill_rows(dataset, task, model, held_out, steps=steps),
        shop.inputs(every=settings.test_every, steps=steps),
    )
    say(f"{label}: ensemble of {settings.members}")
    ensemble_timed = shop.ensemble()
    say(f"{label}: snapshots")
    snapshots_timed = shop.snapshots(base)
    say(f"{label}: variances of {len(table)} quantities at {len(cases.indices)} starts")
    forecast, judged = _judge(model, cases)
    found = _estimate_all(
        shop, base, model, ensemble_timed.value, snapshots_timed.value, cases, judged, table, say
    )
    say(f"{label}: scores")
    counts = draws_of(len(held_out), settings.block_length, settings.repeats, settings.seed)
    scores: dict[str, Scored] = {name: score(e, judged, counts) for name, e in found.estimates.items()}
    return Outcome(
        architecture.name,
        seed,
        sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))),
        tuple(Asked(q.name, q.topic, q.place, q.lead, q.unit, q.note) for q in table),
        dataset.steps_per_day,
        dataset.times[held_out],
        forecast[cases.validation :],
        cases.target[cases.validation :],
        judged,
        found.estimates,
        scores,
        skill,
        found.costs,
        {
            "base model": base_timed.seconds,
            f"ensemble of {settings.members}": ensemble_timed.seconds,
            "SWAG's further stage": snapshots_timed.seconds,
            **found.seconds,
        },
        base.validation_loss,
        found.residual_correlation,
    )


def _cases(
    dataset: Dataset,
    static: Any,
    source: Any,
    table: tuple[Quantity, ...],
    history: int,
    settings: BenchmarkSettings,
) -> Cases:
    steps = longest_lead(table)
    validation = dataset.starts("validation", steps=steps, history=history, every=settings.validation_every)
    test = dataset.starts("test", steps=steps, history=history, every=settings.test_every)
    indices = np.concatenate([validation, test])
    question = ask(dataset, static, table)
    starts = starts_of(source, indices, history, steps)
    return Cases(question, starts, indices, len(validation), observed(dataset, table, indices))


def _judge(model: Any, cases: Cases) -> tuple[np.ndarray, Judged]:
    forecast = np.asarray(_answers(model, cases.question, cases.starts))
    return forecast, Judged.of(forecast, cases.target, cases.validation)


def _answers(model: Any, question: Question, starts: Start, *, chunk: int = 256) -> np.ndarray:
    """u of every start, in chunks."""
    many = eqx.filter_jit(lambda m, s: jax.vmap(lambda case: question(m, case))(s))
    count = jax.tree.leaves(starts)[0].shape[0]
    parts = [
        np.asarray(many(model, jax.tree.map(lambda x, k=k: x[k : k + chunk], starts)))
        for k in range(0, count, chunk)
    ]
    return np.concatenate(parts)


@dataclass(frozen=True)
class _Found:
    estimates: dict[str, Estimate]
    costs: list[Any]
    seconds: dict[str, float]
    residual_correlation: float | None


def _estimate_all(
    shop: Workshop,
    base: Trained,
    model: Any,
    members: list[Any],
    snapshots: list[Any],
    cases: Cases,
    judged: Judged,
    table: tuple[Quantity, ...],
    say: Say,
) -> _Found:

    settings, cache = shop.settings, shop.cache
    dampings = settings.dampings
    inputs = shop.inputs(
        version=VERSION,
        quantities=[(q.name, q.lead, q.unit) for q in table],
        cases=cases.indices,
        dampings=dampings,
        fisher=(settings.noise_cases, settings.fisher_cases),
    )
    values = cache.stage(
        "ensemble-values",
        lambda: ensemble_values(cases.question, members, cases.starts),
        {**inputs, "members": settings.members},
    )
    say("  Fisher informations, and one backward pass a quantity for all diagonal covariances")
    delta = cache.stage("delta", lambda: _delta(shop, base, model, snapshots, cases), inputs)
    say("  dropout at every rate, and SWAG's draws")
    own = shop.architecture.training.dropout > 0
    rates, samples = settings.dropout_rates, settings.samples
    silenced = cache.stage(
        "dropout",
        lambda: dropout_curves(cases.question, model, cases.starts, rates, samples, shop.key(3), own=own),
        {**inputs, "rates": rates, "samples": samples},
    )
    sampled = cache.stage(
        "swag",
        lambda: swag_variance(cases.question, snapshots, cases.starts, samples, shop.key(4)),
        {**inputs, "samples": samples, "swag": settings.swag, "snapshots": settings.swag_snapshots},
    )
    u = np.concatenate([judged.errors_validation, judged.errors_test])
    forecast = cases.target - u * judged.unit
    curves, parts = delta["curves"], delta["parts"]
    estimates = [
        plain(judged, REFERENCE, "sampled", values.var(0, ddof=1)),
        plain(judged, "ensemble of 3", "sampled", values[:3].var(0, ddof=1)),
        plain(
            judged,
            "ensemble, its own mean",
            "sampled",
            values.var(0, ddof=1),
            errors=cases.target - values.mean(0),
        ),
        best_of(judged, "dropout", "sampled", silenced, rates),
        plain(judged, "SWAG, sampled", "sampled", sampled),
        plain(judged, "constant", "baseline", np.ones_like(forecast)),
        plain(judged, "u squared", "baseline", forecast**2),
        plain(judged, "gradient norm", "baseline", curves["identity"][0]),
        best_of(judged, "Delta, EMA diagonal", "delta", curves["EMA diagonal"], dampings),
        best_of(judged, "Delta, exact diagonal", "delta", curves["exact diagonal"], dampings),
        best_of(judged, "Delta, Adam's moments", "delta", curves["Adam"], dampings),
        plain(judged, "Delta, SWAG", "delta", curves["SWAG"][0]),
        best_of(judged, "Delta, diagonal sandwich", "delta", curves["sandwich"], dampings),
        best_of(judged, "Delta, EKFAC", "delta", curves["EKFAC"], dampings),
        block_scaled(
            judged,
            "Delta, diagonal by layer",
            parts["exact diagonal"],
            [dampings[k] for k in delta["detailed"]],
            [q.topic for q in table],
        ),
    ]
    say("  costs")
    costs = cache.stage(
        "costs",
        lambda: measure_costs(
            cases.question,
            model,
            cases.starts,
            dv.estimators.Ensemble([on_device(m) for m in members]),
            {"diagonal": dv.as_covariance(model, 1.0)},
            split_leads=settings.split_leads,
        ),
        {**inputs, "members": settings.members},
    )
    return _Found({e.name: e for e in estimates}, costs, delta["seconds"], delta["correlation"])


def _delta(shop: Workshop, base: Trained, model: Any, snapshots: list[Any], cases: Cases) -> dict[str, Any]:
    """Variances of all quantities under every Σ; what took how long."""

    settings, dampings = shop.settings, shop.settings.dampings
    source, static, count = shop.task.source, shop.task.static, len(shop.starts)
    values = int(np.prod(static.climatology.shape[1:]))
    validation = shop.dataset.starts("validation", steps=1, history=model.history)
    noise = step_noise(model, source, spread(validation, settings.noise_cases), static)
    chosen = spread(shop.starts, settings.fisher_cases)

    def fit(structure: dv.Structure) -> Any:
        return timed(
            lambda: exact_fisher(model, source, chosen, static, noise, structure=structure, num_data=count)
        )

    exact, ekfac = fit(dv.Diagonal()), fit(dv.EigenKronecker())
    fishers = {
        "EMA diagonal": average_fisher(base, exact.value, values=values, num_data=count),
        "exact diagonal": exact.value,
        "Adam": adam_fisher(
            base, batch_size=shop.architecture.training.batch_size, values=values, num_data=count
        ),
    }
    sigmas: dict[str, list[dv.Covariance]] = {
        name: [f.inverse(d) for d in dampings] for name, f in fishers.items()
    }
    sigmas["identity"] = [dv.as_covariance(model, 1.0)]
    expected = timed(lambda: model_fisher(model, source, chosen, static, noise, shop.key(5), num_data=count))
    sigmas["sandwich"] = [dv.sandwich(expected.value, exact.value, damping=d) for d in dampings]
    detailed = informative(np.asarray(exact.value.diagonal()), dampings)
    passed = timed(
        lambda: diagonal_variances(
            cases.question,
            model,
            cases.starts,
            sigmas,
            detailed={"exact diagonal": detailed},
            split_leads=settings.split_leads,
        )
    )
    curves = dict(passed.value.variances)
    rotated = timed(
        lambda: damped_variances(
            cases.question, model, cases.starts, ekfac.value, dampings, split_leads=settings.split_leads
        )
    )
    curves["EKFAC"] = rotated.value
    swag = dv.swag([on_device(s) for s in snapshots])
    curves["SWAG"] = plain_variances(
        cases.question, model, cases.starts, swag, split_leads=settings.split_leads
    )[None]
    return {
        "curves": curves,
        "parts": passed.value.parts,
        "detailed": detailed,
        "correlation": noise.largest_eigenvalue,
        "seconds": {
            "exact diagonal Fisher": exact.seconds,
            "EKFAC": ekfac.seconds,
            "model Fisher, for the sandwich": expected.seconds,
            "diagonal variances of all cases, compilation included": passed.seconds,
            "EKFAC variances of all cases, compilation included": rotated.seconds,
        },
    }


def informative(diagonal: np.ndarray, dampings: Sequence[float], count: int = 5) -> list[int]:
    """Positions of the few dampings that lie among the curvature's own values: below and above them nothing changes."""
    positive = diagonal[diagonal > 0]
    wanted = np.quantile(np.log10(positive), np.linspace(0.05, 0.99, count))
    grid = np.log10(np.asarray(dampings))
    return sorted({int(np.argmin(np.abs(grid - w))) for w in wanted})


def result_folder(folder: Path) -> Cache:
    """Where a benchmark keeps its finished stages."""
    return Cache(folder / "stages")
