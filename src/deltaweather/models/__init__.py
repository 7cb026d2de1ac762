"""Forecasters: a mesh network in the manner of GraphCast, a convolutional network, and one for single points."""

from .build import ModelConfig as ModelConfig
from .build import Sizes as Sizes
from .build import build_model as build_model
from .convolution import ConvolutionConfig as ConvolutionConfig
from .convolution import ConvolutionNet as ConvolutionNet
from .graph import EdgeMLP as EdgeMLP
from .graph import GraphConfig as GraphConfig
from .graph import GraphNet as GraphNet
from .layers import Dropout as Dropout
from .site import SiteConfig as SiteConfig
from .site import SiteNet as SiteNet
from .step import Forcing as Forcing
from .step import Static as Static
from .step import StepModel as StepModel
