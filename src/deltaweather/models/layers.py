"""The few layers that the forecasters are made of.

Every weight is used directly in a plain product (`x @ W` or `lax.conv_general_dilated`) and every inexact
array of a module is a trained parameter: what is fixed (graphs, fields, climatology) travels in `Static`.
That is what lets `deltavariance` keep the gradients of single cases in factors.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


class Dense(eqx.Module):
    """An affine map of the last axis, `x @ W + b`."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, *, key: Key[Array, ""], scale: float = 1.0) -> None:
        self.weight = (
            scale / max(inputs, 1) ** 0.5 * jax.random.truncated_normal(key, -2, 2, (inputs, outputs))
        )
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        return x @ self.weight + self.bias


class LayerNorm(eqx.Module):
    """Standardises the last axis, then scales and shifts it."""

    scale: Float[Array, " channels"]
    offset: Float[Array, " channels"]

    def __init__(self, channels: int) -> None:
        self.scale = jnp.ones(channels)
        self.offset = jnp.zeros(channels)

    def __call__(self, x: Float[Array, "... channels"]) -> Float[Array, "... channels"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        deviation = jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return centred * deviation * self.scale + self.offset


class MLP(eqx.Module):
    """Two affine maps with a swish between them and, if `normalised`, a LayerNorm behind them."""

    first: Dense
    second: Dense
    norm: LayerNorm | None

    def __init__(
        self, inputs: int, hidden: int, outputs: int, *, key: Key[Array, ""], normalised: bool = True
    ) -> None:
        one, two = jax.random.split(key)
        self.first = Dense(inputs, hidden, key=one)
        self.second = Dense(hidden, outputs, key=two)
        self.norm = LayerNorm(outputs) if normalised else None

    def __call__(
        self, x: Float[Array, "... inputs"], dropout: "Dropout | None" = None
    ) -> Float[Array, "... outputs"]:
        x = self.second(silence(jax.nn.silu(self.first(x)), dropout))
        return x if self.norm is None else self.norm(x)


class Convolution(eqx.Module):
    """A 3 × 3 convolution on a latitude–longitude grid that keeps its size.

    Longitude wraps around where `periodic`; all other sides repeat their outermost row or column. At a pole
    this means that the row beyond it is taken to equal the last one.
    """

    weight: Float[Array, "3 3 inputs outputs"]
    bias: Float[Array, " outputs"]
    periodic: bool = eqx.field(static=True)
    dilation: int = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        periodic: bool,
        key: Key[Array, ""],
        dilation: int = 1,
        scale: float = 1.0,
    ) -> None:
        deviation = scale / (9 * inputs) ** 0.5
        self.weight = deviation * jax.random.truncated_normal(key, -2, 2, (3, 3, inputs, outputs))
        self.bias = jnp.zeros(outputs)
        self.periodic = periodic
        self.dilation = dilation

    def __call__(self, x: Float[Array, "lat lon inputs"]) -> Float[Array, "lat lon outputs"]:
        d = self.dilation
        x = jnp.pad(x, ((0, 0), (d, d), (0, 0)), mode="wrap" if self.periodic else "edge")
        x = jnp.pad(x, ((d, d), (0, 0), (0, 0)), mode="edge")
        y = jax.lax.conv_general_dilated(
            x[None],
            self.weight,
            (1, 1),
            "VALID",
            rhs_dilation=(d, d),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return y[0] + self.bias


class Dropout(eqx.Module):
    """Which activations to silence: each with probability `rate`, the others rescaled by 1 / (1 - rate).

    Models hold no rate of their own. One is handed to them in training and in Monte Carlo dropout, and
    nothing at all (None) everywhere else; so a rate can also be introduced after training.
    """

    key: Key[Array, ""]
    rate: float | Float[Array, ""]

    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        keep = jax.random.bernoulli(self.key, 1.0 - self.rate, x.shape)
        return jnp.where(keep, x / (1.0 - self.rate), 0.0)


def split_dropout(dropout: Dropout | None, parts: int) -> list[Dropout | None]:
    """Independent masks for `parts` places of a network or steps of a forecast; nothing stays nothing."""
    if dropout is None:
        return [None] * parts
    return [Dropout(key, dropout.rate) for key in jax.random.split(dropout.key, parts)]


def silence(x: Float[Array, "*shape"], dropout: Dropout | None) -> Float[Array, "*shape"]:
    """Applies dropout where there is any."""
    return x if dropout is None else dropout(x)
