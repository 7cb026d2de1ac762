"""What the fast formulas approximate, computed by brute force: quantities of models fitted again and again."""

from ._bootstrap import bootstrap as bootstrap
from ._bootstrap import bootstrap_weights as bootstrap_weights
from ._leave_one_out import leave_one_out as leave_one_out
from ._leave_one_out import leave_one_out_weights as leave_one_out_weights
from ._refit import newton_refit as newton_refit
from ._values import resampled_values as resampled_values
