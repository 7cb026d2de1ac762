"""Models written with Haiku."""

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from .case import Case, Draw, Made


def _made(draw: Draw, forward: Callable[[Any], Any], z: Any) -> Made:
    model = hk.without_apply_rng(hk.transform(forward))
    first = jax.tree.map(lambda leaf: leaf[0], z)
    shapes = jax.eval_shape(model.init, jax.random.key(0), first)
    return (lambda p, x: jnp.sum(jnp.sin(model.apply(p, x)))), draw.fill(shapes), z


def mlp(draw: Draw) -> Made:
    def forward(x: Any) -> Any:
        x = hk.nets.MLP([4, 4], activation=jnp.tanh)(x)
        return hk.Linear(2, with_bias=False)(hk.LayerNorm(-1, True, True)(x)) + hk.Bias()(x[None, :2])[0]

    return _made(draw, forward, draw(3, 3))


def cnn(draw: Draw) -> Made:
    def forward(x: Any) -> Any:
        x = jax.nn.silu(hk.GroupNorm(2)(hk.Conv2D(4, 3, stride=2)(x)[None])[0])
        x = hk.DepthwiseConv2D(1, 3)(x[None])[0] + hk.SeparableDepthwiseConv2D(1, 3)(x[None])[0]
        return hk.Linear(2)(hk.avg_pool(x, 2, 2, "SAME").ravel())

    return _made(draw, forward, draw(2, 8, 8, 1))


def u_net(draw: Draw) -> Made:
    def forward(x: Any) -> Any:
        skip = jnp.tanh(hk.Conv2D(2, 3)(x))
        low = jnp.tanh(hk.Conv2D(3, 3, stride=2)(skip))
        return hk.Conv2D(1, 3)(jnp.concatenate([jnp.tanh(hk.Conv2DTranspose(2, 3, stride=2)(low)), skip], -1))

    return _made(draw, forward, draw(2, 4, 4, 1))


def attention(draw: Draw) -> Made:
    def forward(tokens: Any) -> Any:
        x = hk.Embed(6, embedding_matrix=hk.get_parameter("table", (6, 4), draw.dtype, jnp.zeros))(tokens)
        x = x + hk.get_parameter("positions", (5, 4), draw.dtype, jnp.zeros)
        y = hk.LayerNorm(-1, True, True)(x)
        return x + hk.MultiHeadAttention(2, 3, w_init=hk.initializers.Constant(0.0), model_size=4)(y, y, y)

    return _made(draw, forward, draw.integers(0, 6, 2, 5))


def _recurrent(draw: Draw, core: Callable[[], Any]) -> Made:
    def forward(xs: Any) -> Any:
        cell = core()
        start = jax.tree.map(lambda leaf: leaf.astype(draw.dtype), cell.initial_state(None))
        outs, last = hk.dynamic_unroll(cell, xs, start)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(last)) + outs

    return _made(draw, forward, draw(2, 4, 2))


def layer_stack(draw: Draw) -> Made:
    def forward(x: Any) -> Any:
        return hk.experimental.layer_stack(3)(lambda h: jnp.tanh(hk.Linear(3)(h)))(x)

    return _made(draw, forward, draw(3, 3))


CASES = (
    Case("Haiku MLP", mlp),
    Case("Haiku CNN", cnn),
    Case("Haiku U-Net", u_net),
    Case("Haiku attention", attention),
    Case("Haiku LSTM", lambda draw: _recurrent(draw, lambda: hk.LSTM(3))),
    Case("Haiku GRU", lambda draw: _recurrent(draw, lambda: hk.GRU(3))),
    Case("Haiku layer stack", layer_stack),
)
