"""The networks of the core table, in bare JAX and float32: u(params, z) of one case, parameters, a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Quantity = Callable[[Any, Any], jax.Array]
Made = tuple[Quantity, Any, Any]


@dataclass(frozen=True)
class Network:
    """A case of the table, and what is asked of it: ratios to one plain batched gradient."""

    name: str
    title: str
    build: Callable[[], Made]
    variance: float
    fisher: float | None
    memory: float | None


def _weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    """Scaled by the fan-in, which is all axes but the last (a stack's first is none of it)."""
    generator = np.random.default_rng(seed)

    def one(name: str, shape: tuple[int, ...]) -> jax.Array:
        axes = shape[1:-1] if name.startswith("stack") else shape[:-1]
        scale = np.sqrt(1.5 / max(np.prod(axes), 1)) if len(shape) > 1 else 0.1
        return jnp.asarray(scale * generator.standard_normal(shape), jnp.float32)

    return {name: one(name, shape) for name, shape in shapes.items()}


def _normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def mlp(width: int = 1024, batch: int = 512) -> Made:
    def u(p: Any, x: jax.Array) -> jax.Array:
        h = jax.nn.relu(x @ p["w1"] + p["b1"])
        h = jax.nn.relu(h @ p["w2"] + p["b2"])
        return (h @ p["w3"] + p["b3"])[0]

    shapes = {
        "w1": (64, width),
        "b1": (width,),
        "w2": (width, width),
        "b2": (width,),
        "w3": (width, 1),
        "b3": (1,),
    }
    return u, _weights(0, **shapes), _normal(1, batch, 64)


def cnn(batch: int = 256) -> Made:
    """Four 3×3 convolutions, two of them with stride 2, mean pooling, ten classes: 94 thousand parameters."""

    def conv(x: jax.Array, w: jax.Array, b: jax.Array, stride: int) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x[None], w, (stride, stride), "SAME", dimension_numbers=layout)
        return jax.nn.relu(y[0] + b)

    def u(p: Any, x: jax.Array) -> jax.Array:
        h = conv(x, p["c1"], p["b1"], 2)
        h = conv(h, p["c2"], p["b2"], 1)
        h = conv(h, p["c3"], p["b3"], 2)
        h = conv(h, p["c4"], p["b4"], 1)
        return jax.nn.log_softmax(h.mean((0, 1)) @ p["w"] + p["b"])[3]

    convs = {"c1": (3, 3, 1, 32), "c2": (3, 3, 32, 64), "c3": (3, 3, 64, 64), "c4": (3, 3, 64, 64)}
    biases = {"b1": (32,), "b2": (64,), "b3": (64,), "b4": (64,), "w": (64, 10), "b": (10,)}
    return u, _weights(0, **convs, **biases), _normal(1, batch, 28, 28, 1)


