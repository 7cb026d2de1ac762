"""Coverage, width, calibration and spread against plain NumPy."""

import numpy as np
import pytest
from scipy import stats

from deltavariance import metrics


def test_coverage_and_width(x64):
    rng = np.random.default_rng(0)
    y, half = rng.normal(size=(50, 2)), rng.random((50, 2))
    np.testing.assert_allclose(metrics.coverage(y, -half, half), (np.abs(y) <= half).mean(0))
    np.testing.assert_allclose(metrics.width(-half, half), 2 * half.mean(0))
    weights = rng.integers(0, 3, 50)
    np.testing.assert_allclose(
        metrics.coverage(y, -half, half, weights=weights),
        (np.abs(np.repeat(y, weights, 0)) <= np.repeat(half, weights, 0)).mean(0),
    )


def test_calibration_error_equals_a_loop_over_levels(cases, x64):
    errors, variance = cases
    levels = np.arange(1, 20) / 20
    expected = np.mean(
        [
            np.abs(
                (np.abs(errors) <= stats.laplace(scale=np.sqrt(variance / 2)).ppf(0.5 + c / 2)).mean(0) - c
            )
            for c in levels
        ],
        axis=0,
    )
    np.testing.assert_allclose(metrics.calibration_error(errors, variance, "laplace"), expected, rtol=1e-10)


def test_calibration_error_of_a_perfect_model_is_sampling_noise():
    errors = np.random.default_rng(0).normal(size=(400, 200))
    mean = float(np.mean(metrics.calibration_error(errors, np.ones_like(errors))))
    # The mean over levels of √(2/π) √(ℓ(1 − ℓ)/n); the Gaussian limit is good to a few per cent here.
    levels = np.arange(1, 20) / 20
    assert mean == pytest.approx(np.mean(np.sqrt(2 / np.pi * levels * (1 - levels) / 400)), rel=0.06)
    assert float(np.mean(metrics.calibration_error(2 * errors, np.ones_like(errors)))) > 5 * mean


def test_spread_and_skill(cases, x64):
    errors, variance = cases
    expected = np.sqrt(variance.mean(0) / (errors**2).mean(0))
    np.testing.assert_allclose(metrics.spread_skill(errors, variance), expected)
    noise = metrics.NoiseModel(metrics.Gaussian(), 0.0, 4.0)
    np.testing.assert_allclose(metrics.spread_skill(errors, variance, noise), 2 * expected)


def test_spread_skill_curve_groups_by_variance(x64):
    rng = np.random.default_rng(0)
    variance = rng.random((31, 2))
    errors = rng.normal(size=(31, 2)) * np.sqrt(variance)
    curve = metrics.spread_skill_curve(errors, variance, bins=4)
    for j in range(2):
        groups = np.array_split(np.argsort(variance[:, j]), 4)
        np.testing.assert_allclose(curve.skill[:, j], [np.sqrt((errors[g, j] ** 2).mean()) for g in groups])
        np.testing.assert_allclose(curve.spread[:, j], [np.sqrt(variance[g, j].mean()) for g in groups])


def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="bins"):
        metrics.spread_skill_curve(np.ones(3), np.ones(3), bins=4)
    with pytest.raises(ValueError, match="`lower` has shape"):
        metrics.coverage(np.ones(3), np.ones(2), np.ones(3))
