"""Fit what a Delta Variance leaves open, on validation data: noise, damping, block scales, intervals."""

from deltavariance.metrics.families import Gaussian as Gaussian
from deltavariance.metrics.families import Laplace as Laplace
from deltavariance.metrics.families import Student as Student
from deltavariance.metrics.noise_model import NoiseModel as NoiseModel
from deltavariance.tune.noise import noise as noise
