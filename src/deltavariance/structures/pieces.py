"""Which piece of a leaf is kept in which way: Kronecker factors, counted rows, a small dense block, or a diagonal."""

import enum
from collections.abc import Sequence

import jax
import numpy as np

from deltavariance.tracing.gradients import Form, Products, Rows
from deltavariance.tracing.views import Path


class Kind(enum.Enum):
    """How a piece of a leaf is kept."""

    KRONECKER = "kronecker"  # A ⊗ G of the products it is used in
    ROWS = "rows"  # diag(how often each row was picked) ⊗ G
    DENSE = "dense"  # all of a small leaf
    DIAGONAL = "diagonal"  # a large leaf without a frame in which it is a product


def covering_forms(forms: Sequence[Form], shape: tuple[int, ...]) -> list[Products | Rows] | None:
    """The forms of a leaf if each entry of the leaf belongs to exactly one of them, else `None`.

    Then the leaf falls into pieces (one, most often; three, say, for queries, keys and values cut from one array)
    that each have factors of their own.
    """
    factored = [form for form in forms if isinstance(form, (Products, Rows))]
    size = int(np.prod(shape))
    if not forms or len(factored) < len(forms) or sum(int(np.prod(form.frame)) for form in factored) != size:
        return None
    if len(factored) == 1:
        return factored
    with jax.ensure_compile_time_eval():
        numbers = jax.numpy.arange(size).reshape(shape)
        seen = np.concatenate([np.asarray(form.path.apply(numbers)).ravel() for form in factored])
    return factored if len(np.unique(seen)) == size else None


def whole(shape: tuple[int, ...]) -> tuple[Path, tuple[int, int, int]]:
    """The path and frame of a leaf taken as one vector of outputs."""
    return Path(), (1, 1, int(np.prod(shape)))
