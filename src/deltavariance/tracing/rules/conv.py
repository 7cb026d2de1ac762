"""Convolutions with a parameter as kernel: one, two or three dimensions, strided, dilated, grouped, transposed."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deltavariance.tracing.rules.base import Match, Rule
from deltavariance.tracing.views import Reshape, View


@dataclass(frozen=True)
class Convolution(Rule):
    """Patches of the input against cotangents, pixel by pixel: T runs over images and output pixels."""

    x_spec: tuple[int, ...]
    out_spec: tuple[int, ...]
    kernel: tuple[int, ...]
    out_shape: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    x_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    groups: int

    def inputs(self, recorded: jax.Array) -> jax.Array:
        batch, channel, *space = self.x_spec
        x = jnp.transpose(recorded, (batch, *space, channel))
        edges = [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(self.padding, self.x_dilation, strict=True)
        ]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
        # One strided slice for each tap of the kernel: XLA on a CPU is far quicker at this than at the convolution
        # with an identity kernel that `conv_general_dilated_patches` makes.
        patches = jnp.stack(
            [self._shifted(x, offset) for offset in itertools.product(*map(range, self.kernel))], axis=-2
        )
        images, channels = x.shape[0], x.shape[-1]
        per_group = channels // self.groups
        pixels = images * math.prod(self.out_shape)
        patches = jnp.reshape(patches, (pixels, math.prod(self.kernel), self.groups, per_group))
        patches = jnp.transpose(patches, (2, 0, 1, 3))
        return jnp.reshape(patches, (self.groups, pixels, math.prod(self.kernel) * per_group))

    def _shifted(self, x: jax.Array, offset: tuple[int, ...]) -> jax.Array:
        starts = [k * dilation for k, dilation in zip(offset, self.kernel_dilation, strict=True)]
        stops = [
            start + (size - 1) * stride + 1
            for start, size, stride in zip(starts, self.out_shape, self.strides, strict=True)
        ]
        return lax.slice(x, (0, *starts, 0), (x.shape[0], *stops, x.shape[-1]), (1, *self.strides, 1))

    def cotangents(self, cotangent: jax.Array, recorded: jax.Array) -> jax.Array:
        batch, channel, *space = self.out_spec
        g = jnp.transpose(cotangent, (batch, *space, channel))
        g = jnp.reshape(g, (-1, self.groups, g.shape[-1] // self.groups))
        return jnp.transpose(g, (1, 0, 2))


def match(eqn: Any, position: int, view: View) -> Match | None:
    """`view` is operand number `position` of a `conv_general_dilated`; only a kernel is known."""
    settings = eqn.params
    x, kernel, y = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    if position != 1 or settings["batch_group_count"] != 1 or not jnp.issubdtype(y.dtype, jnp.floating):
        return None
    numbers = settings["dimension_numbers"]
    out_channel, in_channel, *space = numbers.rhs_spec
    groups = settings["feature_group_count"]
    outputs = kernel.shape[out_channel]
    per_group = kernel.shape[in_channel]
    kernel_shape = tuple(kernel.shape[axis] for axis in space)
    if 0 in x.shape or 0 in y.shape or 0 in kernel.shape:
        return None
    rule = Convolution(
        x_spec=tuple(numbers.lhs_spec),
        out_spec=tuple(numbers.out_spec),
        kernel=kernel_shape,
        out_shape=tuple(y.shape[axis] for axis in numbers.out_spec[2:]),
        strides=tuple(settings["window_strides"]),
        padding=tuple(tuple(edge) for edge in settings["padding"]),
        x_dilation=tuple(settings["lhs_dilation"]),
        kernel_dilation=tuple(settings["rhs_dilation"]),
        groups=groups,
    )
    # The kernel as [groups, kernel positions × inputs of a group, outputs of a group].
    inputs = math.prod(kernel_shape) * per_group
    path = view.path.then(
        Reshape((*space, in_channel, out_channel), (inputs, groups, outputs // groups))
    ).then(Reshape((1, 0, 2), (groups, inputs, outputs // groups)))
    return Match(rule, eqn.invars[0], view, path, (groups, inputs, outputs // groups))
