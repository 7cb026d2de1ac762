"""Train one network: the maximum of the posterior under a standard normal prior, by Adam."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

PRIOR = 1.0
STEPS, BATCH, RATE = 3000, 64, 5e-3
SNAPSHOTS, EVERY = 20, 40


def objective(log_likelihood: Any, params: Any, batch: Any, count: int) -> Any:
    each = jax.vmap(lambda example: log_likelihood(params, example))(batch)
    size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return -jnp.mean(each) + 0.5 * PRIOR * size / count


def _steps(log_likelihood: Any, solver: Any, params: Any, key: Any, data: Any, steps: int) -> Any:
    count = data[1].shape[0]

    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        index = jax.random.randint(key, (BATCH,), 0, count)
        batch = jax.tree.map(lambda leaf: leaf[index], data)
        slope = jax.grad(functools.partial(objective, log_likelihood))(params, batch, count)
        change, state = solver.update(slope, state, params)
        return (optax.apply_updates(params, change), state), None

    (params, _), _ = jax.lax.scan(step, (params, solver.init(params)), jax.random.split(key, steps))
    return params


def trainer(log_likelihood: Any, start: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """`train(key, data)`: start and order come from the key. Compiled once for each shape of data."""
    solver = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    @jax.jit
    def train(key: Any, data: Any) -> Any:
        first, second = jax.random.split(key)
        return _steps(log_likelihood, solver, start(first), second, data, STEPS)

    return train


def snapshots(log_likelihood: Any, params: Any, key: Any, data: Any) -> Any:
    """Going on by plain gradient descent at a constant rate: parameters every few steps, stacked."""
    solver = optax.sgd(0.01)

    @jax.jit
    def walk(params: Any, data: Any) -> Any:
        def stretch(params: Any, key: Any) -> Any:
            params = _steps(log_likelihood, solver, params, key, data, EVERY)
            return params, params

        return jax.lax.scan(stretch, params, jax.random.split(key, SNAPSHOTS))[1]

    return walk(params, data)


def passes(count: int) -> float:
    """One training in plain passes over the data: a gradient is three."""
    return 3 * STEPS * BATCH / count
