"""Squares of `G = Σ_t a_t g_tᵀ` by building G, a few cases at a time: for weights that are used many times."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.factors import Paired
from deltavariance.contraction.loops import over_cases, over_components, sum_over_cases
from deltavariance.contraction.multiply import sum_of_rest

# How many numbers of G to build in one step: fewer and the loop costs more than the work, more and G leaves the cache.
_STEP = 3 << 16
# A single G of so many numbers is a step of its own: its product, square and sum are one kernel on a CPU.
ALONE = 1 << 12


def explicit_quadratic(s: Float[Array, "N I O"], form: Paired) -> Float[Array, "K B"]:
    """`Σ S G²`, of each component and case. Cost: K·B·T·N·I·O multiplications."""
    n, i, o = form.frame
    at_once = max(1, _STEP // (n * i * o))

    def some(cases: Paired) -> Array:
        # The inputs are laid out once for all components.
        a, _ = cases.factors()
        return over_components(
            lambda one: product_quadratic(s, a, one.factors()[1]), cases, form.components, at_once
        )

    return over_cases(some, form, form.count, _cases(form))


def product_quadratic(
    s: Float[Array, "N I O"], a: Float[Array, "B N T I"], g: Float[Array, "K B N T O"]
) -> Float[Array, "K B"]:
    """`Σ S G²` of factors whose product may be held at once. Batch axes of length one hide what XLA could fuse."""
    k, b, n, t, o = g.shape
    if n > 1:
        return sum_of_rest(s * jnp.einsum("bnti,kbnto->kbnio", a, g) ** 2, 2)
    if k == b == 1:
        return jnp.reshape(jnp.sum(s[0] * (a[0, 0].T @ g[0, 0, 0]) ** 2), (1, 1))
    weights = jnp.ravel(s[0].T)
    if b == 1:
        beside = jnp.reshape(jnp.swapaxes(g[:, 0, 0], 0, 1), (t, k * o))
        return jnp.reshape((beside.T @ a[0, 0]) ** 2, (k, -1)) @ weights[:, None]
    product = jnp.einsum("kbto,bti->kboi", g[:, :, 0], a[:, 0])
    return jnp.reshape(jnp.reshape(product**2, (k * b, -1)) @ weights, (k, b))


def explicit_square_sum(form: Paired, weights: Float[Array, "K B"]) -> Float[Array, "N I O"]:
    """`Σ_{k,b} w G²`. Cost: K·B·T·N·I·O multiplications."""

    def some(cases: Paired, w: Float[Array, "K b"]) -> Array:
        return product_square_sum(*cases.factors(), w)

    total: Array = sum_over_cases(some, form, weights, _cases(form))
    return total


def product_square_sum(
    a: Float[Array, "B N T I"], g: Float[Array, "K B N T O"], weights: Float[Array, "K B"]
) -> Float[Array, "N I O"]:
    """`Σ_{k,b} w G²` of factors whose product may be held at once."""
    if weights.size == a.shape[1] == 1:
        return (weights[0, 0] * (a[0, 0].T @ g[0, 0, 0]) ** 2)[None]
    return jnp.einsum("kb,kbnio->nio", weights, jnp.einsum("bnti,kbnto->kbnio", a, g) ** 2)


def _cases(form: Paired) -> int:
    """How many cases to take at once."""
    n, i, o = form.frame
    size = i * o * form.components
    return 1 if n == 1 and size >= ALONE else max(1, _STEP // (n * size))
