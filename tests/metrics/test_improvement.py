"""Block-bootstrap errors against closed forms and repeated simulation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deltavariance import metrics

KEY = jax.random.key(0)


def mean_error(errors, variance):
    return jnp.mean(errors, axis=0)


def autoregression(rng, coefficient, shape):
    noise = rng.normal(size=shape) * np.sqrt(1 - coefficient**2)
    series = np.empty(shape)
    series[0] = rng.normal(size=shape[1:])
    for t in range(1, shape[0]):
        series[t] = coefficient * series[t - 1] + noise[t]
    return series


def test_counts_are_whole_runs_that_sum_to_n():
    counts = np.asarray(metrics.block_counts(KEY, 23, 5, 50))
    assert np.all(counts.sum(1) == 23)
    np.testing.assert_allclose(counts.mean(0), 1.0, atol=0.8)
    ones = np.asarray(metrics.block_counts(KEY, 20, 10, 50))
    # Two runs of ten around a ring of twenty: the changes of count stand at most at four places.
    assert np.all((np.diff(ones, axis=1) != 0).sum(1) <= 4)


def test_standard_error_of_a_mean_of_independent_cases(x64):
    e = np.random.default_rng(0).normal(size=(400, 5))
    se = metrics.standard_error(mean_error, e, e**2, key=KEY, repeats=800)
    np.testing.assert_allclose(se, e.std(0) / np.sqrt(400), rtol=0.1)


def test_blocks_see_serial_correlation_and_single_cases_do_not(x64):
    """The error of the mean of an AR(1) with coefficient .8 is 3 times that of independent cases."""
    e = autoregression(np.random.default_rng(1), 0.8, (4000, 20))
    true = np.sqrt((1 + 0.8) / (1 - 0.8) / 4000)
    blocked = metrics.standard_error(mean_error, e, e**2, key=KEY, block_length=80)
    single = metrics.standard_error(mean_error, e, e**2, key=KEY)
    assert float(blocked.mean()) == pytest.approx(true, rel=0.12)
    assert float(single.mean()) == pytest.approx(true / 3, rel=0.12)


def test_weighting_and_repeating_are_the_same_draws(x64):
    rng = np.random.default_rng(2)
    e, v = rng.normal(size=(60, 2)), rng.random((60, 2))

    def without_weights(errors, variance):
        return metrics.removal_auc(errors, variance)

    for length in (1, 7):
        a = metrics.standard_error(metrics.removal_auc, e, v, key=KEY, block_length=length, repeats=30)
        b = metrics.standard_error(without_weights, e, v, key=KEY, block_length=length, repeats=30)
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_standard_error_of_a_difference_matches_repeated_experiments(x64):
    """The spread of the improvement over 150 fresh data sets, against the bootstrap's word on each."""
    rng = np.random.default_rng(3)
    scale = rng.gamma(3.0, size=(300, 150))
    errors = rng.normal(size=scale.shape) * scale
    good, poor = scale**2, (scale * rng.lognormal(sigma=0.8, size=scale.shape)) ** 2
    result = metrics.improvement(metrics.correlation, errors, good, poor, key=KEY, repeats=100)
    assert float(result.difference.mean()) > 0
    assert float(result.standard_error.mean()) == pytest.approx(float(result.difference.std()), rel=0.15)
    # Independent quantities: the mean over them is known √150 times better.
    assert float(result.mean_standard_error) == pytest.approx(
        float(result.difference.std()) / np.sqrt(150), rel=0.25
    )


@pytest.mark.parametrize(
    "score",
    [metrics.removal_auc, metrics.ause, metrics.correlation, metrics.rank_correlation, metrics.crps]
    + [functools.partial(metrics.log_likelihood, noise="laplace"), metrics.calibration_error],
)
def test_positive_is_better_for_every_score(score):
    rng = np.random.default_rng(4)
    scale = rng.gamma(2.0, size=(500, 2))
    errors = rng.laplace(size=scale.shape) * scale
    good, poor = 2 * scale**2, 40 * rng.permutation(scale) ** 2
    result = metrics.improvement(score, errors, good, poor, key=KEY, repeats=20, block_length=2)
    assert np.all(result.difference > 0)
    np.testing.assert_allclose(np.abs(result.score - result.reference), result.difference, rtol=1e-5)


def test_reference_with_its_own_errors_and_score():
    rng = np.random.default_rng(5)
    e, v = rng.normal(size=100), np.ones(100)
    result = metrics.improvement(
        functools.partial(metrics.log_likelihood, noise="gaussian"),
        e,
        v,
        v,
        key=KEY,
        reference_errors=3 * e,
        reference_score=functools.partial(metrics.log_likelihood, noise="laplace"),
    )
    expected = metrics.log_likelihood(e, v) - metrics.log_likelihood(3 * e, v, "laplace")
    assert float(result.difference) == pytest.approx(float(expected), rel=1e-5)


def test_bad_input_is_explained():
    e, v = np.ones(10), np.ones(10)
    with pytest.raises(ValueError, match="higher_is_better"):
        metrics.improvement(mean_error, e, v, v, key=KEY)
    with pytest.raises(ValueError, match="block_length"):
        metrics.standard_error(metrics.correlation, e, v, key=KEY, block_length=6)
    with pytest.raises(ValueError, match="repeats"):
        metrics.standard_error(metrics.correlation, e, v, key=KEY, repeats=1)
    with pytest.raises(ValueError, match="reference_variance"):
        metrics.improvement(metrics.correlation, e, v, np.ones(9), key=KEY)
