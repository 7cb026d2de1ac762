"""The empirical Fisher information: the mean outer product of per-example scores."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from deltavariance import cases as _cases
from deltavariance.curvature.base import Curvature
from deltavariance.curvature.products import OuterProduct
from deltavariance.memory import largest_batch
from deltavariance.parameters import Frozen, Layout, Where, freeze
from deltavariance.progress import with_progress
from deltavariance.structures import Diagonal, MatrixFree, Structure
from deltavariance.tracing import example_gradients
from deltavariance.variance import hashable

PyTree = Any
LogLikelihood = Callable[[Any, Any], Any]
# The batches whose scores the paper's moving average takes in, where nothing else is said.
PAPERS_BATCH = 32


class Fisher(Curvature):
    """An empirical Fisher information that can go on growing: `update` with more data, `merge` with another's.

    With a `decay` d it is a moving average over batches, `m ← (1−d) m + d·F_batch`, and `mean` is corrected for the
    start at zero: divided by `1 − (1−d)^batches`.
    """

    batches: Array
    decay: float | None = eqx.field(static=True)

    def update(
        self,
        log_likelihood: LogLikelihood,
        params: PyTree,
        batch: PyTree,
        *,
        weights: Any = None,
        mask: Any = None,
    ) -> "Fisher":
        """This Fisher information with one more batch counted in. The parameters may have moved on."""
        more = fisher(
            log_likelihood,
            params,
            [batch],
            structure=self.structure,
            weights=None if weights is None else [weights],
            mask=None if mask is None else [mask],
            where=self.layout,
            decay=self.decay,
        )
        return _follow(self, more)

    def merge(self, other: Curvature) -> Curvature:
        if self.decay is not None:
            raise ValueError(
                "A moving average cannot be merged: it forgets in the order of its batches. Merge Fisher informations"
                " made without `decay`, or go on with `update`."
            )
        return super().merge(other)


def fisher(
    log_likelihood: LogLikelihood,
    params: PyTree,
    data: PyTree,
    *,
    structure: Structure | None = None,
    where: Where | Layout = None,
    weights: Any = None,
    mask: Any = None,
    groups: Any = None,
    decay: float | None = None,
    num_data: int | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    progress: bool = True,
) -> Fisher:
    """The empirical Fisher information `F = Σ_n w_n s_n s_nᵀ / Σ_n w_n` with scores `s_n = ∇ log p(example_n)`.

    `log_likelihood(params, example)` is the real log-density of one example, noise scale included: F⁻¹ scales with
    its square. `data` is a pytree with one row an example, or an iterable of such batches, read once. A weight
    counts an example that many times, a mask's `False` leaves it out; N is the sum of the weights unless `num_data`
    says otherwise. With `decay` the batches of an iterable enter a moving average, as in the paper; arrays are cut
    into batches of `batch_size`, or the paper's 32. At a terminal a progress bar is shown unless `progress=False`.

    `groups`, one label an example, sums scores within a group before they are squared: `F = (1/N) Σ_g s_g s_gᵀ`, for
    examples that are not independent (a patient's visits, blocks in time). `dv.sandwich` is cluster-robust with it.

    Cost: one gradient of the log-likelihood over the data (`Diagonal`), in memory of one batch.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"mean": jnp.array(0.0)}
    >>> data = jnp.array([1.0, -1.0, 2.0, -2.0])
    >>> F = dv.fisher(lambda p, y: -0.5 * (y - p["mean"]) ** 2, params, data)
    >>> float(F.trace()), float(F.num_data)
    (2.5, 4.0)
    """
    if groups is not None:
        # Its class is a kind of Fisher information, so its module builds on this one.
        from deltavariance.curvature.clustered import clustered_fisher

        if decay is not None:
            raise ValueError(
                "A moving average over batches cannot respect `groups`: leave out `decay` or `groups`."
            )
        return clustered_fisher(
            log_likelihood,
            params,
            data,
            groups,
            structure=structure,
            where=where,
            weights=weights,
            mask=mask,
            num_data=num_data,
            batch_size=batch_size,
            memory_budget=memory_budget,
        )
    structure = Diagonal() if structure is None else structure
    layout = where if isinstance(where, Layout) else Layout.of(params, where)
    if isinstance(structure, MatrixFree):
        operator = OuterProduct.of(log_likelihood, params, data, weights, mask, layout)
        weight = jnp.sum(operator.weights)
        counted = weight if num_data is None else jnp.asarray(float(num_data))
        return Fisher(structure, operator, weight, counted, layout, jnp.ones(()), None)
    if decay is not None and batch_size is None and _cases.is_tree_of_arrays(data):
        batch_size = PAPERS_BATCH
    again = structure
    while True:
        total = _pass(
            log_likelihood,
            params,
            data,
            again,
            layout,
            weights,
            mask,
            decay,
            num_data,
            batch_size,
            memory_budget,
            progress,
        )
        following = again.next_pass(total.mean, layout)
        if following is None:
            return total
        if not _cases.is_tree_of_arrays(data) and iter(data) is data:
            raise ValueError(
                f"{structure} needs a second pass over the data, and the iterator given is used up after the first."
                " Give arrays, or an object whose `__iter__` starts afresh (a list of batches, a data loader)."
            )
        again = following


def _pass(
    log_likelihood: LogLikelihood,
    params: PyTree,
    data: PyTree,
    structure: Structure,
    layout: Layout,
    weights: Any,
    mask: Any,
    decay: float | None,
    num_data: int | None,
    batch_size: int | None,
    memory_budget: int | None,
    progress: bool,
) -> Fisher:
    ll_arrays, ll = hashable(log_likelihood)
    arrays, frozen = freeze(params)

    def largest(batch: PyTree) -> int:
        return largest_batch((ll_arrays, ll), (arrays, frozen), batch, layout, batch_size, memory_budget)

    call = functools.partial(_batch_statistic, ll, frozen)
    result: Fisher | None = None
    total: Any = None
    seen: Any = None
    last = 0
    given = _cases.combined(weights, mask)
    # Where Σw is known beforehand it is divided out of the weights, and never out of what may be many matrices.
    whole = None if decay is not None else _cases.total_weight(data, given)
    parts = _cases.batches(data, given, largest)
    for batch in with_progress(parts, f"{type(structure).__name__} Fisher information", None, progress):
        part, weight, bad = call(ll_arrays, arrays, structure, batch.cases, batch.weights, layout, whole)
        raise_if_bad(bad, batch)
        if decay is not None and batch.number != last:
            # A batch that was cut to fit in memory is one batch still, and one step of a moving average.
            result = _step(result, structure, _mean(total, seen), seen, layout, decay)
            total = None
        if total is None:
            total, seen = part, weight
        else:
            total, seen = jax.tree.map(jnp.add, total, part), seen + weight
        last = batch.number
    mean = _mean(total, seen) if whole is None else total
    result = _step(result, structure, mean, seen, layout, decay)
    if num_data is not None:
        result = eqx.tree_at(lambda f: f.num_data, result, jnp.asarray(float(num_data)))
    return result


@jax.jit
def _mean(total: Any, seen: Array) -> Any:
    return jax.tree.map(lambda x: x / jnp.where(seen > 0, seen, 1), total)


def _step(
    before: Fisher | None, structure: Structure, mean: Any, seen: Array, layout: Layout, decay: float | None
) -> Fisher:
    """`before` with the mean over `seen` examples counted in as one more batch."""
    batch = Fisher(structure, mean, seen, seen, layout, jnp.ones(()), decay)
    return batch if before is None else _follow(before, batch)


def _follow(before: Fisher, after: Fisher) -> Fisher:
    """`before` with the batches of `after` counted in, summed or by the moving average."""
    total = before.weight + after.weight
    batches = before.batches + after.batches
    if before.decay is None:
        share = after.weight / jnp.where(total > 0, total, 1)
    else:
        # In terms of bias-corrected means: weights (1−d)^b' (1 − (1−d)^b) and 1 − (1−d)^b', normalised.
        keep = 1 - before.decay
        new = 1 - keep**after.batches
        share = new / (1 - keep**batches)
    mean = jax.tree.map(lambda a, b: (1 - share) * a + share * b, before.mean, after.mean)
    counted = None if before.num_data is None or after.num_data is None else before.num_data + after.num_data
    return Fisher(before.structure, mean, total, counted, before.layout, batches, before.decay)


@functools.partial(jax.jit, static_argnums=(0, 1, 7))
def _batch_statistic(
    log_likelihood: Frozen,
    params: Frozen,
    ll_arrays: list[Array],
    arrays: list[Array],
    structure: Structure,
    batch: PyTree,
    weights: Any,
    layout: Layout,
    whole: Float[Array, ""] | None,
) -> tuple[Any, Float[Array, ""], Any]:
    """The weighted sum of a batch (over `whole`, if given), Σw, and which leaves and scores hold NaN or infinity.

    `weights` is `[B]`, of any type of number.
    """
    function = log_likelihood.thaw(ll_arrays)
    weights = jnp.asarray(weights, float)

    def scalar(p: PyTree, example: PyTree) -> Array:
        value = jnp.asarray(function(p, example))
        if value.shape != ():
            raise TypeError(
                f"log_likelihood must return one number for one example, and it returned shape {value.shape}. It takes"
                " one example, never a batch: sum over the outputs of that example."
            )
        return value

    real = weights > 0
    # A row left out may hold anything, and 0·NaN is NaN: a row that counts stands in for it.
    stand_in = jnp.where(real, jnp.arange(real.shape[0]), jnp.argmax(real))
    gradients = example_gradients(
        scalar, params.thaw(arrays), jax.tree.map(lambda leaf: leaf[stand_in], batch), where=layout
    )
    total = structure.statistic(gradients, (weights if whole is None else weights / whole)[None, :])

    def spoilt(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.zeros((), bool)
        rows = jnp.all(jnp.isfinite(jnp.reshape(leaf, (leaf.shape[0], -1))), axis=1)
        return jnp.any(~rows & real)

    bad = (
        jax.tree.map(spoilt, batch),
        spoilt(gradients.value),
        # The largest absolute value is NaN or infinite if any is: a third of the cost of asking each.
        ~jnp.all(jnp.stack([jnp.isfinite(jnp.max(jnp.abs(x), initial=0)) for x in jax.tree.leaves(total)])),
    )
    return total, jnp.sum(weights), bad


def raise_if_bad(bad: Any, batch: "_cases.Batch") -> None:
    """Say which batch and which leaf held NaN or infinity; inside a trace nothing can be said."""
    flags, value, statistic = bad
    if any(isinstance(flag, jax.core.Tracer) for flag in jax.tree.leaves(bad)) or not (value or statistic):
        # A likelihood may know what to do with a gap: NaN in the data matters where it reaches the score.
        return
    spoilt = [
        jtu.keystr(path, simple=True, separator="/") or "data"
        for path, flag in jtu.tree_flatten_with_path(flags)[0]
        if bool(flag)
    ]
    where = f"Batch {batch.number} of the data"
    if spoilt:
        raise ValueError(
            f"{where} holds NaN or infinity in {', '.join(map(repr, spoilt))}. Leave those examples out with `mask=`,"
            " or mend the data."
        )
    if bool(value):
        raise ValueError(
            f"{where} is finite, and its log-likelihood is not: check the parameters and the density."
        )
    raise ValueError(
        f"{where} and its log-likelihood are finite, and the score is not: a gradient of the log-likelihood is NaN"
        " or infinite (a square root or logarithm at zero, a division by zero)."
    )
