"""Random programs: small functions composed of the operations the tracer has rules for, in control flow.

A program is a tuple of steps; a step is `(operation, slot)` or `(block, program, ...)`. Every step maps a
state `[4, 3]` to a state `[4, 3]`, so that any sequence is a program. Weights are named by their shape and
one of two slots: programs tie weights and use them in different ways, inside loops and out, all the time.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from jax import lax

from .case import Draw, Made

Program = tuple[Any, ...]
Shape = tuple[int, ...]
LAYERS = 3


def _conv(h: Any, z: Any, w: Any) -> Any:
    out = lax.conv_general_dilated(h[None], w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return out[0]


def _look_up(mode: str) -> Callable[..., Any]:
    return lambda h, z, w: h + w.at[z["i"]].get(mode=mode, fill_value=0.1)


# What each operation needs, and what it does to the state.
OPERATIONS: dict[str, tuple[tuple[Shape, ...], Callable[..., Any]]] = {
    "right": (((3, 3),), lambda h, z, w: h @ w),
    "right, transposed": (((3, 3),), lambda h, z, w: h @ w.T),
    "left": (((4, 4),), lambda h, z, w: w @ h),
    "each row its matrix": (((4, 3, 3),), lambda h, z, w: jnp.einsum("ti,tio->to", h, w)),
    "heads": (((3, 2, 2), (2, 2, 3)), lambda h, z, a, b: jnp.einsum("ti,ihk,hko->to", h, a, b)),
    "data weighted": (((3, 3),), lambda h, z, w: (z["x"] @ w) * h),
    "convolution": (((2, 3, 3),), _conv),
    "flipped convolution": (((2, 3, 3),), lambda h, z, w: _conv(h, z, w[::-1].transpose(0, 2, 1))),
    "fill": (((5, 3),), _look_up("fill")),
    "clip": (((5, 3),), _look_up("clip")),
    "own row": (((5, 3),), lambda h, z, w: h * w[1] + w[z["i"][0] % 5]),
    "tied read-out": (((5, 3),), lambda h, z, w: jax.nn.softmax(h @ w.T) @ w),
    "bias": (((3,),), lambda h, z, b: h + b),
    "bias down": (((4,),), lambda h, z, b: h - b[:, None]),
    "scale": (((3,),), lambda h, z, s: h * s),
    "scalar": (((),), lambda h, z, s: s * h + s),
    "divide": (((3,),), lambda h, z, s: h / (2.0 + s**2)),
    "slice": (((5, 6),), lambda h, z, w: h @ w[1:4, ::2]),
    "other slice": (((5, 6),), lambda h, z, w: h @ w[2:5, 1:4] + w[0, :3]),
    "reshape": (((12,),), lambda h, z, w: h @ w[:9].reshape(3, 3) + w.reshape(4, 3)),
    "low rank": (((3, 3), (3, 1), (1, 3)), lambda h, z, w, a, b: h @ (w + a @ b)),
    "elementwise": (((3, 3), (4, 3)), lambda h, z, w, v: h * jnp.sin(v) + jnp.tanh(w)[0]),
    "power": (((3, 3),), lambda h, z, w: h @ (w @ w)),
    "masked": (((3, 3),), lambda h, z, w: h @ jnp.tril(w)),
    "stopped": (((3, 3),), lambda h, z, w: h + lax.stop_gradient(h @ w)),
    "largest": (((3, 3),), lambda h, z, w: h - jnp.max(h @ w, axis=1, keepdims=True)),
    "scaled by its largest": (
        ((4, 4),),
        lambda h, z, w: (w / lax.stop_gradient(1 + jnp.max(jnp.abs(w)))) @ h,
    ),
    "tanh": ((), lambda h, z: jnp.tanh(h)),
    "gelu": ((), lambda h, z: jax.nn.gelu(h)),
    "turn": ((), lambda h, z: h.reshape(3, 4).T),
    "add data": ((), lambda h, z: h + z["x"]),
}

BLOCKS = ("jit", "remat", "scan", "reverse scan", "vmap", "case cond", "state cond", "residual")


def _names(operation: str, slot: int) -> list[tuple[str, Shape]]:
    return [("x".join(map(str, shape)) + f"/{slot}", shape) for shape in OPERATIONS[operation][0]]


def weights(program: Program) -> dict[str, Shape]:
    """The names and shapes of every weight that a program mentions."""
    found: dict[str, Shape] = {}
    for step in program:
        if step[0] in OPERATIONS:
            found |= dict(_names(*step))
        else:
            for inner in step[1:]:
                found |= weights(inner)
            if step[0] == "reverse scan":
                found |= {"stack": (LAYERS, 3, 3)}
    return found


def run(program: Program, p: Any, h: Any, z: Any) -> Any:
    """The state after all steps."""
    for step in program:
        h = _step(step, p, h, z)
    return jnp.tanh(h)


def _step(step: Any, p: Any, h: Any, z: Any) -> Any:
    kind, *rest = step
    if kind in OPERATIONS:
        return OPERATIONS[kind][1](h, z, *(p[name] for name, _ in _names(kind, *rest)))
    inner = [lambda state, program=program: run(program, p, state, z) for program in rest]
    if kind == "jit":
        return jax.jit(inner[0])(h)
    if kind == "remat":
        return jax.checkpoint(lambda weights, state: run(rest[0], weights, state, z))(p, h)
    if kind == "scan":
        last, seen = lax.scan(lambda state, _: (inner[0](state), state[0]), h, None, length=3)
        return last + seen.mean(0)
    if kind == "reverse scan":
        return lax.scan(lambda state, w: (inner[0](state @ w), None), h, p["stack"], reverse=True)[0]
    if kind == "vmap":
        return jnp.mean(jax.vmap(inner[0])(jnp.stack([h, -0.5 * h])), axis=0)
    if kind == "case cond":
        return lax.cond(z["x"][0, 0] > 0, inner[0], inner[1], h)
    if kind == "state cond":
        return lax.cond(h[0, 0] > h[0, 1], inner[0], inner[1], h)
    return h + inner[0](h)


@st.composite
def programs(draw: st.DrawFn, most_steps: int = 5, most_blocks: int = 3) -> Program:
    """A few operations in a row, then blocks put around stretches of them, so that blocks nest."""
    step = st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 1))
    steps: list[Any] = draw(st.lists(step, min_size=2, max_size=most_steps))
    for block in draw(st.lists(st.sampled_from(BLOCKS), max_size=most_blocks)):
        start = draw(st.integers(0, len(steps) - 1))
        stop = draw(st.integers(start + 1, len(steps)))
        other = ((draw(step),),) if block.endswith("cond") else ()
        steps[start:stop] = [(block, tuple(steps[start:stop]), *other)]
    return tuple(steps)


def made(program: Program, *, vector: bool, draw: Draw) -> Made:
    """u, its parameters and three cases; u is a number or a vector of three."""

    def u(p: Any, z: Any) -> jax.Array:
        h = run(program, p, z["x"], z)
        return h[0] * h[1] if vector else jnp.sum(jnp.sin(h))

    shapes = weights(program) | {"unused": (2,)}
    params = {name: draw(*shape) for name, shape in sorted(shapes.items())}
    return u, params, {"x": draw(3, 4, 3), "i": draw.integers(-7, 8, 3, 4)}
