"""Removal AUC and AUSE against loops over explicit removal orders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deltavariance import metrics


def mean_left(errors, order):
    """The mean |error| left, averaged over 0..n−1 removals in the given order, by the definition."""
    left = list(np.abs(errors)[order])
    means = []
    while left:
        means.append(np.mean(left))
        left.pop(0)
    return np.mean(means)


def shuffled_orders(variance, rng, draws):
    return [np.lexsort((rng.random(len(variance)), -variance)) for _ in range(draws)]


def test_equals_the_definition_without_ties(x64):
    rng = np.random.default_rng(1)
    errors, variance = rng.normal(size=(40, 2, 3)), rng.random((40, 2, 3))
    auc = metrics.removal_auc(errors, variance)
    assert auc.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        order = np.argsort(-variance[:, i, j])
        assert auc[i, j] == pytest.approx(mean_left(errors[:, i, j], order), rel=1e-12)


def test_ties_are_the_mean_over_all_their_orders(x64):
    errors, variance = np.array([5.0, 1.0, -2.0, 4.0]), np.array([1.0, 2.0, 1.0, 1.0])
    orders = [[1, *p] for p in ([0, 2, 3], [0, 3, 2], [2, 0, 3], [2, 3, 0], [3, 0, 2], [3, 2, 0])]
    expected = np.mean([mean_left(errors, order) for order in orders])
    assert float(metrics.removal_auc(errors, variance)) == pytest.approx(expected, rel=1e-10)


def test_constant_variance_gives_the_mean_error_whatever_the_order_of_the_data(x64):
    errors = np.sort(np.random.default_rng(2).exponential(size=30))
    for data in (errors, errors[::-1].copy()):
        assert float(metrics.removal_auc(data, np.full(30, 0.3))) == pytest.approx(errors.mean(), rel=1e-10)


def test_lower_is_better_and_only_the_order_counts(cases, x64):
    errors, variance = cases
    perfect = metrics.removal_auc(errors, errors**2)
    worst = metrics.removal_auc(errors, 1 / (errors**2 + 1e-30))
    ours = metrics.removal_auc(errors, variance)
    assert np.all(perfect < ours)
    assert np.all(ours < worst)
    np.testing.assert_allclose(metrics.removal_auc(errors, np.log1p(variance)), ours, rtol=1e-12)


def test_weights_are_repetitions(cases, x64):
    errors, variance = cases
    counts = np.random.default_rng(3).integers(0, 4, size=len(errors))
    repeated = [np.repeat(a, counts, axis=0) for a in (errors, variance)]
    for score in (metrics.removal_auc, metrics.ause):
        np.testing.assert_allclose(score(errors, variance, weights=counts), score(*repeated), rtol=1e-10)


def test_ause_is_the_area_between_the_curve_and_the_oracle(x64):
    rng = np.random.default_rng(4)
    errors, variance = rng.normal(size=25), rng.random(25)
    area = mean_left(errors, np.argsort(-variance)) - mean_left(errors, np.argsort(-np.abs(errors)))
    assert float(metrics.ause(errors, variance)) == pytest.approx(area / np.abs(errors).mean(), rel=1e-10)
    assert float(metrics.ause(1e4 * errors, variance)) == pytest.approx(
        area / np.abs(errors).mean(), rel=1e-10
    )


def test_curve_at_whole_removals(cases, x64):
    errors, variance = cases[0][:50, :1], cases[1][20:, 0][:, None]
    errors = errors[: len(variance)]
    n = len(errors)
    curve = metrics.sparsification_curve(errors, variance, fractions=np.arange(n) / n)
    order = np.argsort(-variance[:, 0])
    expected = [np.abs(errors[order[k:], 0]).mean() for k in range(n)]
    np.testing.assert_allclose(curve.error[:, 0], expected, rtol=1e-11)
    np.testing.assert_allclose(curve.error.mean(0), metrics.removal_auc(errors, variance), rtol=1e-11)
    assert np.all(curve.oracle <= curve.error * (1 + 1e-12))
    assert np.all(np.asarray(curve.sparsification_error)[0] == 0)


def test_single_precision_keeps_up_with_double():
    rng = np.random.default_rng(5)
    variance = rng.gamma(2.0, size=20_000)
    errors = rng.normal(size=20_000) * np.sqrt(variance)
    single = metrics.removal_auc(jnp.asarray(errors, jnp.float32), jnp.asarray(variance, jnp.float32))
    assert float(single) == pytest.approx(mean_left_fast(errors, variance), rel=1e-5)


def mean_left_fast(errors, variance):
    size = np.abs(errors)[np.argsort(-variance)]
    return np.mean(np.cumsum(size[::-1]) / np.arange(1, len(size) + 1))


def test_inside_jit(cases, x64):
    errors, variance = cases
    np.testing.assert_allclose(
        jax.jit(metrics.removal_auc)(errors, variance), metrics.removal_auc(errors, variance), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("errors", "variance", "message"),
    [
        (np.ones(3), np.ones(4), "shape"),
        (np.ones(3), np.array([1.0, -1.0, 1.0]), "negative"),
        (np.array([1.0, np.nan, 1.0]), np.ones(3), "not finite"),
        (np.ones((0, 2)), np.ones((0, 2)), "no cases"),
    ],
)
def test_bad_input_is_explained(errors, variance, message):
    with pytest.raises(ValueError, match=message):
        metrics.removal_auc(errors, variance)


def test_bad_weights_are_explained():
    with pytest.raises(ValueError, match="one weight a case"):
        metrics.removal_auc(np.ones(3), np.ones(3), weights=np.ones(2))
    with pytest.raises(ValueError, match="positive"):
        metrics.removal_auc(np.ones(3), np.ones(3), weights=np.array([1.0, -1.0, 1.0]))
