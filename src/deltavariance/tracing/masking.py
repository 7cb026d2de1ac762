"""Dropout introduced from outside: random masks on the inputs of a function's products with its parameters.

The jaxpr is read for one case. Every value is known to depend on the parameters, on the case, on both or on neither;
a `dot_general` or convolution of something that depends on parameters alone (a weight, however it was reshaped, cast or
normalised) with something that depends on the case is a site, and its second operand is masked. Products of two
values that both depend on the case (attention scores) are left alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, Literal, jaxpr_as_fun

from deltavariance.parameters import Layout
from deltavariance.tracing.example import trace
from deltavariance.tracing.execute import _bind
from deltavariance.tracing.inner import opened, scan_counts

PyTree = Any

# What a value depends on, as bits.
_NOTHING, _WEIGHTS, _CASE = 0, 1, 2

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
}
_PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True)
class Masks:
    """How masks are drawn. `sites` collects, while tracing, the shape of each operand that got one."""

    rate: Any
    inputs: bool
    fixed: bool
    sites: list[tuple[int, ...]] = field(default_factory=list)

    def apply(self, operand: jax.Array, key: Any) -> jax.Array:
        """Each entry is zero with probability `rate`, and otherwise divided by `1 − rate`."""
        self.sites.append(tuple(operand.shape))
        stay = 1 - jnp.asarray(self.rate, operand.dtype)
        kept = jax.random.bernoulli(key, stay.astype(jnp.float32), operand.shape)
        return jnp.where(kept, operand / stay, jnp.zeros((), operand.dtype))


def masked(
    u: Callable[..., Any],
    params: PyTree,
    case: PyTree,
    key: Any,
    rate: Any,
    *,
    layout: Layout,
    inputs: bool = False,
    fixed: bool = False,
) -> jax.Array:
    """`u(params, case)` with one draw of masks on the inputs of its products with the leaves in `layout`.

    Without `inputs`, an operand that was computed from the case alone (the first layer's input) is not masked. Each
    site has masks of its own, and so has each step of a `scan` or `while` loop; with `fixed` the steps of a loop that
    is given no slices of weights (a rollout, a recurrent network) share theirs, while loops over stacked layers do
    not. Raises if there is nothing to mask.

    Cost: one pass and its random numbers.
    """
    leaves = layout.take(params)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), case)
    traced = trace(u, params, layout, shapes)
    case_leaves = jax.tree.leaves(case)
    masks = Masks(rate, inputs, fixed)
    kinds = [_WEIGHTS] * len(leaves) + [_CASE] * len(case_leaves)
    jaxpr = traced.jaxpr.jaxpr
    (result,), _ = _run(jaxpr, traced.consts, [*leaves, *case_leaves], kinds, masks, key)
    if not masks.sites:
        raise ValueError(
            "There is no product to mask: u multiplies no value that depends on the case by a parameter"
            + ("" if inputs else ", except the case itself, which `inputs=True` masks")
            + ". Dropout says nothing about such a function."
        )
    return result


Outcome = tuple[list[Any], list[int]]


def _run(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    arguments: Sequence[Any],
    kinds: Sequence[int],
    masks: Masks,
    key: Any,
) -> Outcome:
    """Evaluate a jaxpr with masks: its results, and what each depends on."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, arguments, strict=True))
    known = dict.fromkeys(jaxpr.constvars, _NOTHING) | dict(zip(jaxpr.invars, kinds, strict=True))
    for number, eqn in enumerate(jaxpr.eqns):
        operands = [var.val if isinstance(var, Literal) else values[var] for var in eqn.invars]
        depends = [_kind(var, known) for var in eqn.invars]
        here = jax.random.fold_in(key, number)
        results, found = _equation(eqn, operands, depends, masks, here)
        values.update(zip(eqn.outvars, results, strict=True))
        known.update(zip(eqn.outvars, found, strict=True))
    results = [var.val if isinstance(var, Literal) else values[var] for var in jaxpr.outvars]
    return results, [_kind(var, known) for var in jaxpr.outvars]


def _equation(eqn: Any, operands: list[Any], depends: list[int], masks: Masks, key: Any) -> Outcome:
    name = eqn.primitive.name
    if name in _CALLS:
        jaxpr, consts = opened(eqn.params[_CALLS[name]])
        return _run(jaxpr, consts, operands, depends, masks, key)
    if name in _LOOPS:
        return _LOOPS[name](eqn, operands, depends, masks, key)
    if name in _PRODUCTS:
        for position in (0, 1):
            if _is_site(operands[position], depends[position], depends[1 - position], masks.inputs):
                operands[position] = masks.apply(operands[position], key)
    return _bind(eqn, operands), _joined(depends, len(eqn.outvars))


def _is_site(operand: Any, kind: int, other: int, inputs: bool) -> bool:
    computed = kind == (_WEIGHTS | _CASE) or (inputs and kind == _CASE)
    return computed and other == _WEIGHTS and jnp.issubdtype(jnp.result_type(operand), jnp.floating)


def _run_scan(eqn: Any, operands: list[Any], depends: list[int], masks: Masks, key: Any) -> Outcome:
    settings = eqn.params
    first, count = scan_counts(settings)
    jaxpr, closed = opened(settings["jaxpr"])
    consts, carry, slices = operands[:first], operands[first : first + count], operands[first + count :]
    found = _settled(jaxpr, depends, first, count)
    inner = [*depends[:first], *found[:count], *depends[first + count :]]
    layers = any(kind == _WEIGHTS for kind in depends[first + count :])
    shared = masks.fixed and not layers

    def body(state: tuple[Any, list[Any]], sliced: list[Any]) -> tuple[tuple[Any, list[Any]], list[Any]]:
        step, values = state
        here = key if shared else jax.random.fold_in(key, step)
        results, _ = _run(jaxpr, closed, [*consts, *values, *sliced], inner, masks, here)
        return (step + 1, results[:count]), results[count:]

    (_, last), stacked = lax.scan(
        body, (jnp.zeros((), jnp.int32), carry), slices, settings["length"], settings["reverse"]
    )
    return [*last, *stacked], found


def _run_while(eqn: Any, operands: list[Any], depends: list[int], masks: Masks, key: Any) -> Outcome:
    settings = eqn.params
    tests, first = settings["cond_nconsts"], settings["body_nconsts"]
    jaxpr, closed = opened(settings["body_jaxpr"])
    asked, consts, carry = operands[:tests], operands[tests : tests + first], operands[tests + first :]
    found = _settled(jaxpr, depends[tests:], first, len(carry))
    kinds = [*depends[tests : tests + first], *found]

    def goes_on(state: tuple[Any, list[Any]]) -> Any:
        # When a loop ends is the program's business: nothing is masked there.
        return jaxpr_as_fun(settings["cond_jaxpr"])(*asked, *state[1])[0]

    def body(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        step, values = state
        here = key if masks.fixed else jax.random.fold_in(key, step)
        return step + 1, _run(jaxpr, closed, [*consts, *values], kinds, masks, here)[0]

    _, last = lax.while_loop(goes_on, body, (jnp.zeros((), jnp.int32), carry))
    return last, found


def _run_cond(eqn: Any, operands: list[Any], depends: list[int], masks: Masks, key: Any) -> Outcome:
    index, *rest = operands
    branches = [opened(branch) for branch in eqn.params["branches"]]
    calls = [
        lambda *given, jaxpr=jaxpr, consts=consts: _run(jaxpr, consts, given, depends[1:], masks, key)[0]
        for jaxpr, consts in branches
    ]
    found = [_flow(jaxpr, depends[1:]) for jaxpr, _ in branches]
    return list(lax.switch(index, calls, *rest)), [
        depends[0] | _union(kinds) for kinds in zip(*found, strict=True)
    ]


_LOOPS = {"scan": _run_scan, "while": _run_while, "cond": _run_cond}


def _settled(jaxpr: Jaxpr, depends: Sequence[int], first: int, count: int) -> list[int]:
    """What the results of a loop depend on: those of the carry grow until a step adds nothing."""
    carry, rest = list(depends[first : first + count]), list(depends[first + count :])
    while True:
        found = _flow(jaxpr, [*depends[:first], *carry, *rest])
        grown = [old | new for old, new in zip(carry, found[:count], strict=True)]
        if grown == carry:
            return [*grown, *found[count:]]
        carry = grown


def _flow(jaxpr: Jaxpr, kinds: Sequence[int]) -> list[int]:
    """What each result of a jaxpr depends on, without computing anything."""
    known = dict.fromkeys(jaxpr.constvars, _NOTHING) | dict(zip(jaxpr.invars, kinds, strict=True))
    for eqn in jaxpr.eqns:
        depends = [_kind(var, known) for var in eqn.invars]
        known.update(zip(eqn.outvars, _flow_equation(eqn, depends), strict=True))
    return [_kind(var, known) for var in jaxpr.outvars]


def _flow_equation(eqn: Any, depends: list[int]) -> list[int]:
    name, settings = eqn.primitive.name, eqn.params
    if name in _CALLS:
        return _flow(opened(settings[_CALLS[name]])[0], depends)
    if name == "scan":
        body = opened(settings["jaxpr"])[0]
        return _settled(body, depends, *scan_counts(settings))
    if name == "while":
        tests, first = settings["cond_nconsts"], settings["body_nconsts"]
        body = opened(settings["body_jaxpr"])[0]
        return _settled(body, depends[tests:], first, len(depends) - tests - first)
    if name == "cond":
        found = [_flow(opened(branch)[0], depends[1:]) for branch in settings["branches"]]
        return [depends[0] | _union(kinds) for kinds in zip(*found, strict=True)]
    return _joined(depends, len(eqn.outvars))


def _kind(var: Any, known: dict[Any, int]) -> int:
    return _NOTHING if isinstance(var, Literal) else known[var]


def _union(kinds: Sequence[int]) -> int:
    total = _NOTHING
    for kind in kinds:
        total |= kind
    return total


def _joined(depends: Sequence[int], results: int) -> list[int]:
    return [_union(depends)] * results
