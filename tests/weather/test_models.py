"""Forecasters against plain loops, and the rollout against repeated calls."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import deltavariance as dv
from deltaweather.forecast import rollout
from deltaweather.grid import Grid
from deltaweather.models import (
    ConvolutionConfig,
    Dropout,
    EdgeMLP,
    Forcing,
    GraphConfig,
    ModelConfig,
    SiteConfig,
    Sizes,
    Static,
    StepModel,
    build_model,
)
from deltaweather.models.graph import gather_messages
from deltaweather.models.layers import Convolution

REGIONAL = Grid(tuple(np.arange(26.5, 28.6, 0.5)), tuple(np.arange(88.5, 92.1, 0.5)))
GLOBAL = Grid(tuple(np.linspace(-75, 75, 6)), tuple(np.arange(0.0, 360.0, 30.0)))
SMALL: tuple[ModelConfig, ...] = (
    ConvolutionConfig(width=8, blocks=1),
    GraphConfig(latent=8, steps=1, mesh_level=1, lattices=2),
    SiteConfig(history=3, width=8),
)
CHANNELS, BASIS = 3, 4


def setting(config: ModelConfig, grid: Grid, key: int = 0) -> tuple[StepModel, Static]:
    rng = np.random.default_rng(key)
    static = Static(
        jnp.asarray(rng.normal(size=(*grid.shape, 2))),
        jnp.asarray(0.1 * rng.normal(size=(BASIS, *grid.shape, CHANNELS))),
        jnp.asarray([0.5, 0.7, 0.9]),
        config.build_graph(grid) if isinstance(config, GraphConfig) else None,
    )
    sizes = Sizes(CHANNELS, BASIS, 1, 2)
    return build_model(config, sizes, static, key=jax.random.key(key)), static


def case(grid: Grid, history: int, steps: int) -> tuple[Array, Forcing]:
    rng = np.random.default_rng(5)
    times = history + steps
    forcing = Forcing(
        jnp.asarray(rng.normal(size=(times, BASIS))), jnp.asarray(rng.normal(size=(times, *grid.shape, 1)))
    )
    return jnp.asarray(rng.normal(size=(history, *grid.shape, CHANNELS))), forcing


@pytest.mark.usefixtures("x64")
def test_edge_network_equals_the_one_on_concatenated_inputs() -> None:
    config = GraphConfig(latent=8, steps=1, mesh_level=1)
    graph = config.build_graph(GLOBAL)
    network = EdgeMLP(4, 8, key=jax.random.key(0))
    rng = np.random.default_rng(0)
    senders, receivers = rng.normal(size=(72, 8)), rng.normal(size=(42, 8))
    edges = graph.to_mesh
    weight = np.concatenate([network.edge.weight, network.sender, network.receiver])
    whole = np.concatenate([edges.features, senders[edges.senders], receivers[edges.receivers]], axis=1)
    hidden = whole @ weight + np.asarray(network.edge.bias)
    hidden = hidden / (1 + np.exp(-hidden))
    out = hidden @ np.asarray(network.second.weight) + np.asarray(network.second.bias)
    out = (out - out.mean(1, keepdims=True)) / np.sqrt(out.var(1, keepdims=True) + 1e-5)
    found = network(jnp.asarray(edges.features), jnp.asarray(senders), jnp.asarray(receivers), edges)
    np.testing.assert_allclose(found, out, rtol=1e-12, atol=1e-12)
    summed = np.zeros((42, 8))
    np.add.at(summed, edges.receivers, out)
    np.testing.assert_allclose(gather_messages(found, edges, 42), summed, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("dilation", [1, 2])
def test_convolution_equals_a_loop(periodic: bool, dilation: int) -> None:
    layer = Convolution(2, 3, periodic=periodic, dilation=dilation, key=jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(5, 6, 2))
    expected = np.zeros((5, 6, 3)) + np.asarray(layer.bias)
    for i in range(5):
        for j in range(6):
            for a in (-1, 0, 1):
                for b in (-1, 0, 1):
                    row = min(max(i + a * dilation, 0), 4)
                    column = (j + b * dilation) % 6 if periodic else min(max(j + b * dilation, 0), 5)
                    expected[i, j] += x[row, column] @ np.asarray(layer.weight)[a + 1, b + 1]
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_a_global_convolution_turns_with_the_globe() -> None:
    model, static = setting(ConvolutionConfig(width=8, blocks=2, periodic=True), GLOBAL)
    state, forcing = case(GLOBAL, model.history, 1)

    def turn(x: Array) -> Array:
        return jnp.roll(x, 5, axis=-2)

    there = Static(turn(static.fields), turn(static.climatology), static.tendency)
    turned = model(turn(state), Forcing(forcing.time, turn(forcing.fields)), there)
    np.testing.assert_allclose(turned, turn(model(state, forcing, static)), atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_without_a_networks_change_the_anomaly_persists() -> None:
    model, static = setting(SMALL[0], REGIONAL)
    still = jax.tree.map(lambda x: jnp.zeros_like(x) if eqx.is_inexact_array(x) else x, model)
    state, forcing = case(REGIONAL, model.history, 1)
    now, then = (np.einsum("b,bijc->ijc", forcing.time[k], static.climatology) for k in (-2, -1))
    np.testing.assert_allclose(still(state, forcing, static), then + state[-1] - now, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_a_site_knows_nothing_of_its_neighbours() -> None:
    model, static = setting(SMALL[2], REGIONAL)
    state, forcing = case(REGIONAL, model.history, 1)
    moved = state.at[:, 0, 0].add(1.0)
    change = model(moved, forcing, static) - model(state, forcing, static)
    assert np.abs(change[0, 0]).min() > 1e-3
    np.testing.assert_array_equal(np.asarray(change).reshape(-1, CHANNELS)[1:], 0.0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("config", SMALL, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize(("unrolled", "remat"), [(True, False), (False, True)])
def test_rollout_equals_repeated_calls(config: ModelConfig, unrolled: bool, remat: bool) -> None:
    model, static = setting(config, REGIONAL)
    steps = 3
    state, forcing = case(REGIONAL, model.history, steps)
    states = list(state)
    for k in range(steps):
        window = Forcing(forcing.time[k : k + model.history + 1], forcing.fields[k : k + model.history + 1])
        states.append(model(jnp.stack(states[-model.history :]), window, static))
    expected = jnp.stack(states[model.history :])

    def run(model: StepModel) -> Array:
        return rollout(model, state, forcing, steps, static=static, unrolled=unrolled, remat=remat)

    run = eqx.filter_jit(run)
    np.testing.assert_allclose(run(model), expected, atol=1e-12)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: jnp.sum(run(m) ** 2)))(model)
    params, frame = eqx.partition(model, eqx.is_inexact_array)
    rng = np.random.default_rng(9)
    direction = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params)

    def along(step: float) -> Array:
        moved = jax.tree.map(lambda p, d: p + step * d, params, direction)
        return jnp.sum(run(eqx.combine(moved, frame)) ** 2)

    # A small step: a LayerNorm of nearly equal numbers, as behind an edge of length zero, is strongly curved.
    slope = (along(1e-7) - along(-1e-7)) / 2e-7
    products = jax.tree.map(
        lambda g, d: jnp.sum(g * d), eqx.filter(gradient, eqx.is_inexact_array), direction
    )
    np.testing.assert_allclose(sum(jax.tree.leaves(products)), slope, rtol=1e-6)


@pytest.mark.parametrize("config", SMALL, ids=lambda c: type(c).__name__)
def test_every_parameter_matters(config: ModelConfig) -> None:
    """All inexact arrays of a model are trained: none is a constant in disguise, none is unused."""
    model, static = setting(config, REGIONAL)
    state, forcing = case(REGIONAL, model.history, 1)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: jnp.sum(m(state, forcing, static) ** 2)))(model)
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(gradient, eqx.is_inexact_array)):
        assert float(jnp.abs(leaf).max()) > 0, path


@pytest.mark.parametrize("config", SMALL, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("unrolled", [True, False])
def test_dropout_acts_only_when_given_and_differs_by_key_and_step(
    config: ModelConfig, unrolled: bool
) -> None:
    model, static = setting(config, REGIONAL)
    state, forcing = case(REGIONAL, model.history, 2)

    def run(dropout: Dropout | None) -> np.ndarray:
        return np.asarray(
            rollout(model, state, forcing, 2, static=static, unrolled=unrolled, dropout=dropout)
        )

    plain = run(None)
    np.testing.assert_array_equal(plain, run(None))
    np.testing.assert_allclose(plain, run(Dropout(jax.random.key(0), 0.0)), atol=1e-5)
    one, two = run(Dropout(jax.random.key(1), 0.5)), run(Dropout(jax.random.key(2), 0.5))
    assert np.abs(one - plain).max() > 1e-3
    assert np.abs(one - two).max() > 1e-3
    np.testing.assert_array_equal(one, run(Dropout(jax.random.key(1), 0.5)))


def test_dropout_keeps_the_mean_and_silences_its_share() -> None:
    x = jnp.ones((400, 400))
    y = Dropout(jax.random.key(0), 0.3)(x)
    assert float(jnp.mean(y == 0)) == pytest.approx(0.3, abs=0.01)
    assert float(jnp.mean(y)) == pytest.approx(1.0, abs=0.01)


def test_a_forcing_of_the_wrong_length_is_refused() -> None:
    model, static = setting(SMALL[0], REGIONAL)
    state, forcing = case(REGIONAL, model.history, 2)
    with pytest.raises(ValueError, match="needs the forcing at 5 times"):
        rollout(model, state, forcing, 3, static=static)
    with pytest.raises(ValueError, match="looks back on 2 states"):
        rollout(model, state[:1], forcing, 2, static=static)


def test_a_mesh_network_without_its_graph_is_refused() -> None:
    model, static = setting(SMALL[1], REGIONAL)
    state, forcing = case(REGIONAL, model.history, 1)
    bare = Static(static.fields, static.climatology, static.tendency)
    with pytest.raises(ValueError, match="build_graph"):
        model(state, forcing, bare)
    with pytest.raises(ValueError, match="build_graph"):
        build_model(SMALL[1], Sizes(CHANNELS, BASIS, 1, 2), bare, key=jax.random.key(0))


@pytest.mark.usefixtures("x64")
def test_a_mesh_network_on_the_globe() -> None:
    model, static = setting(GraphConfig(latent=8, steps=4, mesh_level=1), GLOBAL)
    state, forcing = case(GLOBAL, model.history, 1)
    step = eqx.filter_jit(model)
    here = step(state, forcing, static)
    # A change at one place reaches the whole globe in few rounds, by the coarse edges.
    there = step(state.at[-1, 0, 0].add(3.0), forcing, static)
    assert (jnp.abs(here - there).max(-1) > 1e-12).all()


def test_the_papers_mesh_network_fits_in_six_gigabytes() -> None:
    """One gradient of a 20-step forecast at the paper's size, by the compiler's own account of its memory."""
    grid = Grid(tuple(np.linspace(-90, 90, 46)), tuple(np.arange(0.0, 360.0, 4.0)))
    config = GraphConfig.paper()
    channels, history, steps = 227, config.history, 20
    static = Static(
        jnp.zeros((*grid.shape, 5)),
        jnp.zeros((1, *grid.shape, channels)),
        jnp.ones(channels),
        config.build_graph(grid),
    )
    make = eqx.filter_eval_shape(build_model, config, Sizes(channels, 1, 5, 5), static, key=jax.random.key(0))
    params, frame = eqx.partition(make, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def loss(params: StepModel, state: Array, forcing: Forcing, static: Static) -> Array:
        model = eqx.combine(params, frame)
        return jnp.sum(rollout(model, state, forcing, steps, static=static, remat=True)[-1] ** 2)

    times = history + steps
    forcing = jax.eval_shape(lambda: Forcing(jnp.zeros((times, 1)), jnp.zeros((times, *grid.shape, 5))))
    state = jax.ShapeDtypeStruct((history, *grid.shape, channels), jnp.float32)
    compiled = jax.jit(jax.grad(loss)).lower(params, state, forcing, static).compile()
    memory = compiled.memory_analysis()
    total = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert total < 6e9


@pytest.mark.parametrize("config", SMALL, ids=lambda c: type(c).__name__)
def test_weights_keep_their_gradients_in_factors(config: ModelConfig) -> None:
    """Every matrix and kernel is used in plain products only, through the whole forecast; and the sum is right."""
    model, static = setting(config, REGIONAL)
    state, forcing = case(REGIONAL, model.history, 2)
    cases = jax.tree.map(lambda x: jnp.stack([x, 1.1 * x]), (state, forcing))

    def u(model: StepModel, z: tuple[Array, Forcing]) -> Array:
        return rollout(model, *z, 2, static=static)[-1, 1, 2, 0]

    for leaf in dv.explain(u, model, cases).leaves:
        if len(leaf.shape) > 1:
            assert leaf.forms == ("Products",), leaf.name
    gradients = jax.jit(jax.vmap(jax.grad(u), in_axes=(None, 0)))(model, cases)
    expected = sum(jnp.sum(g.reshape(2, -1) ** 2, axis=1) for g in jax.tree.leaves(gradients))
    variance = dv.variance(u, model, cases, dv.as_covariance(model, 1.0))
    np.testing.assert_allclose(variance, expected, rtol=1e-4)
