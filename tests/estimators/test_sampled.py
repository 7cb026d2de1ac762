"""Draws from posteriors and dropout against plain loops and closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.estimators import SWAG, MCDropout, OwnDropout, SampledPosterior

KEY = jax.random.key(0)
PARAMS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
Z = jnp.array([[1.0, 0.0], [0.3, -1.0], [2.0, 1.0]])


def linear(p, z):
    return z @ p["a"] + p["b"]


GRADIENTS = np.concatenate([np.asarray(Z), np.ones((3, 1))], axis=1)


def test_posterior_draws_against_a_loop(x64):
    matrix = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, 0.0], [0.1, 0.0, 0.5]]) * 0.1
    params = {"a": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
    sigma = dv.as_covariance(params, jnp.asarray(matrix))
    estimator = SampledPosterior(params, sigma, samples=6, key=KEY)
    q = lambda p, z: jnp.stack([jnp.sin(z @ p["a"]), p["b"] ** 2])
    values = []
    for key in jax.random.split(KEY, 6):
        step = np.asarray(sigma.sample(key))
        moved = {"a": params["a"] + step[:2], "b": params["b"] + step[2]}
        values.append([np.asarray(q(moved, z)) for z in Z])
    np.testing.assert_allclose(estimator.variance(q, Z), np.var(values, axis=0, ddof=1), rtol=1e-6)


def test_posterior_draws_approach_the_delta_variance_of_a_linear_quantity():
    sigma = dv.as_covariance(PARAMS, 0.3)
    found = SampledPosterior(PARAMS, sigma, samples=20_000, key=KEY).variance(linear, Z)
    np.testing.assert_allclose(found, dv.variance(linear, PARAMS, Z, sigma), rtol=4 * (2 / 20_000) ** 0.5)


@pytest.mark.parametrize(("count", "rank"), [(5, 20), (9, 4)])
def test_swag_draws_have_the_variance_of_the_paper(count, rank):
    """½ diag(variance) + ½ D Dᵀ / (rank − 1), around the snapshots' mean."""
    rows = np.asarray(jax.random.normal(jax.random.key(1), (count, 3))) * np.array([1.0, 2.0, 0.2])
    snapshots = [{"a": jnp.asarray(row[:2]), "b": jnp.asarray(row[2])} for row in rows]
    estimator = SWAG(snapshots, samples=40_000, key=KEY, rank=rank)
    centred = rows - rows.mean(axis=0)
    kept = centred[-rank:]
    sigma = 0.5 * np.diag((centred**2).mean(axis=0)) + 0.5 * kept.T @ kept / (len(kept) - 1)
    expected = np.einsum("ni,ij,nj->n", GRADIENTS, sigma, GRADIENTS)
    tolerance = 4 * (2 / 40_000) ** 0.5
    np.testing.assert_allclose(estimator.variance(linear, Z), expected, rtol=tolerance)
    error = np.abs(np.asarray(estimator.mean(linear, Z)) - GRADIENTS @ rows.mean(axis=0))
    assert (error < 4 * np.sqrt(expected / 40_000)).all()


def test_swag_scale_is_a_factor_of_the_variance():
    snapshots = [{"a": jnp.array([float(k), 1.0]), "b": jnp.array(-1.0 * k)} for k in range(4)]
    one = SWAG(snapshots, key=KEY).variance(linear, Z)
    np.testing.assert_allclose(SWAG(snapshots, key=KEY, scale=4.0).variance(linear, Z), 4 * one, rtol=1e-4)


def network():
    first, second = jax.random.split(jax.random.key(4))
    return {"v": jax.random.normal(first, (2, 50)), "w": jax.random.normal(second, (50,)) / 7}


def dropped(p, z, key=None):
    h = jnp.tanh(z @ p["v"])
    if key is not None:
        h = jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h / 0.8, 0.0)
    return h @ p["w"]


def test_dropout_from_outside_has_its_closed_form():
    """One hidden layer: variance = rate/(1 − rate) Σ (h w)², for each case."""
    params = network()
    estimator = MCDropout(params, rate=0.2, samples=10_000, key=KEY)
    terms = np.tanh(np.asarray(Z @ params["v"])) * np.asarray(params["w"])
    tolerance = 4 * (2 / 10_000) ** 0.5
    np.testing.assert_allclose(estimator.variance(dropped, Z), 0.25 * (terms**2).sum(axis=1), rtol=tolerance)
    other = estimator.with_rate(0.5).variance(dropped, Z)
    np.testing.assert_allclose(other, (terms**2).sum(axis=1), rtol=tolerance)


def test_dropout_from_outside_and_from_inside_agree():
    params = network()
    outside = MCDropout(params, rate=0.2, samples=10_000, key=KEY).variance(dropped, Z)
    inside = OwnDropout(params, samples=10_000, key=KEY).variance(dropped, Z)
    np.testing.assert_allclose(inside, outside, rtol=6 * (2 / 10_000) ** 0.5)


def test_own_dropout_against_a_loop():
    params = network()
    values = [[dropped(params, z, k) for z in Z] for k in jax.random.split(KEY, 5)]
    found = OwnDropout(params, samples=5, key=KEY).variance(dropped, Z)
    np.testing.assert_allclose(found, np.var(values, axis=0, ddof=1), rtol=1e-4)


def test_one_draw_is_one_network():
    """All cases see the same masks: equal cases get equal variances, and a draw is a function."""
    twice = jnp.stack([Z[1], Z[1]])
    v = MCDropout(network(), rate=0.3, samples=4, key=KEY).variance(dropped, twice)
    assert float(v[0]) == float(v[1]) > 0


def test_dropout_in_modules_that_know_nothing_of_it():
    model = eqx.nn.MLP(2, 1, 16, 2, key=KEY)
    v = MCDropout(model, rate=0.1, samples=10, key=KEY).variance(lambda m, z: m(z)[0], Z)
    assert v.shape == (3,)
    assert bool((v > 0).all())


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_rates_outside_are_refused(rate):
    with pytest.raises(ValueError, match="between 0 and 1"):
        MCDropout(network(), rate=rate, key=KEY)
