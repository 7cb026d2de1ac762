"""How a curvature matrix is kept. One file a structure, each independent of how the curvature came about."""

from deltavariance.structures.base import Structure as Structure
from deltavariance.structures.block import Block as Block
from deltavariance.structures.dense import Dense as Dense
from deltavariance.structures.diagonal import Diagonal as Diagonal
from deltavariance.structures.eigen_kronecker import EigenKronecker as EigenKronecker
from deltavariance.structures.kronecker import Kronecker as Kronecker
from deltavariance.structures.low_rank import LowRank as LowRank
from deltavariance.structures.matrix_free import MatrixFree as MatrixFree
