"""One file a way to accumulate curvature. Knows nothing of quantities."""

from deltavariance.curvature.base import Curvature as Curvature
from deltavariance.curvature.clustered import ClusteredFisher as ClusteredFisher
from deltavariance.curvature.fisher import Fisher as Fisher
from deltavariance.curvature.fisher import fisher as fisher
from deltavariance.curvature.gauss_newton import gauss_newton as gauss_newton
from deltavariance.curvature.hessian import Hessian as Hessian
from deltavariance.curvature.hessian import hessian as hessian
from deltavariance.curvature.model_fisher import model_fisher as model_fisher
from deltavariance.curvature.sandwich import sandwich as sandwich
from deltavariance.curvature.swag import swag as swag
