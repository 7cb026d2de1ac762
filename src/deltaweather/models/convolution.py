"""The convolutional forecaster."""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key

from .layers import Convolution, Dense, Dropout, LayerNorm, silence, split_dropout
from .step import Static, StepModel


@dataclass(frozen=True)
class ConvolutionConfig:
    """Sizes of a `ConvolutionNet`. `periodic` belongs to grids that go round the globe."""

    history: int = 2
    width: int = 32
    blocks: int = 3
    periodic: bool = False
    dilations: tuple[int, ...] = (1, 2)


class ResidualBlock(eqx.Module):
    """`x + conv(dropout(silu((1 + γ) · conv(norm(x)) + β)))`, with γ and β linear in the functions of the date."""

    norm: LayerNorm
    first: Convolution
    second: Convolution
    modulation: Dense

    def __init__(
        self, width: int, basis: int, dilation: int, config: ConvolutionConfig, *, key: Key[Array, ""]
    ) -> None:
        one, two, three = jax.random.split(key, 3)
        self.norm = LayerNorm(width)
        self.first = Convolution(width, width, periodic=config.periodic, key=one, dilation=dilation)
        self.second = Convolution(width, width, periodic=config.periodic, key=two, scale=0.3)
        self.modulation = Dense(basis, 2 * width, key=three, scale=0.1)

    def __call__(
        self, x: Float[Array, "lat lon width"], time: Float[Array, " basis"], dropout: Dropout | None
    ) -> Float[Array, "lat lon width"]:
        scale, shift = jax.numpy.split(self.modulation(time), 2)
        inner = jax.nn.silu((1 + scale) * self.first(self.norm(x)) + shift)
        return x + self.second(silence(inner, dropout))


class ConvolutionNet(StepModel):
    """A residual convolutional network at the grid's own resolution.

    Longitude wraps around on a global grid; a regional grid repeats its sides (see `Convolution`), so what
    comes in through them is guessed from the outermost cells. Dropout acts inside the blocks.
    """

    unrolled: ClassVar[bool] = True
    history: int = eqx.field(static=True)
    embed: Convolution
    blocks: tuple[ResidualBlock, ...]
    norm: LayerNorm
    readout: Dense

    def __init__(
        self, inputs: int, basis: int, channels: int, config: ConvolutionConfig, *, key: Key[Array, ""]
    ) -> None:
        first, last, *keys = jax.random.split(key, config.blocks + 2)
        self.history = config.history
        self.embed = Convolution(inputs, config.width, periodic=config.periodic, key=first)
        self.blocks = tuple(
            ResidualBlock(config.width, basis, config.dilations[i % len(config.dilations)], config, key=k)
            for i, k in enumerate(keys)
        )
        self.norm = LayerNorm(config.width)
        self.readout = Dense(config.width, channels, key=last, scale=0.1)

    def network(
        self,
        cells: Float[Array, "lat lon input"],
        time: Float[Array, " basis"],
        static: Static,
        *,
        dropout: Dropout | None,
    ) -> Float[Array, "lat lon channel"]:
        x = self.embed(cells)
        for block, part in zip(self.blocks, split_dropout(dropout, len(self.blocks)), strict=True):
            x = block(x, time, part)
        return self.readout(self.norm(x))
