"""The inverse Hessian of a logistic regression against draws from its posterior."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import deltavariance as dv

pytestmark = pytest.mark.usefixtures("x64")


def test_logistic_regression_with_many_examples() -> None:
    rng = np.random.default_rng(0)
    n, k, tau = 3000, 4, 1.0
    x = np.column_stack([np.ones(n), rng.normal(size=(n, k - 1))])
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-x @ np.array([0.2, 0.8, -0.5, 0.3])))).astype(float)

    def model() -> None:
        beta = numpyro.sample("beta", dist.Normal(jnp.zeros(k), 1 / np.sqrt(tau)).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=jnp.asarray(x) @ beta), obs=jnp.asarray(y))

    sampler = MCMC(NUTS(model, dense_mass=True), num_warmup=300, num_samples=3000, progress_bar=False)
    sampler.run(jax.random.key(0))
    draws = np.asarray(sampler.get_samples()["beta"])

    ll = dv.bernoulli_log_likelihood(lambda p, x: x @ p["beta"])
    beta = np.zeros(k)
    for _ in range(20):  # Newton's method to the posterior mode
        p = 1 / (1 + np.exp(-x @ beta))
        step = np.linalg.solve(
            (x * (p * (1 - p))[:, None]).T @ x + tau * np.eye(k), x.T @ (y - p) - tau * beta
        )
        beta = beta + step
    params = {"beta": jnp.asarray(beta)}
    sigma: Any = dv.hessian(ll, params, (x, y)).inverse(damping=0.0, prior_precision=tau)
    z = rng.normal(size=(20, k))
    found = np.asarray(dv.variance(lambda p, x: x @ p["beta"], params, jnp.asarray(z), sigma))
    values = draws @ z.T
    # The standard error of a variance from S draws is v √(2/S); successive draws are hardly dependent here, and
    # half of them are counted. The posterior is normal up to O(1/N), which 1/3000 · few adds to.
    error = found * np.sqrt(2 / (0.5 * draws.shape[0]))
    assert np.all(np.abs(values.var(0, ddof=1) - found) < 4 * error + 0.01 * found)
    np.testing.assert_allclose(values.mean(0), z @ beta, atol=4 * np.sqrt(found.max() / 1000))
