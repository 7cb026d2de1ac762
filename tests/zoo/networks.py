"""Whole networks in bare JAX: attention, recurrent, graph, dense blocks of today."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .case import Case, Draw, Made


def layer_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-3) * scale + shift


def attention_block(draw: Draw) -> Made:
    """LayerNorm, multi-head attention with a causal mask, learned positions, gated MLP."""
    length, width, heads, size = 5, 4, 2, 3

    def u(p: Any, x: Any) -> jax.Array:
        h = x + p["positions"]
        y = layer_norm(h, p["s1"], p["t1"])
        q, k, v = (jnp.einsum("td,dhk->thk", y, p[name]) for name in ("q", "k", "v"))
        scores = jnp.einsum("qhk,shk->hqs", q, k) / jnp.sqrt(1.0 * size).astype(x.dtype)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        h = h + jnp.einsum("hqs,shk,hkd->qd", jax.nn.softmax(scores), v, p["o"])
        y = layer_norm(h, p["s2"], p["t2"])
        return jnp.sum((h + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"])[-1] ** 2)

    qkv = {name: draw(width, heads, size) for name in "qkv"}
    norms = {"s1": draw.positive(width), "t1": draw(width), "s2": draw.positive(width), "t2": draw(width)}
    mlp = {"gate": draw(width, 6), "up": draw(width, 6), "down": draw(6, width)}
    params = {"positions": draw(length, width), "o": draw(heads, size, width)} | qkv | norms | mlp
    return u, params, draw(3, length, width)


def lstm(draw: Draw) -> Made:
    def u(p: Any, xs: Any) -> jax.Array:
        def step(state: Any, x: Any) -> tuple[Any, Any]:
            h, c = state
            i, f, g, o = jnp.split(x @ p["w"] + h @ p["r"] + p["b"], 4)
            c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        (_, c), hs = lax.scan(step, (p["h0"], p["c0"]), xs)
        return jnp.sum((hs @ p["out"]) ** 2) + jnp.sum(c)

    params = {
        "w": draw(2, 12),
        "r": draw(3, 12),
        "b": draw(12),
        "h0": draw(3),
        "c0": draw(3),
        "out": draw(3, 2),
    }
    return u, params, draw(3, 5, 2)


def gru(draw: Draw) -> Made:
    def u(p: Any, xs: Any) -> jax.Array:
        def step(h: Any, x: Any) -> tuple[Any, None]:
            gates = p["w"] @ x + p["b"]
            r, z = jnp.split(jax.nn.sigmoid(gates[:6] + p["r"][:6] @ h), 2)
            new = jnp.tanh(gates[6:] + r * (p["r"][6:] @ h + p["c"]))
            return z * h + (1 - z) * new, None

        return jnp.sum(lax.scan(step, jnp.zeros(3, draw.dtype), xs)[0])

    return u, {"w": draw(9, 2), "r": draw(9, 3), "b": draw(9), "c": draw(3)}, draw(3, 5, 2)


def graph_network(draw: Draw) -> Made:
    """Two rounds of messages along 9 edges between 5 nodes, with shared weights, and a pooled answer."""
    nodes, edges = 5, 9

    def u(p: Any, graph: Any) -> jax.Array:
        h = jnp.tanh(graph["nodes"] @ p["encode"])
        for _ in range(2):
            ends = jnp.concatenate([h[graph["senders"]], h[graph["receivers"]], graph["edges"]], axis=1)
            messages = jax.nn.relu(ends @ p["message"] + p["b"])
            inbox = jax.ops.segment_sum(messages, graph["receivers"], nodes)
            h = h + jnp.tanh(jnp.concatenate([h, inbox], 1) @ p["update"])
        return jnp.tanh(h.mean(0) @ p["decode"])

    params = {
        "encode": draw(2, 3),
        "message": draw(8, 4),
        "b": draw(4),
        "update": draw(7, 3),
        "decode": draw(3),
    }
    ends = {name: draw.integers(0, nodes, 3, edges) for name in ("senders", "receivers")}
    return u, params, {"nodes": draw(3, nodes, 2), "edges": draw(3, edges, 2)} | ends


def mixer(draw: Draw) -> Made:
    """Products over tokens and over channels of the same array, in turn."""

    def u(p: Any, x: Any) -> jax.Array:
        h = x + jnp.tanh(x.T @ p["tokens"]).T
        h = h + jnp.einsum("tc,cd->td", jax.nn.gelu(h), p["channels"]) * p["scale"]
        return jnp.sum(jnp.sin(h))

    return u, {"tokens": draw(4, 4), "channels": draw(3, 3), "scale": draw(3)}, draw(3, 4, 3)


def dense_experts(draw: Draw) -> Made:
    """Soft routing: every expert by one batched product, weighted by a gate; and hard routing of tokens."""

    def u(p: Any, x: Any) -> jax.Array:
        gate = jax.nn.softmax(x @ p["gate"])
        soft = jnp.einsum("te,teo->to", gate, jnp.tanh(jnp.einsum("ti,eio->teo", x, p["experts"])))
        hard = jnp.einsum("ti,tio->to", x, p["experts"][jnp.argmax(gate, axis=1)])
        return jnp.sum(soft**2) + jnp.sum(jnp.sin(hard))

    return u, {"gate": draw(3, 2), "experts": draw(2, 3, 4)}, draw(3, 5, 3)


def mamba_like(draw: Draw) -> Made:
    """A diagonal linear recurrence with a learned decay, run as an associative scan."""

    def u(p: Any, xs: Any) -> jax.Array:
        inputs = xs @ p["in"]
        decay = jnp.exp(-jax.nn.softplus(p["log_decay"])) * jnp.ones_like(inputs)
        join = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])
        _, states = lax.associative_scan(join, (decay, inputs))
        return jnp.sum(jnp.tanh(states @ p["out"]))

    return u, {"in": draw(2, 3), "log_decay": draw(3), "out": draw(3, 2)}, draw(3, 4, 2)


CASES = (
    Case("attention block", attention_block),
    Case("LSTM", lstm),
    Case("GRU", gru),
    Case("graph network", graph_network),
    Case("mixer", mixer),
    Case("dense mixture of experts", dense_experts),
    Case("state-space layer", mamba_like),
)
