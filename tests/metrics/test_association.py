"""Correlations against scipy."""

import numpy as np
import pytest
from scipy import stats

from deltavariance import metrics


def test_pearson_equals_scipy(cases, x64):
    errors, variance = cases
    ours = metrics.correlation(errors, variance)
    for j in range(3):
        expected = stats.pearsonr(np.abs(errors[:, j]), np.sqrt(variance[:, j])).statistic
        assert ours[j] == pytest.approx(expected, rel=1e-12)


def test_spearman_equals_scipy_with_ties(cases, x64):
    errors, variance = cases
    errors = np.round(errors / np.abs(errors).max(0), 1)
    ours = metrics.rank_correlation(errors, variance)
    for j in range(3):
        expected = stats.spearmanr(np.abs(errors[:, j]), variance[:, j]).statistic
        assert ours[j] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("score", [metrics.correlation, metrics.rank_correlation])
def test_weights_are_repetitions(score, cases, x64):
    errors, variance = cases
    counts = np.random.default_rng(3).integers(0, 4, size=len(errors))
    repeated = [np.repeat(a, counts, axis=0) for a in (errors, variance)]
    np.testing.assert_allclose(score(errors, variance, weights=counts), score(*repeated), rtol=1e-11)


@pytest.mark.parametrize("score", [metrics.correlation, metrics.rank_correlation])
def test_a_constant_knows_nothing(score):
    errors = np.random.default_rng(0).normal(size=(1000, 2))
    np.testing.assert_array_equal(score(errors, np.full((1000, 2), 0.1)), [0, 0])


def test_tiny_and_huge_units_in_single_precision(cases):
    errors, variance = cases
    for unit in (1e-15, 1e15):
        scaled = metrics.correlation(
            (errors * unit).astype(np.float32), np.maximum(variance * unit, 0).astype(np.float32)
        )
        np.testing.assert_allclose(scaled, metrics.correlation(errors, variance), rtol=1e-4)
