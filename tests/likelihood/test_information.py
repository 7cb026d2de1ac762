"""The root of the information about an output, and draws of y, against derivatives and integrals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import integrate, stats

from deltavariance.likelihood import (
    LowRankCovariance,
    bernoulli_log_likelihood,
    categorical_log_likelihood,
    gaussian_log_likelihood,
    laplace_log_likelihood,
    poisson_log_likelihood,
    student_log_likelihood,
)

SHAPE = (2, 3)
SIZE = 6
ROOT = np.random.default_rng(3).normal(size=(SIZE, SIZE)) + 2 * np.eye(SIZE)
COVARIANCE = ROOT @ ROOT.T


def f(params, x):
    return params * x


NATURAL = {
    "number": (lambda: gaussian_log_likelihood(f, scale=0.3), np.zeros(SHAPE)),
    "per output": (lambda: gaussian_log_likelihood(f, scale=np.array([0.3, 1.0, 2.0])), np.zeros(SHAPE)),
    "covariance": (lambda: gaussian_log_likelihood(f, covariance=COVARIANCE), np.zeros(SHAPE)),
    "low rank": (
        lambda: gaussian_log_likelihood(f, covariance=LowRankCovariance(np.ones(SIZE), ROOT[:, :2])),
        np.zeros(SHAPE),
    ),
    "categorical": (lambda: categorical_log_likelihood(f), np.array([2, 0])),
    "bernoulli": (lambda: bernoulli_log_likelihood(f), np.array([[0, 1, 1], [1, 0, 0]])),
    "poisson": (lambda: poisson_log_likelihood(f), np.array([[0, 3, 7], [1, 0, 2]])),
}


@pytest.mark.parametrize("name", NATURAL)
def test_root_of_the_hessian_of_natural_families(x64, name):
    build, y = NATURAL[name]
    log_likelihood = build()
    output = jnp.asarray(np.random.default_rng(0).normal(size=SHAPE))
    hessian = jax.jit(jax.hessian(lambda o: -log_likelihood.distribution(o).log_prob(y)))(output)
    hessian = hessian.reshape(SIZE, SIZE)
    root = log_likelihood.output_hessian_sqrt(output)
    np.testing.assert_allclose(root @ root.T, hessian, atol=1e-12 * np.abs(hessian).max())


@pytest.mark.parametrize("name", NATURAL)
def test_gauss_newton_of_a_linear_model_is_its_hessian(x64, name):
    build, y = NATURAL[name]
    log_likelihood = build()
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(*SHAPE, 4)))
    params = jnp.asarray(np.random.default_rng(2).normal(size=4))
    linear = eqx.tree_at(lambda module: module.f, log_likelihood, lambda p, x: x @ p)
    hessian = jax.jit(jax.hessian(lambda p: -linear(p, (weights, y))))(params)
    jacobian = np.asarray(weights).reshape(SIZE, 4)
    root = jacobian.T @ np.asarray(log_likelihood.output_hessian_sqrt(weights @ params))
    np.testing.assert_allclose(root @ root.T, hessian, atol=1e-11 * np.abs(hessian).max())


@pytest.mark.parametrize(
    ("log_likelihood", "noise"),
    [
        (laplace_log_likelihood(f, scale=0.7), stats.laplace(0.4, 0.7)),
        (student_log_likelihood(f, scale=0.7, df=3.5), stats.t(3.5, 0.4, 0.7)),
    ],
    ids=["laplace", "student"],
)
def test_information_is_the_mean_squared_score(x64, log_likelihood, noise):
    location = jnp.array(0.4)
    score = jax.jit(jax.grad(lambda o, y: log_likelihood.distribution(o).log_prob(y)))
    mean_square, _ = integrate.quad(
        lambda y: float(score(location, y)) ** 2 * noise.pdf(y), -60, 60, points=[0.4], limit=400
    )
    root = log_likelihood.output_hessian_sqrt(location)
    np.testing.assert_allclose(float(root[0, 0]) ** 2, mean_square, rtol=1e-4)


@pytest.mark.parametrize("scale_shape", [(), (3,), (2, 1), (2, 3)])
def test_information_about_a_learned_scale(x64, scale_shape):
    """The output is (mean, scale): its information is the expected Hessian of -log p."""
    scale = jnp.asarray(np.random.default_rng(5).uniform(0.5, 2.0, scale_shape))
    log_likelihood = gaussian_log_likelihood(lambda params, x: params, scale=lambda params, x: scale)
    output = log_likelihood.predict(jnp.zeros(SHAPE), None)
    flat, unravel = ravel_pytree(output)
    root = log_likelihood.output_hessian_sqrt(output)
    assert root.shape[0] == flat.size

    @jax.jit
    def hessian(y):
        return jax.hessian(lambda o: -log_likelihood.distribution(unravel(o)).log_prob(y))(flat)

    # It is quadratic in y, so that its mean needs E[r] = 0 and E[r²] = s² alone.
    spread = jnp.broadcast_to(scale, SHAPE)
    expected = (hessian(spread) + hessian(-spread)) / 2
    np.testing.assert_allclose(root @ root.T, expected, atol=1e-10)


def test_a_scale_without_parameters_adds_rows_of_zeros(x64):
    log_likelihood = gaussian_log_likelihood(f, scale=lambda x: jnp.exp(x[0]))
    output = log_likelihood.predict(jnp.ones(SHAPE), jnp.ones(SHAPE))
    root = log_likelihood.output_hessian_sqrt(output)
    assert root.shape == (SIZE + 3, SIZE)
    np.testing.assert_allclose(root @ root.T, np.diag([np.exp(-2.0)] * SIZE + [0.0] * 3), atol=1e-14)


def test_a_learned_covariance_has_no_closed_form():
    log_likelihood = gaussian_log_likelihood(f, scale=lambda params, x: jnp.eye(SIZE) + 0.1)
    output = log_likelihood.predict(jnp.ones(SHAPE), jnp.ones(SHAPE))
    with pytest.raises(ValueError, match="model_fisher"):
        log_likelihood.output_hessian_sqrt(output)


@pytest.mark.parametrize("name", NATURAL)
def test_scores_of_draws_have_the_information_as_their_covariance(x64, name):
    """Draws, density and information belong to each other: E[s] = 0 and E[s sᵀ] = S Sᵀ."""
    build, _ = NATURAL[name]
    log_likelihood = build()
    output = jnp.asarray(np.random.default_rng(4).normal(size=SHAPE))
    distribution = log_likelihood.distribution(output)
    draws = jax.vmap(distribution.sample)(jax.random.split(jax.random.key(0), 40_000))
    score = jax.grad(lambda o, y: log_likelihood.distribution(o).log_prob(y))
    scores = np.asarray(jax.jit(jax.vmap(score, in_axes=(None, 0)))(output, draws)).reshape(-1, SIZE)
    root = np.asarray(log_likelihood.output_hessian_sqrt(output))
    information = root @ root.T
    spread = np.sqrt(np.diag(information))
    np.testing.assert_allclose(scores.mean(0) / spread, 0.0, atol=5 / np.sqrt(40_000))
    np.testing.assert_allclose(
        scores.T @ scores / 40_000 / np.outer(spread, spread),
        information / np.outer(spread, spread),
        atol=0.06,
    )


@pytest.mark.parametrize(
    ("log_likelihood", "wanted"),
    [
        (laplace_log_likelihood(f, scale=0.7), stats.laplace(0.4, 0.7)),
        (student_log_likelihood(f, scale=0.7, df=3.5), stats.t(3.5, 0.4, 0.7)),
    ],
    ids=["laplace", "student"],
)
def test_draws_of_heavy_tails(x64, log_likelihood, wanted):
    distribution = log_likelihood.distribution(jnp.array(0.4))
    draws = jax.vmap(distribution.sample)(jax.random.split(jax.random.key(1), 5_000))
    assert stats.kstest(np.asarray(draws), wanted.cdf).pvalue > 1e-3
