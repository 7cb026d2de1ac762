"""Masks from outside: where they go, what they are, and what they do to mean and variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deltavariance.parameters import Layout
from deltavariance.tracing.masking import masked

KEY = jax.random.key(0)
EYE = jnp.eye(64)
X = 1.0 + jnp.arange(64.0)


def mask(u, params, x=X, key=KEY, rate=0.25, where=None, **options):
    return np.asarray(masked(u, params, x, key, rate, layout=Layout.of(params, where), **options))


def assert_masked(found, unmasked, rate=0.25):
    """Every entry is 0 or the entry without a mask over 1 − rate, and both occur."""
    kept = found != 0
    np.testing.assert_allclose(found[kept], np.asarray(unmasked / (1 - rate))[kept], rtol=1e-6)
    assert 0 < kept.mean() < 1


def test_the_operand_is_masked_and_rescaled():
    """The product with the identity shows the operand itself."""
    params = {"s": jnp.full(64, 2.0), "w": EYE}
    assert_masked(mask(lambda p, x: (p["s"] * x) @ p["w"], params), 2 * X)


def test_share_of_zeros_is_the_rate():
    params = {"s": jnp.ones(()), "w": jnp.ones((20_000, 1))}
    found = mask(lambda p, x: p["s"] * x @ p["w"], params, jnp.ones(20_000), rate=0.1)
    # A sum of 20,000 entries that are 1/0.9 with chance 0.9: mean 20,000, standard deviation √(20,000/9) = 47.
    assert abs(found[0] - 20_000) < 4 * 47


def test_other_operand_order_and_batch_axes():
    params = {"s": jnp.ones(()), "w": jnp.broadcast_to(EYE, (3, 64, 64))}
    assert_masked(
        mask(lambda p, x: jnp.einsum("hij,hj->hi", p["w"], p["s"] * jnp.stack([x] * 3)), params),
        jnp.stack([X] * 3),
    )


def test_convolutions_are_masked():
    params = {"s": jnp.ones(()), "k": jnp.ones((1, 1, 1, 1))}

    def u(p, x):
        image = jnp.reshape(p["s"] * x, (1, 1, 8, 8))
        return jnp.ravel(jax.lax.conv(image, p["k"], (1, 1), "SAME"))

    assert_masked(mask(u, params), X)


def test_first_layer_input_only_on_request():
    params = {"v": EYE}
    with pytest.raises(ValueError, match="no product to mask"):
        mask(lambda p, x: x @ p["v"], params)
    assert_masked(mask(lambda p, x: x @ p["v"], params, inputs=True), X)


def test_products_of_two_activations_are_left_alone():
    """Attention scores, and products with constants: only the output projection is masked."""
    params = {"q": 0.1 * EYE, "o": jnp.ones((64, 1))}

    def u(p, x):
        h = p["q"] * x
        return jnp.sum(h @ h) + 0 * jnp.sum(h @ jnp.ones((64, 1)))

    with pytest.raises(ValueError, match="no product to mask"):
        mask(u, params)


def test_only_products_with_the_chosen_parameters():
    params = {"s": jnp.ones(()), "a": EYE, "b": EYE}
    u = lambda p, x: jnp.stack([(p["s"] * x) @ p["a"], (p["s"] * x) @ p["b"]])
    found = mask(u, params, where=lambda p: (p["s"], p["b"]))
    np.testing.assert_allclose(found[0], X)
    assert_masked(found[1], X)


def test_weights_that_are_computed_from_parameters_count():
    """A normalised weight has no factored gradient, and its product is a product all the same."""
    params = {"s": jnp.ones(()), "v": 3 * EYE}
    u = lambda p, x: (p["s"] * x) @ (p["v"] / jnp.linalg.norm(p["v"], axis=0))
    assert_masked(mask(u, params), X)


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: jax.jit(jax.checkpoint(f)),
        lambda f: lambda w, x: jax.lax.cond(x[0] > 0, f, lambda w, x: x, w, x),
    ],
)
def test_masks_inside_calls_and_branches(wrap):
    params = {"s": jnp.ones(()), "w": EYE}
    inner = wrap(lambda w, x: x @ w)
    assert_masked(mask(lambda p, x: inner(p["w"], p["s"] * x), params), X)


def test_masks_inside_custom_rules():
    @jax.custom_vjp
    def product(w, x):
        return x @ w

    product.defvjp(lambda w, x: (product(w, x), (w, x)), lambda r, g: (jnp.outer(r[1], g), r[0] @ g))
    params = {"s": jnp.ones(()), "w": EYE}
    assert_masked(mask(lambda p, x: product(p["w"], p["s"] * x), params), X)


def test_sites_have_masks_of_their_own():
    params = {"s": jnp.ones(()), "a": EYE, "b": EYE}
    a, b = mask(lambda p, x: jnp.stack([(p["s"] * x) @ p["a"], (p["s"] * x) @ p["b"]]), params)
    assert ((a != 0) != (b != 0)).any()


def rollout(p, x):
    """Three steps of the same layer, each fed the same state, so that each step shows its own mask."""
    return jax.lax.scan(lambda state, _: (state, state @ p["w"]), p["s"] * x, None, length=3)[1]


def test_steps_of_a_rollout_fresh_or_fixed():
    params = {"s": jnp.ones(()), "w": EYE}
    fresh, fixed = mask(rollout, params), mask(rollout, params, fixed=True)
    assert_masked(fresh, jnp.stack([X] * 3))
    assert ((fresh[0] != 0) != (fresh[1] != 0)).any()
    assert_masked(fixed[0], X)
    np.testing.assert_array_equal(fixed[0], fixed[1])
    np.testing.assert_array_equal(fixed[0], fixed[2])


def test_stacked_layers_never_share():
    params = {"s": jnp.ones(()), "w": jnp.stack([EYE] * 3)}
    u = lambda p, x: jax.lax.scan(lambda state, w: (state, state @ w), p["s"] * x, p["w"])[1]
    found = mask(u, params, fixed=True)
    assert ((found[0] != 0) != (found[1] != 0)).any()


def test_a_rollouts_state_counts_as_computed():
    """It starts as the case alone, and every later step feeds back what parameters made."""
    params = {"w": EYE}
    u = lambda p, x: jax.lax.scan(lambda state, _: (state @ p["w"], None), x, None, length=2)[0]
    assert (mask(u, params) == 0).any()


def test_while_loops():
    params = {"s": jnp.ones(()), "w": EYE}

    def u(p, x):
        step = lambda c: (c[0] + 1, c[1] @ p["w"])
        return jax.lax.while_loop(lambda c: c[0] < 2, step, (0, p["s"] * x))[1]

    found = mask(u, params)
    kept = found != 0
    np.testing.assert_allclose(found[kept], np.asarray(X / 0.75**2)[kept], rtol=1e-6)
    # Two independent masks: 9/16 of the entries stay, where one shared mask would leave 12/16.
    wide = mask(u, {"s": jnp.ones(()), "w": jnp.eye(2000)}, jnp.ones(2000))
    assert abs((wide != 0).mean() - 9 / 16) < 0.05
    shared = mask(u, {"s": jnp.ones(()), "w": jnp.eye(2000)}, jnp.ones(2000), fixed=True)
    assert abs((shared != 0).mean() - 12 / 16) < 0.05


def test_at_a_vanishing_rate_the_function_itself():
    params = {"v": jax.random.normal(KEY, (64, 8)) / 64, "w": jnp.ones(8)}
    u = lambda p, x: jnp.tanh(x @ p["v"]) @ p["w"]
    np.testing.assert_allclose(mask(u, params, rate=1e-12), u(params, X), rtol=1e-6)


def test_mean_and_variance_have_their_closed_forms():
    """For a linear last layer: mean Σ h w, variance rate/(1 − rate) Σ (h w)²."""
    params = {"s": jnp.full(64, 0.5), "w": jnp.linspace(-1, 1, 64)}
    u = lambda p, x: (p["s"] * x) @ p["w"]
    draws = jax.jit(jax.vmap(lambda k: masked(u, params, X, k, 0.2, layout=Layout.of(params))))(
        jax.random.split(KEY, 20_000)
    )
    terms = 0.5 * X * params["w"]
    variance = float(0.25 * jnp.sum(terms**2))
    assert abs(float(draws.mean() - terms.sum())) < 4 * (variance / 20_000) ** 0.5
    assert abs(float(draws.var()) / variance - 1) < 4 * (2 / 20_000) ** 0.5
