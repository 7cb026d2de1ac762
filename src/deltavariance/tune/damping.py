"""The damping of a curvature, chosen on validation data: one pass of gradients for the whole grid."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance.curvature import Curvature
from deltavariance.memory import DEFAULT_BUDGET
from deltavariance.metrics.cases import Cases
from deltavariance.metrics.families import Family
from deltavariance.tune.best_damping import DampingChoice, best_damping
from deltavariance.tune.family import VALUE, damped_family, name
from deltavariance.variance import block_variances

PyTree = Any
Quantity = Callable[[Any, Any], Any]

GRID = 10.0 ** np.arange(-15, 10)
"""The paper's dampings, 1e-15 to 1e9."""


def damping(
    F: Curvature,
    u: Quantity,
    params: PyTree,
    z: PyTree,
    targets: Cases,
    dampings: Cases = GRID,
    *,
    score: str = "log_likelihood",
    family: str | Family = "laplace",
    shared: bool = False,
    prior_precision: Any = None,
    num_data: Any = None,
    cases: int | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
) -> DampingChoice:
    """The damping d for which `(F + d·I)⁻¹ / N` describes the errors `targets − u(params, z)` best.

    Args:
        F: a curvature in any structure. It is not fitted again, and where it has an eigenbasis that is not
        made again. z, targets: validation cases and what was observed, `[n, *u.shape]`.
        dampings: the grid, `[dampings]`; powers of ten from 1e-15 to 1e9, as in the paper, unless given.
        score: "log_likelihood", with α and β fitted for each damping, or "correlation".
        shared: one damping for all components of u, rather than one for each.
        prior_precision, num_data: as for `F.inverse`.
        cases: look at this many of the cases only, evenly spread; all unless given. The choice is among
            powers of ten, for which some hundreds of cases are often enough.

    Cost: one gradient a case and component, and the contraction with Σ for some of the dampings (see
    `damped_variances`). Use the result as `F.inverse(best.damping)`, or, where each component has its own, as
    `best.select(dv.tune.damped_variances(F, u, params, z_new, best.dampings))`.

    >>> import deltavariance as dv
    >>> import jax
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> x = jax.random.normal(keys[0], (200, 3)) * jnp.array([1.0, 0.1, 0.0])
    >>> params = {"w": jnp.ones(3)}
    >>> F = dv.fisher(lambda p, x: x @ p["w"], params, x)
    >>> z, e = jax.random.normal(keys[1], (200, 3)), jax.random.normal(keys[2], (200,))
    >>> u = lambda p, z: z @ p["w"]
    >>> best = damping(F, u, params, z, z.sum(axis=1) + e * jnp.abs(z[:, 1]))
    >>> 1e-5 < float(best) < 1.0
    True
    """
    grid = _grid(dampings)
    z, targets = _spread(z, cases), _spread(targets, cases)
    curves, values = _sweep(F, u, params, z, grid, prior_precision, num_data, batch_size, memory_budget)
    observed = jnp.asarray(targets)
    if observed.shape != values.shape:
        raise ValueError(
            f"`targets` has shape {observed.shape} and u of these cases has shape {values.shape}; one target"
            " for each case and component is needed."
        )
    return best_damping(curves, observed - values, grid, score=score, family=family, shared=shared)


def damped_variances(
    F: Curvature,
    u: Quantity,
    params: PyTree,
    z: PyTree,
    dampings: Cases = GRID,
    *,
    prior_precision: Any = None,
    num_data: Any = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
) -> Float[Array, "dampings n *u"]:
    """`dv.variance(u, params, z, F.inverse(d))` for every damping d of a grid, from one pass of gradients.

    The squared gradients are contracted with Σ at a few nodes only, about one for each power of ten that the
    spectrum of F spans and the grid meets; the other variances follow from those to a relative error below
    1e-4.
    """
    grid = _grid(dampings)
    return _sweep(F, u, params, z, grid, prior_precision, num_data, batch_size, memory_budget)[0]


def _spread(tree: PyTree, cases: int | None) -> PyTree:
    """Every so-manieth case, so that `cases` are left; all of them if there are not more."""
    if cases is None:
        return tree
    if cases < 1:
        raise ValueError(f"`cases` is {cases}; at least one case is needed, and hundreds are wanted.")

    def thin(leaf: Any) -> Any:
        index = np.unique(np.linspace(0, len(leaf) - 1, min(cases, len(leaf))).astype(int))
        return leaf[index]

    return jax.tree.map(thin, tree)


def _sweep(
    F: Curvature,
    u: Quantity,
    params: PyTree,
    z: PyTree,
    grid: np.ndarray,
    prior_precision: Any,
    num_data: Any,
    batch_size: int | None,
    memory_budget: int | None,
) -> tuple[Float[Array, "dampings n *u"], Float[Array, "n *u"]]:
    """Variances at all dampings, and u itself, which the same pass gives."""
    members = damped_family(F, grid, prior_precision=prior_precision, num_data=num_data)
    # A batch holds the results of all nodes beside the gradients, so a quarter of the usual budget.
    budget = DEFAULT_BUDGET // 4 if memory_budget is None else memory_budget
    parts = block_variances(u, params, z, members, batch_size=batch_size, memory_budget=budget, check=False)
    return jnp.stack([parts[name(number)] for number in range(len(grid))]), parts[VALUE]


def _grid(dampings: Cases) -> np.ndarray:
    grid = np.asarray(dampings, np.float64)
    if grid.ndim != 1 or grid.size == 0 or not np.all(np.isfinite(grid)) or np.any(grid < 0):
        raise ValueError(
            f"`dampings` must be a list of numbers that are zero or more, and it is {dampings!r:.200}. The"
            " paper's are `10.0 ** np.arange(-15, 10)`."
        )
    return grid
