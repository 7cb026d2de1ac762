"""How many cases fit: bytes estimated from shapes before anything is allocated."""

import functools
import math
import os
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from deltavariance.parameters import Frozen, Layout, dtype_of
from deltavariance.tracing import Traced, trace

DEFAULT_BUDGET = 1 << 30
# The cotangents of many components are gone through again and again: batches are cut so that they stay near the core.
CACHE = 1 << 24


def physical_memory() -> int | None:
    """The bytes of memory of this machine, where the system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def bytes_per_case(traced: Traced, layout: Layout) -> int:
    """An upper bound on the working memory of one case: what a forward pass makes, and the kept factors.

    Values inside loops count once a step. Rematerialised values count too, so the bound is loose for them.
    """
    components = math.prod(traced.out_shape.shape)
    factors = sum(_bytes(s) for s in traced.plan.records) + components * sum(
        _bytes(s) for s in traced.plan.taps
    )
    item = traced.out_shape.dtype.itemsize
    dense = components * item * sum(layout.sizes[number] for number in traced.plan.plain)
    return factors + dense + max(components, 2) * _jaxpr_bytes(traced.jaxpr.jaxpr)


def _bytes(shape: Any) -> int:
    return math.prod(shape.shape) * shape.dtype.itemsize


def _jaxpr_bytes(jaxpr: Jaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        inner = [p for p in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr) if _is_jaxpr(p)]
        if inner:
            times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
            total += times * sum(_jaxpr_bytes(getattr(p, "jaxpr", p)) for p in inner)
        else:
            total += sum(
                _bytes(var.aval)
                for var in eqn.outvars
                if hasattr(var.aval, "dtype") and hasattr(var.aval.dtype, "itemsize")
            )
    return total


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, (Jaxpr, ClosedJaxpr))


@functools.lru_cache(maxsize=512)
def _measure(
    u: Frozen,
    u_shapes: Any,
    params: Frozen,
    param_shapes: Any,
    case_shapes: Any,
    treedef: Any,
    layout: Layout,
) -> tuple[int, int]:
    """The bytes of one case, and those of its cotangents if there are several components (0 for one)."""
    found: list[tuple[int, int]] = []

    def look(u_arrays: Any, arrays: Any) -> tuple[()]:
        case = jax.tree.unflatten(treedef, case_shapes)
        traced = trace(u.thaw(u_arrays), params.thaw(arrays), layout, case)
        components = math.prod(traced.out_shape.shape)
        pulled_back = components * sum(_bytes(shape) for shape in traced.plan.taps) if components > 1 else 0
        found.append((bytes_per_case(traced, layout), pulled_back))
        return ()

    jax.eval_shape(look, u_shapes, param_shapes)
    return found[0]


def largest_batch(
    u: tuple[Any, Frozen],
    params: tuple[Any, Frozen],
    cases: Any,
    layout: Layout,
    batch_size: int | None,
    budget: int | None,
) -> int:
    """How many cases to run at once: `batch_size` if it fits in memory at all, or what the budget holds.

    The estimate is made once for each function and its shapes, and kept.
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, and it is {batch_size}.")
    leaves, treedef = jax.tree.flatten(cases)
    case_shapes = tuple(jax.ShapeDtypeStruct(leaf.shape[1:], dtype_of(leaf)) for leaf in leaves)
    needed, pulled_back = _measure(
        u[1], _shapes(u[0]), params[1], _shapes(params[0]), case_shapes, treedef, layout
    )
    memory = physical_memory()
    if memory is not None and needed > memory:
        raise MemoryError(
            f"One case needs about {needed:,} bytes and the machine has {memory:,}. Parameters with a plain gradient"
            " cost the most: `dv.explain(u, params, z)` lists them. Narrow them with `where=`, split u into"
            " fewer components, or use `jax.checkpoint` inside u."
        )
    if batch_size is None:
        budget = DEFAULT_BUDGET if budget is None else budget
        return max(1, min(budget // max(1, needed), CACHE // max(1, pulled_back)))
    if memory is not None and batch_size * needed > memory:
        raise MemoryError(
            f"batch_size={batch_size} needs about {batch_size * needed:,} bytes ({needed:,} a case) and the machine has"
            f" {memory:,}. batch_size={max(1, memory // needed // 2)} would fit; if none is given, one is chosen."
        )
    return batch_size


def _shapes(arrays: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(x.shape, dtype_of(x)) for x in arrays)
