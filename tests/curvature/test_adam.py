"""Adam's second moments in the units of one example, against direct sums over examples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from deltavariance.curvature.adam import fisher_from_adam, second_moments_from_adam

BATCH = 32


def score_problem(key, *, num_data=8192, loss_scale=1.0):
    """A linear regression with known noise at its optimum, where the mean gradient is zero."""
    k1, k2 = jax.random.split(key)
    x = jax.random.normal(k1, (num_data, 3)) * jnp.array([1.0, 2.0, 0.5])
    y = x @ jnp.array([1.0, -1.0, 2.0]) + 0.3 * jax.random.normal(k2, (num_data,))
    theta = jnp.linalg.lstsq(x, y)[0]
    per_example = x * ((x @ theta - y) / 0.3**2)[:, None] * loss_scale
    return {"w": theta}, per_example


def states_at_optimum(optimiser, params, per_example, reduction, steps=6000, reshape=lambda g: {"w": g}):
    """Adam's state after many batches of gradients taken at the same parameters."""
    join = {"mean": jnp.mean, "sum": jnp.sum}[reduction]

    @jax.jit
    def run(state):
        def step(state, key):
            rows = jax.random.randint(key, (BATCH,), 0, per_example.shape[0])
            _, state = optimiser.update(reshape(join(per_example[rows], axis=0)), state, params)
            return state, None

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(7), steps))[0]

    return run(optimiser.init(params))


@pytest.mark.parametrize(("reduction", "ratio"), [("sum", BATCH), ("mean", 1 / BATCH)])
def test_measured_units_of_the_second_moment(reduction, ratio):
    params, per_example = score_problem(jax.random.key(0))
    fisher = jnp.mean(per_example**2, axis=0)
    state = states_at_optimum(optax.adam(1e-3), params, per_example, reduction)
    # The relation itself: ν is B times F for a summed loss, F divided by B for a mean one.
    np.testing.assert_allclose(state[0].nu["w"] / fisher, ratio, rtol=0.15)
    found = second_moments_from_adam(state, batch_size=BATCH, reduction=reduction)
    np.testing.assert_allclose(found["w"], fisher, rtol=0.15)


def test_loss_scale_undoes_a_loss_that_is_not_a_log_likelihood():
    # ½ (f - y)² is σ² times the negative log-density.
    params, per_example = score_problem(jax.random.key(0), loss_scale=0.3**2)
    _, scores = score_problem(jax.random.key(0))
    state = states_at_optimum(optax.adam(1e-3), params, per_example, "mean")
    found = second_moments_from_adam(state, batch_size=BATCH, reduction="mean", loss_scale=0.3**2)
    np.testing.assert_allclose(found["w"], jnp.mean(scores**2, axis=0), rtol=0.15)


def slow_moment(gradients, b2):
    """The bias-corrected moving average of squares, as a plain loop over weights."""
    count = len(gradients)
    weights = np.array([(1 - b2) * b2 ** (count - 1 - t) for t in range(count)])
    return np.einsum("t,t...->...", weights / weights.sum(), np.asarray(gradients, np.float64) ** 2)


PARAMS = {"a": jnp.zeros((2, 3)), "b": {"c": jnp.zeros(4)}}


def gradients(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [jax.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32), PARAMS) for _ in range(steps)]


def train(optimiser, steps=7, params=PARAMS):
    state = optimiser.init(params)
    for gradient in gradients(steps):
        _, state = optimiser.update(gradient, state, params)
    return state


def expected(steps=7, b2=0.999, factor=BATCH):
    taken = gradients(steps)
    return jax.tree.map(lambda *leaves: factor * slow_moment(leaves, b2), *taken)


def assert_close(found, wanted, rtol=2e-5):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol), found, wanted)


OPTIMISERS = {
    "adam": optax.adam(1e-3),
    "adamw": optax.adamw(1e-3),
    "nadam": optax.nadam(1e-3),
    "amsgrad": optax.amsgrad(1e-3),
    "radam": optax.radam(1e-3),
    "lamb": optax.lamb(1e-3),
    "low precision mean": optax.adam(1e-3, mu_dtype=jnp.bfloat16),
    "chain": optax.chain(
        optax.clip_by_global_norm(1e9), optax.chain(optax.scale_by_adam()), optax.scale(-1e-3)
    ),
    "masked": optax.masked(optax.adam(1e-3), True),
    "inject": optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3),
    "inject with a schedule": optax.inject_hyperparams(optax.adam)(optax.cosine_decay_schedule(1e-3, 10)),
    "if finite": optax.apply_if_finite(optax.adam(1e-3), 3),
    "named chain": optax.named_chain(("first", optax.identity()), ("second", optax.adam(1e-3))),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_any_optax_state_and_its_bias_correction(name):
    found = second_moments_from_adam(train(OPTIMISERS[name]), batch_size=BATCH, reduction="mean")
    assert_close(found, expected())


