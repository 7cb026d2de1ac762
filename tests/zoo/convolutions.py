"""Convolutions: ranks, strides, padding, dilation, groups, transposed; the networks made of them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .case import Case, Draw, Made


def _conv(
    name: str,
    x: Sequence[int],
    w: Sequence[int],
    layout: tuple[str, str, str],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    **options: Any,
) -> Case:
    """Σ sin(conv(x, w)): x and w include the batch axis of the layout."""

    def build(draw: Draw) -> Made:
        def u(p: Any, z: Any) -> jax.Array:
            spatial = strides or (1,) * (len(x) - 2)
            y = lax.conv_general_dilated(z, p["w"], spatial, padding, dimension_numbers=layout, **options)
            return jnp.sum(jnp.sin(y + 0.1 * jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))

        return u, {"w": draw(*w)}, draw(2, *x)

    return Case(f"convolution, {name}", build)


def group_norm(x: jax.Array, groups: int, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Over the last axis of an image [H, W, C]."""
    split = x.reshape(*x.shape[:2], groups, -1)
    centred = split - split.mean((0, 1, 3), keepdims=True)
    normal = centred * lax.rsqrt(jnp.mean(centred**2, (0, 1, 3), keepdims=True) + 1e-3)
    return normal.reshape(x.shape) * scale + shift


def _conv2d(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x[None], w, (stride, stride), "SAME", dimension_numbers=layout)[0]


def cnn_group_norm(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        y = jax.nn.silu(group_norm(_conv2d(x, p["c1"], 2) + p["b1"], 2, p["s1"], p["t1"]))
        y = jax.nn.silu(group_norm(_conv2d(y, p["c2"]), 1, p["s2"], p["t2"]))
        return jnp.sum(
            jnp.tanh(lax.reduce_window(y, -jnp.inf, lax.max, (2, 2, 1), (2, 2, 1), "SAME").ravel() @ p["w"])
        )

    norms = {"s1": draw.positive(4), "t1": draw(4), "s2": draw.positive(4), "t2": draw(4)}
    params = {"c1": draw(3, 3, 2, 4), "b1": draw(4), "c2": draw(3, 3, 4, 4), "w": draw(16, 3)} | norms
    return u, params, draw(2, 8, 7, 2)


def u_net(draw: Draw) -> Made:
    """Down, across, and up by a transposed convolution, with a skip; the answer is an image."""

    def u(p: Any, x: Any) -> jax.Array:
        skip = jnp.tanh(_conv2d(x, p["in"]) + p["b"])
        low = jnp.tanh(_conv2d(skip, p["down"], 2))
        low = jnp.tanh(_conv2d(low, p["across"]))
        high = lax.conv_transpose(low[None], p["up"], (2, 2), "SAME")[0]
        return _conv2d(jnp.concatenate([high, skip], -1), p["out"])[..., 0]

    params = {"in": draw(3, 3, 1, 2), "b": draw(2), "down": draw(3, 3, 2, 3), "across": draw(1, 1, 3, 3)}
    return u, params | {"up": draw(2, 2, 3, 2), "out": draw(3, 3, 4, 1)}, draw(2, 4, 4, 1)


def inner_vmaps(draw: Draw) -> Made:
    """vmap over images, over filters (a batched kernel) and over both at once."""

    def u(p: Any, x: Any) -> jax.Array:
        images = jax.vmap(lambda image: _conv2d(image, p["shared"]))(x)
        filters = jax.vmap(lambda w: _conv2d(x[0], w))(p["stack"])
        both = jax.vmap(_conv2d)(x, p["stack"])
        return jnp.sum(jnp.sin(images)) + jnp.sum(jnp.tanh(filters) * jnp.cos(both))

    return u, {"shared": draw(3, 3, 2, 2), "stack": draw(2, 2, 2, 2, 3)}, draw(2, 2, 4, 3, 2)


def the_kernel_is_the_image(draw: Draw) -> Made:
    """The parameter on the left, as a learned background; and a kernel seen through views."""

    def u(p: Any, x: Any) -> jax.Array:
        learned = lax.conv_general_dilated(p["image"], x, (1, 1), "VALID")
        w = jnp.flip(p["w"], (0, 1)).transpose(3, 2, 0, 1)
        return jnp.sum(jnp.tanh(learned)) + jnp.sum(
            jnp.sin(lax.conv_general_dilated(p["image"] * 2, w, (1, 1), "SAME"))
        )

    return u, {"image": draw(1, 2, 5, 4), "w": draw(3, 3, 2, 2)}, draw(2, 3, 2, 2, 2)


NWC, NCW = ("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW")
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
NDHWC, ODD = ("NDHWC", "DHWIO", "NDHWC"), ("HCNW", "IWOH", "WNCH")

CASES = (
    _conv("1d", (1, 7, 2), (3, 2, 3), NWC),
    _conv("1d, stride 3, valid, channels first", (1, 2, 11), (3, 2, 4), NCW, (3,), "VALID"),
    _conv("1d, causal and dilated", (1, 9, 2), (2, 2, 2), NWC, None, [(3, 0)], rhs_dilation=(3,)),
    _conv("2d, a batch of images", (3, 5, 4, 2), (3, 3, 2, 3), NHWC),
    _conv("2d, 1x1", (1, 4, 3, 3), (1, 1, 3, 2), NHWC),
    _conv("2d, stride, uneven padding", (1, 2, 7, 6), (3, 2, 3, 2), NCHW, (2, 3), [(0, 3), (2, 1)]),
    _conv("2d, negative padding", (1, 7, 6, 2), (2, 3, 2, 3), NHWC, (2, 1), [(-1, 1), (0, -2)]),
    _conv("2d, dilated groups", (1, 4, 7, 6), (6, 2, 2, 3), NCHW, rhs_dilation=(2, 1), feature_group_count=2),
    _conv("2d, depthwise, stride", (1, 6, 5, 3), (3, 2, 1, 6), NHWC, (2, 1), "SAME", feature_group_count=3),
    _conv("2d, transposed", (1, 3, 4, 2), (3, 2, 2, 3), NHWC, None, [(2, 1), (1, 1)], lhs_dilation=(2, 3)),
    _conv("2d, transposed, grouped, dilated", (1, 3, 3, 4), (2, 2, 2, 4), NHWC, (1, 2), [(1, 2), (2, 2)],
          lhs_dilation=(3, 2), rhs_dilation=(2, 1), feature_group_count=2),
    _conv("2d, strange layout", (5, 2, 3, 4), (2, 2, 4, 3), ODD),
    _conv("2d, batch groups", (4, 4, 3, 2), (2, 2, 2, 6), NHWC, None, "SAME", batch_group_count=2),
    _conv("3d, stride", (1, 4, 3, 5, 2), (2, 2, 3, 2, 2), NDHWC, (2, 1, 2)),
    _conv("3d, transposed, grouped", (1, 2, 3, 2, 4), (2, 2, 1, 2, 2), NDHWC, None, [(1, 1), (1, 0), (0, 0)],
          lhs_dilation=(2, 2, 1), feature_group_count=2),
    Case("CNN with GroupNorm", cnn_group_norm),
    Case("U-Net", u_net),
    Case("convolutions by vmap", inner_vmaps),
    Case("convolution of a parameter", the_kernel_is_the_image),
)  # fmt: skip
