"""Small models of every kind a user may bring: what the exactness tests run on.

`CASES` holds them all; `Case.make(key, dtype)` gives u, its parameters and a few cases z.
"""

from . import control as control
from . import convolutions as convolutions
from . import equinox_models as equinox_models
from . import flax_linen as flax_linen
from . import flax_nnx as flax_nnx
from . import haiku_models as haiku_models
from . import lookups as lookups
from . import networks as networks
from . import products as products
from . import programs as programs
from . import quantities as quantities
from . import reference as reference
from . import views as views
from .case import Case as Case
from .case import Draw as Draw
from .case import Quantity as Quantity
from .products import bfloat16 as bfloat16

CASES: tuple[Case, ...] = (
    *products.CASES,
    *views.CASES,
    *lookups.CASES,
    *convolutions.CASES,
    *control.CASES,
    *networks.CASES,
    *quantities.CASES,
    *flax_linen.CASES,
    *flax_nnx.CASES,
    *haiku_models.CASES,
    *equinox_models.CASES,
)
