"""Leave-one-out and bootstrap variances against closed forms, in double precision."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from sklearn.linear_model import LinearRegression

from deltavariance import resampling

pytestmark = pytest.mark.usefixtures("x64")

Y = np.random.default_rng(0).gamma(2.0, size=30)
N = len(Y)
Z = np.array([1.0, 3.0])


def weighted_mean(weights: Array) -> Array:
    return jnp.sum(weights * Y) / jnp.sum(weights)


def multiple(mean: Array, z: Array) -> Array:
    return jnp.stack([mean * z, mean])


def test_leaving_one_out_of_a_mean_has_a_formula() -> None:
    """Each mean without y_i is ȳ − (y_i − ȳ)/(N − 1): N times its variance is S²/N (N/(N−1))², S² with 1/N."""
    v = resampling.leave_one_out(weighted_mean, multiple, Z, num_data=N)
    assert v.shape == (2, 2)
    expected = np.var(Y) * N / (N - 1) ** 2
    np.testing.assert_allclose(v, [[expected, expected], [9 * expected, expected]], rtol=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 1e-3])
def test_partial_leave_one_out_of_a_mean(epsilon: float) -> None:
    v = resampling.leave_one_out(weighted_mean, lambda m, z: m, Z[:1], num_data=N, epsilon=epsilon)
    np.testing.assert_allclose(v[0], np.var(Y) * N / (N - epsilon) ** 2, rtol=1e-9)


@pytest.mark.parametrize("weights", ["rademacher", "poisson", "multinomial"])
@pytest.mark.parametrize("epsilon", [1.0, 1e-2])
def test_bootstrap_of_a_sum_has_a_formula(weights: str, epsilon: float) -> None:
    """1/N Σ w_i y_i is linear in the weights: its variance is Σ y_i²/N² for independent weights of variance 1."""
    repeats = 20_000
    v = resampling.bootstrap(
        lambda w: jnp.mean(w * Y),
        lambda m, z: m,
        Z[:1],
        num_data=N,
        key=jax.random.key(1),
        repeats=repeats,
        epsilon=epsilon,
        weights=weights,
        batch_size=1000,
    )
    # Multinomial weights sum to N: only the spread about the mean is left.
    expected = np.var(Y) / N if weights == "multinomial" else np.mean(Y**2) / N
    assert abs(v[0] / expected - 1) < 5 * np.sqrt(2 / repeats)


def test_half_samples_carry_no_factor_of_one_half() -> None:
    large = np.random.default_rng(2).normal(size=2000)
    v = resampling.bootstrap(
        lambda w: jnp.sum(w * large) / jnp.sum(w),
        lambda m, z: m,
        Z[:1],
        num_data=2000,
        key=jax.random.key(0),
        repeats=4000,
        batch_size=1000,
    )
    assert abs(v[0] / (np.var(large) / 2000) - 1) < 0.1


def test_weights_have_mean_one_and_the_right_spread() -> None:
    for name, fourth in (("rademacher", 1.0), ("poisson", 4.0), ("multinomial", 4.0)):
        w = np.asarray(resampling.bootstrap_weights(jax.random.key(3), 4000, 50, name)) - 1
        assert abs(w.mean()) < 0.01
        assert abs(np.mean(w**2) - (1 - 1 / 50 if name == "multinomial" else 1)) < 0.02
        assert abs(np.mean(w**4) / fourth - 1) < 0.1
    halves = resampling.bootstrap_weights(jax.random.key(3), 10, 50)
    assert set(np.unique(halves)) == {0.0, 2.0}
    assert set(np.unique(resampling.bootstrap_weights(jax.random.key(3), 10, 50, epsilon=0.25))) == {
        0.75,
        1.25,
    }


def test_a_loop_gives_what_vectorised_refits_give() -> None:
    both = [
        resampling.leave_one_out(weighted_mean, multiple, Z, num_data=N, vectorised=way, batch_size=size)
        for way, size in ((True, 7), (True, 100), (False, 7), (None, 7))
    ]
    for v in both[1:]:
        np.testing.assert_allclose(v, both[0], rtol=1e-12)


def test_a_refit_that_needs_concrete_numbers_runs_in_a_loop() -> None:
    x = np.random.default_rng(4).normal(size=(N, 2))
    calls = []

    def refit(weights: Array) -> dict[str, Any]:
        model = LinearRegression().fit(x, Y, sample_weight=np.asarray(weights))
        calls.append(1)
        return {"w": model.coef_, "b": model.intercept_}

    u = lambda p, z: z @ p["w"] + p["b"]
    cases = x[:4] * 2
    slow = resampling.leave_one_out(refit, u, cases, num_data=N)
    assert len(calls) == N

    design = np.concatenate([x, np.ones((N, 1))], axis=1)
    hat = np.einsum("ij,jk,ik->i", design, np.linalg.inv(design.T @ design), design)
    residuals = Y - design @ np.linalg.lstsq(design, Y, rcond=None)[0]
    shifts = (
        np.concatenate([cases, np.ones((4, 1))], 1)
        @ np.linalg.inv(design.T @ design)
        @ design.T
        * residuals
        / (1 - hat)
    )
    np.testing.assert_allclose(slow, N * shifts.var(axis=1), rtol=1e-9)


def test_an_error_of_the_refit_is_not_hidden() -> None:
    def refit(weights: Array) -> Array:
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column"):
        resampling.leave_one_out(refit, lambda p, z: p, Z, num_data=N)


def test_newton_refit_is_weighted_logistic_regression() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(80, 3))
    y = (rng.uniform(size=80) < 1 / (1 + np.exp(-x @ np.array([1.0, -1.0, 0.5])))).astype(float)

    def log_likelihood(p: dict[str, Any], example: tuple[Array, Array]) -> Array:
        x, y = example
        return y * (x @ p["w"]) - jnp.logaddexp(0.0, x @ p["w"])

    # A leaf that is not a floating-point array passes through.
    params = {"w": jnp.zeros(3), "name": "model", "count": 3}
    refit = resampling.newton_refit(log_likelihood, params, (x, y))
    weights = np.asarray(resampling.bootstrap_weights(jax.random.key(0), 5, 80, "poisson"))
    for row in weights:
        fitted = refit(jnp.asarray(row))
        assert fitted["name"] == "model"
        probability = 1 / (1 + np.exp(-x @ np.asarray(fitted["w"])))
        np.testing.assert_allclose(x.T @ (row * (y - probability)), 0.0, atol=1e-11)
    u = lambda p, z: z @ p["w"]
    together = resampling.resampled_values(refit, u, x[:4], weights)
    np.testing.assert_allclose(
        together, [x[:4] @ np.asarray(refit(jnp.asarray(w))["w"]) for w in weights], rtol=1e-10
    )


def test_bad_input_is_explained() -> None:
    u = lambda p, z: p
    with pytest.raises(ValueError, match=r"epsilon must lie in \(0, 1\]"):
        resampling.leave_one_out(weighted_mean, u, Z, num_data=N, epsilon=0.0)
    with pytest.raises(ValueError, match="at least 2 examples"):
        resampling.leave_one_out(weighted_mean, u, Z, num_data=1)
    with pytest.raises(ValueError, match="rademacher, poisson, multinomial"):
        resampling.bootstrap(weighted_mean, u, Z, num_data=N, key=jax.random.key(0), weights="bayes")
    with pytest.raises(ValueError, match="at least 2 refits"):
        resampling.bootstrap(weighted_mean, u, Z, num_data=N, key=jax.random.key(0), repeats=1)
    with pytest.raises(ValueError, match="1 of 30 refits, the first of them number 4"):
        resampling.leave_one_out(lambda w: jnp.log(w[4] - 0.5), u, Z, num_data=N)
