"""Read a function's jaxpr once and note where parameters are used, and how.

Planning is plain Python over shapes: nothing is computed. The result says, equation by equation, where a tap goes
(`execute` puts it there) and what to record; and leaf by leaf, which uses make up its gradient. A leaf with any use
that no rule knows is *plain*: its taps would tell only part of the story, so planning starts again without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from deltavariance.tracing.inner import opened, scan_counts
from deltavariance.tracing.rules import RULES, Rule
from deltavariance.tracing.views import Path, View, follow

# Zero derivative everywhere: an operand that only reaches the result through these has no gradient.
_FLAT = frozenset(
    {
        "stop_gradient",
        "sign",
        "floor",
        "ceil",
        "round",
        "is_finite",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "argmax",
        "argmin",
    }
)
INLINE = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}


@dataclass(frozen=True)
class Use:
    """One use of a leaf: tap and record numbers, the rule (None: the cotangent itself), and where scans put axes."""

    leaf: int
    tap: int
    recorded: int | None
    rule: Rule | None
    path: Path
    frame: tuple[int, ...]
    mapped: tuple[bool, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Tap:
    """Put tap number `tap` on the equation's result and record the operands listed as (number, variable)."""

    tap: int
    records: tuple[tuple[int, Any], ...]


@dataclass(frozen=True)
class Nested:
    """Run the equation's inner jaxprs by their own plans, whose taps and records start at these numbers."""

    plans: tuple["Plan", ...]
    first_tap: tuple[int, ...]
    first_record: tuple[int, ...]


@dataclass
class Plan:
    """What to do at each equation of one jaxpr, and the shapes of its taps and records (inner ones included)."""

    jaxpr: Jaxpr
    actions: dict[int, Tap | Nested] = field(default_factory=dict)
    taps: list[jax.ShapeDtypeStruct] = field(default_factory=list)
    records: list[jax.ShapeDtypeStruct] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    plain: dict[int, str] = field(default_factory=dict)


def make_plan(closed: ClosedJaxpr, leaves: int) -> Plan:
    """Plan a function whose first `leaves` arguments are the uncertain leaves and whose single result is u.

    `plain` of the result says, for each leaf that is not factored, which use was the first that no rule knew.
    """
    plain: dict[int, str] = {}
    while True:
        views = [None if leaf in plain else View(leaf) for leaf in range(leaves)]
        arguments = [*views, *[None] * (len(closed.jaxpr.invars) - leaves)]
        plan, results = _plan(closed.jaxpr, arguments, [True] * len(closed.jaxpr.outvars), ())
        found = plan.plain | _leaves(results, "returned as it is")
        if not found:
            plan.plain = plain
            return plan
        plain |= found


def _plan(
    jaxpr: Jaxpr, arguments: Sequence[View | None], wanted: Sequence[bool], lengths: tuple[int, ...]
) -> tuple[Plan, list[View | None]]:
    jaxpr = drop_dead_code(jaxpr)
    plan = Plan(jaxpr)
    live = _live(jaxpr, wanted)
    reads = _count_reads(jaxpr)
    views: dict[Var, View] = {
        var: view
        for var, view in zip(jaxpr.invars, arguments, strict=True)
        if view is not None and var in live
    }
    products: dict[Var, int] = {}
    for number, eqn in enumerate(jaxpr.eqns):
        seen = [None if isinstance(var, Literal) else views.get(var) for var in eqn.invars]
        if all(view is None for view in seen) or not any(var in live for var in eqn.outvars):
            continue
        name = eqn.primitive.name
        if len(seen) == 1 and (moved := follow(eqn, seen[0])) is not None:  # type: ignore[arg-type]
            views[eqn.outvars[0]] = moved
        elif name in RULES and _tap(plan, number, eqn, seen, lengths):
            products[eqn.outvars[0]] = plan.actions[number].tap  # type: ignore[union-attr]
        elif name == "add" and _bias(plan, eqn, seen, lengths, products, reads):
            pass
        elif name in _NESTED or name in INLINE:
            results = _nested(plan, number, eqn, seen, [var in live for var in eqn.outvars], lengths)
            views.update(
                {var: view for var, view in zip(eqn.outvars, results, strict=True) if view is not None}
            )
        else:
            plan.plain |= _leaves(seen, f"used by `{name}`")
    results = [None if isinstance(var, Literal) else views.get(var) for var in jaxpr.outvars]
    return plan, [view if want else None for view, want in zip(results, wanted, strict=True)]


