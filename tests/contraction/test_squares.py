"""Every way to square `G = Σ_t a_t g_tᵀ` against G written out, in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.contraction.explicit import product_quadratic, product_square_sum
from deltavariance.contraction.pairs import pairs_are_cheaper, pairs_quadratic, pairs_square_sum
from deltavariance.tracing import example_gradients

pytestmark = pytest.mark.usefixtures("x64")

# K components, B cases, N stacked weights, T uses, I inputs, O outputs: each branch of each way is taken.
SIZES = [
    (1, 5, 1, 1, 4, 3),
    (1, 5, 1, 3, 4, 1),
    (1, 1, 1, 7, 3, 5),
    (1, 4, 2, 3, 2, 4),
    (6, 1, 1, 7, 3, 2),
    (6, 3, 1, 1, 2, 5),
    (6, 3, 1, 5, 2, 1),
    (3, 4, 2, 4, 5, 3),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_squares_equal_those_of_the_product_written_out(sizes):
    k, b, n, t, i, o = sizes
    rng = np.random.default_rng(sum(sizes))
    a, g = rng.normal(size=(b, n, t, i)), rng.normal(size=(k, b, n, t, o))
    s, w = rng.uniform(size=(n, i, o)), rng.uniform(size=(k, b))
    product = np.zeros((k, b, n, i, o))
    for use in range(t):
        product += a[None, :, :, use, :, None] * g[:, :, :, use, None, :]
    quadratic = (s * product**2).sum((2, 3, 4))
    total = (w[:, :, None, None, None] * product**2).sum((0, 1))
    arrays = [jnp.asarray(x) for x in (s, a, g)]
    for way in (pairs_quadratic, product_quadratic):
        np.testing.assert_allclose(jax.jit(way)(*arrays), quadratic, rtol=1e-12, err_msg=way.__name__)
    for sum_way in (pairs_square_sum, product_square_sum):
        found = jax.jit(sum_way)(*arrays[1:], jnp.asarray(w))
        np.testing.assert_allclose(found, total, rtol=1e-12, err_msg=sum_way.__name__)


@pytest.mark.parametrize(("uses", "components"), [(3, 1), (9, 1), (4, 5), (30, 5)])
def test_a_weight_used_again_and_again(uses, components):
    """Through the whole library, with a bias that its uses share, on both sides of the choice."""
    rng = np.random.default_rng(uses)
    params = {"w": jnp.asarray(0.3 * rng.normal(size=(12, 12))), "b": jnp.asarray(rng.normal(size=12))}
    z = jnp.asarray(rng.normal(size=(5, 12)))

    def u(p, x):
        step = lambda x, _: (jnp.tanh(x @ p["w"] + p["b"]), None)
        return jax.lax.scan(step, x, None, length=uses)[0][:components]

    (form,) = example_gradients(u, params, z).leaves[1]
    assert pairs_are_cheaper(form) == (uses < 5)
    variances = jax.tree.map(lambda leaf: 1e-3 * (1 + jnp.cos(leaf) ** 2), params)
    found = dv.variance(u, params, z, dv.as_covariance(params, variances))
    gradients = jax.vmap(jax.jacrev(u), (None, 0))(params, z)
    terms = jax.tree.map(lambda d, v: (d**2 * v).sum(tuple(range(2, d.ndim))), gradients, variances)
    np.testing.assert_allclose(found, terms["w"] + terms["b"], rtol=1e-11)


def test_scanned_layers_keep_the_axes_of_their_scan():
    """Weights and biases of stacked layers, for one component and for several."""
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(0.4 * rng.normal(size=(4, 3, 3))), "b": jnp.asarray(rng.normal(size=(4, 3)))}
    z, variances = jnp.asarray(rng.normal(size=(6, 3))), dv.as_covariance(params, 0.5)
    for components in (1, 3):

        def u(p, x, components=components):
            step = lambda h, layer: (jnp.tanh(h @ layer["w"] + layer["b"]), None)
            return jax.lax.scan(step, x, p)[0][:components]

        gradients = jax.vmap(jax.jacrev(u), (None, 0))(params, z)
        expected = sum(0.5 * (d**2).sum(tuple(range(2, d.ndim))) for d in gradients.values())
        np.testing.assert_allclose(dv.variance(u, params, z, variances), expected, rtol=1e-11)
        F = dv.fisher(lambda p, x: jnp.sum(u(p, x)), params, z)
        scores = jax.vmap(jax.grad(lambda p, x: jnp.sum(u(p, x))), (None, 0))(params, z)
        for mean, d in zip(F.mean, (scores["b"], scores["w"]), strict=True):
            np.testing.assert_allclose(mean, (d**2).mean(0), rtol=1e-11)
