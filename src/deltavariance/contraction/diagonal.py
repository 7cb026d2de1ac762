"""Squares of gradients, weighted by a diagonal (`quadratic`) or summed over cases (`square_sum`).

For products, `G = Σ_t a_t g_tᵀ` and a diagonal S there are three equal ways, chosen by T from shapes alone:

- T = 1: `Σ_io S a² g² = (a²)ᵀ S (g²)`, one matrix product for the whole batch, G never built;
- T few: the same for each pair s ≤ t, `Σ (a_s∘a_t)ᵀ S (g_s∘g_t)`;
- T many: build G one case at a time and square it.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from deltavariance.contraction.basis import turn
from deltavariance.contraction.loops import over_cases, over_components, sum_over_cases
from deltavariance.tracing.gradients import Dense, Form, Products, Rows, add_up, widened
from deltavariance.tracing.gradients import ExampleGradients as Gradients

# Up to this T the pairs cost less than building G. In units of I·O they take T(T+1)/2 products with S against T
# products and a square; bound by memory, a square costs some sixteen products (on a CPU, I = O = 256). Components
# share the products with S, and yet at T = 20 and 21 components G was quicker.
MOST_PAIRS = 6
# How many numbers an intermediate of a chunk of cases may have: some megabytes, to stay in the cache.
_AT_ONCE = 1 << 20
# How many numbers of G to build in one step: fewer and the loop costs more than the work, more and G leaves the cache.
_STEP = 3 << 14


def quadratic(diagonal: Sequence[Array], gradients: Gradients) -> list[Float[Array, "K B"]]:
    """For each leaf, `Σ_p S_p Δ_p²` of each component and case; `diagonal[l]` has the shape of leaf l.

    Cost: about that of the products that would form the weight gradients of the whole batch.
    """
    return [
        leaf_quadratic(s, forms, gradients, shape)
        for s, forms, shape in zip(diagonal, gradients.leaves, gradients.layout.shapes, strict=True)
    ]


def square_sum(gradients: Gradients, weights: Float[Array, "K B"]) -> list[Array]:
    """For each leaf, `Σ_{k,b} w[k,b] Δ[k,b]²`, in the leaf's shape: the diagonal of a sum of outer products.

    Cost: as `quadratic`.
    """
    return [
        leaf_square_sum(forms, gradients, shape, weights)
        for forms, shape in zip(gradients.leaves, gradients.layout.shapes, strict=True)
    ]


def leaf_quadratic(s: Array, forms: tuple[Form, ...], gradients: Gradients, shape: tuple[int, ...]) -> Array:
    if not forms:
        return jnp.zeros((gradients.components, gradients.cases), widened(gradients.value).dtype)
    if len(forms) > 1:
        return over_cases(
            lambda fs: _dense_quadratic(s, add_up([f.dense(shape) for f in fs], shape, gradients)),
            Several(forms),
            gradients.cases,
        )
    (form,) = forms
    if isinstance(form, Dense):
        return _dense_quadratic(s, widened(form.g))
    if isinstance(form, Rows):
        picked = jnp.take(form.seen(s), form.numbers, axis=0)
        return jnp.sum(picked * form.merged() ** 2, axis=(2, 3))
    return products_quadratic(form.seen(s), form)


def products_quadratic(s: Float[Array, "N I O"], form: Products) -> Float[Array, "K B"]:
    """`Σ S G²` in the frame of a form of products."""
    n, i, o = form.frame
    if form.pairs == 1 and n > 1:
        return _stack_quadratic(s, form)
    if form.pairs <= MOST_PAIRS:
        size = max(1, _AT_ONCE // (n * form.pairs**2 * (i + o))) if form.pairs > 1 else form.count
        return over_cases(lambda some: pairs_quadratic(s, *some.factors()), form, form.count, size)

    at_once = max(1, _STEP // (n * i * o))

    def explicit(some: Products) -> Array:
        return over_components(
            lambda one: _dense_quadratic(s, one.explicit()), some, form.components, at_once
        )

    return over_cases(explicit, form, form.count, max(1, at_once // form.components))


def _stack_quadratic(s: Float[Array, "N I O"], form: Products) -> Float[Array, "K B"]:
    """The same for a stack of weights used once each, one weight at a time: nothing of the stack's size is made."""
    a, g = form.factors()

    def one(total: Array, slices: tuple[Array, Array, Array]) -> tuple[Array, None]:
        s, a, g = slices
        return total + jnp.sum((a**2 @ s) * g**2, axis=-1), None

    zero = jnp.zeros(g.shape[:2], a.dtype)
    return lax.scan(one, zero, (s, jnp.moveaxis(a[:, :, 0], 1, 0), jnp.moveaxis(g[:, :, :, 0], 2, 0)))[0]


