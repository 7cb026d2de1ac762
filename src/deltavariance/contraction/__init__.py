"""Where gradient forms meet matrices. Knows neither the function behind the gradients nor how a matrix was fitted."""

from deltavariance.contraction.diagonal import quadratic as quadratic
from deltavariance.contraction.diagonal import square_sum as square_sum
from deltavariance.contraction.loops import over_cases as over_cases
from deltavariance.contraction.loops import over_components as over_components
