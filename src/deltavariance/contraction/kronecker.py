"""Squares of gradients in an orthogonal basis: what Kronecker-factored and dense blocks contract and accumulate.

`G̃ = Lᵀ (Σ_t a_t g_tᵀ) R`, squared and weighted. The rotations go where they are cheap: on the factors (T·I² and T·O²
numbers) while T is small, on the product (O·I² and I·O²) when it is the smaller thing.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.basis import Basis
from deltavariance.contraction.diagonal import Several, leaf_quadratic, leaf_square_sum
from deltavariance.contraction.explicit import ALONE, explicit_quadratic, explicit_square_sum
from deltavariance.contraction.factors import Factors
from deltavariance.contraction.loops import over_cases, over_components, sum_over_cases
from deltavariance.contraction.multiply import sum_of_rest, turn
from deltavariance.contraction.pairs import (
    cases_of_pairs,
    pairs_are_cheaper,
    pairs_quadratic,
    pairs_square_sum,
)
from deltavariance.contraction.separable import Separable, gram_is_cheaper, gram_quadratic
from deltavariance.tracing.gradients import Dense, Form, Products, Rows, add_up, widened
from deltavariance.tracing.gradients import ExampleGradients as Gradients

# Entries of G̃ made at once (1 MiB in float32): small enough for a cache, large enough for a matrix product.
_AT_ONCE = 1 << 18


Weight = Float[Array, "N I O"] | Separable


def full(s: Weight) -> Float[Array, "N I O"]:
    return s.full() if isinstance(s, Separable) else s


def rotated_quadratic(
    pieces: Sequence[tuple[Basis, Weight]], gradients: Gradients, leaf: int
) -> Float[Array, "K B"]:
    """`Σ_pieces Σ S G̃²` of one leaf."""
    forms, shape = gradients.leaves[leaf], gradients.layout.shapes[leaf]
    if not forms:
        return jnp.zeros((gradients.components, gradients.cases), widened(gradients.value).dtype)
    if len(pieces) == 1 and pieces[0][0].is_identity:
        basis, s = pieces[0]
        return leaf_quadratic(basis.leave(full(s), shape), forms, gradients, shape)
    pairs = _matched([basis for basis, _ in pieces], forms)
    if pairs is not None:
        return sum(_form_quadratic(*pieces[number], form, gradients) for number, form in pairs)  # type: ignore[return-value]

    def explicit(some: Several) -> Array:
        whole = add_up([form.dense(shape) for form in some], shape, gradients)
        return sum(_square(full(s), basis.rotate(basis.enter(whole, shape))) for basis, s in pieces)  # type: ignore[return-value]

    return over_cases(explicit, Several(forms), gradients.cases, _at_once(gradients, leaf))


def rotated_square_sum(
    bases: Sequence[Basis], gradients: Gradients, leaf: int, weights: Float[Array, "K B"]
) -> list[Float[Array, "N I O"]]:
    """`Σ_{k,b} w G̃²` of one leaf, piece by piece: the diagonal of a sum of outer products in the basis."""
    forms, shape = gradients.leaves[leaf], gradients.layout.shapes[leaf]
    if not forms:
        return [jnp.zeros(basis.frame, widened(gradients.value).dtype) for basis in bases]
    if len(bases) == 1 and bases[0].is_identity:
        return [bases[0].enter(leaf_square_sum(forms, gradients, shape, weights), shape)]
    pairs = _matched(bases, forms)
    if pairs is not None:
        found = {number: _form_square_sum(bases[number], form, weights) for number, form in pairs}
        return [
            found[number] if number in found else jnp.zeros(basis.frame, widened(gradients.value).dtype)
            for number, basis in enumerate(bases)
        ]

    def explicit(some: Several, w: Array) -> list[Array]:
        whole = add_up([form.dense(shape) for form in some], shape, gradients)
        return [
            jnp.einsum("kb,kbnio->nio", w, basis.rotate(basis.enter(whole, shape)) ** 2) for basis in bases
        ]

    found_sums: list[Array] = sum_over_cases(explicit, Several(forms), weights, _at_once(gradients, leaf))
    return found_sums


def _matched(bases: Sequence[Basis], forms: Sequence[Form]) -> list[tuple[int, Form]] | None:
    """Each form with the number of the piece whose frame it is in, unless some form has none."""
    pairs = []
    for form in forms:
        found = [number for number, basis in enumerate(bases) if basis.matches(form)]
        if len(found) != 1:
            return None
        pairs.append((found[0], form))
    distinct = len({number for number, _ in pairs}) == len(pairs)
    return pairs if distinct else None


def _form_quadratic(basis: Basis, s: Weight, form: Form, gradients: Gradients) -> Array:
    if isinstance(s, Separable) and isinstance(form, Products) and gram_is_cheaper(form):
        return gram_quadratic(s, basis.left, basis.right, form, gradients.components, gradients.cases)
    s = full(s)
    if isinstance(form, Rows):
        g = form.merged() if basis.right is None else form.merged() @ basis.right[0]
        return jnp.sum(jnp.take(s[0], form.numbers, axis=0) * g**2, axis=(2, 3))
    assert isinstance(form, Products)
    if pairs_are_cheaper(form):
        return over_cases(
            lambda some: pairs_quadratic(s, rotated_inputs(basis, some), rotated_cotangents(basis, some)),
            form,
            form.count,
            cases_of_pairs(form),
        )

    def some(chunk: Products) -> Array:
        if all(_both_early(basis, form)):
            rotated = Factors(rotated_inputs(basis, chunk), rotated_cotangents(basis, chunk))
            return explicit_quadratic(s, rotated)
        return over_components(lambda one: _square(s, _product(basis, one)), chunk, gradients.components)

    return over_cases(some, form, gradients.cases, _chunk(basis, form))


def _form_square_sum(basis: Basis, form: Form, weights: Array) -> Array:
    if isinstance(form, Rows):
        g = form.merged() if basis.right is None else form.merged() @ basis.right[0]
        squares = jnp.sum(weights[:, :, None, None] * g**2, axis=0)
        return jnp.zeros(basis.frame, squares.dtype).at[0, form.numbers].add(squares)
    assert isinstance(form, Products)
    if pairs_are_cheaper(form):
        return sum_over_cases(
            lambda some, w: pairs_square_sum(rotated_inputs(basis, some), rotated_cotangents(basis, some), w),
            form,
            weights,
            cases_of_pairs(form),
        )

    def some(chunk: Products, w: Array) -> Array:
        if all(_both_early(basis, form)):
            rotated = Factors(rotated_inputs(basis, chunk), rotated_cotangents(basis, chunk))
            return explicit_square_sum(rotated, w)
        return jnp.einsum("kb,kbnio->nio", w, _product(basis, chunk) ** 2)

    total: Array = sum_over_cases(some, form, weights, _chunk(basis, form))
    return total


def rotated_inputs(basis: Basis, form: Products) -> Float[Array, "B N T I"]:
    a, _ = form.factors()
    return a if basis.left is None else turn(a, basis.left)


def rotated_cotangents(basis: Basis, form: Products) -> Float[Array, "K B N T O"]:
    _, g = form.factors()
    return g if basis.right is None else turn(g, basis.right)


def _both_early(basis: Basis, form: Products) -> tuple[bool, bool]:
    """Whether to rotate inputs and cotangents (T·F² multiplications) rather than one side of their product (I·O·F)."""
    _, i, o = form.frame
    return basis.left is None or form.pairs <= o, basis.right is None or form.pairs <= i


def _product(basis: Basis, form: Products) -> Float[Array, "K b N I O"]:
    """G̃ with each rotation where it is cheaper."""
    left_early, right_early = _both_early(basis, form)
    a = rotated_inputs(basis, form) if left_early else form.factors()[0]
    g = rotated_cotangents(basis, form) if right_early else form.factors()[1]
    if g.shape[:3] == (1, 1, 1):
        # As plain products: batch axes of length one hide from XLA what it could fuse.
        one = a[0, 0].T @ g[0, 0, 0]
        one = one if left_early or basis.left is None else basis.left[0].T @ one
        return (one if right_early or basis.right is None else one @ basis.right[0])[None, None, None]
    product = jnp.einsum("bnti,kbnto->kbnio", a, g)
    product = product if left_early else basis.rotate_left(product)
    return product if right_early else basis.rotate_right(product)


def _square(s: Array, g: Float[Array, "K b N I O"]) -> Float[Array, "K b"]:
    return sum_of_rest(s * g**2, 2)


def _chunk(basis: Basis, form: Products) -> int:
    """How many cases to rotate at once: products of all cases, where it is factors that are rotated, come later."""
    n, i, o = form.frame
    factors = form.pairs * (i + form.components * o)
    if all(_both_early(basis, form)):
        return max(1, 4 * _AT_ONCE // (n * factors))
    alone = n == form.components == 1 and i * o >= ALONE
    return 1 if alone else max(1, _AT_ONCE // (n * max(i * o, form.pairs * max(i, o))))


def _at_once(gradients: Gradients, leaf: int) -> int:
    forms = gradients.leaves[leaf]
    if all(isinstance(form, Dense) for form in forms):
        return max(1, (16 * _AT_ONCE) // max(1, gradients.components * gradients.layout.sizes[leaf]))
    return max(1, _AT_ONCE // max(1, gradients.components * gradients.layout.sizes[leaf]))
