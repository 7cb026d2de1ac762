"""Scores of variance estimators, vectorised over quantities: errors and variances are `[n, *quantities]`."""

from deltavariance.metrics.association import correlation as correlation
from deltavariance.metrics.association import rank_correlation as rank_correlation
from deltavariance.metrics.families import Family as Family
from deltavariance.metrics.families import Gaussian as Gaussian
from deltavariance.metrics.families import Laplace as Laplace
from deltavariance.metrics.families import Student as Student
from deltavariance.metrics.improvement import Improvement as Improvement
from deltavariance.metrics.improvement import block_counts as block_counts
from deltavariance.metrics.improvement import improvement as improvement
from deltavariance.metrics.improvement import standard_error as standard_error
from deltavariance.metrics.intervals import SpreadSkillCurve as SpreadSkillCurve
from deltavariance.metrics.intervals import calibration_error as calibration_error
from deltavariance.metrics.intervals import coverage as coverage
from deltavariance.metrics.intervals import spread_skill as spread_skill
from deltavariance.metrics.intervals import spread_skill_curve as spread_skill_curve
from deltavariance.metrics.intervals import width as width
from deltavariance.metrics.likelihood import crps as crps
from deltavariance.metrics.likelihood import log_likelihood as log_likelihood
from deltavariance.metrics.noise_model import NoiseModel as NoiseModel
from deltavariance.metrics.removal import SparsificationCurve as SparsificationCurve
from deltavariance.metrics.removal import ause as ause
from deltavariance.metrics.removal import removal_auc as removal_auc
from deltavariance.metrics.removal import sparsification_curve as sparsification_curve
