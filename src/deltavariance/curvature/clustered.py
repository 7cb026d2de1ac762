"""Scores summed within groups before they are squared: examples of one group need not be independent."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance.cases import as_weights, combined, count, is_tree_of_arrays
from deltavariance.curvature.base import Curvature
from deltavariance.curvature.fisher import Fisher
from deltavariance.curvature.outer import outer_products
from deltavariance.parameters import Layout, Where
from deltavariance.structures import Structure

PyTree = Any


class ClusteredFisher(Fisher):
    """`F = (1/N) Σ_g s_g s_gᵀ` with `s_g` the summed score of group g. `groups` is how many groups there were."""

    groups: Float[Array, ""]

    def update(self, *arguments: Any, **options: Any) -> "ClusteredFisher":
        raise ValueError(
            "A Fisher information with groups does not go on growing by single batches, for a group must not be cut."
            " Make"
            " one from the new groups with `dv.fisher(..., groups=)`, and `merge` the two."
        )

    def merge(self, other: Curvature) -> "ClusteredFisher":
        """Both data sets together; no group may have examples in both."""
        if not isinstance(other, ClusteredFisher):
            raise ValueError(
                "A Fisher information with groups can be merged only with another one with groups."
            )
        assert self.num_data is not None
        assert other.num_data is not None
        n, m = self.num_data, other.num_data
        as_if = eqx.tree_at(lambda c: c.weight, self, n)
        merged = super(ClusteredFisher, as_if).merge(eqx.tree_at(lambda c: c.weight, other, m))
        return ClusteredFisher(
            structure=merged.structure,
            mean=merged.mean,
            weight=n + m,
            num_data=n + m,
            layout=self.layout,
            batches=self.batches,
            decay=None,
            groups=self.groups + other.groups,
        )


class GroupLogLikelihood(eqx.Module):
    """The weighted log-likelihood of a group, padded to one length; its gradient is the summed score."""

    log_likelihood: Callable[[Any, Any], Any]

    def __call__(self, params: PyTree, group: tuple[PyTree, Array]) -> Array:
        examples, weights = group
        values = jax.vmap(self.log_likelihood, (None, 0))(params, examples)
        if values.shape != weights.shape:
            raise TypeError(
                f"log_likelihood must return one number for one example, and it returned shape {values.shape[1:]}."
            )
        return jnp.sum(weights * values)


def clustered_fisher(
    log_likelihood: Callable[[Any, Any], Any],
    params: PyTree,
    data: PyTree,
    groups: Any,
    *,
    structure: Structure | None = None,
    where: Where | Layout = None,
    weights: Any = None,
    mask: Any = None,
    num_data: int | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
) -> ClusteredFisher:
    """`F = (1/N) Σ_g (Σ_{n∈g} w_n s_n)(Σ_{n∈g} w_n s_n)ᵀ`, N = Σ w: what `dv.fisher(..., groups=)` returns.

    `groups` has one label for each example (integers, strings, ...); for blocks in time, `np.arange(N) // length`.
    With groups of one example each this is the empirical Fisher information. `dv.sandwich(H, F)` is then the
    cluster-robust covariance, and with `correction="HC1"` the one that statistics packages report.

    Groups of similar size are run together, padded to the longest of them, at most to twice a group's size.
    """
    if not is_tree_of_arrays(data):
        raise ValueError(
            "With `groups`, the data must be a pytree of arrays with one row an example, for a group's examples may"
            " lie in"
            " different batches. Concatenate the batches, or merge Fisher informations of whole groups."
        )
    total = count(data, "data")
    labels = np.asarray(groups)
    if labels.shape != (total,):
        raise ValueError(
            f"`groups` has shape {labels.shape}, and there are {total} examples: give one label a row."
        )
    given = combined(weights, mask)
    counted = np.ones(total) if given is None else np.asarray(as_weights(given, total), float)
    batches, found = _batches(data, labels, counted)
    mean_over_groups = outer_products(
        GroupLogLikelihood(log_likelihood),
        params,
        batches,
        structure=structure,
        where=where,
        weights=None,
        mask=None,
        num_data=None,
        batch_size=batch_size,
        memory_budget=memory_budget,
        what="groups",
    )
    n = counted.sum()
    share = found / n
    return ClusteredFisher(
        structure=mean_over_groups.structure,
        mean=jax.tree.map(lambda x: x * share, mean_over_groups.mean),
        weight=jnp.asarray(n, float),
        num_data=jnp.asarray(n if num_data is None else num_data, float),
        layout=mean_over_groups.layout,
        batches=jnp.ones(()),
        decay=None,
        groups=jnp.asarray(found, float),
    )


def _batches(data: PyTree, labels: np.ndarray, weights: np.ndarray) -> tuple[list[Any], int]:
    """The examples that count, `[groups, examples, ...]` for groups of similar size, and how many groups there are."""
    kept = np.flatnonzero(weights > 0)
    if kept.size == 0:
        raise ValueError("No example is left: every weight is 0, or the mask leaves all of them out.")
    _, numbers, sizes = np.unique(labels[kept], return_inverse=True, return_counts=True)
    order = kept[np.argsort(numbers, kind="stable")]
    starts = np.cumsum(sizes) - sizes
    classes = np.ceil(np.log2(sizes)).astype(int)
    batches = []
    for size_class in np.unique(classes):
        here = np.flatnonzero(classes == size_class)
        longest = int(sizes[here].max())
        places = np.arange(longest)
        real = places < sizes[here, None]
        rows = order[starts[here, None] + np.where(real, places, 0)]
        examples = jax.tree.map(lambda leaf, rows=rows: leaf[rows], data)
        batches.append((examples, np.where(real, weights[rows], 0.0)))
    return batches, len(sizes)
