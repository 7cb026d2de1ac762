"""Models written with Flax NNX: a split State as parameters, a pure dictionary, and a Module itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .case import Case, Draw, Made


def _state(leaf: Any) -> jax.Array:
    """A value for a leaf that is no parameter: the random keys and counters that a cell carries."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    return jnp.zeros(leaf.shape, leaf.dtype)


def _made(draw: Draw, build: Callable[[nnx.Rngs], nnx.Module], z: jax.Array) -> Made:
    abstract = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    graph, params, rest = nnx.split(abstract, nnx.Param, ...)
    rest = jax.tree.map(_state, rest)

    def u(p: Any, x: Any) -> jax.Array:
        return jnp.sum(jnp.sin(nnx.merge(graph, p, rest)(x)))

    return u, draw.fill(params), z


def _dtypes(draw: Draw) -> dict[str, Any]:
    return {"dtype": draw.dtype, "param_dtype": draw.dtype}


def mlp(draw: Draw) -> Made:
    class MLP(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.inner = nnx.Linear(3, 4, rngs=rngs, **_dtypes(draw))
            self.norm = nnx.LayerNorm(4, rngs=rngs, **_dtypes(draw))
            self.outer = nnx.Linear(4, 2, rngs=rngs, **_dtypes(draw))

        def __call__(self, x: Any) -> Any:
            return self.outer(self.norm(nnx.gelu(self.inner(x))))

    return _made(draw, MLP, draw(3, 3))


def module_as_params(draw: Draw) -> Made:
    """The module is the pytree of parameters; u calls it."""

    class Twice(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(3, 3, rngs=rngs, **_dtypes(draw))
            self.gain = nnx.Param(jnp.zeros(3, draw.dtype))

        def __call__(self, x: Any) -> Any:
            return self.linear(jnp.tanh(self.linear(x) * self.gain[...]))

    module = draw.fill(nnx.eval_shape(lambda: Twice(nnx.Rngs(0))))
    return (lambda model, x: jnp.sum(jnp.sin(model(x)))), module, draw(3, 3)


def pure_dictionary(draw: Draw) -> Made:
    graph, state = nnx.split(nnx.eval_shape(lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0), **_dtypes(draw))))

    def u(p: Any, x: Any) -> jax.Array:
        full = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(full, p)
        return jnp.sum(jnp.sin(nnx.merge(graph, full)(x)))

    return u, draw.fill(nnx.to_pure_dict(state)), draw(3, 3)


def cnn(draw: Draw) -> Made:
    class CNN(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.c1 = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs, **_dtypes(draw))
            self.norm = nnx.GroupNorm(4, num_groups=2, rngs=rngs, **_dtypes(draw))
            self.c2 = nnx.Conv(
                4, 2, (3, 3), feature_group_count=2, padding="CIRCULAR", rngs=rngs, **_dtypes(draw)
            )
            self.up = nnx.ConvTranspose(2, 1, (3, 3), strides=(2, 2), rngs=rngs, **_dtypes(draw))

        def __call__(self, x: Any) -> Any:
            y = nnx.silu(self.norm(self.c1(x)))
            return self.up(nnx.max_pool(self.c2(y), (2, 2), strides=(2, 2))) + x[::2, ::2].mean()

    return _made(draw, CNN, draw(2, 8, 8, 1))


def attention(draw: Draw) -> Made:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(6, 4, rngs=rngs, **_dtypes(draw))
            self.positions = nnx.Param(jnp.zeros((5, 4), draw.dtype))
            self.norm = nnx.LayerNorm(4, rngs=rngs, **_dtypes(draw))
            self.attend = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs, **_dtypes(draw))

        def __call__(self, tokens: Any) -> Any:
            x = self.embed(tokens) + self.positions[...]
            return self.embed.attend(x + self.attend(self.norm(x)))

    return _made(draw, Block, draw.integers(0, 6, 2, 5))


class Recurrent(nnx.Module):
    """nnx.RNN from a learned initial state, so that it draws no random numbers when called."""

    def __init__(self, cell: Any, start: Any, *, reverse: bool) -> None:
        self.rnn = nnx.RNN(cell, reverse=reverse)
        self.start = nnx.data(jax.tree.map(nnx.Param, start))

    def __call__(self, xs: Any) -> Any:
        start = jax.tree.map(
            lambda leaf: leaf[...], self.start, is_leaf=lambda leaf: isinstance(leaf, nnx.Param)
        )
        return self.rnn(xs, initial_carry=start)


def lstm(draw: Draw) -> Made:
    def build(rngs: nnx.Rngs) -> nnx.Module:
        cell = nnx.OptimizedLSTMCell(2, 3, rngs=rngs, **_dtypes(draw))
        return Recurrent(cell, (jnp.zeros(3, draw.dtype), jnp.zeros(3, draw.dtype)), reverse=False)

    return _made(draw, build, draw(2, 4, 2))


def gru(draw: Draw) -> Made:
    def build(rngs: nnx.Rngs) -> nnx.Module:
        return Recurrent(
            nnx.GRUCell(2, 3, rngs=rngs, **_dtypes(draw)), jnp.zeros(3, draw.dtype), reverse=True
        )

    return _made(draw, build, draw(2, 4, 2))


CASES = (
    Case("NNX MLP", mlp),
    Case("NNX module as parameters", module_as_params),
    Case("NNX pure dictionary", pure_dictionary),
    Case("NNX CNN", cnn),
    Case("NNX attention", attention),
    Case("NNX LSTM", lstm),
    Case("NNX GRU", gru),
)
