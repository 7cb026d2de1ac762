"""One file a structure: how Σ is stored, multiplied, sampled, and contracted with each gradient form."""

from deltavariance.covariance.base import Covariance as Covariance
from deltavariance.covariance.block import BlockCovariance as BlockCovariance
from deltavariance.covariance.block import SpectralCovariance as SpectralCovariance
from deltavariance.covariance.definite import Clip as Clip
from deltavariance.covariance.definite import Drop as Drop
from deltavariance.covariance.dense import DenseCovariance as DenseCovariance
from deltavariance.covariance.diagonal import DiagonalCovariance as DiagonalCovariance
from deltavariance.covariance.factor import FactorCovariance as FactorCovariance
from deltavariance.covariance.given import as_covariance as as_covariance
from deltavariance.covariance.kronecker import KroneckerCovariance as KroneckerCovariance
from deltavariance.covariance.low_rank import LowRankCovariance as LowRankCovariance
from deltavariance.covariance.matrix_free import MatrixFreeCovariance as MatrixFreeCovariance
