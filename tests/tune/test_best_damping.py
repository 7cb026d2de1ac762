"""The choice among given curves against a loop with scipy's densities."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from deltavariance import metrics, tune

GRID = 10.0 ** np.arange(-15, 10)


def curves(seed, n=300, spectrum=40, best=(-3, 1)):
    """Squared gradients against a spectrum; the errors of quantity j follow the damping `10^best[j]`."""
    rng = np.random.default_rng(seed)
    squares = rng.gamma(0.3, size=(n, spectrum)) * 10 ** rng.normal(size=spectrum)
    fisher = 10.0 ** np.linspace(-6, 4, spectrum)
    variance = np.stack([(squares / (fisher + d)).sum(1) for d in GRID])
    truth = np.stack([variance[np.searchsorted(GRID, 10.0**b * 0.999)] for b in best], axis=1)
    e = rng.laplace(size=truth.shape) * np.sqrt(truth / 2)
    return np.repeat(variance[:, :, None], len(best), axis=2), e


@pytest.mark.parametrize("score", ["log_likelihood", "correlation"])
def test_scores_equal_a_loop(score, x64):
    variance, e = curves(0)
    choice = tune.best_damping(variance, e, GRID, score=score)
    for i, j in ((0, 0), (12, 1), (24, 0)):
        v = variance[i, :, j]
        if score == "correlation":
            expected = stats.pearsonr(np.abs(e[:, j]), np.sqrt(v)).statistic
            assert float(choice.scores[i, j]) == pytest.approx(expected, abs=1e-8)
        else:
            model = tune.noise(e[:, j], v)
            s = float(model.alpha) + float(model.beta) * v
            expected = stats.laplace.logpdf(e[:, j], scale=np.sqrt(s / 2)).mean()
            # The grid is searched in a sketch, half as finely: what it misses of the maximum is of second order.
            assert expected - 2e-5 <= float(choice.scores[i, j]) <= expected + 1e-9
    best = np.asarray(choice.scores).argmax(0)
    np.testing.assert_allclose(
        np.take_along_axis(np.asarray(choice.scores), np.asarray(choice.index)[None], 0)[0],
        np.asarray(choice.scores).max(0),
        atol=2e-5 * 20,
    )
    assert np.all(np.abs(best - np.asarray(choice.index)) <= 8)


def test_each_quantity_gets_its_own_and_all_share_one():
    variance, e = curves(1, n=4000)
    own = tune.best_damping(variance, e, GRID)
    assert np.all(np.abs(np.log10(np.asarray(own.damping)) - [-3, 1]) <= 1.01)
    np.testing.assert_array_equal(
        own.select(variance)[:, 1], variance[int(own.index[1]), :, 1].astype(np.float32)
    )
    assert own.noise.beta.shape == (2,)
    shared = tune.best_damping(variance, e, GRID, shared=True)
    assert shared.scores.shape == (25,)
    np.testing.assert_allclose(shared.scores, own.scores.mean(1), rtol=1e-6)
    assert float(shared) == float(shared.damping)
    assert shared.select(variance).shape == e.shape
    with pytest.raises(TypeError, match="one a quantity"):
        float(own)


def test_noise_is_that_of_the_chosen_variance(x64):
    variance, e = curves(2)
    choice = tune.best_damping(variance, e, GRID)
    again = tune.noise(e, np.asarray(choice.select(variance)))
    np.testing.assert_allclose(choice.noise.alpha, again.alpha, rtol=1e-9)
    reached = metrics.log_likelihood(e, choice.select(variance), choice.noise)
    np.testing.assert_allclose(reached, choice.scores[choice.index, jnp.arange(2)], rtol=1e-9)


def test_stretches_of_equal_scores_are_left_at_their_inner_end():
    e = np.array([1.0, -2.0, 3.0, -4.0])
    good, bad = e**2, 1 / e**2
    variance = np.stack([good, good, good, bad, bad])
    assert float(tune.best_damping(variance, e, 10.0 ** np.arange(5), score="correlation")) == 100.0
    assert (
        float(tune.best_damping(variance[::-1].copy(), e, 10.0 ** np.arange(5), score="correlation")) == 100.0
    )


def test_variances_that_are_not_finite_are_out_of_question():
    variance, e = curves(3)
    variance[:3] = np.inf
    variance[5, 0, 0] = np.nan
    choice = tune.best_damping(variance, e, GRID)
    assert np.all(np.isneginf(np.asarray(choice.scores)[:3]))
    assert np.isneginf(float(choice.scores[5, 0]))
    assert np.isfinite(float(choice.scores[5, 1]))
    assert np.all(np.asarray(choice.index) > 5)


def test_student_errors():
    variance, e = curves(4)
    choice = tune.best_damping(variance, e, GRID, family="student")
    assert isinstance(choice.noise.family, tune.Student)


def test_bad_input_is_explained():
    variance, e = curves(0)
    with pytest.raises(ValueError, match="must be"):
        tune.best_damping(variance[:5], e, GRID)
    with pytest.raises(ValueError, match="no score 'auc'"):
        tune.best_damping(variance, e, GRID, score="auc")
