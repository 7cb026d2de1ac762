"""The forecaster of single points."""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .layers import Dense, Dropout, LayerNorm, silence, split_dropout
from .step import Static, StepModel


@dataclass(frozen=True)
class SiteConfig:
    """Sizes of a `SiteNet`."""

    history: int = 4
    width: int = 64
    layers: int = 2


class SiteNet(StepModel):
    """A perceptron on the history of a place and the date, applied to every cell by itself.

    Made for records of one point; on a larger grid it is the forecast that knows nothing of its neighbours.
    """

    unrolled: ClassVar[bool] = False
    history: int = eqx.field(static=True)
    embed: Dense
    hidden: tuple[Dense, ...]
    norms: tuple[LayerNorm, ...]
    readout: Dense

    def __init__(
        self, inputs: int, basis: int, channels: int, config: SiteConfig, *, key: Key[Array, ""]
    ) -> None:
        first, last, *keys = jax.random.split(key, config.layers + 2)
        self.history = config.history
        self.embed = Dense(inputs + basis, config.width, key=first)
        self.hidden = tuple(Dense(config.width, config.width, key=k) for k in keys)
        self.norms = tuple(LayerNorm(config.width) for _ in keys)
        self.readout = Dense(config.width, channels, key=last, scale=0.1)

    def network(
        self,
        cells: Float[Array, "lat lon input"],
        time: Float[Array, " basis"],
        static: Static,
        *,
        dropout: Dropout | None,
    ) -> Float[Array, "lat lon channel"]:
        parts = split_dropout(dropout, len(self.hidden))
        dates = jnp.broadcast_to(time, (*cells.shape[:2], time.shape[0]))
        x = self.embed(jnp.concatenate([cells, dates], axis=-1))
        for layer, norm, part in zip(self.hidden, self.norms, parts, strict=True):
            x = x + layer(silence(jax.nn.silu(norm(x)), part))
        return self.readout(jax.nn.silu(x))
