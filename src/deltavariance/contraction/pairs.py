"""Squares of `G = Σ_t a_t g_tᵀ` by pairs of its terms: G itself is never built.

`Σ_io S G² = Σ_{s,t} (a_s∘a_t)ᵀ S (g_s∘g_t)`. The products with S are made once for all components of u.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from deltavariance.contraction.factors import Paired
from deltavariance.contraction.multiply import sum_of_outer, sum_of_rest, turn

# Of one component, up to this T the pairs cost less than G: a G by itself is a small product and bound by memory.
_MOST_PAIRS = 6
# Beyond this T there would be too many terms to write out.
_MOST_WRITTEN = 24
# What an entry of G squared, or a product of two cotangents, costs in multiplications of a large matrix product.
_ENTRY = 9
# How many numbers an intermediate of a chunk of cases may have: some megabytes, to stay in the cache.
_AT_ONCE = 1 << 20


def pairs_are_cheaper(form: Paired) -> bool:
    """Whether to go by P = T(T+1)/2 pairs rather than to build G: `P·O·(I + 9 K)` against `K·I·O·(T + 9)`."""
    k, t, i = form.components, form.pairs, form.frame[1]
    if k == 1 or t > _MOST_WRITTEN:
        return t <= _MOST_PAIRS
    return t * (t + 1) // 2 * (i + _ENTRY * k) <= k * i * (t + _ENTRY)


def cases_of_pairs(form: Paired) -> int:
    """How many cases to take at once."""
    n, i, o = form.frame
    return form.count if form.pairs == 1 else max(1, _AT_ONCE // (n * form.pairs**2 * (i + o)))


def pairs_quadratic(
    s: Float[Array, "N I O"], a: Float[Array, "B N T I"], g: Float[Array, "K B N T O"]
) -> Float[Array, "K B"]:
    """`Σ S (Σ_t a_t g_tᵀ)²`, of each component and case."""
    uses = a.shape[2]
    first, second = np.tril_indices(uses)
    # Written as one matrix product, then one elementwise one: the first is the whole batch's cost.
    products = turn(a[:, :, first] * a[:, :, second], s)
    if uses == 1:
        return sum_of_rest(products * g**2, 2)
    if g.shape[0] == 1:
        twice = products * np.where(first == second, 1, 2).astype(products.dtype)[:, None]
        return sum_of_rest(twice * g[0][:, :, first] * g[0][:, :, second], 1)[None]
    return _several(products, g)


def _several(products: Float[Array, "B N P O"], g: Float[Array, "K B N T O"]) -> Float[Array, "K B"]:
    """`Σ_{s≤t} (2 − δ_st) products[st] g_s g_t` of several components: a row of the symmetric matrix over uses after
    another, its terms written out so that XLA makes one loop of them and keeps none of the products."""
    uses = g.shape[3]
    lower = np.tril(np.full((uses, uses), 2.0), -1) + np.eye(uses)
    places = np.zeros((uses, uses), int)
    places[np.tril_indices(uses)] = np.arange(products.shape[2])
    matrix = products[:, :, places] * lower[:, :, None].astype(products.dtype)
    across = jnp.transpose(g, (3, 1, 2, 0, 4))

    def row(total: Array, slices: tuple[Array, Array]) -> tuple[Array, None]:
        weights, own = slices
        others = sum(weights[:, :, s, None] * across[s] for s in range(uses))
        return total + others * own, None

    zero = jnp.zeros(across.shape[1:], products.dtype)
    total, _ = lax.scan(row, zero, (jnp.moveaxis(matrix, 2, 0), across))
    return jnp.einsum("bnko->kb", total)


def pairs_square_sum(
    a: Float[Array, "B N T I"], g: Float[Array, "K B N T O"], weights: Float[Array, "K B"]
) -> Float[Array, "N I O"]:
    """`Σ_{k,b} w (Σ_t a_t g_tᵀ)²`; the components are summed before the product with the inputs."""
    first, second = np.tril_indices(a.shape[2])
    twice = np.where(first == second, 1, 2).astype(a.dtype)
    left = a[:, :, first] * a[:, :, second]
    right = _over_components(weights, g[:, :, :, first] * g[:, :, :, second]) * twice[:, None]
    if left.shape[1] == 1:
        # One matrix product: a batch axis of length one makes XLA on a CPU lay both sides out anew.
        return sum_of_outer(*(jnp.reshape(x, (-1, x.shape[-1])) for x in (left, right)))[None]
    return jnp.einsum("bnpi,bnpo->nio", left, right)


def _over_components(weights: Float[Array, "K B"], x: Float[Array, "K B ..."]) -> Float[Array, "B ..."]:
    """`Σ_k w[k,b] x[k,b]`; of one component a plain product, which XLA fuses into what is around it."""
    if x.shape[0] == 1:
        return jnp.reshape(weights[0], (-1, *[1] * (x.ndim - 2))) * x[0]
    return jnp.einsum("kb,kb...->b...", weights, x)
