"""Second moments of per-example gradients, read from the state that Adam leaves behind.

Adam keeps `ν`, a moving average of the squared *batch* gradient. With a batch of B independent examples,
gradient `g_i` of one example's loss, mean `ḡ` and second moment `F = E[g_i²]`,

    loss summed over the batch:     E[ν̂] = B F + B (B - 1) ḡ²
    loss averaged over the batch:   E[ν̂] = F / B + (1 - 1/B) ḡ²

so that near a minimum, where `ḡ² ≪ F / B`, ν̂ is F times B, respectively F divided by B. Here `ν̂ = ν / (1 -
b2^count)`.
"""

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from deltavariance.curvature.adam_state import AdamMoments, find_adam_states, merge_masked
from deltavariance.curvature.base import Curvature
from deltavariance.parameters import Layout, Where
from deltavariance.structures import Diagonal

PyTree = Any


class _Units(NamedTuple):
    """From a batch's second moment to an example's: `F = ν̂ · B^batch · K^steps`, with K steps accumulated."""

    batch: int
    steps: int


# Accumulated gradients are averaged over the K steps, whichever way each step's loss was reduced.
_UNITS: dict[str, _Units] = {"mean": _Units(batch=1, steps=1), "sum": _Units(batch=-1, steps=1)}


def second_moments_from_adam(
    opt_state: Any,
    *,
    batch_size: int,
    reduction: str = "mean",
    b2: Any = None,
    params: PyTree | None = None,
    select: str | None = None,
    accumulation_steps: int | None = None,
    loss_scale: int | float = 1.0,
) -> PyTree:
    """`E[g²]` per parameter and per example, from an Optax state that holds Adam's second moments.

    `F = ν / (1 - b2^count) · B` for a loss averaged over batches of B, `/ B` for a summed loss; divided by
    `loss_scale²` where the loss was `loss_scale` times the negative log-likelihood.

    - `opt_state`: any nesting of Optax states (`chain`, `masked`, `multi_transform`, `inject_hyperparams`,
      `MultiSteps` and so on) around `adam`, `adamw`, `nadam`, `radam`, `lamb` or `amsgrad` (of which ν is
      read, not its maximum).
    - `b2`: Adam's decay, read from `inject_hyperparams` where that is used, and 0.999 where it is not given.
    - `params`: gives the result the structure of the parameters, needed where the optimiser saw only part of
      them.
    - `select`: part of the path of one Adam state, where several cover the same parameters.
    - `accumulation_steps`: K of `optax.MultiSteps`, or count the examples behind one *update* as
      `batch_size`.

    Returns a pytree like `params` in at least float32, with None for what no Adam state covers. Cost: O(P).

    What enters the gradient enters ν. Near convergence ν̂ is right up to `(B - 1) ḡ²`; a mean gradient that
    dominates is warned of. Decoupled weight decay (`adamw`) does no harm. L2 in the loss adds its own
    gradient `λ θ` to ḡ, and clipping *before* Adam shrinks ν by the square of how much it cut: neither leaves
    a trace in the state. The same holds for `adamax` and `yogi`, which keep another quantity under the same
    name. ν remembers the last `1 / (1 - b2)` steps only, so it belongs to the parameters of then: let the
    learning rate decay first.

    >>> import jax.numpy as jnp, optax
    >>> params = {"w": jnp.zeros(3)}
    >>> optimiser = optax.adam(1e-3)
    >>> _, state = optimiser.update({"w": jnp.array([1.0, 2.0, 3.0])}, optimiser.init(params), params)
    >>> second_moments_from_adam(state, batch_size=32, reduction="mean")["w"].round(2).tolist()
    [32.0, 128.0, 288.0]
    """
    factor = _per_example_factor(batch_size, reduction, accumulation_steps, loss_scale)
    states = _choose(find_adam_states(opt_state), select)
    for state in states:
        _check_steps(state)
        if state.accumulated and accumulation_steps is None:
            warnings.warn(
                "The Adam state lies inside optax.MultiSteps, which averages the gradients of several steps:"
                f" `batch_size={batch_size}` is taken for the number of examples behind one update. If it"
                " counts those of one step, pass `accumulation_steps=` too.",
                stacklevel=2,
            )
    moments = [_debiased(state, b2) for state in states]
    result = jax.tree.map(lambda leaf: leaf * factor, merge_masked([moment for moment, _ in moments]))
    _check_finite(result)
    _warn_of_mean_gradient(moments, stacklevel=3)
    if params is None:
        return result
    return jtu.tree_unflatten(jtu.tree_structure(params), _beside(params, result))