def transformer(batch: int = 64) -> Made:
    """Two pre-norm blocks, four heads, 256 tokens: the log-probability of the next one."""
    width, heads, length, tokens = 128, 4, 64, 256

    def norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * (1 + scale) + shift

    def attend(p: Any, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("td,dhk->htk", x, p[name]) for name in ("q", "k", "v"))
        scores = jnp.einsum("hqk,hsk->hqs", q, k) / np.sqrt(width // heads).astype(np.float32)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        return jnp.einsum("hqs,hsk,hkd->qd", jax.nn.softmax(scores), v, p["o"])

    def u(p: Any, z: Any) -> jax.Array:
        x = p["embed"][z["tokens"]] + p["positions"]
        for block in p["blocks"]:
            x = x + attend(block, norm(x, block["s1"], block["t1"]))
            h = jax.nn.gelu(norm(x, block["s2"], block["t2"]) @ block["up"] + block["bu"])
            x = x + h @ block["down"] + block["bd"]
        return jax.nn.log_softmax(norm(x, p["s"], p["t"]) @ p["head"])[-1, z["next"]]

    def block(seed: int) -> dict[str, jax.Array]:
        split = (width, heads, width // heads)
        attention = {"q": split, "k": split, "v": split, "o": (heads, width // heads, width)}
        mlp = {"up": (width, 4 * width), "bu": (4 * width,), "down": (4 * width, width), "bd": (width,)}
        return _weights(seed, **attention, **mlp, s1=(width,), t1=(width,), s2=(width,), t2=(width,))

    generator = np.random.default_rng(1)
    z = {
        "tokens": generator.integers(0, tokens, (batch, length)),
        "next": generator.integers(0, tokens, batch),
    }
    outer = {"embed": (tokens, width), "positions": (length, width), "s": (width,), "t": (width,)}
    params = _weights(0, **outer, head=(width, tokens)) | {"blocks": [block(1), block(2)]}
    return u, params, jax.tree.map(jnp.asarray, z)


def graph(batch: int = 16, nodes: int = 500, edges: int = 3000, width: int = 64) -> Made:
    """Encode, three rounds of messages with their own weights, decode the mean."""

    def u(p: Any, z: Any) -> jax.Array:
        h = jax.nn.relu(z["nodes"] @ p["encode"])
        for k in range(3):
            ends = jnp.concatenate([h[z["senders"]], h[z["receivers"]], z["edges"]], axis=1)
            messages = jax.nn.relu(jax.nn.relu(ends @ p[f"m{k}"] + p[f"b{k}"]) @ p[f"n{k}"])
            inbox = jax.ops.segment_sum(messages, z["receivers"], nodes)
            h = h + jax.nn.relu(jnp.concatenate([h, inbox], axis=1) @ p[f"u{k}"] + p[f"c{k}"])
        return (h.mean(0) @ p["decode"])[0]

    shapes: dict[str, tuple[int, ...]] = {"encode": (8, width), "decode": (width, 1)}
    for k in range(3):
        shapes |= {f"m{k}": (2 * width + 4, width), f"b{k}": (width,), f"n{k}": (width, width)}
        shapes |= {f"u{k}": (2 * width, width), f"c{k}": (width,)}
    generator = np.random.default_rng(1)
    ends = {
        name: jnp.asarray(generator.integers(0, nodes, (batch, edges))) for name in ("senders", "receivers")
    }
    return (
        u,
        _weights(0, **shapes),
        {"nodes": _normal(2, batch, nodes, 8), "edges": _normal(3, batch, edges, 4)} | ends,
    )


def rollout(batch: int = 64, components: int | None = None) -> Made:
    """Twenty steps of a state of 32 by an MLP 32-256-256-32; a scalar of the last, or some components."""

    def u(p: Any, x: jax.Array) -> jax.Array:
        def step(state: jax.Array, _: None) -> tuple[jax.Array, None]:
            h = jnp.tanh(jnp.tanh(state @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"])
            return state + 0.1 * (h @ p["w3"] + p["b3"]), None

        last = lax.scan(step, x, None, length=20)[0]
        return last[0] ** 2 if components is None else last[:components]

    shapes = {"w1": (32, 256), "b1": (256,), "w2": (256, 256), "b2": (256,), "w3": (256, 32), "b3": (32,)}
    return u, _weights(0, **shapes), _normal(1, batch, 32)


def stacked(batch: int = 256, width: int = 256) -> Made:
    def u(p: Any, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, own: Any) -> tuple[jax.Array, None]:
            return jax.nn.relu(h @ own["w"] + own["b"]), None

        weights = {"w": p["stack_w"], "b": p["stack_b"]}
        return (lax.scan(layer, x @ p["in"], weights)[0] @ p["out"])[0]

    shapes = {"in": (32, width), "stack_w": (16, width, width), "stack_b": (16, width), "out": (width, 1)}
    return u, _weights(0, **shapes), _normal(1, batch, 32)


NETWORKS = (
    Network("mlp", "MLP 64-1024-1024-1, batch 512", mlp, 1.2, 1.2, None),
    Network("cnn", "CNN, 94k parameters, 28×28, batch 256", cnn, 1.1, 1.1, 1.5),
    Network("transformer", "transformer, 2 blocks, d 128, sequence 64, batch 64", transformer, 1.2, 1.2, 1.5),
    Network("graph", "graph network, 500 nodes, 3000 edges, batch 16", graph, 1.3, 1.3, 1.5),
    Network("rollout", "20-step rollout of an MLP of 256 units, batch 64", rollout, 1.5, None, 2.0),
    Network("stacked", "16 stacked layers of 256 units by scan, batch 256", stacked, 1.3, 1.3, 2.3),
)
