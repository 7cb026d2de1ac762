"""Log-likelihood and CRPS against scipy and scoringrules; the families' own distribution functions."""

import jax.numpy as jnp
import numpy as np
import pytest
import scoringrules
from scipy import stats

from deltavariance import metrics

DF = 4.5
FAMILIES = {
    "gaussian": (metrics.Gaussian(), lambda s: stats.norm(scale=np.sqrt(s))),
    "laplace": (metrics.Laplace(), lambda s: stats.laplace(scale=np.sqrt(s / 2))),
    "student": (metrics.Student(DF), lambda s: stats.t(DF, scale=np.sqrt(s * (DF - 2) / DF))),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def test_log_likelihood_equals_scipy(family, cases, x64):
    ours, theirs = family
    errors, variance = cases
    noise = metrics.NoiseModel(ours, np.array([1e-9, 0.5, 0.0]), np.array([0.5, 2.0, 1.0]))
    s = np.asarray(noise.alpha) + np.asarray(noise.beta) * variance
    np.testing.assert_allclose(
        metrics.log_likelihood(errors, variance, noise), theirs(s).logpdf(errors).mean(0), rtol=1e-10
    )


def test_the_scale_is_the_variance_of_the_error(family):
    """2b² = s for Laplace, and the like: the factor 2 is pinned by the variance itself."""
    assert family[1](3.7).var() == pytest.approx(3.7)


def test_distribution_functions_equal_scipy(family, x64):
    ours, theirs = family
    errors, s = jnp.linspace(-6, 6, 41), jnp.full(41, 2.3)
    np.testing.assert_allclose(ours.cdf(errors, s), theirs(2.3).cdf(errors), atol=1e-12)
    levels = jnp.linspace(0.01, 0.99, 41)
    np.testing.assert_allclose(ours.quantile(levels, s), theirs(2.3).ppf(levels), atol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_crps_equals_scoringrules(name, cases, x64):
    errors, variance = cases
    expected = {
        "gaussian": lambda s: scoringrules.crps_normal(errors, 0.0, np.sqrt(s)),
        "laplace": lambda s: scoringrules.crps_laplace(errors, 0.0, np.sqrt(s / 2)),
        "student": lambda s: scoringrules.crps_t(errors, DF, 0.0, np.sqrt(s * (DF - 2) / DF)),
    }[name](variance)
    ours = metrics.crps(errors, variance, FAMILIES[name][0])
    np.testing.assert_allclose(ours, expected.mean(0), rtol=1e-8)


def test_aleatoric_variance_of_each_case(cases, x64):
    errors, variance = cases
    own = np.random.default_rng(1).random(errors.shape)
    noise = metrics.NoiseModel(metrics.Laplace(), 2.0, 3.0)
    s = 2 * own + 3 * variance
    expected = stats.laplace(scale=np.sqrt(s / 2)).logpdf(errors).mean(0)
    np.testing.assert_allclose(
        metrics.log_likelihood(errors, variance, noise, aleatoric=own), expected, rtol=1e-10
    )


def test_no_model_is_gaussian_with_the_variance_itself(cases, x64):
    errors, variance = cases
    np.testing.assert_array_equal(
        metrics.log_likelihood(errors, variance),
        metrics.log_likelihood(errors, variance, metrics.NoiseModel(metrics.Gaussian(), 0.0, 1.0)),
    )


def test_interval_of_the_model(family, x64):
    noise = metrics.NoiseModel(family[0], 1.0, 2.0)
    low, high = noise.interval(np.array([5.0]), np.array([1.5]), level=0.8)
    expected = family[1](4.0).interval(0.8)
    np.testing.assert_allclose([low[0] - 5, high[0] - 5], expected, rtol=1e-8)


def test_bad_models_are_explained():
    with pytest.raises(ValueError, match="below zero"):
        metrics.NoiseModel(metrics.Laplace(), -1.0, 1.0)
    with pytest.raises(ValueError, match="no variance"):
        metrics.Student(2.0)
    with pytest.raises(ValueError, match="'laplace', 'gaussian', 'student'"):
        metrics.log_likelihood(np.ones(2), np.ones(2), "cauchy")
    with pytest.raises(ValueError, match="degrees of freedom"):
        metrics.log_likelihood(np.ones(2), np.ones(2), "student")
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.NoiseModel(metrics.Laplace(), 1.0, 1.0).interval(np.ones(2), np.ones(2), level=95.0)


def test_repr_shows_the_numbers():
    assert (
        repr(metrics.NoiseModel(metrics.Laplace(), 0.5, 2.0)) == "NoiseModel(Laplace(), alpha=0.5, beta=2.)"
    )
