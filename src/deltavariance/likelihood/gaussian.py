"""Gaussian log-likelihoods: one noise for all cases, or a noise that depends on the inputs."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, Scalar

from deltavariance.likelihood import scales
from deltavariance.likelihood.base import (
    LogLikelihood,
    OutputDistribution,
    Predict,
    Split,
    flatten,
    match_target,
)
from deltavariance.likelihood.noise_models import FullCovariance, IndependentNoise, OutputNoise


class Gaussian(OutputDistribution):
    """`N(mean, C)` over the outputs of one case, the noise C given."""

    mean: Float[Array, "*k"]
    noise: OutputNoise
    allow_missing: bool = eqx.field(static=True, default=False)

    def log_prob(self, y: Any) -> Scalar:
        target = match_target(self.mean, y)
        noise = self.noise
        count: Any = self.mean.size
        residual = target - self.mean
        if self.allow_missing:
            mask = ~jnp.isnan(target)
            # The mean itself takes a missing target's place, so that no NaN enters the gradient.
            residual = jnp.where(mask, target, self.mean) - self.mean
            noise, count = noise.observed(mask.reshape(-1)), jnp.sum(mask)
        quadratic = noise.quadratic(residual.reshape(-1))
        return -0.5 * (quadratic + noise.log_det() + count * math.log(2.0 * math.pi))

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*k"]:
        draw = jax.random.normal(key, (self.mean.size,), self.dtype)
        return self.mean + self.noise.root_times(draw).reshape(self.mean.shape)

    @property
    def rank(self) -> int:
        return self.mean.size

    def information_root_times(self, vector: Float[Array, " r"]) -> Float[Array, " k"]:
        return self.noise.precision_root_times(vector)

    @property
    def dtype(self) -> Any:
        return self.mean.dtype


class GaussianWithScale(OutputDistribution):
    """`N(mean, scale)` where the scale is part of the output, because it depends on the inputs.

    The output is the pair (mean, scale). Its information is `1/s²` for a mean and `2/s²` for a standard
    deviation s; where the scale does not depend on the parameters (`learned=False`) its rows of the root are
    zero.
    """

    mean: Float[Array, "*k"]
    scale: Any
    learned: bool = eqx.field(static=True)
    allow_missing: bool = eqx.field(static=True, default=False)

    def _given(self) -> Gaussian:
        return Gaussian(self.mean, scales.resolve(self.scale, self.mean.shape), self.allow_missing)

    def log_prob(self, y: Any) -> Scalar:
        return self._given().log_prob(y)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*k"]:
        return self._given().sample(key)

    @property
    def rank(self) -> int:
        return self.mean.size * (2 if self.learned else 1)

    def information_root_times(self, vector: Float[Array, " r"]) -> Float[Array, " k"]:
        noise = self._given().noise
        size = self.mean.size
        for_mean = noise.precision_root_times(vector[:size])
        if not self.learned:
            return jnp.concatenate([for_mean, jnp.zeros_like(flatten(self.scale))])
        if not isinstance(noise, IndependentNoise):
            raise ValueError(
                "The exact information is known for a learned scale per output, and not for a learned"
                " covariance. Use `dv.model_fisher`, which draws labels, or let `scale(params, x)` return a"
                " standard deviation per output."
            )
        spread = lambda scale: jnp.broadcast_to(scale, self.mean.shape).reshape(size)  # noqa: E731
        _, gather = jax.vjp(spread, jnp.asarray(self.scale))
        (for_scale,) = gather(math.sqrt(2.0) * noise.precision_root_times(vector[size:]))
        return jnp.concatenate([for_mean, for_scale.reshape(-1)])

    @property
    def dtype(self) -> Any:
        return self.mean.dtype


class GaussianLogLikelihood(LogLikelihood):
    """`log N(y; f(params, x), C)` with a given noise C; see `gaussian_log_likelihood`."""

    scale: float | Array | OutputNoise
    allow_missing: bool = eqx.field(static=True, default=False)
    symmetric: bool = eqx.field(static=True, default=False)  # the scale, where it is a matrix

    def distribution(self, output: Any) -> Gaussian:
        mean = _at_least_single(output)
        noise = scales.resolve(self.scale, mean.shape, symmetric=self.symmetric)
        return Gaussian(mean, noise, self.allow_missing)


class HeteroscedasticLogLikelihood(LogLikelihood):
    """`log N(y; f(params, x), scale(params, x))`; its output is the pair (mean, scale)."""

    scale: Callable[..., Any]
    learned: bool = eqx.field(static=True, default=True)
    allow_missing: bool = eqx.field(static=True, default=False)

    def predict(self, params: Any, x: Any) -> tuple[Array, Any]:
        scale = self.scale(params, x) if self.learned else self.scale(x)
        return _at_least_single(self.f(params, x)), scale

    def distribution(self, output: tuple[Any, Any]) -> GaussianWithScale:
        mean, scale = output
        return GaussianWithScale(mean, scale, self.learned, self.allow_missing)


def gaussian_log_likelihood(
    f: Predict,
    *,
    scale: Any = None,
    covariance: ArrayLike | OutputNoise | None = None,
    split: Split | None = None,
    allow_missing: bool = False,
) -> GaussianLogLikelihood | HeteroscedasticLogLikelihood:
    """The log-density of a Gaussian around `f(params, x)`, normalising constants included.

    `log N(y; f(params, x), C) = -½ (y - f)ᵀ C⁻¹ (y - f) - ½ log det C - ½ k log 2π`

    over the k outputs of one case, of any shape and flattened for C. The noise must be the real one: with the
    scale twice too small, F⁻¹/N comes out sixteen times too small and H⁻¹/N four times. It is given by
    exactly one of

    - `scale`, a standard deviation in the units of y: a number; an array that broadcasts to the output's
      shape; a matrix `[k, k]` that does not, taken for a root R of the covariance, `C = R Rᵀ` (a Cholesky
      factor, say; `diag(s)` means the same as `s`, and a symmetric matrix is refused as ambiguous); a
      function `scale(x)` or `scale(params, x)` that returns one of these, when the noise depends on the
      inputs; or the result of `dv.estimate_noise(f, params, data)`;
    - `covariance`, the matrix C `[k, k]` itself, or a `dv.LowRankCovariance(diagonal, factor)`.

    With correlated outputs an independent Gaussian counts the same evidence several times: tr F then exceeds
    tr H by a large factor, and both F⁻¹/N and H⁻¹/N come out too small.

    `example` is `(x, y)` or `{"x": x, "y": y}`, else pass `split=`, a function from an example to `(x, y)`.
    With `allow_missing=True` a NaN in y marks an output that was not observed, and the density is that of the
    others.

    Cost beyond f: O(k), with a full covariance O(k²), with one of rank r O(k r).

    >>> import jax.numpy as jnp
    >>> log_likelihood = gaussian_log_likelihood(lambda params, x: params * x, scale=0.5)
    >>> print(f"{log_likelihood(jnp.array(2.0), (1.0, 2.5)):.4f}")      # -½ - log 0.5 - ½ log 2π
    -0.7258
    """
    if (scale is None) == (covariance is None):
        raise ValueError(
            "gaussian_log_likelihood needs the noise, by exactly one of `scale` (standard deviations) and"
            " `covariance`;"
            + (" neither was given." if scale is None else " both were given.")
            + " Where it is not known: `scale=dv.estimate_noise(f, params, data)`."
        )
    if covariance is not None:
        noise = covariance if isinstance(covariance, OutputNoise) else FullCovariance.of(covariance)
        return GaussianLogLikelihood(f, noise, allow_missing, split=split)
    if scales.is_function(scale):
        return HeteroscedasticLogLikelihood(f, scale, scales.takes_params(scale), allow_missing, split=split)
    given = scales.normalise(scale)
    return GaussianLogLikelihood(f, given, allow_missing, scales.reads_as_covariance(given), split=split)


def _at_least_single(output: Any) -> Array:
    """The output in at least single precision, in which the density is computed."""
    array = jnp.asarray(output)
    return array.astype(jnp.result_type(array, jnp.float32))
