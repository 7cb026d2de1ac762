"""Models trained several times."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from deltavariance.estimators.base import PyTree, Quantity
from deltavariance.estimators.sampled import Sampled
from deltavariance.parameters import Frozen, freeze


class Ensemble(Sampled):
    """The unbiased variance of u among models that were trained separately.

    `members` is a list of parameter pytrees, or one pytree whose arrays have the members along their leading axis
    (what `jax.vmap` of a training returns). `ensemble[:3]` is an ensemble of its first three.

    Training: `members − 1` trainings beside the one that there would be anyway, where `training_passes` is the price
    of one (3 times the epochs); unknown if that is not given. Inference: one pass a member, which serves all
    components of u, and all quantities of a case.

    >>> import jax.numpy as jnp
    >>> members = Ensemble([{"w": jnp.array(1.0)}, {"w": jnp.array(3.0)}, {"w": jnp.array(8.0)}])
    >>> print(members.variance(lambda p, z: p["w"] * z, jnp.array([1.0, 2.0])))
    [13. 52.]
    """

    arrays: tuple[Any, ...]
    frozen: Frozen = eqx.field(static=True)
    training_passes: float = eqx.field(static=True)
    training_cost: float = eqx.field(static=True)

    def __init__(self, members: PyTree | Sequence[PyTree], *, training_passes: float = math.nan) -> None:
        stacked, self.frozen = _stacked(members) if _is_list(members) else freeze(members)
        self.arrays = tuple(jnp.asarray(array) for array in stacked)
        self.training_passes = training_passes
        lengths = {array.shape[0] if array.ndim else None for array in self.arrays}
        if len(lengths) != 1 or None in lengths:
            raise ValueError(
                "`members` must be a list of parameter pytrees, or one pytree whose arrays share a leading axis of"
                f" members; the leading axes of what was given have the lengths {sorted(lengths, key=str)}."
            )
        self.training_cost = (len(self) - 1) * training_passes

    def __len__(self) -> int:
        return int(self.arrays[0].shape[0])

    def __getitem__(self, which: Any) -> "Ensemble":
        """Some of the members. For one member's parameters use `member`."""
        if not isinstance(which, slice):
            raise TypeError(
                f"An ensemble is sliced, as in `ensemble[:3]`; `ensemble.member({which!r})` gives parameters."
            )
        return Ensemble(
            self.frozen.thaw([array[which] for array in self.arrays]), training_passes=self.training_passes
        )

    def member(self, number: int) -> PyTree:
        """The parameters of one member."""
        return self.frozen.thaw([array[number] for array in self.arrays])

    def draws(self) -> PyTree:
        return self.arrays

    def evaluate(self, u: Quantity, draw: PyTree, case: PyTree) -> Any:
        return u(self.frozen.thaw(draw), case)

    def example_params(self) -> PyTree:
        return self.member(0)


def _is_list(members: Any) -> bool:
    """Whether this is a list or tuple of models: pytrees of one structure, and not arrays themselves."""
    if not isinstance(members, (list, tuple)) or len(members) < 1:
        return False
    if isinstance(members, tuple) and hasattr(members, "_fields"):
        return False
    return isinstance(members, list)


def _stacked(members: Sequence[PyTree]) -> tuple[list[Any], Frozen]:
    parts = [freeze(member) for member in members]
    arrays, frozen = parts[0]
    for number, (others, rest) in enumerate(parts[1:], start=1):
        shapes = [np.shape(array) for array in arrays]
        if rest.treedef != frozen.treedef or [np.shape(array) for array in others] != shapes:
            raise ValueError(
                f"Member {number} of the ensemble is no model of the same kind as member 0: their pytrees or the shapes"
                " of their arrays differ. All members must be trained from one architecture."
            )
    stacked = [jnp.stack([part[0][k] for part in parts]) for k in range(len(arrays))]
    return stacked, frozen


def stack(members: Sequence[PyTree]) -> PyTree:
    """A list of models as one pytree with the members along the leading axis of its arrays."""
    arrays, frozen = _stacked(members)
    return frozen.thaw(arrays)


def unstack(stacked: PyTree) -> list[PyTree]:
    """The inverse of `stack`."""
    count = jax.tree.leaves(freeze(stacked)[0])[0].shape[0]
    arrays, frozen = freeze(stacked)
    return [frozen.thaw([array[number] for array in arrays]) for number in range(count)]
