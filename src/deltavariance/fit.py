"""The short way: from a log-likelihood, parameters and data to a posterior that has been checked."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from deltavariance.cases import count, is_tree_of_arrays
from deltavariance.curvature import fisher
from deltavariance.parameters import Layout, Where
from deltavariance.posterior import Posterior
from deltavariance.report import default_key, make_report
from deltavariance.structures import Diagonal, EigenKronecker, Structure
from deltavariance.tracing import trace
from deltavariance.tracing.plan import Use

PyTree = Any


def fit(
    log_likelihood: Callable[[Any, Any], Any],
    params: PyTree,
    data: PyTree,
    *,
    structure: Structure | None = None,
    damping: float = 1e-8,
    prior_precision: Any = None,
    where: Where | Layout = None,
    weights: Any = None,
    mask: Any = None,
    num_data: int | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    key: Any = None,
    probes: int = 8,
    progress: bool = True,
) -> Posterior:
    """A sensible Σ for `params`, which were trained on `data`, with a report on whether to trust it.

    Σ is the inverse empirical Fisher information over N. Where no structure is given, it is `EigenKronecker` if the
    factors of the products fit, and `Diagonal` otherwise.
    `report()` of the result says what was chosen and why, tr F / tr H, how far training has converged, and warns in
    words.

    Cost: the Fisher information (one gradient over the data for each pass), one more gradient, and `probes`
    Hessian-vector products. `data` is read several times, so an iterator that can be read only once is refused.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> data = jnp.array([1.0, -1.0, 2.0, -2.0, 0.5, -0.5])
    >>> ll = dv.gaussian_log_likelihood(lambda p, x: p["mean"], scale=1.3)
    >>> post = dv.fit(ll, {"mean": jnp.array(0.0)}, (jnp.zeros(6), data))
    >>> post.report().num_data
    6.0
    """
    layout = where if isinstance(where, Layout) else Layout.of(params, where)
    if iter_once(data):
        raise ValueError(
            "`fit` reads the data several times, and the iterator given can be read only once. Give arrays, or an"
            " object whose `__iter__` starts afresh (a list of batches, a data loader)."
        )
    chosen, reason = (
        (structure, "as asked for") if structure is not None else choose(log_likelihood, params, data, layout)
    )
    options = {"weights": weights, "mask": mask, "batch_size": batch_size, "memory_budget": memory_budget}
    F = fisher(
        log_likelihood,
        params,
        data,
        structure=chosen,
        where=layout,
        num_data=num_data,
        progress=progress,
        **options,
    )
    report = make_report(
        F,
        log_likelihood,
        params,
        data,
        structure=chosen,
        reason=reason,
        damping=damping,
        key=default_key() if key is None else key,
        probes=probes,
        **options,
    )
    return Posterior(params, F.inverse(damping, prior_precision=prior_precision), report)


# A Kronecker-factored eigenbasis is chosen while it stays within these: a gigabyte, and some seconds of decompositions.
MOST_FACTOR_BYTES = 1 << 30
MOST_DECOMPOSITION_WORK = 2e12


def choose(
    log_likelihood: Callable[[Any, Any], Any], params: PyTree, data: PyTree, layout: Layout
) -> tuple[Structure, str]:
    """`EigenKronecker` where its factors fit, `Diagonal` otherwise, and why."""
    batch = data if is_tree_of_arrays(data) else next(iter(data))
    count(batch, "data")
    case = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), batch)
    plan = trace(log_likelihood, params, layout, case).plan
    sides = [side for use in plan.uses if len(use.frame) == 3 for side in _sides(use)]
    if not sides:
        return Diagonal(), "no parameter is used in a product, so there are no Kronecker factors"
    held = sum(8 * stack * side**2 for stack, side in sides)
    work = sum(10.0 * stack * side**3 for stack, side in sides)
    if held > MOST_FACTOR_BYTES or work > MOST_DECOMPOSITION_WORK:
        return (
            Diagonal(),
            f"Kronecker factors would take {held:,} bytes and {work:.1g} operations to decompose",
        )
    return (
        EigenKronecker(),
        f"its Kronecker factors take {held:,} bytes; `structure=dv.Diagonal()` takes less",
    )


def _sides(use: Use) -> list[tuple[int, int]]:
    """How many matrices a weight's stack holds, and the width of each of their two sides."""
    stack = math.prod(length for length, sliced in zip(use.lengths, use.mapped, strict=True) if sliced)
    n, i, o = use.frame
    return [(stack * n, i), (stack * n, o)]


def iter_once(data: PyTree) -> bool:
    """Whether `data` is an iterator, which a second pass would find empty."""
    return hasattr(data, "__next__")
