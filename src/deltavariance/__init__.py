"""How much could a trained model's answer have been different, had the training data been different?"""

from deltavariance.covariance import Covariance as Covariance
from deltavariance.covariance import as_covariance as as_covariance
from deltavariance.curvature import Curvature as Curvature
from deltavariance.curvature import Fisher as Fisher
from deltavariance.curvature import fisher as fisher
from deltavariance.structures import Diagonal as Diagonal
from deltavariance.structures import Structure as Structure
from deltavariance.variance import block_variances as block_variances
from deltavariance.variance import covariance as covariance
from deltavariance.variance import variance as variance
