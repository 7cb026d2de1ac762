"""Inverse Hessians and sandwiches against statsmodels, in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm
from jax.scipy.special import gammaln

import deltavariance as dv

pytestmark = [
    pytest.mark.usefixtures("x64"),
    # A refit of no steps from the optimum, which is how it is asked for another covariance, is said not to converge.
    pytest.mark.filterwarnings("ignore::statsmodels.tools.sm_exceptions.ConvergenceWarning"),
]

N, K = 400, 4
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(N), RNG.normal(size=(N, K - 1))])
ETA = X @ np.array([0.3, 0.5, -0.4, 0.2])
GROUPS = RNG.integers(0, 40, N)
EFFECT = 0.5 * RNG.normal(size=40)[GROUPS]


def linear(params: Any, x: Any) -> Any:
    return x @ params["beta"]


def negative_binomial(params: Any, example: Any) -> Any:
    """NB2: variance μ + α μ²."""
    x, y = example
    mu, size = jnp.exp(x @ params["beta"]), 1 / params["alpha"][0]
    return (
        gammaln(y + size)
        - gammaln(size)
        - gammaln(y + 1)
        + size * jnp.log(size / (size + mu))
        + y * jnp.log(mu / (size + mu))
    )


def logit() -> tuple[Any, Any, Any]:
    y = (RNG.uniform(size=N) < 1 / (1 + np.exp(-ETA - EFFECT))).astype(float)
    return sm.Logit(y, X), dv.bernoulli_log_likelihood(linear), y


def poisson() -> tuple[Any, Any, Any]:
    y = RNG.poisson(np.exp(ETA + EFFECT)).astype(float)
    return sm.Poisson(y, X), dv.poisson_log_likelihood(linear), y


def ols() -> tuple[Any, Any, Any]:
    y = ETA + EFFECT + (0.5 + np.abs(X[:, 1])) * RNG.normal(size=N)
    return sm.OLS(y, X), None, y


def binomial() -> tuple[Any, Any, Any]:
    y = RNG.negative_binomial(2.0, 2.0 / (2.0 + np.exp(ETA + EFFECT))).astype(float)
    return sm.NegativeBinomial(y, X), negative_binomial, y


def parts(make: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The model, its fit with the usual covariance, a log-likelihood, its parameters, and the data."""
    model, log_likelihood, y = make()
    options = {} if make is ols else {"disp": 0, "method": "newton", "tol": 1e-13, "maxiter": 200}
    if make is binomial:
        options = {"disp": 0, "method": "bfgs", "maxiter": 2000, "gtol": 1e-10}
    fitted = model.fit(**options)
    if make is ols:
        # OLS divides the residual sum of squares by N − K: the inverse Hessian at that noise scale.
        log_likelihood = dv.gaussian_log_likelihood(linear, scale=float(np.sqrt(fitted.scale)))
    beta = jnp.asarray(fitted.params)
    params = {"beta": beta[:K]} if make is not binomial else {"alpha": beta[K:], "beta": beta[:K]}
    return model, fitted, log_likelihood, params, (jnp.asarray(X), jnp.asarray(y))


def in_our_order(matrix: Any, make: Any) -> np.ndarray:
    """statsmodels puts α last; leaves come in the order of their names."""
    order = [K, *range(K)] if make is binomial else list(range(K))
    return np.asarray(matrix)[np.ix_(order, order)]


