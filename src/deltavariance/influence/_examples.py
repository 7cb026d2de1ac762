"""Which training examples an uncertainty comes from."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from deltavariance import cases
from deltavariance.curvature import Curvature

from ._directions import slopes, solved_gradients

PyTree = Any
Function = Callable[[Any, Any], Any]


class Top(NamedTuple):
    """The most influential examples of each case, the strongest first."""

    indices: Int[Array, "n *u k"]
    influences: Float[Array, "n *u k"]

    def named(self, names: Sequence[Any]) -> Any:
        """The indices replaced by names: nested lists of the shape of `indices`."""
        return jax.tree.map(lambda index: names[index], self.indices.tolist())


def examples(
    u: Function,
    params: PyTree,
    z: PyTree,
    log_likelihood: Function,
    data: PyTree,
    H: Curvature,
    *,
    damping: Any = 1e-8,
    batch_size: int = 256,
) -> Float[Array, "n *u N"]:
    """The influence of each training example on each case: `ΔᵀH⁻¹g_i` with `g_i = ∇ log p_i`, `[n, *u.shape, N]`.

    Leaving example i out moves u by about `−influence_i / N`; counting it twice by `+influence_i / N`. Their mean
    square is what the sandwich measures, `ΔᵀH⁻¹FH⁻¹Δ / N = mean_i influence_i² / N`, so the squares say how much of
    that variance each example accounts for. H may be any curvature; with a Fisher information in its place the
    influences are those of a natural-gradient step.

    `data` is one pytree or an iterable of batches. Cost: one gradient of u a component, one solve with H, and one
    linearised pass over the data, about a gradient of it per case and component.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> y = jnp.array([1.0, 2.0, 6.0])
    >>> log_likelihood = lambda m, y: -0.5 * (y - m) ** 2
    >>> F = dv.fisher(log_likelihood, jnp.mean(y), y)  # here F = Var y = 14/3
    >>> print(dv.influence.examples(lambda m, z: z * m, jnp.mean(y), jnp.ones(1), log_likelihood, y, F, damping=0.0))
    [[-0.42857... -0.21428...  0.64285...]]
    """
    parts = _stream(u, params, z, log_likelihood, data, H, damping, batch_size)
    return jnp.concatenate(list(parts), axis=-1)


def top(
    u: Function,
    params: PyTree,
    z: PyTree,
    log_likelihood: Function,
    data: PyTree,
    H: Curvature,
    *,
    k: int = 10,
    damping: Any = 1e-8,
    batch_size: int = 256,
) -> Top:
    """The k examples of largest absolute influence on each case, from one pass over the data.

    As `examples`, without keeping what is not among the k: memory does not grow with N. `Top.named(names)` replaces
    indices, which count in the order of `data`, by names. `Top.influences` holds the signed numbers.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, and is {k}.")
    best: tuple[Array, Array] | None = None
    seen = 0
    for part in _stream(u, params, z, log_likelihood, data, H, damping, batch_size):
        indices = jnp.broadcast_to(jnp.arange(seen, seen + part.shape[-1]), part.shape)
        seen += part.shape[-1]
        if best is not None:
            part = jnp.concatenate([best[0], part], axis=-1)
            indices = jnp.concatenate([best[1], indices], axis=-1)
        _, order = jax.lax.top_k(jnp.abs(part), min(k, part.shape[-1]))
        best = jnp.take_along_axis(part, order, axis=-1), jnp.take_along_axis(indices, order, axis=-1)
    assert best is not None  # an empty data iterable was refused
    return Top(best[1], best[0])


def _stream(
    u: Function,
    params: PyTree,
    z: PyTree,
    log_likelihood: Function,
    data: PyTree,
    H: Curvature,
    damping: Any,
    batch_size: int,
) -> Any:
    """Influences batch by batch: `[n, *u.shape, B]`."""
    n = cases.count(z, "z")
    sigma = H.inverse(damping=damping, num_data=1)
    solved = solved_gradients(u, params, z, sigma)
    first = jax.tree.map(lambda leaf: leaf[0], z)
    shape = (n, *jax.eval_shape(lambda case: jnp.asarray(u(params, case)), first).shape)
    directions = jnp.reshape(solved, (-1, solved.shape[-1]))

    @jax.jit
    def influences(batch: PyTree, directions: Array) -> Array:
        return slopes(log_likelihood, params, batch, directions, sigma.layout)[..., 0]

    for batch in cases.batches(data, None, lambda _: batch_size):
        part = influences(batch.cases, directions)[:, : batch.real]
        yield jnp.reshape(part, (*shape, batch.real))
