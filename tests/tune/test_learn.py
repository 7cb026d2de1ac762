"""Learned Σ: planted truths are recovered, Σ stays a covariance, gradients agree with finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize, stats

import deltavariance as dv
from deltavariance import metrics, tune

KEY = jax.random.key(0)


def linear(params, z):
    return jnp.sum(params["w"] * z)


def planted(matrix, n, seed=0):
    """A linear u, cases, and Laplace errors whose variance is `zᵀ M z + 0.05`."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, *matrix.shape[: matrix.ndim // 2]))
    flat = z.reshape(n, -1)
    s = 0.05 + np.einsum("ni,ij,nj->n", flat, matrix.reshape(flat.shape[1], -1), flat)
    return jnp.asarray(z), jnp.asarray(rng.laplace(size=n) * np.sqrt(s / 2))


def held_out(sigma, matrix):
    z, e = planted(matrix, 6000, seed=9)
    v = dv.variance(linear, {"w": jnp.zeros(z.shape[1:])}, z, sigma)
    return float(metrics.log_likelihood(e, v, tune.noise(e, v)))


def test_diagonal_from_scratch_reaches_the_best_likelihood(x64):
    """Against scipy on the same likelihood, without regularisation."""
    z, e = planted(np.diag([4.0, 1.0, 0.25]), 400)
    params = {"w": jnp.zeros(3)}
    start = dv.as_covariance(params, 30.0)
    learned = tune.learn(linear, params, z, e, start, key=KEY, regularisation=0.0, steps=500)
    squares = np.asarray(z) ** 2

    def objective(logs):
        s = np.exp(logs[0]) + squares @ np.exp(logs[1:])
        return -stats.laplace.logpdf(e, scale=np.sqrt(s / 2)).mean()

    best = optimize.minimize(objective, np.zeros(4), method="BFGS")
    assert float(learned.losses[-1]) == pytest.approx(best.fun, abs=1e-5)
    np.testing.assert_allclose(learned.sigma.diagonal(), np.exp(best.x[1:]), rtol=0.05)
    assert float(learned.noise.beta) == pytest.approx(1.0, abs=0.02)


def test_a_wrong_scale_as_a_whole_is_mended_before_the_first_step():
    truth = np.eye(3)
    z, e = planted(truth, 500)
    params = {"w": jnp.zeros(3)}
    learned = tune.learn(linear, params, z, e, dv.as_covariance(params, 1e8), key=KEY, steps=2)
    np.testing.assert_allclose(learned.sigma.diagonal(), 1.0, rtol=0.5)


def test_sides_need_fewer_cases_than_single_variances():
    """The truth is a Kronecker product: I + O factors find it from cases that I·O factors cannot be found from."""
    rows, columns = 10.0 ** np.linspace(-3, 2, 8), 10.0 ** np.linspace(-2, 2, 6)
    truth = np.diag(np.outer(rows, columns).ravel()).reshape(8, 6, 8, 6)
    z, e = planted(truth, 300)
    params = {"w": jnp.zeros((8, 6))}
    start = dv.as_covariance(params, 1.0)
    by_side = tune.learn(linear, params, z, e, start, free=tune.EachSide(), key=KEY).sigma
    singly = tune.learn(linear, params, z, e, start, key=KEY).sigma
    scores = [held_out(sigma, truth) for sigma in (start, singly, by_side)]
    assert scores[0] < scores[2] - 0.05
    assert scores[1] < scores[2]
    learned = np.log(np.asarray(by_side.diagonal()).reshape(8, 6))
    interaction = learned - learned.mean(0) - learned.mean(1, keepdims=True) + learned.mean()
    np.testing.assert_allclose(interaction, 0, atol=1e-4)


