"""Fit what a Delta Variance leaves open, on validation data: noise, damping, block scales, intervals."""

from deltavariance.metrics.families import Gaussian as Gaussian
from deltavariance.metrics.families import Laplace as Laplace
from deltavariance.metrics.families import Student as Student
from deltavariance.metrics.noise_model import NoiseModel as NoiseModel
from deltavariance.tune.best_damping import DampingChoice as DampingChoice
from deltavariance.tune.best_damping import best_damping as best_damping
from deltavariance.tune.block_scales import BlockScales as BlockScales
from deltavariance.tune.block_scales import CrossValidation as CrossValidation
from deltavariance.tune.block_scales import block_scales as block_scales
from deltavariance.tune.conformal import ConformalQuantile as ConformalQuantile
from deltavariance.tune.conformal import conformal as conformal
from deltavariance.tune.damping import GRID as GRID
from deltavariance.tune.damping import damped_variances as damped_variances
from deltavariance.tune.damping import damping as damping
from deltavariance.tune.free import AddLowRank as AddLowRank
from deltavariance.tune.free import EachBlock as EachBlock
from deltavariance.tune.free import EachSide as EachSide
from deltavariance.tune.free import EachVariance as EachVariance
from deltavariance.tune.free import Free as Free
from deltavariance.tune.free import WithLowRank as WithLowRank
from deltavariance.tune.learn import LearnedCovariance as LearnedCovariance
from deltavariance.tune.learn import learn as learn
from deltavariance.tune.noise import noise as noise
