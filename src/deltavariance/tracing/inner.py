"""What an equation's parameters say about the jaxprs inside it, in the words of every supported release of JAX.

Up to 0.10 a jaxpr came open or closed and a `scan` counted its operands; later a jaxpr carries its own constants and a
`scan` has its operands in three groups.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import Jaxpr


def opened(jaxpr: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """A jaxpr and its constants, whether it came closed or not."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a `scan`'s operands are constants and how many are carried; the others are scanned over."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)
