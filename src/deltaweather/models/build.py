"""From a configuration and the sizes of the data to a model."""

from dataclasses import dataclass

from jaxtyping import Array, Key

from .convolution import ConvolutionConfig, ConvolutionNet
from .graph import GraphConfig, GraphNet
from .site import SiteConfig, SiteNet
from .step import Forcing, Static, StepModel, input_size

ModelConfig = ConvolutionConfig | GraphConfig | SiteConfig


@dataclass(frozen=True)
class Sizes:
    """What a model must know of the data: numbers of channels, functions of the date, and fields."""

    channels: int
    basis: int
    forcing_fields: int
    static_fields: int

    @classmethod
    def of(cls, forcing: Forcing, static: Static) -> "Sizes":
        return cls(
            static.tendency.shape[0],
            forcing.time.shape[-1],
            forcing.fields.shape[-1],
            static.fields.shape[-1],
        )

    def inputs(self, history: int) -> int:
        return input_size(
            channels=self.channels,
            history=history,
            forcing_fields=self.forcing_fields,
            static_fields=self.static_fields,
        )


def build_model(config: ModelConfig, sizes: Sizes, static: Static, *, key: Key[Array, ""]) -> StepModel:
    """An untrained model. All of its inexact arrays are parameters."""
    inputs = sizes.inputs(config.history)
    match config:
        case ConvolutionConfig():
            return ConvolutionNet(inputs, sizes.basis, sizes.channels, config, key=key)
        case SiteConfig():
            return SiteNet(inputs, sizes.basis, sizes.channels, config, key=key)
        case GraphConfig():
            if static.graph is None:
                raise ValueError(
                    "A mesh network needs static.graph: build it with GraphConfig.build_graph(grid)."
                )
            return GraphNet(inputs, sizes.basis, sizes.channels, config, static.graph, key=key)
