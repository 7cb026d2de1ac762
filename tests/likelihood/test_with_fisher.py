"""Every likelihood through `dv.fisher`, against plain per-example gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import deltavariance as dv
from deltavariance.likelihood import (
    LowRankCovariance,
    bernoulli_log_likelihood,
    categorical_log_likelihood,
    distribution_log_likelihood,
    gaussian_log_likelihood,
    laplace_log_likelihood,
    poisson_log_likelihood,
    student_log_likelihood,
)
from deltavariance.noise import estimate_noise

K = 4
NUM = 37


def f(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


def spread(params, x):
    return jnp.exp(0.1 * f(params, x))


@pytest.fixture
def problem(x64):
    rng = np.random.default_rng(0)
    params = {"w1": rng.normal(size=(3, 5)), "b1": rng.normal(size=5), "w2": rng.normal(size=(5, K))}
    return jax.tree.map(jnp.asarray, params), rng.normal(size=(NUM, 3)), rng.normal(size=(NUM, K))


ROOT = np.random.default_rng(1).normal(size=(K, K)) + 2 * np.eye(K)
FAMILIES = {
    "number": lambda: (gaussian_log_likelihood(f, scale=0.3), lambda y: y),
    "vector": lambda: (gaussian_log_likelihood(f, scale=np.arange(1.0, K + 1)), lambda y: y),
    "covariance": lambda: (gaussian_log_likelihood(f, covariance=ROOT @ ROOT.T), lambda y: y),
    "low rank": lambda: (
        gaussian_log_likelihood(f, covariance=LowRankCovariance(np.ones(K), ROOT[:, :2])),
        lambda y: y,
    ),
    "of inputs": lambda: (gaussian_log_likelihood(f, scale=lambda x: jnp.exp(x[0])), lambda y: y),
    "learned": lambda: (gaussian_log_likelihood(f, scale=spread), lambda y: y),
    "gaps": lambda: (
        gaussian_log_likelihood(
            f,
            covariance=ROOT @ ROOT.T,
            allow_missing=True,
            split=lambda example: (example[0], jnp.where(example[1] == -999.0, jnp.nan, example[1])),
        ),
        lambda y: np.where(y > 1, -999.0, y),
    ),
    "laplace": lambda: (laplace_log_likelihood(f, scale=0.3), lambda y: y),
    "student": lambda: (student_log_likelihood(f, scale=0.3, df=4), lambda y: y),
    "categorical": lambda: (categorical_log_likelihood(f), lambda y: np.argmax(y, axis=1)),
    "bernoulli": lambda: (bernoulli_log_likelihood(f), lambda y: y > 0),
    "poisson": lambda: (poisson_log_likelihood(f), lambda y: np.round(np.exp(y))),
    "numpyro": lambda: (distribution_log_likelihood(lambda p, x: dist.Normal(f(p, x), 0.3)), lambda y: y),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_fisher_of_every_family(problem, name):
    params, x, noise = problem
    log_likelihood, target = FAMILIES[name]()
    data = (x, target(noise))
    scores = jax.jit(jax.vmap(jax.grad(log_likelihood), (None, 0)))(params, data)
    wanted = jnp.concatenate([jnp.mean(scores[leaf] ** 2, axis=0).ravel() for leaf in ("b1", "w1", "w2")])
    found = dv.fisher(log_likelihood, params, data, batch_size=10)
    np.testing.assert_allclose(found.diagonal(), wanted, rtol=1e-9)


def test_new_numbers_in_the_same_likelihood_are_seen(problem):
    """The noise travels as data, so a second likelihood of the same kind must not reuse the first one's noise."""
    params, x, y = problem
    first, second = (
        float(dv.fisher(gaussian_log_likelihood(f, covariance=c * np.eye(K)), params, (x, y)).trace())
        for c in (1.0, 4.0)
    )
    np.testing.assert_allclose(first / second, 16.0, rtol=1e-9)


def test_the_estimate_enters_the_fisher_information(problem):
    """At a fit, with the estimated noise, tr F / tr H is near one; with a unit scale it is off by the noise squared."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2000, 3))
    linear = lambda params, x: x @ params["w"]
    y = x @ rng.normal(size=(3, K)) + 0.1 * rng.normal(size=(2000, K))
    params = {"w": jnp.asarray(np.linalg.lstsq(x, y)[0])}
    hessian = K * np.trace(x.T @ x) / 2000  # of ½ |y - x w|², each output alike
    for scale, ratio in ((estimate_noise(linear, params, (x, y)), 1.0), (1.0, 0.01)):
        trace = float(dv.fisher(gaussian_log_likelihood(linear, scale=scale), params, (x, y)).trace())
        size = 1.0 if scale == 1.0 else float(np.mean(1 / np.asarray(scale.scale) ** 2))
        np.testing.assert_allclose(trace / (hessian * size), ratio, rtol=0.1)
