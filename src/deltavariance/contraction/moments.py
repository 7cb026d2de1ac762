"""Second moments of the two sides of a form: what KFAC accumulates.

Of a use of a weight with inputs a and cotangents g, `A = Σ a aᵀ` and `G = Σ g gᵀ`, and `C ≈ A ⊗ G / count` with
`count` the number of pairs that were summed. All three are plain weighted sums, so that batches, workers and moving
averages combine them linearly, and the approximation is formed only when it is used. When a sharing weight is
*expanded*, every position is a pair of its own (count = T for an example); *reduced*, an example is one pair: the
mean of its a and the sum of its g.
"""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.loops import sum_over_cases
from deltavariance.contraction.multiply import sum_of_outer
from deltavariance.tracing.gradients import Products, Rows, widened

Sharing = Literal["expand", "reduce"]

# Numbers laid out at once while summing; a convolution's patches are much larger than its input.
_AT_ONCE = 1 << 22

Moments = tuple[Array, Array, Array]


def products_moments(
    form: Products, weights: Float[Array, "K B"], sharing: Sharing, full_left: bool, full_right: bool
) -> Moments:
    """A `[N, I, I]`, G `[N, O, O]` (or their diagonals `[N, I]`, `[N, O]`) and the count `[]`, all sums.

    Cost: B·T·(I² + O²); B·(I² + O²) if reduced.
    """
    shared = jnp.sum(weights, axis=0)
    count = jnp.sum(shared) * (1 if sharing == "reduce" else form.pairs)

    if sharing == "reduce":

        def reduced(some: Products, w: Array) -> tuple[Array, Array]:
            a = (
                sum(jnp.sum(widened(part.inputs()), axis=2, keepdims=True) for part in some.parts)
                / form.pairs
            )
            g = sum(jnp.sum(widened(part.cotangents()), axis=3, keepdims=True) for part in some.parts)
            return second_moment(a, jnp.sum(w, axis=0), full_left), _cotangent_moment(g, w, full_right)  # type: ignore[arg-type]

        left, right = sum_over_cases(reduced, form, weights, _chunk(form))
        return left, right, count

    def expanded(some: Products, w: Array) -> Array:
        return sum(
            second_moment(widened(part.inputs()), jnp.sum(w, axis=0), full_left) for part in some.parts
        )  # type: ignore[return-value]

    left = sum_over_cases(expanded, form, weights, _chunk(form))
    right = sum(_cotangent_moment(widened(part.cotangents()), weights, full_right) for part in form.parts)
    return left, right, count  # type: ignore[return-value]


def rows_moments(form: Rows, weights: Float[Array, "K B"], full_right: bool) -> Moments:
    """The same for a look-up, whose inputs are unit vectors: A is diagonal, how often each row was picked `[1, V]`.

    Each pick is a pair whichever way weights are shared: the rows of one example are not alike.
    """
    v, _ = form.frame
    times = form.numbers.shape[1]
    shared = jnp.sum(weights, axis=0)
    g = widened(form.g)
    picked = jnp.zeros(v, g.dtype).at[form.numbers].add(jnp.broadcast_to(shared[:, None], form.numbers.shape))
    return picked[None], _cotangent_moment(g[:, :, None], weights, full_right), jnp.sum(shared) * times


def dense_moment(rows: Float[Array, "K B p"], weights: Float[Array, "K B"]) -> Float[Array, "1 p p"]:
    """`Σ w Δ Δᵀ` of gradients written out."""
    return _cotangent_moment(rows[:, :, None, None], weights, full=True)


def _cotangent_moment(g: Float[Array, "K B N T O"], weights: Array, full: bool) -> Array:
    joined = jnp.reshape(g, (-1, *g.shape[2:]))
    return second_moment(joined, jnp.reshape(weights, (-1,)), full)


def second_moment(x: Float[Array, "B N T F"], weights: Float[Array, " B"], full: bool) -> Array:
    """`Σ_{b,t} w_b x xᵀ`, `[N, F, F]`, or its diagonal `[N, F]`."""
    w = weights.astype(x.dtype)[:, None, None, None]
    if not full:
        return jnp.sum(w * x**2, axis=(0, 2))
    if x.shape[1] == 1:
        # One matrix product: a batch axis of length one keeps XLA from seeing it.
        rows = jnp.reshape(x, (-1, x.shape[-1]))
        return sum_of_outer(rows, jnp.reshape(w * x, rows.shape))[None]
    over = jnp.moveaxis(x, 1, 0)
    rows = jnp.reshape(over, (x.shape[1], -1, x.shape[-1]))
    return jnp.einsum("nri,nrj->nij", rows, jnp.reshape(w[:, 0] * over, rows.shape))


def _chunk(form: Products) -> int:
    """How many cases to lay out at once: all, unless the layout is larger than what was recorded (patches).

    Each step adds an I × I matrix, so a step has at least about as many rows as that.
    """
    n, i, _ = form.frame
    laid_out = n * form.pairs * i
    if laid_out <= 2 * sum(part.recorded.size for part in form.parts) // form.count:
        return form.count
    return max(1, _AT_ONCE // laid_out, -(-2 * i // form.pairs))
