"""Delta Variances of all quantities and cases under many covariances, with few backward passes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

import deltavariance as dv

from ..models import StepModel
from .question import Question, Start, split_by_lead
from .several import BLOCK, TOTAL, SeveralDiagonals

ROWS = 2**27  # bytes of gradients that are written out at once


@dataclass(frozen=True)
class DiagonalPass:
    """Variances under every diagonal Σ, and by layer under some of them."""

    variances: dict[str, Float[np.ndarray, "grid n quantities"]]
    parts: dict[str, list[dict[str, Float[np.ndarray, "n quantities"]]]]


def rows_at_once(question: Question, layout_size: int) -> int:
    """How many cases' gradients, of every quantity and parameter, fit into the budget."""
    return int(max(1, ROWS // (4 * 3 * len(question.quantities) * layout_size)))


def diagonal_variances(
    question: Question,
    model: StepModel,
    starts: Start,
    sigmas: Mapping[str, Sequence[dv.Covariance]],
    *,
    detailed: Mapping[str, Sequence[int]],
    split_leads: bool,
) -> DiagonalPass:
    """`ΔᵀΣΔ` for all families of diagonal Σ at once; one backward pass a quantity and case.

    `detailed` names the members of a family whose variance is wanted by layer.
    """
    flat = [(name, k) for name, family in sigmas.items() for k in range(len(family))]
    number = {place: m for m, place in enumerate(flat)}
    wanted = [number[name, k] for name, chosen in detailed.items() for k in chosen]
    stack = SeveralDiagonals.of([sigmas[name][k] for name, k in flat], wanted)

    def run(part: Question) -> dict[str, Any]:
        size = rows_at_once(part, stack.layout.size)
        return dv.block_variances(part, model, starts, stack, batch_size=size, check=False)

    found = _by_lead(question, run, split_leads)
    variances = {
        name: np.stack([found[f"{TOTAL} {number[name, k]}"] for k in range(len(family))])
        for name, family in sigmas.items()
    }
    parts = {
        name: [_blocks(found, f"{BLOCK} {number[name, k]} ") for k in chosen]
        for name, chosen in detailed.items()
    }
    return DiagonalPass(variances, parts)


def damped_variances(
    question: Question,
    model: StepModel,
    starts: Start,
    curvature: dv.Curvature,
    dampings: Sequence[float],
    *,
    split_leads: bool,
) -> Float[np.ndarray, "grid n quantities"]:
    """Variances under `(C + d·I)⁻¹ / N` for a grid of dampings and any structure."""

    def run(part: Question) -> dict[str, Any]:
        curves = dv.tune.damped_variances(curvature, part, model, starts, np.asarray(dampings))
        return {str(k): curve for k, curve in enumerate(curves)}

    found = _by_lead(question, run, split_leads)
    return np.stack([found[str(k)] for k in range(len(dampings))])


def plain_variances(
    question: Question, model: StepModel, starts: Start, sigma: dv.Covariance, *, split_leads: bool
) -> Float[np.ndarray, "n quantities"]:
    """Variances under one Σ of any structure."""

    def run(part: Question) -> dict[str, Any]:
        return {TOTAL: dv.variance(part, model, starts, sigma, check=False)}

    return _by_lead(question, run, split_leads)[TOTAL]


def _by_lead(
    question: Question, run: Callable[[Question], dict[str, Any]], split_leads: bool
) -> dict[str, Float[np.ndarray, "n quantities"]]:
    """Results for all quantities, from one question or from one for each lead."""
    groups = split_by_lead(question) if split_leads else [(tuple(range(len(question.quantities))), question)]
    found: dict[str, np.ndarray] = {}
    for where, part in groups:
        for name, value in run(part).items():
            array = np.asarray(value)
            if name not in found:
                found[name] = np.empty((len(array), len(question.quantities)), array.dtype)
            found[name][:, list(where)] = array
    return found


def _blocks(found: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: value for name, value in found.items() if name.startswith(prefix)}
