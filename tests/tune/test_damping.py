"""All dampings at once against one inverse and one variance after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance import tune
from deltavariance.tune.family import damped_family
from deltavariance.tune.nodes import choose_nodes

N = 120
STRUCTURES = {
    "diagonal": dv.Diagonal(),
    "kronecker": dv.Kronecker(),
    "split": dv.Kronecker(split_damping=True),
    "ekfac": dv.EigenKronecker(),
}


def network(params, x):
    """Two components; the first layer is used five times, the second once, and one row of a table is looked up."""
    h = x["x"]
    for _ in range(5):
        h = jnp.tanh(h @ params["in"] + params["b"])
    return (h + params["table"][x["row"]]) @ params["out"]


@pytest.fixture
def problem(x64):
    keys = jax.random.split(jax.random.key(0), 7)
    params = {
        "in": jax.random.normal(keys[0], (6, 6)) / 2,
        "b": jnp.zeros(6),
        "table": jax.random.normal(keys[1], (4, 6)),
        "out": jax.random.normal(keys[2], (6, 2)),
    }
    data = {
        "x": jax.random.normal(keys[3], (N, 6)) * 10.0 ** jnp.linspace(-3, 0, 6),
        "row": jax.random.randint(keys[4], (N,), 0, 4),
        "y": jax.random.normal(keys[5], (N, 2)),
    }
    z = {"x": jax.random.normal(keys[6], (30, 6)), "row": jnp.arange(30) % 4}
    return params, data, z


def log_likelihood(params, example):
    return -0.5 * jnp.sum((network(params, example) - example["y"]) ** 2)


@pytest.mark.parametrize("name", STRUCTURES)
def test_equals_one_inverse_after_another(name, problem):
    params, data, z = problem
    F = dv.fisher(log_likelihood, params, data, structure=STRUCTURES[name])
    found = tune.damped_variances(F, network, params, z)
    assert found.shape == (25, 30, 2)
    for number in range(0, 25, 4):
        expected = dv.variance(network, params, z, F.inverse(float(tune.GRID[number])))
        np.testing.assert_allclose(found[number], expected, rtol=1e-4)


def test_prior_and_number_of_data_enter_as_in_inverse(problem):
    params, data, z = problem
    F = dv.fisher(log_likelihood, params, data)
    grid = np.array([1e-2, 1e-9, 10.0, 1e-5])  # in no order
    found = tune.damped_variances(F, network, params, z, grid, prior_precision=3.0, num_data=7)
    for number, d in enumerate(grid):
        sigma = F.inverse(float(d), prior_precision=3.0, num_data=7)
        np.testing.assert_allclose(found[number], dv.variance(network, params, z, sigma), rtol=1e-4)


def test_batches_give_the_same(problem):
    params, data, z = problem
    F = dv.fisher(log_likelihood, params, data, structure=dv.EigenKronecker())
    np.testing.assert_allclose(
        tune.damped_variances(F, network, params, z, batch_size=7),
        tune.damped_variances(F, network, params, z),
        rtol=1e-9,
    )


@pytest.mark.parametrize("score", ["log_likelihood", "correlation"])
def test_the_choice_is_that_of_a_loop(score, problem):
    params, data, z = problem
    F = dv.fisher(log_likelihood, params, data)
    rng = np.random.default_rng(0)
    predictions = np.asarray(jax.vmap(network, (None, 0))(params, z))
    targets = predictions + rng.normal(size=predictions.shape)
    choice = tune.damping(F, network, params, z, targets, score=score)
    curves = np.stack([dv.variance(network, params, z, F.inverse(float(d))) for d in tune.GRID])
    by_loop = tune.best_damping(curves, targets - predictions, tune.GRID, score=score)
    np.testing.assert_allclose(choice.scores, by_loop.scores, atol=2e-4)
    reached = np.take_along_axis(np.asarray(by_loop.scores), np.asarray(choice.index)[None], 0)[0]
    np.testing.assert_allclose(reached, np.asarray(by_loop.scores).max(0), atol=4e-4)


def test_the_true_damping_is_found():
    """Errors drawn with the variance at 1e-2, on a linear model whose spectrum spans six powers of ten."""
    rng = np.random.default_rng(1)
    scales = 10.0 ** np.linspace(-3, 0, 12)
    x, z = (rng.normal(size=(n, 12)) * scales for n in (500, 6000))
    params = {"w": jnp.zeros(12)}
    u = lambda p, z: z @ p["w"]
    F = dv.fisher(lambda p, x: u(p, x), params, jnp.asarray(x))
    z = jnp.asarray(rng.permuted(z, axis=1))
    true = np.asarray(dv.variance(u, params, z, F.inverse(1e-2)))
    targets = rng.laplace(size=6000) * np.sqrt(true / 2)
    choice = tune.damping(F, u, params, z, targets)
    assert abs(np.log10(float(choice)) + 2) < 1.01
    fewer = tune.damping(F, u, params, z, targets, cases=2000)
    assert abs(np.log10(float(fewer)) + 2) < 1.01
    assert float(fewer.noise.beta) == pytest.approx(1.0, rel=0.3)


def test_curvature_is_not_fitted_and_gradients_are_not_traced_again(problem):
    """u is called as often for twenty-five dampings as for one."""
    params, data, z = problem
    F = dv.fisher(log_likelihood, params, data, structure=dv.EigenKronecker())

    def traces(run):
        calls = []

        def counted(params, case):
            calls.append(1)
            return network(params, case)

        run(counted)
        return len(calls)

    one = traces(lambda u: dv.variance(u, params, z, F.inverse(1e-3)))
    assert traces(lambda u: tune.damped_variances(F, u, params, z)) <= one


def test_bases_are_shared_and_only_variances_are_stacked(problem):
    params, data, _ = problem
    F = dv.fisher(log_likelihood, params, data, structure=dv.EigenKronecker())
    family = damped_family(F, tune.GRID)
    nodes = family.mixing.shape[1]
    assert nodes < 25
    stacked = sum(leaf.size for leaf in jax.tree.leaves(family.members))
    assert stacked == nodes * sum(F.layout.sizes)


@pytest.mark.parametrize("span", [(-9, 0), (-3, -2), (-20, 12)])
def test_nodes_keep_their_promise_for_any_squares(span):
    rng = np.random.default_rng(2)
    x = 10.0 ** rng.uniform(*span, size=400)
    added = tune.GRID - 1e-15
    nodes = choose_nodes([x[:100], x[100:]], added)
    exact = 1 / (x[:, None] + added)
    # Any sum with squares ≥ 0 is within the error of the single terms.
    predicted = exact[:, nodes.chosen] @ nodes.mixing.T
    assert np.abs(predicted / exact - 1).max() < 1e-4
    if span == (-3, -2):
        assert len(nodes.chosen) <= 8


def test_bad_input_is_explained(problem):
    params, data, z = problem
    F = dv.fisher(log_likelihood, params, data)
    with pytest.raises(ValueError, match="one target for each"):
        tune.damping(F, network, params, z, np.ones(30))
    with pytest.raises(ValueError, match="zero or more"):
        tune.damped_variances(F, network, params, z, np.array([-1.0, 1.0]))
    with pytest.raises(ValueError, match="`cases` is 0"):
        tune.damping(F, network, params, z, np.ones((30, 2)), cases=0)