def pairs_quadratic(
    s: Float[Array, "N I O"], a: Float[Array, "B N T I"], g: Float[Array, "K B N T O"]
) -> Float[Array, "K B"]:
    """`Σ S (Σ_t a_t g_tᵀ)²` by pairs of factors; the products with S are made once for all components."""
    first, second = np.tril_indices(a.shape[2])
    # Written as one matrix product, then one elementwise one: the first is the whole batch's cost.
    left = turn(a[:, :, first] * a[:, :, second], s)
    left = left * np.where(first == second, 1, 2).astype(left.dtype)[:, None]

    def one(g: Array) -> Array:
        return jnp.sum(left * g[:, :, first] * g[:, :, second], axis=(1, 2, 3))

    return one(g[0])[None] if g.shape[0] == 1 else lax.map(one, g)


def _dense_quadratic(s: Array, g: Array) -> Array:
    return jnp.sum(s * g**2, axis=tuple(range(2, g.ndim)))


def leaf_square_sum(
    forms: tuple[Form, ...], gradients: Gradients, shape: tuple[int, ...], weights: Array
) -> Array:
    if not forms:
        return jnp.zeros(shape, widened(gradients.value).dtype)
    if len(forms) > 1:
        return sum_over_cases(
            lambda fs, w: _dense_square_sum(add_up([f.dense(shape) for f in fs], shape, gradients), w),
            Several(forms),
            weights,
        )
    (form,) = forms
    if isinstance(form, Dense):
        return _dense_square_sum(widened(form.g), weights)
    if isinstance(form, Rows):
        squares = weights[:, :, None, None] * form.merged() ** 2
        table = jnp.zeros(form.frame, squares.dtype).at[form.numbers].add(jnp.sum(squares, axis=0))
        return form.path.transpose(table, shape)
    return form.path.transpose(products_square_sum(form, weights), shape)


def products_square_sum(form: Products, weights: Float[Array, "K B"]) -> Float[Array, "N I O"]:
    """`Σ_{k,b} w G²` in the frame of a form of products."""
    n, i, o = form.frame
    if form.pairs <= MOST_PAIRS:
        size = max(1, _AT_ONCE // (n * form.pairs**2 * (i + o))) if form.pairs > 1 else form.count

        def pairs(some: Products, w: Array) -> Array:
            a, g = some.factors()
            return pairs_square_sum(a, g, w)

        return sum_over_cases(pairs, form, weights, size)
    size = max(1, _STEP // (n * i * o * form.components))
    return sum_over_cases(lambda some, w: _dense_square_sum(some.explicit(), w), form, weights, size)


def pairs_square_sum(
    a: Float[Array, "B N T I"], g: Float[Array, "K B N T O"], weights: Float[Array, "K B"]
) -> Float[Array, "N I O"]:
    """`Σ_{k,b} w (Σ_t a_t g_tᵀ)²` by pairs of factors; the components are summed before the product with the inputs."""
    first, second = np.tril_indices(a.shape[2])
    twice = np.where(first == second, 1, 2).astype(a.dtype)
    left = a[:, :, first] * a[:, :, second]
    right = jnp.einsum("kb,kbnpo->bnpo", weights, g[:, :, :, first] * g[:, :, :, second])
    return jnp.einsum("bnpi,bnpo->nio", left, right * twice[:, None])


def _dense_square_sum(g: Array, weights: Array) -> Array:
    return jnp.einsum("kb,kb...->...", weights, g**2)


class Several(tuple[Form, ...]):
    """The forms of one leaf, sliced together."""

    def cases(self, start: Any, size: int) -> "Several":
        return Several(form.cases(start, size) for form in self)

    def component(self, k: Any, size: int = 1) -> "Several":
        return Several(form.component(k, size) for form in self)
