"""Log-likelihoods: what the training data are taken to be drawn from, noise included."""

from deltavariance.likelihood.base import LogLikelihood, OutputDistribution, split_example
from deltavariance.likelihood.discrete import (
    Bernoulli,
    BernoulliLogLikelihood,
    Categorical,
    CategoricalLogLikelihood,
    Poisson,
    PoissonLogLikelihood,
    bernoulli_log_likelihood,
    categorical_log_likelihood,
    poisson_log_likelihood,
)
from deltavariance.likelihood.gaussian import (
    Gaussian,
    GaussianLogLikelihood,
    GaussianWithScale,
    HeteroscedasticLogLikelihood,
    gaussian_log_likelihood,
)
from deltavariance.likelihood.heavy_tailed import (
    Laplace,
    LaplaceLogLikelihood,
    Student,
    StudentLogLikelihood,
    laplace_log_likelihood,
    student_log_likelihood,
)
from deltavariance.likelihood.noise_estimate import NoiseEstimate
from deltavariance.likelihood.noise_models import (
    FullCovariance,
    IndependentNoise,
    LowRankCovariance,
    OutputNoise,
)
from deltavariance.likelihood.wrapped import (
    DistributionLogLikelihood,
    WrappedDistribution,
    distribution_log_likelihood,
)

__all__ = [
    "Bernoulli",
    "BernoulliLogLikelihood",
    "Categorical",
    "CategoricalLogLikelihood",
    "DistributionLogLikelihood",
    "FullCovariance",
    "Gaussian",
    "GaussianLogLikelihood",
    "GaussianWithScale",
    "HeteroscedasticLogLikelihood",
    "IndependentNoise",
    "Laplace",
    "LaplaceLogLikelihood",
    "LogLikelihood",
    "LowRankCovariance",
    "NoiseEstimate",
    "OutputDistribution",
    "OutputNoise",
    "Poisson",
    "PoissonLogLikelihood",
    "Student",
    "StudentLogLikelihood",
    "WrappedDistribution",
    "bernoulli_log_likelihood",
    "categorical_log_likelihood",
    "distribution_log_likelihood",
    "gaussian_log_likelihood",
    "laplace_log_likelihood",
    "poisson_log_likelihood",
    "split_example",
    "student_log_likelihood",
]
