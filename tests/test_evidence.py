"""The marginal likelihood against the closed form of linear regression, and what it chooses against a grid."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import deltavariance as dv

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5))
Y = X @ RNG.normal(size=5) * 0.7 + 0.4 * RNG.normal(size=60)


def mode(tau: float, scale: float) -> Any:
    return {"w": jnp.asarray(np.linalg.solve(X.T @ X / scale**2 + tau * np.eye(5), X.T @ Y / scale**2))}


def closed_form(tau: float, scale: float) -> float:
    return float(multivariate_normal(np.zeros(60), X @ X.T / tau + scale**2 * np.eye(60)).logpdf(Y))


def curvature(params: Any, scale: float, structure: Any) -> tuple[Any, Any]:
    ll = dv.gaussian_log_likelihood(lambda p, x: x @ p["w"], scale=scale)
    total = sum(ll(params, (x, y)) for x, y in zip(X, Y, strict=True))
    return dv.hessian(ll, params, (X, Y), structure=structure), total


@pytest.mark.parametrize("structure", [dv.Dense(), dv.Block()], ids=["dense", "block"])
@pytest.mark.parametrize(("tau", "scale"), [(0.3, 0.4), (5.0, 1.2)])
def test_closed_form(structure: Any, tau: float, scale: float) -> None:
    params = mode(tau, scale)
    H, total = curvature(params, scale, structure)
    found = dv.marginal_likelihood(H, params, total, prior_precision=tau)
    np.testing.assert_allclose(found, closed_form(tau, scale), rtol=1e-9)


@pytest.mark.parametrize("per_block", [False, True])
def test_prior_precision_is_chosen_at_the_maximum(per_block: bool) -> None:
    params = mode(1.0, 0.4)
    H, total = curvature(params, 0.4, dv.Block())
    found = dv.maximise_marginal_likelihood(H, params, total, per_block=per_block)
    grid = np.exp(np.linspace(-5, 5, 400))
    values = [float(dv.marginal_likelihood(H, params, total, prior_precision=t)) for t in grid[::20]]
    assert found.log_marginal_likelihood >= max(values)
    tau = found.prior_precision["w"] if per_block else found.prior_precision
    # At the maximum τ = γ / |θ|², with γ the number of parameters that the data determine.
    eigenvalues = np.linalg.eigvalsh(X.T @ X / 0.4**2)
    gamma = np.sum(eigenvalues / (eigenvalues + tau))
    np.testing.assert_allclose(tau, gamma / np.sum(np.asarray(params["w"]) ** 2), rtol=1e-4)


def test_noise_scale_is_chosen_too() -> None:
    tau, scale = 1.0, 0.9
    for _ in range(12):  # alternate with the refit, as the parameters are held where they are
        params = mode(tau, scale)
        H, total = curvature(params, scale, dv.Dense())
        squares = float(np.sum((Y - X @ np.asarray(params["w"])) ** 2))
        found = dv.maximise_marginal_likelihood(
            H, params, total, noise_scale=scale, squares=squares, outputs=60
        )
        tau, scale = found.prior_precision, found.noise_scale
    best = closed_form(tau, scale)
    np.testing.assert_allclose(found.log_marginal_likelihood, best, rtol=1e-6)
    for t, s in [(1.05, 1.0), (0.95, 1.0), (1.0, 1.02), (1.0, 0.98)]:
        assert closed_form(tau * t, scale * s) < best