def _tap(plan: Plan, number: int, eqn: Any, seen: Sequence[View | None], lengths: tuple[int, ...]) -> bool:
    """Note a product with one or more views among its operands; False if a rule does not know one of the uses."""
    matches = []
    for position, view in enumerate(seen):
        if view is not None:
            match = RULES[eqn.primitive.name](eqn, position, view) if view.injective else None
            if match is None or isinstance(match.recorded, Literal):
                return False
            matches.append(match)
    tap = len(plan.taps)
    plan.taps.append(_shape(eqn.outvars[0]))
    records = []
    for match in matches:
        records.append((len(plan.records), match.recorded))
        plan.uses.append(
            Use(
                leaf=match.view.leaf,
                tap=tap,
                recorded=len(plan.records),
                rule=match.rule,
                path=match.path,
                frame=match.frame,
                mapped=match.view.mapped,
                lengths=lengths,
            )
        )
        plan.records.append(_shape(match.recorded))
    plan.actions[number] = Tap(tap, tuple(records))
    return True


def _bias(
    plan: Plan,
    eqn: Any,
    seen: Sequence[View | None],
    lengths: tuple[int, ...],
    products: dict[Var, int],
    reads: dict[Var, int],
) -> bool:
    """Note a view added to a tapped product that is read nowhere else: the product's tap has its cotangent already."""
    if None not in seen:
        return False
    position = 0 if seen[1] is None else 1
    view, product = seen[position], eqn.invars[1 - position]
    same = eqn.invars[position].aval.shape == eqn.outvars[0].aval.shape == product.aval.shape
    if (
        view is None
        or isinstance(product, Literal)
        or product not in products
        or reads[product] != 1
        or not same
    ):
        return False
    shape = tuple(eqn.outvars[0].aval.shape)
    plan.uses.append(Use(view.leaf, products[product], None, None, view.path, shape, view.mapped, lengths))
    return True


def _nested(
    plan: Plan,
    number: int,
    eqn: Any,
    seen: Sequence[View | None],
    wanted: Sequence[bool],
    lengths: tuple[int, ...],
) -> list[View | None]:
    """Plan the inner jaxprs of a call, scan, branch or checkpoint, and take over their uses."""
    name = eqn.primitive.name
    if name in INLINE:
        inner, results = _plan(opened(eqn.params[INLINE[name]])[0], seen, wanted, lengths)
        inners, length = [inner], None
    else:
        inners, results, length = _NESTED[name](eqn, seen, wanted, lengths)
    action = Nested(tuple(inners), *_append(plan, inners, length))
    if any(inner.actions for inner in inners):
        plan.actions[number] = action
    return results