def test_b2_is_read_where_it_is_kept_and_can_be_given():
    state = train(optax.inject_hyperparams(optax.adam)(1e-3, b2=0.9))
    assert_close(second_moments_from_adam(state, batch_size=BATCH), expected(b2=0.9))
    plain = train(optax.adam(1e-3, b2=0.9))
    assert_close(second_moments_from_adam(plain, batch_size=BATCH, b2=0.9), expected(b2=0.9))


def test_a_scheduled_b2_is_refused():
    state = train(optax.inject_hyperparams(optax.adam)(1e-3, b2=optax.linear_schedule(0.9, 0.99, 5)))
    with pytest.raises(ValueError, match="schedule"):
        second_moments_from_adam(state, batch_size=BATCH)


def test_two_optimisers_for_two_groups_are_joined_with_their_own_decay():
    optimiser = optax.multi_transform(
        {
            "slow": optax.inject_hyperparams(optax.adam)(1e-3, b2=0.99),
            "fast": optax.inject_hyperparams(optax.adam)(1e-2, b2=0.9),
        },
        {"a": "slow", "b": "fast"},
    )
    found = second_moments_from_adam(train(optimiser), batch_size=BATCH)
    assert_close(found, {"a": expected(b2=0.99)["a"], "b": expected(b2=0.9)["b"]})


def test_leaves_without_adam_are_none():
    optimiser = optax.multi_transform(
        {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()}, {"a": "train", "b": "freeze"}
    )
    found = second_moments_from_adam(train(optimiser), batch_size=BATCH, params=PARAMS)
    assert found["b"]["c"] is None
    np.testing.assert_allclose(found["a"], expected()["a"], rtol=2e-5)


def test_structure_of_the_parameters_is_restored_when_the_optimiser_saw_arrays_only():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_inexact_array)
    optimiser = optax.adam(1e-3)
    _, state = optimiser.update(jax.tree.map(jnp.ones_like, arrays), optimiser.init(arrays), arrays)
    found = second_moments_from_adam(state, batch_size=BATCH, params=model)
    np.testing.assert_allclose(found.layers[0].weight, BATCH * np.ones((3, 2)), rtol=1e-5)
    assert found.activation is None


def test_accumulated_steps_count_as_one_batch():
    """MultiSteps averages K gradients: a mean of means is a mean over K B; a mean of sums is B F / K."""
    params, per_example = score_problem(jax.random.key(1))
    fisher = jnp.mean(per_example**2, axis=0)
    optimiser = optax.MultiSteps(optax.adam(1e-3), 4)
    for reduction in ("mean", "sum"):
        state = states_at_optimum(optimiser, params, per_example, reduction, steps=24000)
        with pytest.warns(UserWarning, match="accumulation_steps"):
            second_moments_from_adam(state, batch_size=BATCH, reduction=reduction)
        found = second_moments_from_adam(state, batch_size=BATCH, reduction=reduction, accumulation_steps=4)
        np.testing.assert_allclose(found["w"], fisher, rtol=0.15)


def test_several_states_for_the_same_parameters_need_a_choice():
    state = {"generator": train(optax.adam(1e-3)), "critic": train(optax.adam(1e-3, b2=0.9))}
    with pytest.raises(ValueError, match="select="):
        second_moments_from_adam(state, batch_size=BATCH)
    assert_close(second_moments_from_adam(state, batch_size=BATCH, select="generator"), expected())
    with pytest.raises(ValueError, match="fits 0 of the Adam states"):
        second_moments_from_adam(state, batch_size=BATCH, select="decoder")


@pytest.mark.parametrize(
    "optimiser", [optax.sgd(1e-3, momentum=0.9), optax.adabelief(1e-3), optax.rmsprop(1e-3)]
)
def test_other_optimisers_are_refused(optimiser):
    with pytest.raises(ValueError, match="No Adam state was found"):
        second_moments_from_adam(train(optimiser), batch_size=BATCH)


def test_no_step_taken():
    with pytest.raises(ValueError, match="no step yet"):
        second_moments_from_adam(optax.adam(1e-3).init(PARAMS), batch_size=BATCH)


def test_bad_settings():
    state = train(optax.adam(1e-3))
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        second_moments_from_adam(state, batch_size=BATCH, reduction="average")
    with pytest.raises(ValueError, match="batch_size"):
        second_moments_from_adam(state, batch_size=0)
    with pytest.raises(ValueError, match="other parameters"):
        second_moments_from_adam(state, batch_size=BATCH, params={"a": jnp.zeros((2, 3))})
    broken = jax.tree.map(lambda leaf: leaf * jnp.inf if leaf.ndim else leaf, state)
    with pytest.raises(ValueError, match="overflowed"):
        second_moments_from_adam(broken, batch_size=BATCH)


def test_a_mean_gradient_is_warned_of():
    optimiser = optax.adam(1e-3)
    state = optimiser.init(PARAMS)
    for gradient in gradients(60):
        _, state = optimiser.update(jax.tree.map(lambda g: 3.0 + g, gradient), state, PARAMS)
    with pytest.warns(UserWarning, match="not converged"):
        second_moments_from_adam(state, batch_size=BATCH)


