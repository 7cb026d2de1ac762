"""The short way: from a log-likelihood, parameters and data to a posterior that has been checked."""

from collections.abc import Callable
from typing import Any

from deltavariance.curvature import fisher
from deltavariance.parameters import Layout, Where
from deltavariance.posterior import Posterior
from deltavariance.report import default_key, make_report
from deltavariance.structures import Diagonal, Structure

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
) -> Posterior:
    """A sensible Σ for `params`, which were trained on `data`, with a report on whether to trust it.

    Σ is the inverse empirical Fisher information over N, in a structure chosen by size where none is given.
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
    chosen, reason = (structure, "as asked for") if structure is not None else choose(layout)
    options = {"weights": weights, "mask": mask, "batch_size": batch_size, "memory_budget": memory_budget}
    F = fisher(log_likelihood, params, data, structure=chosen, where=layout, num_data=num_data, **options)
    report = make_report(
        F,
        log_likelihood,
        params,
        data,
        reason=reason,
        damping=damping,
        key=default_key() if key is None else key,
        probes=probes,
        **options,
    )
    return Posterior(params, F.inverse(damping, prior_precision=prior_precision), report)


def choose(layout: Layout) -> tuple[Structure, str]:
    """The structure that a parameter count affords, and why."""
    return Diagonal(), f"chosen for {layout.size:,} parameters"


def iter_once(data: PyTree) -> bool:
    """Whether `data` is an iterator, which a second pass would find empty."""
    return hasattr(data, "__next__")
