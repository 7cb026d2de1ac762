"""Models written with Flax Linen."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from .case import Case, Draw, Made


def _made(draw: Draw, model: nn.Module, z: jax.Array) -> Made:
    """u sums a sine of the model's output; parameters are drawn into the shapes that `init` gives."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), z[0])
    return (lambda p, x: jnp.sum(jnp.sin(model.apply(p, x)))), draw.fill(shapes), z


def mlp(draw: Draw) -> Made:
    class MLP(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.gelu(nn.Dense(4, **dtypes)(x))
            return nn.Dense(2, **dtypes)(nn.LayerNorm(**dtypes)(x))

    dtypes = {"dtype": draw.dtype, "param_dtype": draw.dtype}
    return _made(draw, MLP(), draw(3, 3))


def cnn(draw: Draw) -> Made:
    """Convolution, GroupNorm, BatchNorm with frozen statistics that are leaves too, pooling."""

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.GroupNorm(num_groups=2, **dtypes)(nn.Conv(4, (3, 3), strides=2, **dtypes)(x))
            x = nn.Conv(4, (3, 3), feature_group_count=2, kernel_dilation=2, **dtypes)(nn.relu(x))
            x = nn.BatchNorm(use_running_average=True, **dtypes)(x)
            return nn.Dense(2, **dtypes)(nn.avg_pool(nn.silu(x), (2, 2)).ravel())

    dtypes = {"dtype": draw.dtype, "param_dtype": draw.dtype}
    u, params, z = _made(draw, CNN(), draw(2, 8, 8, 1))
    params["batch_stats"] = jax.tree.map(lambda leaf: jnp.abs(leaf) + 0.5, params["batch_stats"])
    return u, params, z


def u_net(draw: Draw) -> Made:
    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            skip = nn.tanh(nn.Conv(2, (3, 3), **dtypes)(x))
            low = nn.tanh(nn.Conv(3, (3, 3), strides=(2, 2), **dtypes)(skip))
            high = nn.ConvTranspose(2, (2, 2), strides=(2, 2), **dtypes)(low)
            return nn.Conv(1, (3, 3), **dtypes)(jnp.concatenate([nn.tanh(high), skip], -1))

    dtypes = {"dtype": draw.dtype, "param_dtype": draw.dtype}
    return _made(draw, UNet(), draw(2, 4, 4, 1))


def attention(draw: Draw) -> Made:
    """A block with learned positions and a tied read-out, from tokens."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            embed = nn.Embed(6, 4, **dtypes)
            x = embed(tokens) + self.param("positions", nn.initializers.zeros, (5, 4), draw.dtype)
            y = nn.LayerNorm(**dtypes)(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2, **dtypes)(y, y)
            return embed.attend(x + nn.Dense(4, **dtypes)(nn.silu(nn.RMSNorm(**dtypes)(x))))

    dtypes = {"dtype": draw.dtype, "param_dtype": draw.dtype}
    return _made(draw, Block(), draw.integers(0, 6, 2, 5))


def lstm(draw: Draw) -> Made:
    cell = nn.OptimizedLSTMCell(3, dtype=draw.dtype, param_dtype=draw.dtype)
    return _made(draw, nn.RNN(cell, reverse=True), draw(2, 4, 2))


def gru(draw: Draw) -> Made:
    return _made(draw, nn.RNN(nn.GRUCell(3, dtype=draw.dtype, param_dtype=draw.dtype)), draw(2, 4, 2))


def scanned_layers(draw: Draw) -> Made:
    """nn.scan over rematerialised layers with stacked parameters."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: None) -> Any:
            return nn.tanh(nn.Dense(3, dtype=draw.dtype, param_dtype=draw.dtype)(x)), None

    stack = nn.scan(nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return stack()(x, None)[0]

    return _made(draw, Network(), draw(3, 3))


CASES = (
    Case("Linen MLP", mlp),
    Case("Linen CNN", cnn),
    Case("Linen U-Net", u_net),
    Case("Linen attention", attention),
    Case("Linen LSTM", lstm),
    Case("Linen GRU", gru),
    Case("Linen scanned layers", scanned_layers),
)
