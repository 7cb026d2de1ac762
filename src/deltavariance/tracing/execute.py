"""Run a planned jaxpr with its taps in place.

A tap is the identity with a second, ignored argument: the gradient with respect to that argument is the cotangent
of the tapped value. As a `custom_jvp` it adds nothing to the forward pass.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from deltavariance.tracing.inner import opened, scan_counts
from deltavariance.tracing.plan import INLINE, Nested, Plan, Tap


@jax.custom_jvp
def tap(value: jax.Array, probe: jax.Array) -> jax.Array:
    """`value`, whose cotangent is handed to `probe` as well."""
    return value


@tap.defjvp
def _tap_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    value, _ = primals
    change, probe_change = tangents
    return value, change + probe_change


Outcome = tuple[list[Any], list[Any]]


def run(plan: Plan, consts: Sequence[Any], arguments: Sequence[Any], taps: Sequence[Any]) -> Outcome:
    """Evaluate the plan's jaxpr: its results, and the recorded operands in the plan's order."""
    environment: dict[Any, Any] = {}
    recorded: list[Any] = [None] * len(plan.records)
    jaxpr = plan.jaxpr

    def read(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else environment[var]

    environment.update(zip(jaxpr.constvars, consts, strict=True))
    environment.update(zip(jaxpr.invars, arguments, strict=True))
    for number, eqn in enumerate(jaxpr.eqns):
        values = [read(var) for var in eqn.invars]
        action = plan.actions.get(number)
        if isinstance(action, Nested):
            results, inner = _run_nested(eqn, values, action, taps)
            for first, records in zip(action.first_record, inner, strict=True):
                recorded[first : first + len(records)] = records
        else:
            results = _bind(eqn, values)
            if isinstance(action, Tap):
                results = [tap(results[0], taps[action.tap])]
                for slot, var in action.records:
                    recorded[slot] = read(var)
        environment.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars], recorded


def _bind(eqn: Any, values: Sequence[Any]) -> list[Any]:
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


def _run_nested(
    eqn: Any, values: list[Any], action: Nested, taps: Sequence[Any]
) -> tuple[list[Any], list[list[Any]]]:
    name = eqn.primitive.name
    mine = [
        list(taps[first : first + len(plan.taps)])
        for plan, first in zip(action.plans, action.first_tap, strict=True)
    ]
    if name in INLINE:
        results, records = run(action.plans[0], opened(eqn.params[INLINE[name]])[1], values, mine[0])
        return results, [records]
    return _RUN[name](eqn, values, action.plans, mine)


def _run_scan(
    eqn: Any, values: list[Any], plans: Sequence[Plan], taps: list[list[Any]]
) -> tuple[list[Any], list[list[Any]]]:
    settings = eqn.params
    num_consts, num_carry = scan_counts(settings)
    closed = opened(settings["jaxpr"])[1]
    consts, carry, slices = (
        values[:num_consts],
        values[num_consts : num_consts + num_carry],
        values[num_consts + num_carry :],
    )

    def body(
        state: list[Any], sliced: tuple[list[Any], list[Any]]
    ) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
        inputs, probes = sliced
        results, records = run(plans[0], closed, [*consts, *state, *inputs], probes)
        return results[:num_carry], (results[num_carry:], records)

    state, (stacked, records) = lax.scan(
        body,
        carry,
        (slices, taps[0]),
        length=settings["length"],
        reverse=settings["reverse"],
        unroll=settings["unroll"],
    )
    return [*state, *stacked], [records]


def _run_cond(
    eqn: Any, values: list[Any], plans: Sequence[Plan], taps: list[list[Any]]
) -> tuple[list[Any], list[list[Any]]]:
    index, *operands = values

    def branch(taken: int) -> Callable[..., Outcome]:
        def call(probes: list[list[Any]], *operands: Any) -> Any:
            consts = opened(eqn.params["branches"][taken])[1]
            results, records = run(plans[taken], consts, operands, probes[taken])
            # The branches must return alike: what the others would have recorded is zero, as is their cotangent.
            blank = [[jnp.zeros(shape.shape, shape.dtype) for shape in plan.records] for plan in plans]
            blank[taken] = records
            return results, blank

        return call

    results, records = lax.switch(index, [branch(k) for k in range(len(plans))], taps, *operands)
    return results, records


def _run_remat(
    eqn: Any, values: list[Any], plans: Sequence[Plan], taps: list[list[Any]]
) -> tuple[list[Any], list[list[Any]]]:
    consts = opened(eqn.params["jaxpr"])[1]

    def call(operands: list[Any], probes: list[Any]) -> Outcome:
        return run(plans[0], consts, operands, probes)

    again = jax.checkpoint(call, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"])
    results, records = again(values, taps[0])
    return results, [records]


_RUN = {
    "scan": _run_scan,
    "cond": _run_cond,
    "remat2": _run_remat,
    "remat": _run_remat,
    "checkpoint": _run_remat,
}