@pytest.mark.parametrize("make", [logit, poisson, ols, binomial])
def test_inverse_hessian_and_sandwiches(make: Any) -> None:
    model, fitted, ll, params, data = parts(make)
    H = dv.hessian(ll, params, data, structure=dv.Dense())
    close = {"rtol": 1e-6, "atol": 1e-9}
    if make is binomial:
        # Its own Hessian in closed form, at the same parameters.
        expected = np.linalg.inv(-model.hessian(fitted.params))
    else:
        expected = fitted.cov_params()
    np.testing.assert_allclose(H.inverse(damping=0.0).to_dense(), in_our_order(expected, make), **close)

    F = dv.fisher(ll, params, data, structure=dv.Dense())
    bread = np.linalg.inv(-model.hessian(fitted.params)) if make is not ols else np.linalg.inv(X.T @ X)
    scores = model.score_obs(fitted.params) if make is not ols else X * fitted.resid[:, None]
    white = bread @ scores.T @ scores @ bread
    size = len(np.asarray(fitted.params))
    plain = dv.sandwich(H, F, damping=0.0).to_dense()
    np.testing.assert_allclose(plain, in_our_order(white, make), **close)
    first = dv.sandwich(H, F, damping=0.0, correction="HC1").to_dense()
    np.testing.assert_allclose(first, plain * N / (N - size), rtol=1e-12)
    if make is ols:
        np.testing.assert_allclose(plain, fitted.get_robustcov_results("HC0").cov_params(), **close)
        np.testing.assert_allclose(first, fitted.get_robustcov_results("HC1").cov_params(), **close)
    else:
        again = model.fit(start_params=fitted.params, disp=0, method="newton", maxiter=0, cov_type="HC0")
        np.testing.assert_allclose(
            plain, in_our_order(again.cov_params(), make), rtol=1e-5 if make is binomial else 1e-6
        )


@pytest.mark.parametrize("make", [logit, poisson, ols])
@pytest.mark.parametrize("corrected", [False, True])
def test_cluster_robust(make: Any, corrected: bool) -> None:
    model, fitted, ll, params, data = parts(make)
    keywords = {"groups": GROUPS, "use_correction": corrected}
    if make is ols:
        theirs = model.fit(cov_type="cluster", cov_kwds=keywords)
    else:
        theirs = model.fit(
            start_params=fitted.params,
            disp=0,
            method="newton",
            maxiter=0,
            cov_type="cluster",
            cov_kwds=keywords,
        )
    H = dv.hessian(ll, params, data, structure=dv.Dense())
    F = dv.fisher(ll, params, data, structure=dv.Dense(), groups=GROUPS)
    ours = dv.sandwich(H, F, damping=0.0, correction="HC1" if corrected else None)
    np.testing.assert_allclose(ours.to_dense(), theirs.cov_params(), rtol=1e-6, atol=1e-10)


def test_clusters_against_loops_and_in_every_structure() -> None:
    _, _, ll, params, data = parts(poisson)
    labels = np.array([f"clinic {g % 7}" if g < 20 else f"visit {n}" for n, g in enumerate(GROUPS)])
    weights = np.arange(N) % 3
    score = jax.vmap(jax.grad(ll), (None, 0))(params, data)["beta"] * weights[:, None]
    sums = np.stack([np.asarray(score)[labels == label].sum(0) for label in np.unique(labels)])
    expected = sums.T @ sums / weights.sum()
    for structure in (dv.Dense(), dv.Block(), dv.Diagonal(), dv.EigenKronecker()):
        F = dv.fisher(ll, params, data, structure=structure, groups=labels, weights=weights, batch_size=16)
        np.testing.assert_allclose(F.diagonal().sum(), np.trace(expected), rtol=1e-10)
        assert float(F.num_data) == weights.sum()
    np.testing.assert_allclose(
        dv.fisher(ll, params, data, structure=dv.Dense(), groups=labels, weights=weights).mean,
        expected,
        rtol=1e-9,
    )
    alone = dv.fisher(ll, params, data, structure=dv.Dense(), groups=np.arange(N))
    np.testing.assert_allclose(alone.mean, dv.fisher(ll, params, data, structure=dv.Dense()).mean, rtol=1e-10)


