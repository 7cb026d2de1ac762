"""What `estimate_noise` found: the spread of the residuals, in the form that a likelihood takes."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance.likelihood.noise_models import OutputNoise


class NoiseEstimate(eqx.Module):
    """Noise estimated from residuals; pass it as `scale=` to `gaussian_log_likelihood`.

    - `noise`: a number for all outputs, an array with one standard deviation per output, or a covariance;
    - `scale`: the standard deviation per output, in the output's shape, whichever the structure;
    - `num_data`: how many examples it rests on, weights counted;
    - `shrinkage`: the part of every correlation that was taken away, between 0 and 1;
    - `largest_eigenvalue`: of the correlation matrix between the outputs. An independent Gaussian counts the
      evidence along that direction so many times over. None where the correlations were not estimated.
    """

    noise: float | Array | OutputNoise
    scale: Float[Array, "*k"]
    num_data: float = eqx.field(static=True)
    shrinkage: float = eqx.field(static=True, default=0.0)
    largest_eigenvalue: float | None = eqx.field(static=True, default=None)

    def __float__(self) -> float:
        if not isinstance(self.noise, float):
            raise TypeError(
                f"This noise estimate is not one number: it has {self.scale.size} outputs. Use its `scale`,"
                " the standard deviation of each, or estimate one number with `structure=dv.noise.Common()`."
            )
        return self.noise

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.scale, dtype=dtype)

    def as_matrix(self) -> Float[Array, "k k"]:
        """The covariance `[k, k]` across the flattened outputs."""
        if isinstance(self.noise, OutputNoise):
            return self.noise.as_matrix()
        return jnp.diag(self.scale.reshape(-1) ** 2)
