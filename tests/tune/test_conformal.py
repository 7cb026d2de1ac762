"""Coverage of conformal intervals over many repetitions, and the order statistic itself."""

import numpy as np
import pytest

from deltavariance import metrics, tune


def test_the_order_statistic():
    e = np.arange(1.0, 20.0)  # 19 cases: ⌈20 · 0.9⌉ = 18, the 18th smallest, although 20 · 0.9 is not exact
    assert float(tune.conformal(e, np.ones(19)).quantile) == 18.0
    assert float(tune.conformal(e, np.full(19, 2.0)).quantile) == 9.0
    assert float(tune.conformal(np.arange(1.0, 10.0), np.ones(9)).quantile) == 9.0


@pytest.mark.parametrize("informative", [True, False])
def test_coverage_over_200_repetitions(informative):
    """90 % intervals from 400 cases hold 88 to 92 % of 400 fresh ones on average, whatever the scale is worth."""
    rng = np.random.default_rng(0)
    scale = rng.gamma(2.0, size=(800, 200))
    errors = scale * rng.standard_t(3, size=scale.shape) + 0.3 * scale
    std = scale if informative else rng.gamma(2.0, size=scale.shape)
    calibrated = tune.conformal(errors[:400], std[:400], level=0.9)
    low, high = calibrated.interval(np.zeros((400, 200)), std[400:])
    coverage = np.asarray(metrics.coverage(errors[400:], low, high))
    assert coverage.shape == (200,)
    # The exact expectation is ⌈0.9 · 401⌉ / 401; 200 repetitions know it to 0.15 %.
    assert coverage.mean() == pytest.approx(361 / 401, abs=0.005)
    assert 0.88 <= coverage.mean() <= 0.92


def test_a_better_scale_gives_narrower_intervals():
    rng = np.random.default_rng(1)
    scale = rng.gamma(1.0, size=4000)
    errors = rng.normal(size=4000) * scale
    widths = [
        float(metrics.width(*tune.conformal(errors, std).interval(np.zeros(4000), std)))
        for std in (scale, np.ones(4000))
    ]
    assert widths[0] < 0.9 * widths[1]


def test_each_group_is_covered():
    rng = np.random.default_rng(2)
    groups = rng.choice(["land", "sea"], p=[0.2, 0.8], size=(8000,))
    errors = rng.normal(size=(8000, 2)) * np.where(groups == "land", 5.0, 1.0)[:, None]
    std = np.ones((8000, 2))
    first, second = slice(0, 4000), slice(4000, 8000)
    plain = tune.conformal(errors[first], std[first])
    grouped = tune.conformal(errors[first], std[first], groups=groups[first])
    land = groups[second] == "land"
    zero = np.zeros((4000, 2))
    bounds = grouped.interval(zero, std[second], groups=groups[second])
    for chosen in (land, ~land):
        held = metrics.coverage(errors[second][chosen], *(np.asarray(b)[chosen] for b in bounds))
        np.testing.assert_allclose(held, 0.9, atol=0.035)
    pooled = metrics.coverage(
        errors[second][land], *(np.asarray(b)[land] for b in plain.interval(zero, std[second]))
    )
    assert np.all(np.asarray(pooled) < 0.75)


def test_prediction_is_the_centre_and_quantities_have_their_own_quantile(x64):
    rng = np.random.default_rng(3)
    errors, std = rng.normal(size=(50, 2)) * [1.0, 100.0], rng.random((50, 2)) + 0.1
    calibrated = tune.conformal(errors, std, level=0.8)
    expected = np.sort(np.abs(errors) / std, axis=0)[int(np.ceil(51 * 0.8)) - 1]
    np.testing.assert_allclose(calibrated.quantile, expected)
    low, high = calibrated.interval(np.full((3, 2), 7.0), np.full((3, 2), 2.0))
    np.testing.assert_allclose([low[0], high[0]], [7 - 2 * expected, 7 + 2 * expected])


def test_repr_says_what_it_is():
    text = repr(tune.conformal(np.arange(1.0, 20.0), np.ones(19)))
    assert text == "ConformalQuantile(18. standard deviations at level 0.9)"


def test_bad_input_is_explained():
    e, s = np.ones(20), np.ones(20)
    with pytest.raises(ValueError, match="at least 99"):
        tune.conformal(e, s, level=0.99)
    with pytest.raises(ValueError, match="between 0 and 1"):
        tune.conformal(e, s, level=90.0)
    with pytest.raises(ValueError, match="zero in 20 places"):
        tune.conformal(e, 0 * s)
    with pytest.raises(ValueError, match="one label a case"):
        tune.conformal(e, s, groups=np.zeros(3))
    grouped = tune.conformal(e, s, groups=np.arange(20) // 10)
    with pytest.raises(ValueError, match="groups \\['7'\\]"):
        grouped.interval(np.ones(1), np.ones(1), groups=[7])
    with pytest.raises(ValueError, match="give `groups=`"):
        grouped.interval(np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="group 1"):
        tune.conformal(e, s, groups=np.arange(20) // 15)