def test_low_rank_finds_a_direction_that_no_diagonal_has():
    direction = np.array([1.0, 1.0, -1.0, -1.0])
    truth = 4 * np.outer(direction, direction) + 0.01 * np.eye(4)
    z, e = planted(truth, 3000)
    params = {"w": jnp.zeros(4)}
    start = dv.as_covariance(params, 1.0)
    learned = tune.learn(linear, params, z, e, start, free=tune.AddLowRank(1), key=KEY, steps=400).sigma
    diagonal = tune.learn(linear, params, z, e, start, key=KEY).sigma
    assert held_out(learned, truth) > held_out(diagonal, truth) + 0.2
    dense = np.asarray(learned.to_dense())
    top = np.linalg.eigh(dense)[1][:, -1]
    assert abs(top @ direction / 2) > 0.98


def test_low_rank_covariance_does_what_every_covariance_does(x64):
    keys = jax.random.split(KEY, 4)
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones(3)}
    base = dv.as_covariance(params, jax.tree.map(lambda p: 0.5 * p, params))
    columns = tuple(
        jax.random.normal(k, (2, *leaf.shape)) for k, leaf in zip(keys, jax.tree.leaves(params), strict=False)
    )
    sigma = tune.WithLowRank(base=base, columns=columns, layout=base.layout)
    a = np.concatenate([np.asarray(c).reshape(2, -1) for c in columns], axis=1)
    dense = 0.5 * np.eye(9) + a.T @ a
    np.testing.assert_allclose(sigma.to_dense(), dense)
    np.testing.assert_allclose(sigma.diagonal(), np.diag(dense))
    np.testing.assert_allclose(sigma.logdet(), np.linalg.slogdet(dense)[1])
    root = np.asarray(jax.vmap(sigma.sqrt_matvec)(jnp.eye(sigma.sqrt_columns))).T
    np.testing.assert_allclose(root @ root.T, dense)
    z = jax.random.normal(keys[2], (5, 2))

    def u(p, z):
        return jnp.tanh(z @ p["a"]) * p["b"]

    rows = np.asarray(
        jax.vmap(
            lambda c: jnp.concatenate(
                [x.reshape(3, -1) for x in jax.tree.leaves(jax.jacobian(u)(params, c))], axis=1
            )
        )(z)
    )
    np.testing.assert_allclose(
        dv.variance(u, params, z, sigma), np.einsum("nkp,pq,nkq->nk", rows, dense, rows)
    )
    scaled = sigma.scale({"a": 4.0, "low rank": 9.0})
    parts = dv.block_variances(u, params, z, sigma)
    again = dv.block_variances(u, params, z, scaled)
    for name, factor in (("a", 4.0), ("b", 1.0), ("low rank", 9.0)):
        np.testing.assert_allclose(again[name], factor * parts[name])


@pytest.mark.parametrize("structure", [dv.Kronecker(), dv.EigenKronecker(), dv.Diagonal()])
def test_from_a_fisher_start_every_structure_improves(structure):
    """A Fisher that is right but for one weight, whose part in the errors is a hundred times larger."""
    rng = np.random.default_rng(1)
    params = {"first": jnp.asarray(rng.normal(size=(3, 4))), "last": jnp.asarray(rng.normal(size=(4, 1)))}

    def u(p, z):
        return (jnp.tanh(z @ p["first"]) @ p["last"])[0]

    x, z = (jnp.asarray(rng.normal(size=(n, 3))) for n in (200, 1500))
    start = dv.fisher(lambda p, x: u(p, x), params, x, structure=structure).inverse(1e-2)
    parts = dv.block_variances(u, params, z, start)
    s = 100 * parts["first"] + parts["last"]
    e = rng.laplace(size=1500) * np.sqrt(np.asarray(s) / 2)
    targets = jax.vmap(u, (None, 0))(params, z) + e
    possible = metrics.log_likelihood(e, s, tune.noise(e, s))
    untuned = sum(parts.values())
    possible -= metrics.log_likelihood(e, untuned, tune.noise(e, untuned))
    assert float(possible) > 0.004
    for free in (tune.EachBlock(), tune.EachSide(), tune.EachVariance()):
        learned = tune.learn(u, params, z, targets, start, free=free, key=KEY, steps=150)
        before = tune.noise(e, sum(parts.values()))
        gain = metrics.log_likelihood(
            e, dv.variance(u, params, z, learned.sigma), learned.noise
        ) - metrics.log_likelihood(e, sum(parts.values()), before)
        assert float(gain) > 0.8 * float(possible)
        if isinstance(free, tune.EachBlock):
            after = dv.block_variances(u, params, z, learned.sigma)
            ratio = (after["first"] / parts["first"])[0] / (after["last"] / parts["last"])[0]
            # The last layer's part is by now too small to be known: the penalty keeps its factor from falling on.
            assert 5 < float(ratio) < 150


