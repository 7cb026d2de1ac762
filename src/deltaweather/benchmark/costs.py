"""What an answer costs, measured beside one forward rollout of the same cases in the same process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import deltavariance as dv

from ..models import StepModel
from .question import Question, Start, split_by_lead

CASES = 32
REPEATS = 3


@dataclass(frozen=True)
class Cost:
    """Seconds a start, and the same in forward rollouts. `quantities` is how many are answered by it."""

    name: str
    quantities: int
    seconds: float
    rollouts: float


def measure_costs(
    question: Question,
    model: StepModel,
    starts: Start,
    ensemble: dv.estimators.Ensemble,
    sigmas: dict[str, dv.Covariance],
    *,
    split_leads: bool,
) -> list[Cost]:
    """Times of one quantity at the longest lead, and of all quantities; the best of a few repetitions.

    An ensemble's rollouts serve all quantities of a start, a gradient serves one: both columns are needed.
    """
    cases = jax.tree.map(lambda x: x[:CASES], starts)
    count = jax.tree.leaves(cases)[0].shape[0]
    last = max(range(len(question.quantities)), key=lambda k: question.quantities[k].lead)
    single = Question(question.static, question.normaliser, None, (question.quantities[last],))
    every = len(question.quantities)
    base = _seconds(lambda: _forward(question, model, cases)) / count
    works: list[tuple[str, int, Callable[[], Any]]] = [
        ("forward and backward, plain", 1, lambda: _gradient(single, model, cases)),
        (f"ensemble of {len(ensemble)}", every, lambda: ensemble.variance(question, cases)),
        ("one direction, forward mode", every, lambda: _direction(question, model, cases)),
    ]
    for name, sigma in sigmas.items():
        works.append((f"Delta, {name}, one quantity", 1, _variance_of([single], model, cases, sigma)))
        parts = [q for _, q in split_by_lead(question)] if split_leads else [question]
        works.append((f"Delta, {name}, all quantities", every, _variance_of(parts, model, cases, sigma)))
    costs = [Cost("forward rollout", every, base, 1.0)]
    for name, quantities, work in works:
        seconds = _seconds(work) / count
        costs.append(Cost(name, quantities, seconds, seconds / base))
    return costs


def break_even(costs: Sequence[Cost]) -> float:
    """From how many quantities a start on k forward-mode directions are cheaper, as k over that number.

    With fewer than `quantities / result` directions forward mode wins: one direction costs `result` gradients.
    """
    by_name = {c.name: c.seconds for c in costs}
    return by_name["one direction, forward mode"] / by_name["forward and backward, plain"]


def _variance_of(
    questions: Sequence[Question], model: StepModel, cases: Start, sigma: dv.Covariance
) -> Callable[[], Any]:
    return lambda: [dv.variance(q, model, cases, sigma, check=False) for q in questions]


@eqx.filter_jit
def _forward(question: Question, model: StepModel, cases: Start) -> Any:
    return jax.vmap(lambda case: question(model, case))(cases)


@eqx.filter_jit
def _gradient(question: Question, model: StepModel, cases: Start) -> Any:
    """The plain gradient of the sum over cases: what any training step does."""
    return eqx.filter_grad(lambda m: jnp.sum(jax.vmap(lambda case: question(m, case))(cases)))(model)


@eqx.filter_jit
def _direction(question: Question, model: StepModel, cases: Start) -> Any:
    params, frame = eqx.partition(model, eqx.is_inexact_array)
    tangent = jax.tree.map(jnp.ones_like, params)

    def one(case: Start) -> Any:
        return jax.jvp(lambda p: question(eqx.combine(p, frame), case), (params,), (tangent,))[1]

    return jax.vmap(one)(cases)


def _seconds(work: Callable[[], Any]) -> float:
    jax.block_until_ready(work())  # compiles
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(work())
        best = min(best, time.perf_counter() - start)
    return best
