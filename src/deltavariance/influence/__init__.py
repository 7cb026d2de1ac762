"""What the number means beyond a variance: influences, robustness, distances, and what to measure next."""

from ._adversarial import adversarial_noise as adversarial_noise
from ._adversarial import adversarial_shift as adversarial_shift
from ._distance import mahalanobis as mahalanobis
from ._distance import mahalanobis_level as mahalanobis_level
from ._examples import Top as Top
from ._examples import examples as examples
from ._examples import top as top
from ._gain import Picks as Picks
from ._gain import gain as gain
from ._gain import greedy as greedy
