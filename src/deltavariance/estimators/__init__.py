"""Rival estimators of epistemic variance behind one protocol, `estimator.variance(u, z)`, and their comparison."""

from deltavariance.estimators.base import Estimator as Estimator
from deltavariance.estimators.compare import compare as compare
from deltavariance.estimators.comparison import Comparison as Comparison
from deltavariance.estimators.comparison import Result as Result
from deltavariance.estimators.comparison import Score as Score
from deltavariance.estimators.constant import Constant as Constant
from deltavariance.estimators.delta import DeltaVariance as DeltaVariance
from deltavariance.estimators.delta import GradientNorm as GradientNorm
from deltavariance.estimators.dropout import MCDropout as MCDropout
from deltavariance.estimators.dropout import OwnDropout as OwnDropout
from deltavariance.estimators.ensemble import Ensemble as Ensemble
from deltavariance.estimators.implicit_delta import ImplicitDelta as ImplicitDelta
from deltavariance.estimators.last_layer import LastLayer as LastLayer
from deltavariance.estimators.posterior_samples import SWAG as SWAG
from deltavariance.estimators.posterior_samples import SampledPosterior as SampledPosterior
from deltavariance.estimators.train_ensemble import train_ensemble as train_ensemble
