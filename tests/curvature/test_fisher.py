"""The empirical Fisher information against sums of outer products, and how it counts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv

pytestmark = pytest.mark.usefixtures("x64")


def log_likelihood(params: Any, example: Any) -> Any:
    x, y = example
    return -0.5 * jnp.sum((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2) / 0.3**2


@pytest.fixture
def params(x64: None) -> Any:
    keys = jax.random.split(jax.random.key(0), 2)
    return {"w": jax.random.normal(keys[0], (3, 4)), "v": jax.random.normal(keys[1], (4, 2))}


@pytest.fixture
def data(x64: None) -> Any:
    keys = jax.random.split(jax.random.key(1), 2)
    return jax.random.normal(keys[0], (23, 3)), jax.random.normal(keys[1], (23, 2))


def scores(params: Any, data: Any) -> np.ndarray:
    """[N, P], leaves in the order v, w."""
    gradient = jax.grad(log_likelihood)
    rows = [gradient(params, (x, y)) for x, y in zip(*data, strict=True)]
    return np.stack([np.concatenate([np.ravel(row["v"]), np.ravel(row["w"])]) for row in rows])


def test_mean_of_squared_scores_and_n(params: Any, data: Any) -> None:
    F = dv.fisher(log_likelihood, params, data, structure=dv.Diagonal())
    expected = (scores(params, data) ** 2).mean(0)
    np.testing.assert_allclose(F.diagonal(), expected, rtol=1e-10)
    np.testing.assert_allclose(F.trace(), expected.sum(), rtol=1e-10)
    assert float(F.num_data) == 23
    # Σ = (F + damping)⁻¹ / N: the one place where N enters.
    np.testing.assert_allclose(F.inverse(damping=0.5).diagonal(), 1 / (23 * (expected + 0.5)), rtol=1e-10)
    np.testing.assert_allclose(
        F.inverse(damping=0.5, prior_precision=2.0).diagonal(), 1 / (23 * (expected + 0.5) + 2), rtol=1e-10
    )
    np.testing.assert_allclose(
        F.inverse(0.5, num_data=46).diagonal(), 1 / (46 * (expected + 0.5)), rtol=1e-10
    )


def test_n_examples_twice_halve_the_variance_and_leave_fisher(params: Any, data: Any) -> None:
    once = dv.fisher(log_likelihood, params, data)
    twice = dv.fisher(log_likelihood, params, jax.tree.map(lambda x: jnp.concatenate([x, x]), data))
    np.testing.assert_allclose(twice.diagonal(), once.diagonal(), rtol=1e-12)
    np.testing.assert_allclose(twice.inverse().diagonal(), once.inverse().diagonal() / 2, rtol=1e-12)


@pytest.mark.parametrize("batch_size", [1, 5, 23, 64])
def test_batches_change_nothing(params: Any, data: Any, batch_size: int) -> None:
    whole = dv.fisher(log_likelihood, params, data)
    parts = dv.fisher(log_likelihood, params, data, batch_size=batch_size)
    np.testing.assert_allclose(parts.diagonal(), whole.diagonal(), rtol=1e-12)
    assert float(parts.num_data) == 23


def test_iterables_generators_updates_and_merges_agree(params: Any, data: Any) -> None:
    def cut(start: int, stop: int) -> Any:
        return jax.tree.map(lambda x: x[start:stop], data)

    whole = dv.fisher(log_likelihood, params, data)
    batches = [cut(0, 9), cut(9, 18), cut(18, 23)]
    ways = [
        dv.fisher(log_likelihood, params, batches),
        dv.fisher(log_likelihood, params, (batch for batch in batches)),
        dv.fisher(log_likelihood, params, batches[0]).update(log_likelihood, params, cut(9, 23)),
        dv.fisher(log_likelihood, params, cut(0, 4)).merge(dv.fisher(log_likelihood, params, cut(4, 23))),
    ]
    for way in ways:
        np.testing.assert_allclose(way.diagonal(), whole.diagonal(), rtol=1e-12)
        assert float(way.num_data) == 23


def test_weights_count_and_a_mask_leaves_out(params: Any, data: Any) -> None:
    weights = np.random.default_rng(3).integers(0, 4, 23)
    copies = jax.tree.map(
        lambda x: jnp.repeat(x, weights, axis=0, total_repeat_length=int(weights.sum())), data
    )
    expected = dv.fisher(log_likelihood, params, copies)
    weighted = dv.fisher(log_likelihood, params, data, weights=weights.astype(float), batch_size=6)
    np.testing.assert_allclose(weighted.diagonal(), expected.diagonal(), rtol=1e-10)
    assert float(weighted.num_data) == weights.sum()
    mask = weights > 1
    kept = dv.fisher(log_likelihood, params, jax.tree.map(lambda x: x[mask], data))
    masked = dv.fisher(log_likelihood, params, data, mask=mask)
    np.testing.assert_allclose(masked.diagonal(), kept.diagonal(), rtol=1e-10)
    assert float(masked.num_data) == mask.sum()


def test_moving_average_is_bias_corrected(params: Any, data: Any) -> None:
    batches = [jax.tree.map(lambda x, s=s: x[s : s + 5], data) for s in (0, 5, 10, 15)]
    average, decay = np.zeros(20), 0.3
    for batch in batches:
        average = (1 - decay) * average + decay * (scores(params, batch) ** 2).mean(0)
    expected = average / (1 - (1 - decay) ** 4)
    F = dv.fisher(log_likelihood, params, batches, decay=decay)
    np.testing.assert_allclose(F.diagonal(), expected, rtol=1e-10)
    step = dv.fisher(log_likelihood, params, batches[:1], decay=decay)
    for batch in batches[1:]:
        step = step.update(log_likelihood, params, batch)
    np.testing.assert_allclose(step.diagonal(), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="moving average cannot be merged"):
        F.merge(step)


def test_memory_does_not_change_a_moving_average(params: Any, data: Any) -> None:
    batches = [jax.tree.map(lambda x, s=s: x[s : s + 10], data) for s in (0, 10)]
    whole = dv.fisher(log_likelihood, params, batches, decay=0.3)
    parts = dv.fisher(log_likelihood, params, batches, decay=0.3, batch_size=4)
    np.testing.assert_allclose(parts.diagonal(), whole.diagonal(), rtol=1e-12)


def test_linear_regression_has_the_known_posterior_variance(x64: None) -> None:
    """F⁻¹/N with the true noise is σ²(XᵀX)⁻¹ for orthogonal inputs: a factor of N, 2 or σ² would show."""
    key = jax.random.key(2)
    x = jnp.tile(jnp.eye(4), (500, 1)) * 2
    y = x @ jnp.arange(4.0) + 0.1 * jax.random.normal(key, (2000,))
    f = lambda p, x: x @ p["w"]
    params = {"w": jnp.linalg.lstsq(x, y)[0]}
    F = dv.fisher(dv.gaussian_log_likelihood(f, scale=0.1), params, (x, y))
    expected = 0.1**2 / (500 * 4)
    np.testing.assert_allclose(F.inverse(0.0).diagonal(), expected, rtol=0.2)
    np.testing.assert_allclose(dv.variance(f, params, jnp.eye(4), F.inverse(0.0)), expected, rtol=0.2)


class TestErrors:
    def test_empty_and_used_up_iterators(self, params: Any, data: Any) -> None:
        with pytest.raises(ValueError, match="held no batch"):
            dv.fisher(log_likelihood, params, iter([]))

    def test_which_batch_and_which_leaf(self, params: Any, data: Any) -> None:
        x, y = data
        spoilt = (x, y.at[3, 1].set(jnp.nan))
        with pytest.raises(ValueError, match="Batch 1 of the data holds NaN or infinity in '1'"):
            dv.fisher(log_likelihood, params, [data, spoilt])
        masked = dv.fisher(log_likelihood, params, spoilt, mask=np.arange(23) != 3)
        assert bool(jnp.isfinite(masked.diagonal()).all())

    def test_a_batch_instead_of_one_example(self, params: Any, data: Any) -> None:
        with pytest.raises(TypeError, match="one number for one example"):
            dv.fisher(lambda p, e: (e[0] @ p["w"]) @ p["v"], params, data)

    def test_negative_and_misshapen_weights(self, params: Any, data: Any) -> None:
        with pytest.raises(ValueError, match="negative"):
            dv.fisher(log_likelihood, params, data, weights=-np.ones(23))
        with pytest.raises(ValueError, match="there are 23 examples"):
            dv.fisher(log_likelihood, params, data, weights=np.ones(5))

    def test_other_parameters_do_not_merge(self, params: Any, data: Any) -> None:
        F = dv.fisher(log_likelihood, params, data)
        narrow = dv.fisher(log_likelihood, params, data, where=lambda p: p["v"])
        with pytest.raises(ValueError, match="same parameters in the same structure"):
            F.merge(narrow)

    def test_negative_damping(self, params: Any, data: Any) -> None:
        with pytest.raises(ValueError, match="damping must be at least 0"):
            dv.fisher(log_likelihood, params, data).inverse(-1.0)
