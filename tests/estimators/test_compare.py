"""The comparison against the scores computed one by one, and its table."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.estimators import Constant, DeltaVariance, Ensemble, GradientNorm, compare

KEY = jax.random.key(0)
PARAMS = {"w": jnp.array([1.0, 0.5])}
N = 300


def u(p, z):
    return jnp.stack([p["w"][0] * z[0], p["w"][1] * z[1]])


Z = jax.random.normal(jax.random.key(1), (N, 2))
TRUE = 0.5 * jnp.abs(Z) * jax.random.laplace(jax.random.key(2), (N, 2))
TARGETS = Z * PARAMS["w"] + TRUE


def estimators():
    return {
        "constant": Constant(PARAMS),
        "delta": DeltaVariance(PARAMS, dv.as_covariance(PARAMS, 0.3)),
        "gradient": GradientNorm(PARAMS),
    }


@pytest.fixture(scope="module")
def table():
    return compare(estimators(), u, Z, TARGETS, key=KEY, validation=100, timing=1)


def test_every_number_by_itself(table):
    """Noise from the first 100 cases, scores on the other 200, averaged over the two quantities."""
    for name, estimator in estimators().items():
        v = estimator.variance(u, Z)
        noise = dv.tune.noise(TRUE[:100], v[:100])
        e, held = TRUE[100:], v[100:]
        left = float(jnp.mean(dv.metrics.removal_auc(e, held) / jnp.mean(jnp.abs(e), axis=0)))
        corr = float(jnp.mean(dv.metrics.correlation(e, held)))
        likelihood = float(jnp.mean(dv.metrics.log_likelihood(e, held, noise)))
        row = table[name]
        np.testing.assert_allclose(
            [row.removal_auc.value, row.correlation.value, row.log_likelihood.value, row.combined.value],
            [left, corr, likelihood, (1 - left + corr + likelihood) / 3],
            rtol=2e-4,
            atol=2e-5,
        )


def test_standard_errors_are_the_bootstraps(table):
    v = GradientNorm(PARAMS).variance(u, Z)[100:]
    alone = dv.metrics.standard_error(
        lambda e, v, weights: jnp.mean(dv.metrics.correlation(e, v, weights=weights)), TRUE[100:], v, key=KEY
    )
    np.testing.assert_allclose(table["gradient"].correlation.standard_error, float(alone), rtol=1e-3)


def test_improvement_is_paired(table):
    reference = table["constant"].improvement
    assert (reference.value, reference.standard_error) == (0.0, 0.0)
    better = table["delta"].improvement
    assert better.value == pytest.approx(
        table["delta"].combined.value - table["constant"].combined.value, abs=1e-6
    )
    assert better.value > 3 * better.standard_error
    # A scale apart the gradient and this Σ are the same estimator, and the noise model takes the scale away.
    assert table["gradient"].combined.value == pytest.approx(table["delta"].combined.value, abs=1e-3)


def test_a_predictions_array_takes_the_place_of_u():
    shifted = compare(
        estimators(), u, Z, TARGETS + 5, key=KEY, validation=100, timing=0, predictions=Z * PARAMS["w"] + 5
    )
    plain = compare(estimators(), u, Z, TARGETS, key=KEY, validation=100, timing=0)
    assert shifted["delta"].correlation.value == pytest.approx(plain["delta"].correlation.value, abs=1e-4)


def test_costs_and_times(table):
    assert [row.inference_cost for row in table] == [0, 5, 5]
    assert [row.training_cost for row in table] == [0, 3, 0]
    assert all(row.time > 0 for row in table)
    ensemble = {"ensemble": Ensemble([PARAMS, jax.tree.map(lambda x: 2 * x, PARAMS)])}
    alone = compare(ensemble, u, Z, TARGETS, key=KEY, timing=0)
    assert np.isnan(alone["ensemble"].time)
    assert alone.reference == "ensemble"


def test_the_table(table):
    frame = table.to_pandas()
    assert list(frame.index) == ["constant", "delta", "gradient"]
    assert frame.loc["delta", "correlation_se"] == table["delta"].correlation.standard_error
    text = str(table)
    assert text.splitlines()[0].split()[0] == "estimator"
    assert "200 cases" in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.reference = "delta"
    with pytest.raises(KeyError, match="no estimator 'other'"):
        table["other"]


def test_errors_in_words():
    with pytest.raises(ValueError, match="is not among"):
        compare(estimators(), u, Z, TARGETS, key=KEY, reference="other")
    with pytest.raises(ValueError, match="one target"):
        compare(estimators(), u, Z, TARGETS[:, 0], key=KEY)
    with pytest.raises(ValueError, match="leaves 300 of 300"):
        compare(estimators(), u, Z, TARGETS, key=KEY, validation=1.0)
    with pytest.raises(ValueError, match="empty"):
        compare({}, u, Z, TARGETS, key=KEY)
