"""How a curvature matrix is kept. One file a structure, each independent of how the curvature came about."""

from deltavariance.structures.base import Structure as Structure
from deltavariance.structures.diagonal import Diagonal as Diagonal