def test_no_warning_at_an_optimum(recwarn):
    second_moments_from_adam(train(optax.adam(1e-3), steps=60), batch_size=BATCH)
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


def test_works_inside_jit():
    state = train(optax.adam(1e-3))
    assert_close(jax.jit(lambda s: second_moments_from_adam(s, batch_size=BATCH))(state), expected())


def test_the_fisher_information_of_a_training():
    state = train(optax.adam(1e-3))
    fisher = fisher_from_adam(state, num_data=1000, batch_size=BATCH, reduction="mean")
    diagonal = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(expected())])
    np.testing.assert_allclose(fisher.diagonal(), diagonal, rtol=2e-5)
    assert fisher.layout.names == ("a", "b/c")
    sigma = fisher.inverse(damping=0.5)
    wanted = 1 / (1000 * (diagonal + 0.5))
    np.testing.assert_allclose(
        np.concatenate([np.ravel(v) for v in jax.tree.leaves(sigma)]), wanted, rtol=2e-5
    )
    with pytest.raises(ValueError, match="num_data"):
        fisher_from_adam(state, batch_size=BATCH).inverse()
    narrow = fisher_from_adam(state, num_data=1000, batch_size=BATCH, where=lambda p: p["b"])
    assert narrow.layout.names == ("b/c",)


def test_parameters_without_adam_are_not_uncertain():
    optimiser = optax.multi_transform(
        {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()}, {"a": "freeze", "b": "train"}
    )
    state = train(optimiser)
    for params in (None, PARAMS):
        fisher = fisher_from_adam(state, num_data=1000, batch_size=BATCH, params=params)
        assert fisher.layout.names == ("b/c",)
        fisher.layout.check(PARAMS)
        np.testing.assert_allclose(fisher.layout.take(PARAMS)[0], PARAMS["b"]["c"])


def test_an_equinox_model_whose_optimiser_saw_arrays_only():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, 3, 1, use_bias=False, key=jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_inexact_array)
    optimiser = optax.adam(1e-3)
    _, state = optimiser.update(jax.tree.map(jnp.ones_like, arrays), optimiser.init(arrays), arrays)
    fisher = fisher_from_adam(state, num_data=10, batch_size=BATCH, params=model)
    fisher.layout.check(model)
    np.testing.assert_allclose(fisher.diagonal(), BATCH, rtol=1e-5)


def test_a_regression_trained_by_adam_has_the_variance_of_its_estimator():
    """End to end: F from Adam, inverted, against the classical covariance σ² (XᵀX)⁻¹ of independent columns."""
    k1, k2, k3 = jax.random.split(jax.random.key(3), 3)
    num_data, noise = 4096, 0.3
    x = jax.random.normal(k1, (num_data, 3)) * jnp.array([1.0, 2.0, 0.5])
    y = x @ jnp.array([1.0, -1.0, 2.0]) + noise * jax.random.normal(k2, (num_data,))

    def loss(params, rows):
        residual = (y[rows] - x[rows] @ params["w"]) / noise
        return 0.5 * jnp.mean(residual**2)

    steps = 8000
    optimiser = optax.adam(optax.cosine_decay_schedule(3e-2, steps))

    @jax.jit
    def run(params):
        def step(carry, key):
            params, state = carry
            gradient = jax.grad(loss)(params, jax.random.randint(key, (BATCH,), 0, num_data))
            updates, state = optimiser.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        carry, _ = jax.lax.scan(step, (params, optimiser.init(params)), jax.random.split(k3, steps))
        return carry

    _, state = run({"w": jnp.zeros(3)})
    sigma = fisher_from_adam(state, num_data=num_data, batch_size=BATCH).inverse(damping=0.0)
    classical = noise**2 * np.diag(np.linalg.inv(x.T @ x))
    np.testing.assert_allclose(jax.tree.leaves(sigma)[0], classical, rtol=0.15)


def test_the_optimiser_of_a_flax_nnx_model():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimiser = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    optimiser.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    params = nnx.state(model, nnx.Param)
    fisher = fisher_from_adam(optimiser.opt_state, num_data=10, batch_size=BATCH)
    fisher.layout.check(params)
    np.testing.assert_allclose(fisher.diagonal(), BATCH, rtol=1e-5)


def test_a_batch_of_states_goes_through_vmap():
    optimiser = optax.adam(1e-3)
    start = {"w": jnp.zeros(3)}
    states = jax.vmap(lambda g: optimiser.update({"w": g}, optimiser.init(start), start)[1])(jnp.ones((5, 3)))
    found = jax.vmap(lambda state: second_moments_from_adam(state, batch_size=BATCH))(states)
    np.testing.assert_allclose(found["w"], BATCH * np.ones((5, 3)), rtol=1e-5)
    with pytest.raises(ValueError, match=r"jax\.vmap"):
        second_moments_from_adam(states, batch_size=BATCH)
