"""All quantities of one case as a function of the model: what every estimator is asked."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int64, Key

from ..cases import CaseSource
from ..data import Dataset, Normaliser
from ..forecast import rollout
from ..models import Dropout, Forcing, Static, StepModel
from ..quantities import Quantity, by_lead, evaluate, longest_lead


class Start(eqx.Module):
    """Where a forecast begins: the past states and the forcing until its end; `[n, ...]` for many."""

    state: Float[Array, "*n history lat lon channel"]
    forcing: Forcing


class Question(eqx.Module):
    """`u(model, start) -> [quantities]`, in physical units: one rollout to the longest lead among them.

    With `rate`, a key as third argument draws the model's own dropout; without a key there is none.
    """

    static: Static
    normaliser: Normaliser
    rate: Float[Array, ""] | None
    quantities: tuple[Quantity, ...] = eqx.field(static=True)

    def __call__(
        self, model: StepModel, start: Start, key: Key[Array, ""] | None = None
    ) -> Float[Array, " quantities"]:
        steps = longest_lead(self.quantities)
        forcing = jax.tree.map(lambda x: x[: model.history + steps], start.forcing)
        dropout = None if key is None or self.rate is None else Dropout(key, self.rate)
        states = rollout(model, start.state, forcing, steps, static=self.static, dropout=dropout)
        return evaluate(self.quantities, self.normaliser.denormalise(states))

    def at_rate(self, rate: float) -> "Question":
        """The same with dropout at this rate wherever a key is given."""
        return Question(self.static, self.normaliser, jnp.asarray(rate, jnp.float32), self.quantities)


def ask(dataset: Dataset, static: Static, quantities: Sequence[Quantity]) -> Question:
    """The question for these quantities on this record."""
    normaliser: Normaliser = jax.tree.map(jnp.asarray, dataset.normaliser)
    return Question(jax.tree.map(jnp.asarray, static), normaliser, None, tuple(quantities))


def split_by_lead(question: Question) -> list[tuple[tuple[int, ...], Question]]:
    """One question for each lead, with the positions of its quantities: gradients of a lead end together.

    The rollouts forward are repeated, and the backward ones, which are most of the work, stop where they end.
    """
    return [
        (
            where,
            Question(
                question.static,
                question.normaliser,
                question.rate,
                tuple(question.quantities[k] for k in where),
            ),
        )
        for where in by_lead(question.quantities).values()
    ]


def starts_of(source: CaseSource, indices: Int64[np.ndarray, " n"], history: int, steps: int) -> Start:
    """The starts at these times of the record."""
    cases = source.cases(indices, history, steps)
    return Start(jnp.asarray(cases.state), jax.tree.map(jnp.asarray, cases.forcing))


def observed(
    dataset: Dataset, quantities: Sequence[Quantity], indices: Int64[np.ndarray, " n"], *, chunk: int = 256
) -> Float[np.ndarray, "n quantities"]:
    """What the quantities turned out to be, from the record itself."""
    steps = longest_lead(quantities)
    many = jax.jit(jax.vmap(lambda x: evaluate(quantities, x)))
    found = [
        np.asarray(many(jnp.asarray(dataset.trajectories(indices[k : k + chunk], steps))))
        for k in range(0, len(indices), chunk)
    ]
    return np.concatenate(found)