def fisher_from_adam(
    opt_state: Any,
    *,
    num_data: int | float | Array | None = None,
    batch_size: int,
    reduction: str = "mean",
    b2: Any = None,
    params: PyTree | None = None,
    where: Where = None,
    select: str | None = None,
    accumulation_steps: int | None = None,
    loss_scale: int | float = 1.0,
) -> Curvature:
    """The diagonal Fisher information that a training with Adam has already computed; nothing is run again.

    `num_data` is N, the number of training examples, by which `inverse` divides. Parameters that Adam did not
    train (frozen, masked) are not uncertain; where there are such, or where the optimiser saw only the arrays
    of a model, pass `params`, the model's parameters, so that the rest is told apart. `where` narrows the
    parameters further.

    For the units, the other settings and what can go wrong see `second_moments_from_adam`. Cost: O(P).

    >>> import jax.numpy as jnp, optax
    >>> params = {"w": jnp.zeros(3)}
    >>> optimiser = optax.adam(1e-3)
    >>> _, state = optimiser.update({"w": jnp.array([1.0, 2.0, 3.0])}, optimiser.init(params), params)
    >>> F = fisher_from_adam(state, num_data=1000, batch_size=32, reduction="mean")
    >>> F.diagonal().round(2).tolist()
    [32.0, 128.0, 288.0]
    """
    moments = second_moments_from_adam(
        opt_state,
        batch_size=batch_size,
        reduction=reduction,
        b2=b2,
        select=select,
        accumulation_steps=accumulation_steps,
        loss_scale=loss_scale,
    )
    # A leaf without a moment keeps its place among the leaves, as something that is no array and so not uncertain.
    if params is None:
        stand_in = jax.tree.map(
            lambda leaf: False if leaf is None else leaf, moments, is_leaf=lambda x: x is None
        )
    else:
        leaves = [False if leaf is None else leaf for leaf in _beside(params, moments)]
        stand_in = jtu.tree_unflatten(jtu.tree_structure(params), leaves)
    layout = Layout.of(stand_in, where)
    counted = None if num_data is None else jnp.asarray(num_data, jnp.result_type(float))
    weight = jnp.ones((), jnp.result_type(float)) if counted is None else counted
    return Curvature(Diagonal(), layout.take(stand_in), weight, counted, layout)