def _append(
    plan: Plan, inners: Sequence[Plan], length: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Renumber the inner plans' taps, records and uses into the outer plan; `length` is a scan's leading axis."""
    first_taps, first_records = [], []
    for inner in inners:
        tap, record = len(plan.taps), len(plan.records)
        first_taps.append(tap)
        first_records.append(record)
        plan.taps += [_stacked(shape, length) for shape in inner.taps]
        plan.records += [_stacked(shape, length) for shape in inner.records]
        plan.plain |= inner.plain
        for use in inner.uses:
            recorded = None if use.recorded is None else use.recorded + record
            plan.uses.append(
                Use(use.leaf, use.tap + tap, recorded, use.rule, use.path, use.frame, use.mapped, use.lengths)
            )
    return tuple(first_taps), tuple(first_records)


def _plan_scan(
    eqn: Any, seen: Sequence[View | None], wanted: Sequence[bool], lengths: tuple[int, ...]
) -> tuple[list[Plan], list[View | None], int]:
    settings = eqn.params
    (consts, carry), length = scan_counts(settings), settings["length"]
    body, _ = opened(settings["jaxpr"])
    arguments: list[View | None] = []
    lost: dict[int, str] = {}
    results: list[View | None] = [None] * len(eqn.outvars)
    for position, view in enumerate(seen):
        if view is None:
            arguments.append(None)
        elif position < consts:
            arguments.append(view.enter_scan(sliced=False))
        elif position < consts + carry:
            # A carried parameter is a constant only if the body hands on the very same variable.
            if body.outvars[position - consts] is body.invars[position]:
                arguments.append(view.enter_scan(sliced=False))
                results[position - consts] = view
            else:
                arguments.append(None)
                lost[view.leaf] = "changed in the carry of a `scan`"
        else:
            arguments.append(view.enter_scan(sliced=True))
    # Everything that the body returns may matter, by way of the carry, even where the last value is not wanted.
    inner_wanted = [True] * carry + list(wanted[carry:])
    inner, escaped = _plan(body, arguments, inner_wanted, (*lengths, length))
    handed_on = [view if results[k] is None else None for k, view in enumerate(escaped)]
    inner.plain |= lost | _leaves(handed_on, "returned from a `scan`")
    return [inner], results, length


def _plan_cond(
    eqn: Any, seen: Sequence[View | None], wanted: Sequence[bool], lengths: tuple[int, ...]
) -> tuple[list[Plan], list[View | None], None]:
    inners = []
    for branch in eqn.params["branches"]:
        inner, escaped = _plan(opened(branch)[0], seen[1:], wanted, lengths)
        inner.plain |= _leaves(escaped, "returned from a `cond`")
        inners.append(inner)
    return inners, [None] * len(eqn.outvars), None


def _plan_remat(
    eqn: Any, seen: Sequence[View | None], wanted: Sequence[bool], lengths: tuple[int, ...]
) -> tuple[list[Plan], list[View | None], None]:
    inner, escaped = _plan(opened(eqn.params["jaxpr"])[0], seen, wanted, lengths)
    inner.plain |= _leaves(escaped, "returned from a checkpoint")
    return [inner], [None] * len(eqn.outvars), None


_NESTED = {
    "scan": _plan_scan,
    "cond": _plan_cond,
    "remat2": _plan_remat,
    "remat": _plan_remat,
    "checkpoint": _plan_remat,
}


def _leaves(views: Sequence[View | None], reason: str) -> dict[int, str]:
    return {view.leaf: reason for view in views if view is not None}


def drop_dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """Leave out equations whose results nobody reads."""
    needed = {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(var in needed for var in eqn.outvars):
            kept.append(eqn)
            needed |= {var for var in eqn.invars if not isinstance(var, Literal)}
    return jaxpr.replace(eqns=kept[::-1])


def _live(jaxpr: Jaxpr, wanted: Sequence[bool]) -> set[Var]:
    """The variables through which a change could reach a wanted result."""
    live = {
        var
        for var, want in zip(jaxpr.outvars, wanted, strict=True)
        if want and not isinstance(var, Literal) and _real(var)
    }
    for eqn in reversed(jaxpr.eqns):
        if eqn.primitive.name not in _FLAT and any(var in live for var in eqn.outvars):
            live |= {var for var in eqn.invars if not isinstance(var, Literal) and _real(var)}
    return live


def _real(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)


def _count_reads(jaxpr: Jaxpr) -> dict[Var, int]:
    reads: dict[Var, int] = {}
    for var in [*(var for eqn in jaxpr.eqns for var in eqn.invars), *jaxpr.outvars]:
        if not isinstance(var, Literal):
            reads[var] = reads.get(var, 0) + 1
    return reads


def _shape(var: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)


def _stacked(shape: jax.ShapeDtypeStruct, length: int | None) -> jax.ShapeDtypeStruct:
    return shape if length is None else jax.ShapeDtypeStruct((length, *shape.shape), shape.dtype)
