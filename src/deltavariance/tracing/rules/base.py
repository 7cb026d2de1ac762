"""What a rule is: how one primitive's use of a parameter becomes factors."""

import abc
from dataclasses import dataclass
from typing import Any

import jax

from deltavariance.tracing.views import Path, View


class Rule(abc.ABC):
    """The factors of one use of a view, for one example, free of enclosing scans.

    A rule is hashable: equal rules describe equal arithmetic.
    """

    @abc.abstractmethod
    def inputs(self, recorded: jax.Array) -> jax.Array:
        """From the recorded operand to `a [N, T, I]` (or to row numbers `[T]` for a look-up)."""

    @abc.abstractmethod
    def cotangents(self, cotangent: jax.Array, recorded: jax.Array) -> jax.Array:
        """From the cotangent of the result to `g [N, T, O]` (or `[T, D]` for a look-up)."""


@dataclass(frozen=True)
class Match:
    """A rule that fits an equation: which operand to record, and the view's path on to the rule's frame."""

    rule: Rule
    recorded: Any
    view: View
    path: Path
    frame: tuple[int, ...]
