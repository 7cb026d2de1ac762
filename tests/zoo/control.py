"""Control flow: scan, cond, remat, jit, while, custom derivatives, derivatives and vmap inside u."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .case import Case, Draw, Made


def rollout(draw: Draw) -> Made:
    """A recurrent step with shared weights, rematerialised, answering at every time."""

    def u(p: Any, x: Any) -> jax.Array:
        @jax.checkpoint
        def step(state: Any, _: None) -> tuple[Any, Any]:
            state = state + 0.3 * jnp.tanh(jnp.tanh(state @ p["w1"] + p["b"]) @ p["w2"])
            return state, state[0]

        last, seen = lax.scan(step, x, None, length=7)
        return jnp.sum(last**2) + seen @ seen

    return u, {"w1": draw(3, 4), "b": draw(4), "w2": draw(4, 3)}, draw(3, 3)


def rollout_backwards(draw: Draw) -> Made:
    def u(p: Any, xs: Any) -> jax.Array:
        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = jnp.tanh(p["w"] @ state + p["v"] @ x)
            return state, p["s"] * state

        last, out = lax.scan(step, p["start"], xs, reverse=True, unroll=2)
        return jnp.sum(out * xs[:, :1]) + jnp.sum(last)

    return u, {"w": draw(3, 3), "v": draw(3, 2), "s": draw(3), "start": draw(3)}, draw(3, 5, 2)


def _stacked_layers(draw: Draw, *, reverse: bool) -> Made:
    """Layers as the scanned input, beside a weight that all of them share, inside jit and remat."""

    def u(p: Any, x: Any) -> jax.Array:
        @jax.checkpoint
        @jax.jit
        def layer(h: Any, own: Any) -> tuple[Any, Any]:
            y = jnp.tanh(h @ own["w"] + own["b"] + h @ p["shared"])
            return y, y.sum() * own["gain"]

        h, outs = lax.scan(layer, x, p["layers"], reverse=reverse)
        return jnp.sum(h) + jnp.sum(outs)

    layers = {"w": draw(4, 3, 3), "b": draw(4, 3), "gain": draw(4)}
    return u, {"layers": layers, "shared": draw(3, 3)}, draw(3, 2, 3)


def nested_scan(draw: Draw) -> Made:
    """Blocks of layers within steps of time: stacked weights outside, shared and sliced inside."""

    def u(p: Any, xs: Any) -> jax.Array:
        def block(h: Any, w: Any) -> tuple[Any, None]:
            inner = lambda g, x: (jnp.tanh(g @ w + x @ p["v"]), None)
            return lax.scan(inner, h, xs)[0], None

        h = lax.scan(block, xs[0] @ p["v"], p["w"])[0]
        return jnp.sum(h @ p["w"][0])

    return u, {"w": draw(2, 3, 3), "v": draw(2, 3)}, draw(3, 3, 2)


def params_in_the_carry(draw: Draw) -> Made:
    """Handed through the carry unchanged; and, for one of them, changed at every step."""

    def u(p: Any, x: Any) -> jax.Array:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            q, fast, h = carry
            h = jnp.tanh(q["w"] @ h + fast * q["b"])
            return (q, 0.9 * fast + 0.1 * h, h), None

        (q, _, h), _ = lax.scan(step, ({"w": p["w"], "b": p["b"]}, p["fast"], x), None, length=4)
        return jnp.sum(h * q["b"])

    return u, {"w": draw(3, 3), "b": draw(3), "fast": draw(3)}, draw(3, 3)


def weights_escape_scan(draw: Draw) -> Made:
    """The scan emits views of its weights, which are used afterwards."""

    def u(p: Any, x: Any) -> jax.Array:
        def step(h: Any, w: Any) -> tuple[Any, Any]:
            return jnp.tanh(w @ h), w.T

        h, transposed = lax.scan(step, x, p)
        return jnp.sum(transposed[1] @ h)

    return u, draw(3, 2, 2), draw(3, 2)


def static_loops(draw: Draw) -> Made:
    """fori_loop with static bounds, lax.map, associative_scan."""

    def u(p: Any, x: Any) -> jax.Array:
        h = lax.fori_loop(0, 4, lambda i, s: jnp.tanh(p["w"] @ s + p["b"][i]), x)
        mapped = lax.map(lambda row: jnp.sin(row * x).sum() * h[0], p["w"])
        summed = lax.associative_scan(jnp.add, jnp.stack([x, h, p["b"][1]]) @ p["w"])
        return jnp.sum(mapped) + jnp.sum(jnp.tanh(summed))

    return u, {"w": draw(3, 3), "b": draw(4, 3)}, draw(3, 3)


def branches(draw: Draw) -> Made:
    """A predicate of the case, one of the parameters, a constant one, and a switch, also under scan."""

    def u(p: Any, x: Any) -> jax.Array:
        y = lax.cond(x[0] > 0, lambda h: jnp.tanh(p["a"] @ h), lambda h: jnp.sin(p["b"] @ h) + p["a"][0], x)
        y = lax.cond(p["a"][0, 0] > 10.0, lambda h: p["b"] @ h, lambda h: p["c"] * h, y)

        def step(h: Any, i: Any) -> tuple[Any, None]:
            ways = [lambda g: p["a"] @ g, lambda g: p["c"] * g, lambda g: g, lambda g: p["unused"] @ g]
            return jnp.tanh(lax.switch(i, ways[:3], h)), None

        y = lax.scan(step, y, jnp.asarray([0, 1, 2, 1, 0]))[0]
        return jnp.sum(lax.cond(True, lambda h: p["b"] @ h, lambda h: h, y))

    return (
        u,
        {"a": draw(3, 3), "b": draw(3, 3), "c": draw(3), "unused": draw(3, 3)},
        jnp.asarray([1, -1, 2]).astype(draw.dtype)[:, None] * draw.positive(3, 3),
    )


def experts_by_switch(draw: Draw) -> Made:
    def u(p: Any, z: Any) -> jax.Array:
        def expert(k: int) -> Any:
            return lambda h: jnp.tanh(h @ p["experts"][k]["w"] + p["experts"][k]["b"]) @ p["out"]

        y = lax.switch(z["expert"], [expert(k) for k in range(3)], z["x"])
        stacked = jnp.tanh(z["x"] @ p["stack"].at[z["expert"]].get(mode="clip"))
        return jnp.sum(y**2) + jnp.sum(stacked)

    experts = [{"w": draw(3, 4), "b": draw(4)} for _ in range(3)]
    params = {"experts": experts, "out": draw(4, 2), "stack": draw(3, 3, 2)}
    return u, params, {"expert": jnp.asarray([0, 2, 0, 7]), "x": draw(4, 3)}


def loop_outside_the_gradient(draw: Draw) -> Made:
    """How long the loop ran decides a constant: no derivative passes through it."""

    def u(p: Any, x: Any) -> jax.Array:
        frozen = lax.stop_gradient(p["w"])
        settled = lax.while_loop(
            lambda c: (c[0] < 5) & (jnp.sum(c[1] ** 2) > 1e-3),
            lambda c: (c[0] + 1, 0.5 * jnp.tanh(frozen @ c[1])),
            (0, lax.stop_gradient(x)),
        )
        return jnp.sum(jnp.tanh(p["w"] @ (x + settled[1]))) * (1.0 + settled[0])  # fmt: skip

    return u, {"w": draw(3, 3)}, draw(3, 3)


def custom_vjp(draw: Draw) -> Made:
    """A rule that is not the derivative (straight-through), with parameters passed and closed over."""

    @jax.custom_vjp
    def rounded(w: Any, x: Any) -> jax.Array:
        return jnp.round(w @ x, 1)

    def forward(w: Any, x: Any) -> tuple[jax.Array, Any]:
        return rounded(w, x), (w, x)

    def backward(kept: Any, g: Any) -> tuple[jax.Array, jax.Array]:
        w, x = kept
        return 2.0 * jnp.outer(g, x), w.T @ g

    rounded.defvjp(forward, backward)

    @jax.custom_vjp
    def clipped_gradient(x: Any) -> jax.Array:
        return x

    clipped_gradient.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))

    def u(p: Any, x: Any) -> jax.Array:
        y = rounded(p["w"], jnp.tanh(p["v"] @ x))
        return jnp.sum(clipped_gradient(p["v"] @ jnp.tanh(y)) ** 2) + jnp.sum(clipped_gradient(p["w"]) @ x)

    return u, {"w": draw(3, 3), "v": draw(3, 3)}, draw(3, 3)


def custom_jvp(draw: Draw) -> Made:
    @jax.custom_jvp
    def layer(w: Any, x: Any) -> jax.Array:
        return jnp.tanh(w @ x)

    @layer.defjvp
    def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        (w, x), (dw, dx) = primals, tangents
        y = jnp.tanh(w @ x)
        return y, 1.5 * (1 - y**2) * (dw @ x + w @ dx)

    def u(p: Any, x: Any) -> jax.Array:
        return jnp.sum(jax.nn.relu(p["v"] @ layer(p["w"], jax.nn.softplus(p["w"] @ x))))

    return u, {"w": draw(3, 3), "v": draw(4, 3)}, draw(3, 3)


def inner_vmap(draw: Draw) -> Made:
    """vmap over data, over stacked weights, over both, with a scan and a cond inside."""

    def u(p: Any, x: Any) -> jax.Array:
        over_x = jax.vmap(lambda row: jnp.tanh(p["w"] @ row))(x)
        over_w = jax.vmap(lambda w: jnp.tanh(w @ x[0]), in_axes=2, out_axes=1)(p["stack"])
        both = jax.vmap(lambda w, row: lax.scan(lambda h, _: (jnp.sin(w @ h), None), row, None, 3)[0], (2, 0))
        chosen = jax.vmap(lambda row: lax.cond(row[0] > 0, lambda r: p["w"] @ r, lambda r: p["b"] * r, row))
        pairs = jax.vmap(lambda b: jax.vmap(lambda row: row @ p["w"] + b)(x))(p["stack"][0].T)
        return (
            jnp.sum(over_x) * jnp.sum(over_w)
            + jnp.sum(both(p["stack"], x))
            + jnp.sum(chosen(x) ** 2)
            + jnp.sum(pairs**2)
        )

    return u, {"w": draw(3, 3), "stack": draw(3, 3, 2), "b": draw(3)}, draw(3, 2, 3)


def nested_calls(draw: Draw) -> Made:
    """jit in jit, remat with a policy, one jitted layer called with two weights and with one twice."""

    @jax.jit
    def layer(w: Any, x: Any) -> jax.Array:
        return jnp.tanh(x @ w)

    def u(p: Any, x: Any) -> jax.Array:
        block = jax.checkpoint(
            lambda h: layer(p["a"], layer(p["b"], h)), policy=jax.checkpoint_policies.dots_saveable
        )
        views = jax.jit(lambda w: (w.T, w[0]))(p["a"])
        return jnp.sum(jax.jit(block)(block(layer(p["a"], x))) @ views[0] * views[1])

    return u, {"a": draw(3, 3), "b": draw(3, 3)}, draw(3, 2, 3)


def derivative_inside(draw: Draw) -> Made:
    """u holds a derivative of the network: by reverse mode, by forward mode, and one of each."""

    def u(p: Any, x: Any) -> jax.Array:
        f = lambda y: jnp.sum(jnp.tanh(jnp.tanh(y @ p["w1"] + p["b"]) @ p["w2"]))
        slope = jax.grad(f)(x)
        _, bend = jax.jvp(jax.grad(f), (x,), (slope,))
        return jnp.sum(slope**2) + jnp.trace(jax.jacfwd(jax.grad(f))(x)) + jnp.sum(bend)

    return u, {"w1": draw(3, 4), "b": draw(4), "w2": draw(4, 2)}, draw(3, 3)


def inner_training_step(draw: Draw) -> Made:
    """A step of gradient descent on the parameters inside u."""

    def u(p: Any, z: Any) -> jax.Array:
        f = lambda q, x: jnp.sum(jnp.tanh(x @ q["w"]) * q["v"])
        adapted = jax.tree.map(lambda a, b: a - 0.1 * b, p, jax.grad(f)(p, z[0]))
        return f(adapted, z[1])

    return u, {"w": draw(3, 2), "v": draw(2)}, draw(3, 2, 3)


CASES = (
    Case("rollout with remat", rollout),
    Case("rollout backwards", rollout_backwards),
    Case("stacked layers by scan", lambda draw: _stacked_layers(draw, reverse=False)),
    Case("stacked layers by scan, reverse", lambda draw: _stacked_layers(draw, reverse=True)),
    Case("nested scan", nested_scan),
    Case("parameters in the carry", params_in_the_carry),
    Case("weights escape the scan", weights_escape_scan),
    Case("static loops", static_loops),
    Case("branches", branches),
    Case("mixture of experts by switch", experts_by_switch),
    Case("while loop outside the gradient", loop_outside_the_gradient),
    Case("custom_vjp", custom_vjp),
    Case("custom_jvp", custom_jvp),
    Case("inner vmap", inner_vmap),
    Case("nested calls", nested_calls),
    Case("derivative inside u", derivative_inside),
    Case("training step inside u", inner_training_step),
)
