"""One file a way to accumulate curvature. Knows nothing of quantities."""

from deltavariance.curvature.base import Curvature as Curvature
from deltavariance.curvature.fisher import Fisher as Fisher
from deltavariance.curvature.fisher import fisher as fisher
