"""One file a primitive; adding a rule is a file and a line in `RULES`."""

from collections.abc import Callable
from typing import Any

from deltavariance.tracing.rules import conv, dot, dynamic_slice, gather
from deltavariance.tracing.rules.base import Match as Match
from deltavariance.tracing.rules.base import Rule as Rule
from deltavariance.tracing.rules.conv import Convolution as Convolution
from deltavariance.tracing.rules.dot import Dot as Dot
from deltavariance.tracing.rules.dynamic_slice import Row as Row
from deltavariance.tracing.rules.gather import LookUp as LookUp
from deltavariance.tracing.views import View

# From a primitive's name to the function that recognises a parameter among its operands.
RULES: dict[str, Callable[[Any, int, View], Match | None]] = {
    "dot_general": dot.match,
    "conv_general_dilated": conv.match,
    "dynamic_slice": dynamic_slice.match,
    "gather": gather.match,
}
