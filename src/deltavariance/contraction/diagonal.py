"""Squares of gradients, weighted by a diagonal (`quadratic`) or summed over cases (`square_sum`).

For products, `G = Σ_t a_t g_tᵀ` and a diagonal S there are three equal ways, chosen from shapes alone:

- T = 1: `Σ_io S a² g² = (a²)ᵀ S (g²)`, one matrix product for the whole batch, G never built;
- T few, or components many: the same for each pair s ≤ t, `Σ (a_s∘a_t)ᵀ S (g_s∘g_t)`;
- else: build G one case at a time and square it.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from deltavariance.contraction.explicit import explicit_quadratic, explicit_square_sum
from deltavariance.contraction.loops import over_cases, sum_over_cases
from deltavariance.contraction.multiply import sum_of_rest
from deltavariance.contraction.pairs import (
    cases_of_pairs,
    pairs_are_cheaper,
    pairs_quadratic,
    pairs_square_sum,
)
from deltavariance.tracing.gradients import Dense, Form, Products, Rows, add_up, widened
from deltavariance.tracing.gradients import ExampleGradients as Gradients


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
        return _dense_quadratic(s, widened(form.g), form.stack)
    if isinstance(form, Rows):
        picked = jnp.take(form.seen(s), form.numbers, axis=0)
        return jnp.sum(picked * form.merged() ** 2, axis=(2, 3))
    return products_quadratic(form.seen(s), form)


def products_quadratic(s: Float[Array, "N I O"], form: Products) -> Float[Array, "K B"]:
    """`Σ S G²` in the frame of a form of products."""
    if form.pairs == 1 and form.frame[0] > 1:
        return _stack_quadratic(s, form)
    if pairs_are_cheaper(form):
        return over_cases(
            lambda some: pairs_quadratic(s, *some.factors()), form, form.count, cases_of_pairs(form)
        )
    return explicit_quadratic(s, form)


def _stack_quadratic(s: Float[Array, "N I O"], form: Products) -> Float[Array, "K B"]:
    """The same for a stack of weights used once each, one weight at a time: nothing of the stack's size is made."""
    a, g = form.stacked_factors()
    n, k, b, _, o = g.shape

    def one(total: Array, slices: tuple[Array, Array, Array]) -> tuple[Array, None]:
        s, a, g = slices
        return total + jnp.sum((a**2 @ s) * jnp.reshape(g, (k, b, o)) ** 2, axis=-1), None

    # Components and cases on one axis: an axis of length one in the scanned array would be a copy of it.
    slices = (s, jnp.reshape(a, (n, b, -1)), jnp.reshape(g, (n, k * b, o)))
    # Two layers a step: a loop's step costs as much as a small layer's product.
    return lax.scan(one, jnp.zeros((k, b), a.dtype), slices, unroll=2)[0]


def _dense_quadratic(s: Array, g: Array, stack: int = 0) -> Float[Array, "K B"]:
    """`Σ S Δ²` of `g [*stack, K, B, *rest]`, with `s [*stack, *rest]`."""
    if stack == 0:
        return sum_of_rest(s * g**2, 2)
    k, b = g.shape[stack : stack + 2]
    # Components and cases on one axis: an axis of length one would be a copy.
    joined = jnp.reshape(g, (*g.shape[:stack], k * b, *g.shape[stack + 2 :]))
    others = tuple(axis for axis in range(joined.ndim) if axis != stack)
    return jnp.reshape(jnp.sum(jnp.expand_dims(s, stack) * joined**2, axis=others), (k, b))


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
        return _dense_square_sum(widened(form.g), weights, form.stack)
    if isinstance(form, Rows):
        squares = weights[:, :, None, None] * form.merged() ** 2
        table = jnp.zeros(form.frame, squares.dtype).at[form.numbers].add(jnp.sum(squares, axis=0))
        return form.path.transpose(table, shape)
    return form.path.transpose(products_square_sum(form, weights), shape)


def products_square_sum(form: Products, weights: Float[Array, "K B"]) -> Float[Array, "N I O"]:
    """`Σ_{k,b} w G²` in the frame of a form of products."""
    if pairs_are_cheaper(form):

        def pairs(some: Products, w: Array) -> Array:
            a, g = some.factors()
            return pairs_square_sum(a, g, w)

        return sum_over_cases(pairs, form, weights, cases_of_pairs(form))
    return explicit_square_sum(form, weights)


def _dense_square_sum(g: Array, weights: Float[Array, "K B"], stack: int = 0) -> Array:
    """`Σ_{k,b} w Δ²` of `g [*stack, K, B, *rest]`."""
    if stack == 0:
        return jnp.einsum("kb,kb...->...", weights, g**2)
    each = jnp.reshape(weights, (*weights.shape, *[1] * (g.ndim - stack - 2)))
    return jnp.sum(each * g**2, axis=(stack, stack + 1))


class Several(tuple[Form, ...]):
    """The forms of one leaf, sliced together."""

    def cases(self, start: Any, size: int) -> "Several":
        return Several(form.cases(start, size) for form in self)

    def component(self, k: Any, size: int = 1) -> "Several":
        return Several(form.component(k, size) for form in self)
