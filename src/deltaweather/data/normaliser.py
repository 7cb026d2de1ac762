"""From physical units to the units a network works in, and back."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

PerChannel = Float[np.ndarray, "channels"] | Float[Array, "channels"]
Fields = Float[np.ndarray, "*n channels"] | Float[Array, "*n channels"]


class Normaliser(eqx.Module):
    """Per-channel transform and scaling, exactly invertible for what a model can produce.

    `z = (T(x) - mean) / std`, where T is the identity, or `log(1 + x / s)` for channels with a
    `log_scale` s > 0 (rain). All statistics are of T(x), over the training years and area weighted.
    `difference_std` is the deviation of `T(x_t+1) - T(x_t)`: a network that predicts the normalised
    difference d steps by `z_next = z + d * difference_scale`.

    Observed rain just below zero (packing) is taken as zero. The inverse `s (exp(y) - 1)` is bounded below by
    -s and has a positive slope everywhere, so that gradients pass where a forecast is dry.

    **Shapes** statistics `[channels]`; fields `[..., channels]`, NumPy or JAX.

    >>> n = Normaliser(*(np.ones(1, np.float32) * v for v in (0.0, 2.0, 1.0, 1e-3)))
    >>> x = np.array([[0.0], [1e-3]], np.float32)
    >>> bool(np.allclose(n.denormalise(n.normalise(x)), x))
    True
    """

    mean: PerChannel
    std: PerChannel
    difference_std: PerChannel
    log_scale: PerChannel  # 0: identity

    @property
    def difference_scale(self) -> Float[Array, "channels"]:
        """`difference_std / std`: the size of a typical six-hour change in normalised units."""
        return jnp.asarray(self.difference_std) / jnp.asarray(self.std)

    def normalise(self, x: Fields) -> Float[Array, "*n channels"]:
        """`(T(x) - mean) / std`, in JAX."""
        is_log = jnp.asarray(self.log_scale) > 0
        amount = jnp.maximum(jnp.where(is_log, x, 0.0), 0.0) / jnp.where(is_log, self.log_scale, 1.0)
        return (jnp.where(is_log, jnp.log1p(amount), x) - self.mean) / self.std

    def denormalise(self, z: Fields) -> Float[Array, "*n channels"]:
        """The inverse of `normalise`, in JAX."""
        y = jnp.asarray(z) * self.std + self.mean
        is_log = jnp.asarray(self.log_scale) > 0
        # exp of an unused channel could overflow and poison the gradient through `where`
        grown = jnp.expm1(jnp.where(is_log, y, 0.0)) * self.log_scale
        return jnp.where(is_log, grown, y)

    def normalise_numpy(self, x: Float[np.ndarray, "*n channels"]) -> Float[np.ndarray, "*n channels"]:
        """`normalise` without a device transfer, for the reading of batches."""
        y = transform(x, np.asarray(self.log_scale))
        return np.asarray((y - np.asarray(self.mean)) / np.asarray(self.std), dtype=np.float32)


def transform(
    x: Float[np.ndarray, "*n channels"], log_scale: Float[np.ndarray, "channels"]
) -> Float[np.ndarray, "*n channels"]:
    """T(x): the identity where `log_scale` is 0, log(1 + max(x, 0)/log_scale) elsewhere."""
    y = x.copy()
    for k in np.flatnonzero(log_scale > 0):  # few of many channels
        y[..., k] = np.log1p(np.maximum(x[..., k], 0.0) / log_scale[k])
    return y
