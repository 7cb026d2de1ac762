"""A weight that is an outer product: then the squares of a gradient need no product of its factors."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.loops import over_cases, over_components
from deltavariance.contraction.multiply import turn
from deltavariance.tracing.gradients import Products

# Entries of the Gram matrices made at once.
_AT_ONCE = 1 << 20


class Separable(eqx.Module):
    """`S[n,i,o] = left[n,i] right[n,o]`, both at least 0."""

    left: Float[Array, "N I"]
    right: Float[Array, "N O"]

    def full(self) -> Float[Array, "N I O"]:
        return self.left[:, :, None] * self.right[:, None, :]


def gram_is_cheaper(form: Products) -> bool:
    """Whether T × T Gram matrices of both factors take fewer multiplications than their product does."""
    _, i, o = form.frame
    t = form.pairs
    explicit = t * i * o + min(t, o) * i**2 + min(t, i) * o**2
    return t * (i**2 + o**2) + t**2 * (i + o) <= explicit


def gram_quadratic(
    s: Separable, left: Array | None, right: Array | None, form: Products, components: int, cases: int
) -> Float[Array, "K B"]:
    """`Σ_{t,t'} (a_tᵀ L diag(l) Lᵀ a_t') (g_tᵀ R diag(r) Rᵀ g_t')`, which is `Σ S (Lᵀ G R)²`.

    Cost: T·(I² + O²) + T²·(I + O) a case.
    """
    if form.pairs == 1:
        return _single(s, left, right, form)
    left_root, right_root = _root(left, s.left), _root(right, s.right)

    def some(chunk: Products) -> Array:
        a = _whitened(chunk.factors()[0], left_root)
        return over_components(
            lambda one: _joined(a, _whitened(one.factors()[1], right_root)), chunk, components
        )

    n, i, o = form.frame
    return over_cases(some, form, cases, max(1, _AT_ONCE // (n * form.pairs * max(form.pairs, i, o))))


def _single(s: Separable, left: Array | None, right: Array | None, form: Products) -> Float[Array, "K B"]:
    """The same for T = 1, where a Gram matrix is a sum of squares: roots are not multiplied into the basis."""
    a, g = form.factors()
    a = a if left is None else turn(a, left)
    g = g if right is None else turn(g, right)
    # As products with a column: XLA on a CPU is many times slower at the same sum as a reduction.
    inputs, outputs = turn(a**2, s.left[:, :, None]), turn(g**2, s.right[:, :, None])
    return jnp.sum((inputs * outputs)[..., 0, 0], axis=-1)


def _root(basis: Array | None, values: Array) -> Array:
    roots = jnp.sqrt(values)[:, None, :]
    return roots if basis is None else basis * roots


def _whitened(factor: Float[Array, "... N T F"], root: Array) -> Array:
    if root.shape[1] == 1 != factor.shape[-1]:
        return factor * root
    return turn(factor, root)


def _joined(a: Float[Array, "b N T I"], g: Float[Array, "K b N T O"]) -> Float[Array, "K b"]:
    inputs = jnp.einsum("bnti,bnsi->bnts", a, a)
    return jnp.sum(inputs * jnp.einsum("kbnto,kbnso->kbnts", g, g), axis=(2, 3, 4))