def _per_example_factor(batch: Any, reduction: Any, steps: Any, loss_scale: int | float) -> float:
    for name, value in (("batch_size", batch), ("accumulation_steps", 1 if steps is None else steps)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(
                f"`{name}` should be a positive whole number of examples or steps; got {value!r}."
            )
    if reduction not in _UNITS:
        raise ValueError(
            "`reduction` says how the training loss joined the examples of a batch:"
            f" {' or '.join(map(repr, _UNITS))}; got {reduction!r}."
        )
    if not loss_scale > 0:
        raise ValueError(f"`loss_scale` should be positive; got {loss_scale!r}.")
    units = _UNITS[reduction]
    return float(batch) ** units.batch * float(1 if steps is None else steps) ** units.steps / loss_scale**2


def _choose(states: list[AdamMoments], select: str | None) -> list[AdamMoments]:
    """The states to read: all, if they cover different parameters, else the one that `select` names."""
    paths = ", ".join(repr(state.path) for state in states)
    if select is not None:
        chosen = [state for state in states if select in state.path]
        if len(chosen) != 1:
            raise ValueError(
                f"`select={select!r}` fits {len(chosen)} of the Adam states, which lie at {paths}. Give a"
                " part of the path that is in one of them only."
            )
        return chosen
    return states


def _check_steps(state: AdamMoments) -> None:
    if isinstance(state.count, jax.core.Tracer):
        return
    if np.ndim(state.count) != 0:
        raise ValueError(
            f"The Adam state at {state.path!r} has a count of shape {np.shape(state.count)}, so it holds"
            " several optimisers. Use `jax.vmap` over this function, or pick one of them."
        )
    if int(state.count) == 0:
        raise ValueError(
            f"The Adam state at {state.path!r} has taken no step yet, so it knows nothing of the gradients."
            " Pass the state after training, `opt_state` as the last `optimiser.update` returned it."
        )


def _debiased(state: AdamMoments, b2: Any) -> tuple[PyTree, PyTree]:
    """`ν̂` in at least float32, and the first moment as it is."""
    decay = b2 if b2 is not None else state.b2 if state.b2 is not None else 0.999
    if not isinstance(decay, jax.core.Tracer) and not 0.0 < float(decay) < 1.0:
        raise ValueError(f"`b2` should lie between 0 and 1; got {float(decay)}.")
    count = jnp.asarray(state.count)
    # 1 - b2^count without cancellation: log(0.999) of the double, since single precision has 1 - 0.999 to 3e-5 only.
    log_decay = jnp.log(decay) if isinstance(decay, jax.core.Tracer) else math.log(float(decay))
    correction = -jnp.expm1(count * log_decay)

    def correct(leaf: Array) -> Float[Array, "..."]:
        value = leaf.astype(jnp.result_type(leaf, jnp.float32))
        return value / correction.astype(value.dtype)

    return jax.tree.map(correct, state.nu), state.mu


def _check_finite(moments: PyTree) -> None:
    for path, leaf in jtu.tree_leaves_with_path(moments):
        if not isinstance(leaf, jax.core.Tracer) and not bool(jnp.all(jnp.isfinite(leaf) & (leaf >= 0))):
            raise ValueError(
                f"Adam's second moment of parameter {jtu.keystr(path, simple=True, separator='/')!r} holds"
                " negative or non-finite values: a gradient overflowed during training."
            )


def _warn_of_mean_gradient(moments: list[tuple[PyTree, PyTree]], stacklevel: int) -> None:
    """Gradients of mean zero have `Σ m² / Σ ν̂` near (1 - b1) / (1 + b1), 0.05 for b1 = 0.9; constant ones 1."""
    leaves = [leaf for pair in moments for leaf in jax.tree.leaves(pair)]
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return
    first = sum(
        float(jnp.sum(jnp.square(m.astype(jnp.float32)))) for _, mu in moments for m in jax.tree.leaves(mu)
    )
    second = sum(float(jnp.sum(v)) for nu, _ in moments for v in jax.tree.leaves(nu))
    if second > 0 and first > 0.5 * second:
        warnings.warn(
            f"The squared mean gradient is {first / second:.0%} of Adam's second moment: the training had"
            " not converged (or the loss holds a regulariser), and the second moment overstates the Fisher"
            " information by up to the batch size. Train on, or fit with `dv.fisher` instead.",
            stacklevel=stacklevel + 1,
        )


def _beside(params: PyTree, moments: PyTree) -> list[Array | None]:
    """The moment of each leaf of `params`, None where there is none."""
    known = {jtu.keystr(path): leaf for path, leaf in jtu.tree_leaves_with_path(moments)}
    paths, _ = jtu.tree_flatten_with_path(params)
    names = [jtu.keystr(path) for path, _ in paths]
    strangers = sorted(set(known) - set(names))
    if strangers:
        raise ValueError(
            f"The Adam state belongs to other parameters: it holds {strangers[0]!r}, which the parameters"
            f" given do not (they have {', '.join(map(repr, names[:5]))}{', ...' if len(names) > 5 else ''})."
        )
    for name, (_, leaf) in zip(names, paths, strict=True):
        if name in known and np.shape(leaf) != known[name].shape:
            raise ValueError(
                f"The Adam state belongs to other parameters: {name!r} has shape {known[name].shape} there,"
                f" and {np.shape(leaf)} in the parameters given."
            )
    return [known.get(name) for name in names]
