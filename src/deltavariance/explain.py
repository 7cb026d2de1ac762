"""How each leaf's gradient is kept, and what it costs: the tracer's choices, printed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from deltavariance import cases as _cases
from deltavariance.memory import bytes_per_case
from deltavariance.parameters import Layout, Where
from deltavariance.tracing import Dense, Form, Products, Rows, example_gradients, trace

PyTree = Any


@dataclass(frozen=True)
class LeafPlan:
    """One leaf: the forms that make up its gradient, T for each, the bytes of one case, and why if it is plain."""

    name: str
    shape: tuple[int, ...]
    forms: tuple[str, ...]
    uses: tuple[int, ...]
    bytes_per_case: int
    reason: str

    @property
    def plain_bytes(self) -> int:
        """What the plain gradient of one component would take in float32."""
        return 4 * math.prod(self.shape)


@dataclass(frozen=True)
class Explanation:
    """The plan for every leaf, and the working memory of one case. Prints as a table."""

    leaves: tuple[LeafPlan, ...]
    components: int
    working_bytes: int

    def __str__(self) -> str:
        header = ("leaf", "shape", "kept as", "T", "bytes a case", "plain", "remark")
        rows = [
            (
                leaf.name,
                "×".join(map(str, leaf.shape)) or "scalar",
                " + ".join(leaf.forms) or "no use",
                ", ".join(map(str, leaf.uses)),
                f"{leaf.bytes_per_case:,}",
                f"{leaf.plain_bytes:,}",
                leaf.reason,
            )
            for leaf in self.leaves
        ]
        widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [header, *rows]
        ]
        lines.append(
            f"u has {self.components} component{'s' if self.components != 1 else ''}; one case works in at most"
            f" {self.working_bytes:,} bytes."
        )
        return "\n".join(lines)

    __repr__ = __str__


def explain(u: Callable[..., Any], params: PyTree, z: PyTree, *, where: Where | Layout = None) -> Explanation:
    """Leaf by leaf: the form of the gradient, T, and the bytes of one case. Nothing is computed.

    `Products` keeps inputs and cotangents and never the weight's gradient; `Rows` keeps the picked rows; `Dense`
    keeps the plain gradient, because the leaf is small and added or multiplied in, or because of the use named as
    remark.

    >>> import jax.numpy as jnp
    >>> params = {"w": jnp.zeros((64, 32)), "b": jnp.zeros(32)}
    >>> print(explain(lambda p, x: jnp.sum(jnp.tanh(x @ p["w"] + p["b"])), params, jnp.zeros((10, 64))))
    leaf  shape  kept as   T  bytes a case  plain  remark
    b     32     Dense        128           128
    w     64×32  Products  1  384           8,192
    u has 1 component; one case works in at most 1,160 bytes.
    """
    _cases.count(z, "z")
    layout = where if isinstance(where, Layout) else Layout.of(params, where)
    case = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), z)
    traced = trace(u, params, layout, case)
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), case)
    gradients = jax.eval_shape(lambda cases: example_gradients(u, params, cases, where=layout), one)
    leaves = tuple(
        LeafPlan(
            name,
            shape,
            tuple(type(form).__name__ for form in forms),
            tuple(_uses(form) for form in forms if not isinstance(form, Dense)),
            sum(_bytes(form) for form in forms),
            traced.plan.plain.get(number, ""),
        )
        for number, (name, shape, forms) in enumerate(
            zip(layout.names, layout.shapes, gradients.leaves, strict=True)
        )
    )
    return Explanation(leaves, math.prod(traced.out_shape.shape), bytes_per_case(traced, layout))


def _uses(form: Form) -> int:
    if isinstance(form, Products):
        return form.pairs
    return form.numbers.shape[1] if isinstance(form, Rows) else 1


def _bytes(form: Form) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(form))
