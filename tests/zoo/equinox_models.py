"""Models written with Equinox: the module is the pytree of parameters, functions and all."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .case import Case, Draw, Made

KEY = jax.random.key(0)


def _made(
    draw: Draw, build: Callable[[], eqx.Module], z: Any, call: Callable[[Any, Any], Any] | None = None
) -> Made:
    module = draw.fill(eqx.filter_eval_shape(build))

    def u(model: Any, x: Any) -> jax.Array:
        return jnp.sum(jnp.sin(model(x) if call is None else call(model, x)))

    return u, module, z


def mlp(draw: Draw) -> Made:
    return _made(
        draw, lambda: eqx.nn.MLP(3, 2, 4, 2, activation=jnp.tanh, dtype=draw.dtype, key=KEY), draw(3, 3)
    )


def cnn(draw: Draw) -> Made:
    def build() -> eqx.Module:
        layers = [
            eqx.nn.Conv2d(1, 4, 3, stride=2, padding=1, dtype=draw.dtype, key=KEY),
            eqx.nn.GroupNorm(2, 4, dtype=draw.dtype),
            eqx.nn.Lambda(jax.nn.elu),
            eqx.nn.Conv2d(4, 4, 2, groups=2, dilation=2, dtype=draw.dtype, key=KEY),
            eqx.nn.MaxPool2d(2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(4, "scalar", dtype=draw.dtype, key=KEY),
        ]
        return eqx.nn.Sequential(layers)

    return _made(draw, build, draw(2, 1, 8, 8))


def u_net(draw: Draw) -> Made:
    def build() -> Any:
        return {
            "in": eqx.nn.Conv2d(1, 2, 3, padding=1, dtype=draw.dtype, key=KEY),
            "down": eqx.nn.Conv2d(2, 3, 3, stride=2, padding=1, dtype=draw.dtype, key=KEY),
            "up": eqx.nn.ConvTranspose2d(3, 2, 2, stride=2, dtype=draw.dtype, key=KEY),
            "bend": eqx.nn.PReLU(0.2),
            "out": eqx.nn.Conv2d(4, 1, 3, padding=1, dtype=draw.dtype, key=KEY),
        }

    def call(model: Any, x: Any) -> Any:
        skip = jnp.tanh(model["in"](x))
        high = model["bend"](model["up"](jnp.tanh(model["down"](skip))))
        return model["out"](jnp.concatenate([high, skip]))

    return _made(draw, build, draw(2, 1, 4, 4), call)


class Block(eqx.Module):
    table: eqx.nn.Embedding
    positions: jax.Array
    norm: eqx.nn.LayerNorm
    attend: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, dtype: Any) -> None:
        self.table = eqx.nn.Embedding(6, 4, dtype=dtype, key=KEY)
        self.positions = jnp.zeros((5, 4), dtype)
        self.norm = eqx.nn.LayerNorm(4, dtype=dtype)
        self.attend = eqx.nn.MultiheadAttention(2, 4, dtype=dtype, key=KEY)
        self.mlp = eqx.nn.MLP(4, 4, 5, 1, dtype=dtype, key=KEY)

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.table)(tokens) + self.positions
        y = jax.vmap(self.norm)(x)
        x = x + self.attend(y, y, y)
        return jax.vmap(lambda row: self.mlp(self.norm(row)))(x) @ self.table.weight.T


def attention(draw: Draw) -> Made:
    return _made(draw, lambda: Block(draw.dtype), draw.integers(0, 6, 2, 5))


def tied(draw: Draw) -> Made:
    """eqx.nn.Shared: a weight that stands once in the tree and twice in the network."""

    def build() -> eqx.Module:
        table = eqx.nn.Embedding(6, 4, dtype=draw.dtype, key=KEY)
        head = eqx.nn.Linear(4, 6, dtype=draw.dtype, key=KEY)
        return eqx.nn.Shared((table, head), lambda pair: pair[1].weight, lambda pair: pair[0].weight)

    def call(model: Any, tokens: Any) -> Any:
        table, head = model()
        return jax.vmap(head)(jnp.tanh(jax.vmap(table)(tokens)))

    return _made(draw, build, draw.integers(0, 6, 2, 5), call)


def lstm(draw: Draw) -> Made:
    def call(cell: Any, xs: Any) -> Any:
        start = (jnp.zeros(3, draw.dtype), jnp.zeros(3, draw.dtype))
        return jax.lax.scan(lambda state, x: (cell(x, state), None), start, xs)[0][0]

    return _made(draw, lambda: eqx.nn.LSTMCell(2, 3, dtype=draw.dtype, key=KEY), draw(2, 4, 2), call)


def gru(draw: Draw) -> Made:
    def call(cell: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda h, x: ((h := cell(x, h)), h), jnp.zeros(3, draw.dtype), xs)[1]

    return _made(draw, lambda: eqx.nn.GRUCell(2, 3, dtype=draw.dtype, key=KEY), draw(2, 4, 2), call)


def stacked_modules(draw: Draw) -> Made:
    """An ensemble of modules made by filter_vmap, run as layers by scan."""

    def build() -> Any:
        make = lambda key: eqx.nn.Linear(3, 3, dtype=draw.dtype, key=key)
        return eqx.filter_vmap(make)(jax.random.split(KEY, 3))

    def call(stack: Any, x: Any) -> Any:
        arrays, static = eqx.partition(stack, eqx.is_array)
        step = lambda h, layer: (jnp.tanh(eqx.combine(layer, static)(h)), None)
        return jax.lax.scan(step, x, arrays)[0]

    return _made(draw, build, draw(3, 3), call)


CASES = (
    Case("Equinox MLP", mlp),
    Case("Equinox CNN", cnn),
    Case("Equinox U-Net", u_net),
    Case("Equinox attention", attention),
    Case("Equinox tied", tied),
    Case("Equinox LSTM", lstm),
    Case("Equinox GRU", gru),
    Case("Equinox stacked modules", stacked_modules),
)