def test_groups_from_two_workers_merge() -> None:
    _, _, ll, params, data = parts(poisson)
    first = GROUPS < 11
    whole = dv.fisher(ll, params, data, structure=dv.Dense(), groups=GROUPS)
    halves = [
        dv.fisher(ll, params, jax.tree.map(lambda x, k=k: x[k], data), structure=dv.Dense(), groups=GROUPS[k])
        for k in (first, ~first)
    ]
    merged = halves[0].merge(halves[1])
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-10)
    assert float(merged.groups) == float(whole.groups) == len(np.unique(GROUPS))


@pytest.mark.parametrize(
    "structure", [dv.Diagonal(), dv.Block(), dv.Dense()], ids=["diagonal", "block", "dense"]
)
def test_sandwich_in_each_structure(structure: Any) -> None:
    _, _, ll, params, data = parts(binomial)
    H, F = dv.hessian(ll, params, data, structure=structure), dv.fisher(ll, params, data, structure=structure)
    bread, meat = (
        np.asarray(H.inverse(1e-3).to_dense()),
        dv.fisher(ll, params, data, structure=dv.Dense()).mean,
    )
    mask = np.asarray(np.abs(bread) > 0)
    expected = N * bread @ (np.asarray(meat) * mask) @ bread
    sigma = dv.sandwich(H, F, damping=1e-3)
    np.testing.assert_allclose(sigma.to_dense(), expected, rtol=1e-8, atol=1e-14)


def test_sandwich_of_unlike_structures_is_multiplied() -> None:
    _, _, ll, params, data = parts(poisson)
    H = dv.hessian(ll, params, data, structure=dv.Dense())
    key = jax.random.key(0)
    for structure in (dv.Kronecker(), dv.EigenKronecker(), dv.Diagonal()):
        F = dv.fisher(ll, params, data, structure=structure)
        sigma = dv.sandwich(H, F, damping=1e-3)
        # The Σ that F has on its own, at a damping far above it, gives F back to first order.
        bread = np.asarray(H.inverse(1e-3).to_dense())
        meat = np.linalg.inv(np.asarray(F.inverse(10.0).to_dense())) / N - 10.0 * np.eye(K)
        expected = N * bread @ meat @ bread
        np.testing.assert_allclose(sigma.to_dense(), expected, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(sigma.logdet(), np.linalg.slogdet(expected)[1], rtol=1e-7)
        v = dv.variance(linear, params, X[:5], sigma)
        np.testing.assert_allclose(v, np.einsum("np,pq,nq->n", X[:5], expected, X[:5]), rtol=1e-7)
        root = np.asarray(sigma.sqrt_matvec(jnp.eye(sigma.sqrt_columns)))
        np.testing.assert_allclose(root.T @ root, expected, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(sigma.scale(3.0).to_dense(), 3 * expected, rtol=1e-7, atol=1e-12)
        assert sigma.sample(key, 2).shape == (2, K)


def test_the_noise_scale_does_not_matter() -> None:
    _, _, _, params, data = parts(ols)
    sigmas = []
    for scale in (0.1, 7.0):
        ll = dv.gaussian_log_likelihood(linear, scale=scale)
        H = dv.hessian(ll, params, data, structure=dv.Dense())
        F = dv.fisher(ll, params, data, structure=dv.Dense())
        sigmas.append(dv.sandwich(H, F, damping=0.0).to_dense())
    np.testing.assert_allclose(sigmas[0], sigmas[1], rtol=1e-9)


def test_errors_in_words() -> None:
    _, _, ll, params, data = parts(poisson)
    H, F = dv.hessian(ll, params, data), dv.fisher(ll, params, data, structure=dv.Dense())
    with pytest.raises(ValueError, match="HC9"):
        dv.sandwich(H, F, correction="HC9")
    with pytest.raises(ValueError, match="not above P"):
        dv.sandwich(H, F, correction="HC1", num_data=3)
    with pytest.raises(ValueError, match="one label a row"):
        dv.fisher(ll, params, data, groups=GROUPS[:5])
