"""Influences, gains and picks against refitting and dense linear algebra, in double precision."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import deltavariance as dv
from deltavariance import influence, resampling

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(0)
N, P = 50, 3
X = RNG.normal(size=(N, P))
Y = (RNG.uniform(size=N) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5, 0.3])))).astype(float)
Z = RNG.normal(size=(4, P))


def log_likelihood(params: dict[str, Array], example: tuple[Array, Array]) -> Array:
    x, y = example
    return y * (x @ params["w"]) - jnp.logaddexp(0.0, x @ params["w"])


def chance(params: dict[str, Array], z: Array) -> Array:
    return jax.nn.sigmoid(z @ params["w"])


def pair(params: dict[str, Array], z: Array) -> Array:
    return jnp.stack([chance(params, z), jnp.sum(params["w"] ** 2)])


@pytest.fixture(scope="module")
def fit() -> tuple[Any, Any, Any, Any]:
    """Converged parameters, refit, Hessian and Fisher information."""
    with jax.enable_x64(True):
        start = {"w": jnp.zeros(P)}
        refit = jax.jit(resampling.newton_refit(log_likelihood, start, (X, Y)))
        params = refit(jnp.ones(N))
        H = dv.hessian(log_likelihood, params, (X, Y), structure=dv.Dense())
        F = dv.fisher(log_likelihood, params, (X, Y), structure=dv.Dense())
        return params, resampling.newton_refit(log_likelihood, params, (X, Y)), H, F


def dense_influences(params: dict[str, Array]) -> np.ndarray:
    """ΔᵀH⁻¹g_i with every matrix written out: [4, N]."""
    mean_loss = lambda p: -jnp.mean(jax.vmap(log_likelihood, (None, 0))(p, (X, Y)))
    H = np.asarray(jax.hessian(mean_loss)(params)["w"]["w"])
    g = np.asarray(jax.vmap(jax.grad(log_likelihood), (None, 0))(params, (X, Y))["w"])
    delta = np.asarray(jax.vmap(jax.grad(chance), (None, 0))(params, Z)["w"])
    return delta @ np.linalg.solve(H, g.T)


def test_influences_are_the_dense_formula(fit: Any) -> None:
    params, _, H, _ = fit
    expected = dense_influences(params)
    found = influence.examples(chance, params, Z, log_likelihood, (X, Y), H, damping=0.0, batch_size=16)
    assert found.shape == (4, N)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)
    both = influence.examples(pair, params, Z, log_likelihood, (X, Y), H, damping=0.0)
    assert both.shape == (4, 2, N)
    np.testing.assert_allclose(both[:, 0], expected, rtol=1e-8, atol=1e-12)


def test_an_iterable_of_batches_gives_the_same(fit: Any) -> None:
    params, _, H, _ = fit
    batches = [(X[:20], Y[:20]), (X[20:27], Y[20:27]), (X[27:], Y[27:])]
    args = (chance, params, Z, log_likelihood)
    np.testing.assert_allclose(
        influence.examples(*args, batches, H), influence.examples(*args, (X, Y), H), rtol=1e-12
    )
    one, other = influence.top(*args, batches, H, k=7), influence.top(*args, (X, Y), H, k=7, batch_size=5)
    np.testing.assert_array_equal(one.indices, other.indices)


def test_removing_an_example_moves_u_by_its_influence_over_n(fit: Any) -> None:
    params, refit, H, _ = fit
    epsilon = 1e-4
    weights = resampling.leave_one_out_weights(N, epsilon)
    moved = resampling.resampled_values(refit, chance, Z, weights) - jax.vmap(chance, (None, 0))(params, Z)
    found = influence.examples(chance, params, Z, log_likelihood, (X, Y), H, damping=0.0)
    np.testing.assert_allclose(moved.T, -epsilon * found / N, rtol=2e-3, atol=1e-10)
    # All of it, at once: to leading order, in the same ranking.
    whole = resampling.resampled_values(refit, chance, Z, resampling.leave_one_out_weights(N))
    whole = (whole - jax.vmap(chance, (None, 0))(params, Z)).T
    for exact, fast in zip(whole, found, strict=True):
        assert np.corrcoef(exact, -np.asarray(fast))[0, 1] > 0.98


def test_their_squares_make_up_the_sandwich(fit: Any) -> None:
    params, _, H, F = fit
    found = influence.examples(chance, params, Z, log_likelihood, (X, Y), H, damping=0.0)
    sigma = dv.sandwich(H, F, damping=0.0)
    v = dv.variance(chance, params, Z, sigma)
    np.testing.assert_allclose(jnp.mean(found**2, axis=-1) / N, v, rtol=1e-8)


def test_the_top_ones(fit: Any) -> None:
    params, _, H, _ = fit
    everything = np.asarray(influence.examples(pair, params, Z, log_likelihood, (X, Y), H))
    found = influence.top(pair, params, Z, log_likelihood, (X, Y), H, k=6, batch_size=13)
    assert found.indices.shape == (4, 2, 6)
    order = np.argsort(-np.abs(everything), axis=-1)[..., :6]
    np.testing.assert_array_equal(found.indices, order)
    np.testing.assert_allclose(found.influences, np.take_along_axis(everything, order, axis=-1), rtol=1e-12)
    names = [f"patient {i}" for i in range(N)]
    assert found.named(names)[0][0][0] == f"patient {order[0, 0, 0]}"
    few = influence.top(chance, params, Z, log_likelihood, (X[:3], Y[:3]), H, k=10)
    assert few.indices.shape == (4, 3)


def test_the_scale_of_the_shift(fit: Any) -> None:
    """ε, offset and 1/N each enter once; the noise form is the square."""
    params, _, H, _ = fit
    base = influence.adversarial_shift(chance, params, Z, H, offset=1.0, damping=0.0)
    solved = np.linalg.solve(np.asarray(H.inverse(damping=0.0, num_data=1).to_dense()), np.eye(P))
    delta = np.asarray(jax.vmap(jax.grad(chance), (None, 0))(params, Z)["w"])
    expected = np.einsum("ni,ij,nj->n", delta, np.linalg.inv(solved), delta) / N
    np.testing.assert_allclose(base, expected, rtol=1e-9)
    scaled = influence.adversarial_shift(chance, params, Z, H, offset=-3.0, epsilon=0.5, damping=0.0)
    np.testing.assert_allclose(scaled, -1.5 * base, rtol=1e-12)
    noise = influence.adversarial_noise(chance, params, Z, H, noise=3.0, epsilon=0.5, damping=0.0)
    np.testing.assert_allclose(noise, (1.5 * base) ** 2, rtol=1e-12)


# What to measure next: a straight line with an offset, learned from noisy measurements at places x.

NOISE = 0.5
PRIOR = np.diag([4.0, 1.0, 0.5])
PLACES = RNG.uniform(-2.0, 2.0, size=30)


def curve(params: Array, x: Array) -> Array:
    return params[0] + params[1] * x + params[2] * x**2


def features(x: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(x), x, x**2], axis=-1)


def covariance_after(x: np.ndarray) -> np.ndarray:
    """The posterior covariance of a linear Gaussian model: a refit with the measurements added."""
    g = features(x) / NOISE
    return np.linalg.inv(np.linalg.inv(PRIOR) + g.T @ g)


def contrast(params: Array, z: Array) -> Array:
    """Not what is measured: a difference between two places, and the slope at the second."""
    return jnp.stack([curve(params, z[0]) - curve(params, z[1]), params[1] + 2 * params[2] * z[1]])


QUESTIONS = np.array([[0.5, -0.5], [2.5, 1.0]])


def deltas() -> np.ndarray:
    return np.asarray(jax.vmap(jax.jacobian(contrast), (None, 0))(jnp.zeros(3), QUESTIONS))


def test_gain_is_what_a_refit_with_the_candidate_gains() -> None:
    params, sigma = jnp.zeros(3), dv.as_covariance(jnp.zeros(3), PRIOR)
    found = influence.gain(contrast, params, QUESTIONS, PLACES, sigma, curve, scale=NOISE, batch_size=7)
    assert found.shape == (2, 2, 30)
    before = np.einsum("nki,ij,nkj->nk", deltas(), PRIOR, deltas())
    for index in range(len(PLACES)):
        after = np.einsum("nki,ij,nkj->nk", deltas(), covariance_after(PLACES[[index]]), deltas())
        np.testing.assert_allclose(found[..., index], before - after, rtol=1e-9, atol=1e-12)


def test_gain_of_several_measurements_at_once() -> None:
    two = lambda params, x: jnp.stack([curve(params, x), curve(params, -x)])
    sigma = dv.as_covariance(jnp.zeros(3), PRIOR)
    found = influence.gain(contrast, jnp.zeros(3), QUESTIONS, PLACES[:4], sigma, two, scale=NOISE)
    before = np.einsum("nki,ij,nkj->nk", deltas(), PRIOR, deltas())
    for index, x in enumerate(PLACES[:4]):
        after = np.einsum("nki,ij,nkj->nk", deltas(), covariance_after(np.array([x, -x])), deltas())
        np.testing.assert_allclose(found[..., index], before - after, rtol=1e-9)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_greedy_picks_are_those_of_refitting_each_time(replace: bool, pairs: bool) -> None:
    response = (lambda p, x: jnp.stack([curve(p, x), curve(p, -x)])) if pairs else curve
    places = lambda chosen: np.concatenate([[x, -x] if pairs else [x] for x in PLACES[chosen]])
    sigma = dv.as_covariance(jnp.zeros(3), PRIOR)
    found = influence.greedy(
        contrast, jnp.zeros(3), QUESTIONS, PLACES, sigma, response, picks=5, scale=NOISE, replace=replace
    )
    chosen: list[int] = []
    for step in range(5):
        left = {
            i: np.mean(
                np.einsum("nki,ij,nkj->nk", deltas(), covariance_after(places([*chosen, i])), deltas())
            )
            for i in range(len(PLACES))
            if replace or i not in chosen
        }
        chosen.append(min(left, key=lambda i: left[i]))
        assert int(found.indices[step]) == chosen[-1]
        np.testing.assert_allclose(found.variance[step], left[chosen[-1]], rtol=1e-9)


def test_picking_for_u_beats_picking_for_f_and_at_random() -> None:
    """A question about one place: measurements that reduce the variance of f on the whole serve it less."""
    sigma, params = dv.as_covariance(jnp.zeros(3), PRIOR), jnp.zeros(3)
    slope_at = lambda p, z: p[1] + 2 * p[2] * z
    question, everywhere = np.array([1.5]), np.linspace(-2, 2, 21)
    g = np.array([0.0, 1.0, 3.0])
    left = lambda chosen: g @ covariance_after(PLACES[np.asarray(chosen)]) @ g
    pick = lambda u, z: influence.greedy(u, params, z, PLACES, sigma, curve, picks=4, scale=NOISE).indices
    for_u, for_f = left(pick(slope_at, question)), left(pick(curve, everywhere))
    at_random = [left(RNG.choice(30, 4, replace=False)) for _ in range(200)]
    assert for_u < 0.9 * for_f
    assert for_u < 0.5 * np.mean(at_random)
    assert for_u < np.quantile(at_random, 0.02)  # greedy picks need not be the best of all batches


def test_bad_input_is_explained(fit: Any) -> None:
    params, _, H, _ = fit
    with pytest.raises(ValueError, match="k must be at least 1"):
        influence.top(chance, params, Z, log_likelihood, (X, Y), H, k=0)
    sigma = dv.as_covariance(jnp.zeros(3), PRIOR)
    with pytest.raises(ValueError, match="picks must lie between 1 and the number of candidates, 30"):
        influence.greedy(curve, jnp.zeros(3), PLACES, PLACES, sigma, curve, picks=31)
