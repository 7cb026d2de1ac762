"""Variance maps: how uncertain every cell of a forecast field is, by forward-mode products."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

import deltavariance as dv

from .benchmark.question import Start
from .data import Dataset, Normaliser
from .forecast import rollout
from .models import Static, StepModel

AT_ONCE = 16  # directions that run together


@dataclass(frozen=True)
class VarianceMap:
    """A forecast field and its variance, in physical units.

    `relative_error` is the standard error of each cell's variance over the variance itself, from the finite number of
    random directions: `√(2 / directions)`; it is 0 where the directions are a whole square root of Σ.
    """

    field: Float[np.ndarray, "lat lon"]
    variance: Float[np.ndarray, "lat lon"]
    directions: int
    relative_error: float


class Field(eqx.Module):
    """`u(model, start) -> [lat, lon]`: one channel at a lead, in physical units."""

    static: Static
    normaliser: Normaliser
    channel: int = eqx.field(static=True)
    step: int = eqx.field(static=True)

    @classmethod
    def of(cls, dataset: Dataset, static: Static, variable: str, step: int) -> "Field":
        """The field of a variable of a record, `step` steps ahead."""
        static, normaliser = jax.tree.map(jnp.asarray, (static, dataset.normaliser))
        return cls(static, normaliser, dataset.channel(variable), step)

    def __call__(self, model: StepModel, start: Start) -> Float[Array, "lat lon"]:
        forcing = jax.tree.map(lambda x: x[: model.history + self.step], start.forcing)
        states = rollout(model, start.state, forcing, self.step, static=self.static)
        return self.normaliser.denormalise(states[-1])[..., self.channel]


class Cells(eqx.Module):
    """Some cells of a field, as a quantity of their own."""

    field: Field
    cells: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __call__(self, model: StepModel, start: Start) -> Float[Array, " cells"]:
        values = self.field(model, start)
        return jnp.stack([values[i, j] for i, j in self.cells])


def variance_map(
    field: Field,
    model: StepModel,
    start: Start,
    sigma: dv.Covariance,
    *,
    key: Key[Array, ""],
    directions: int = 256,
) -> VarianceMap:
    """`diag(J Σ Jᵀ)` for all cells of one start, with `Σ = S Sᵀ` and J the Jacobian of the field.

    For standard normal ε each cell of `J S ε` has variance `(J Σ Jᵀ)_cc`: the mean square over `directions` draws
    estimates it without bias. Where S has no more columns than `directions` all of them are taken instead, and the
    result is exact.

    **Cost** `directions` forward-mode rollouts, however many cells there are; gradients cost one rollout backward for
    each cell. `exact_cells` gives some cells exactly.
    """
    if directions < 2:
        raise ValueError(f"A variance map needs at least 2 directions, but {directions} was given.")
    columns = sigma.sqrt_columns
    whole = columns <= directions
    count = columns if whole else directions
    dtype = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))[0].dtype
    total: Array = jnp.zeros(())
    for first in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - first)
        if whole:
            noise = jnp.eye(columns, dtype=dtype)[first : first + size]
        else:
            noise = jax.random.normal(jax.random.fold_in(key, first), (size, columns), dtype)
        total = total + _squares(field, model, start, sigma.layout.unflatten(sigma.sqrt_matvec(noise)))
    values = eqx.filter_jit(field)(model, start)
    variance = np.asarray(total) / (1 if whole else count)
    return VarianceMap(np.asarray(values), variance, count, 0.0 if whole else math.sqrt(2 / count))


def exact_cells(
    field: Field, model: StepModel, start: Start, sigma: dv.Covariance, cells: Sequence[tuple[int, int]]
) -> Float[np.ndarray, " cells"]:
    """The variance at chosen cells by gradients: no sampling error, one backward rollout a cell."""
    if not cells:
        raise ValueError("No cells were chosen.")
    one = jax.tree.map(lambda x: jnp.asarray(x)[None], start)
    return np.asarray(dv.variance(Cells(field, tuple(cells)), model, one, sigma))[0]


@eqx.filter_jit
def _squares(
    field: Field, model: StepModel, start: Start, leaves: list[Float[Array, "k ..."]]
) -> Float[Array, "lat lon"]:
    """The sum over directions of the squared change of every cell along each."""
    params, frame = eqx.partition(model, eqx.is_inexact_array)
    tangents = jax.tree.unflatten(jax.tree.structure(params), leaves)

    def along(tangent: StepModel) -> Float[Array, "lat lon"]:
        return jax.jvp(lambda p: field(eqx.combine(p, frame), start), (params,), (tangent,))[1]

    return jnp.sum(jax.vmap(along)(tangents) ** 2, axis=0)