@pytest.mark.parametrize(("cases", "tolerance"), [(None, 0.01), (1000, 0.15)])
def test_an_own_loss_and_optimiser_and_cases_drawn_for_each_step(cases, tolerance):
    """Squared distance of ν from e² is a linear regression of e² on z²."""
    z, e = planted(np.diag([2.0, 0.5]), 5000)
    params = {"w": jnp.zeros(2)}
    learned = tune.learn(
        linear,
        params,
        z,
        e,
        dv.as_covariance(params, 1.0),
        loss=lambda errors, variance: jnp.mean((errors**2 - variance) ** 2),
        optimiser=optax.adam(optax.cosine_decay_schedule(0.1, 300)),
        steps=300,
        cases_per_step=cases,
        regularisation=0.0,
        key=KEY,
    )
    regression = np.linalg.lstsq(np.asarray(z) ** 2, np.asarray(e) ** 2)[0]
    np.testing.assert_allclose(learned.sigma.diagonal(), regression, rtol=tolerance)


def test_strong_regularisation_leaves_the_shape_of_sigma():
    truth = np.diag([4.0, 0.1])
    z, e = planted(truth, 500)
    params = {"w": jnp.zeros(2)}
    learned = tune.learn(
        linear, params, z, e, dv.as_covariance(params, 1.0), regularisation=1e6, key=KEY, steps=60
    )
    first, second = learned.sigma.diagonal()
    assert float(first / second) == pytest.approx(1.0, abs=0.3)


def test_gradient_through_the_variance_equals_finite_differences(x64):
    z, e = planted(np.diag([1.0, 2.0]), 30)
    params = {"w": jnp.zeros(2)}
    start = dv.as_covariance(params, 1.0)

    def loss(theta):
        sigma = tune.EachVariance().build(start, [theta])
        return jnp.mean(jnp.log(1 + dv.variance(linear, params, z, sigma)) * e**2)

    theta = jnp.array([0.3, -0.7])
    step = 1e-6 * jnp.eye(2)
    differences = [(loss(theta + d) - loss(theta - d)) / 2e-6 for d in step]
    np.testing.assert_allclose(jax.grad(loss)(theta), differences, rtol=1e-7)


def test_bad_input_is_explained():
    z, e = planted(np.eye(2), 20)
    params = {"w": jnp.zeros(2)}
    sigma = dv.as_covariance(params, 1.0)
    with pytest.raises(ValueError, match="one target for each"):
        tune.learn(linear, params, z, e[:5], sigma, key=KEY)
    with pytest.raises(ValueError, match="cases_per_step"):
        tune.learn(linear, params, z, e, sigma, key=KEY, cases_per_step=21)
    with pytest.raises(ValueError, match="rank is 3 for 2"):
        tune.learn(linear, params, z, e, sigma, free=tune.AddLowRank(3), key=KEY)
    with pytest.raises(TypeError, match="no basis of its own"):
        tune.learn(linear, params, z, e, dv.as_covariance(params, jnp.eye(2)), key=KEY)
    with pytest.raises(FloatingPointError, match="step 0"):
        tune.learn(linear, params, z, e, sigma, key=KEY, loss=lambda e, v: jnp.mean(jnp.log(-v)))
