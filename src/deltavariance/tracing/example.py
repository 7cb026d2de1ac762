"""From a function and a batch of cases to per-example gradients in factored form."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deltavariance.parameters import Layout, Where
from deltavariance.tracing.execute import run
from deltavariance.tracing.gradients import ExampleGradients, join, with_axis
from deltavariance.tracing.plan import Plan, make_plan

PyTree = Any


def example_gradients(
    u: Callable[..., Any], params: PyTree, z: PyTree, *, where: Where | Layout = None
) -> ExampleGradients:
    """The exact gradient of `u(params, z[n])` with respect to `params`, for each case n, in factored form.

    The function's jaxpr is read once; a tap on the result of each product with a parameter gives the cotangent g,
    the product's other operand is recorded as a, and the weight's gradient `Σ_t a_t g_tᵀ` is never built. All cases
    are run together by `vmap`. Works inside `jit`, `grad` and `vmap`.

    Cost: one forward and backward pass, less the products that would form weight gradients.

    >>> import jax.numpy as jnp
    >>> params = {"w": jnp.array([[1.0], [2.0]])}
    >>> def u(params, x):
    ...     return jnp.sum(jnp.tanh(x @ params["w"]))
    >>> example_gradients(u, params, jnp.zeros((5, 2))).dense()["w"].shape
    (5, 2, 1)
    """
    layout = where if isinstance(where, Layout) else Layout.of(params, where)
    leaves = layout.take(params)
    case = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), z)
    traced = trace(u, params, layout, case)
    plan, consts, out_shape = traced.plan, traced.consts, traced.out_shape
    components = math.prod(out_shape.shape)

    def one(case_leaves: Sequence[jax.Array]) -> tuple[jax.Array, list[jax.Array], Any]:
        def tapped(
            taps: list[jax.Array], plain: dict[int, jax.Array]
        ) -> tuple[jax.Array, tuple[jax.Array, list[Any]]]:
            values = [plain.get(number, leaf) for number, leaf in enumerate(leaves)]
            (result,), recorded = run(plan, consts, [*values, *case_leaves], taps)
            return result, (result, recorded)

        probes = [jnp.zeros(shape.shape, shape.dtype) for shape in plan.taps]
        _, pull_back, (value, recorded) = jax.vjp(
            tapped, probes, {number: leaves[number] for number in plan.plain}, has_aux=True
        )
        if components == 1:
            return value, recorded, pull_back(jnp.ones(out_shape.shape, out_shape.dtype))
        basis = jnp.reshape(jnp.eye(components, dtype=out_shape.dtype), (components, *out_shape.shape))
        return value, recorded, jax.vmap(pull_back, out_axes=(taps_at, 0))(basis)

    # Where scans left the axes of cases and components, there they stay.
    records_at, taps_at = _scans(plan)
    plain_at = 0 if components == 1 else 1
    batched = jax.vmap(one, out_axes=(0, records_at, (taps_at, plain_at)))
    value, recorded, (cotangents, plain) = batched(jax.tree.leaves(z))
    if components == 1:
        cotangents = [with_axis(g, axis + 1) for g, axis in zip(cotangents, taps_at, strict=True)]
        plain = {number: g[None] for number, g in plain.items()}
    return ExampleGradients(join(plan.uses, recorded, cotangents, plain, layout), value, layout)


def _scans(plan: Plan) -> tuple[list[int], list[int]]:
    """How many scans enclose each record and each tap."""
    records, taps = [0] * len(plan.records), [0] * len(plan.taps)
    for use in plan.uses:
        taps[use.tap] = len(use.lengths)
        if use.recorded is not None:
            records[use.recorded] = len(use.lengths)
    return records, taps


class Traced:
    """A function's plan, the constants that its jaxpr closes over, and the shape of its result."""

    def __init__(
        self, plan: Plan, consts: Sequence[Any], out_shape: jax.ShapeDtypeStruct, jaxpr: Any
    ) -> None:
        self.plan = plan
        self.consts = consts
        self.out_shape = out_shape
        self.jaxpr = jaxpr


def trace(u: Callable[..., Any], params: PyTree, layout: Layout, case: PyTree) -> Traced:
    """Read u's jaxpr for one case (shapes only) and plan its taps."""
    treedef = jax.tree.structure(case)

    def flat(leaves: Sequence[Any], case_leaves: Sequence[Any]) -> jax.Array:
        return as_real_array(u(layout.put(params, leaves), jax.tree.unflatten(treedef, case_leaves)))

    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in layout.take(params)]
    closed, out_shape = jax.make_jaxpr(flat, return_shape=True)(shapes, jax.tree.leaves(case))
    return Traced(make_plan(closed, len(layout)), closed.consts, out_shape, closed)


def as_real_array(result: Any) -> jax.Array:
    """u's result as one array of real floating-point numbers, or an error that says what it was instead."""
    leaves = jax.tree.leaves(result)
    if len(leaves) != 1 or not isinstance(leaves[0], (jax.Array, np.ndarray, np.generic, float, int)):
        raise TypeError(
            f"u must return one array (of any shape), and it returned {jax.tree.structure(result)}. Join several"
            " quantities into one array with `jnp.stack` or `jnp.concatenate`."
        )
    array = jnp.asarray(leaves[0])
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"u must return floating-point numbers, and it returned {array.dtype}. A quantity that jumps (a count, a"
            " class number) has no gradient: return the score or the probability behind it. Of a complex number, return"
            " real and imaginary part or its absolute value."
        )
    return array
