"""Quantities without a formula: solutions of equations, differentiated by the implicit function theorem."""

from ._certify import ConvergenceError as ConvergenceError
from ._eigen import eigenvalues as eigenvalues
from ._eigen import eigenvectors as eigenvectors
from ._fixed_point import fixed_point as fixed_point
from ._gaps import NearMultipleEigenvalueWarning as NearMultipleEigenvalueWarning
from ._gaps import eigenvalue_gaps as eigenvalue_gaps
from ._general import Eigensystem as Eigensystem
from ._matrix_free import largest_eigenvalues as largest_eigenvalues
from ._matrix_free import largest_eigenvectors as largest_eigenvectors
from ._minimum import minimum as minimum
from ._root import root as root
