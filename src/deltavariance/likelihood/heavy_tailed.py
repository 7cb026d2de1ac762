"""Laplace and Student log-likelihoods, for residuals with heavier tails than a Gaussian's."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from deltavariance.likelihood import scales
from deltavariance.likelihood.base import LogLikelihood, OutputDistribution, Predict, Split, match_target
from deltavariance.likelihood.checks import check_positive
from deltavariance.likelihood.noise_estimate import NoiseEstimate
from deltavariance.likelihood.noise_models import OutputNoise


class _LocationFamily(OutputDistribution):
    """Independent outputs, each a location plus a scale times standard noise."""

    location: eqx.AbstractVar[Float[Array, "*k"]]
    scale: eqx.AbstractVar[Float[Array, "*k"]]

    @property
    def rank(self) -> int:
        return self.location.size

    @property
    def dtype(self) -> Any:
        return self.location.dtype


class Laplace(_LocationFamily):
    """Density `exp(-|y - location| / b) / 2b`; its information about the location is `1/b²`."""

    location: Float[Array, "*k"]
    scale: Float[Array, "*k"]

    def log_prob(self, y: Any) -> Scalar:
        residual = match_target(self.location, y) - self.location
        return -jnp.sum(jnp.abs(residual) / self.scale + jnp.log(2.0 * self.scale))

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*k"]:
        return self.location + self.scale * jax.random.laplace(key, self.location.shape, self.dtype)

    def information_root_times(self, vector: Float[Array, " r"]) -> Float[Array, " k"]:
        return vector / self.scale.reshape(-1)


class Student(_LocationFamily):
    """Student's t with ν degrees of freedom; the information about its location is `(ν+1)/((ν+3) scale²)`."""

    location: Float[Array, "*k"]
    scale: Float[Array, "*k"]
    df: int | float | Array

    def log_prob(self, y: Any) -> Scalar:
        z = (match_target(self.location, y) - self.location) / self.scale
        df = jnp.asarray(self.df, self.dtype)
        constant = gammaln((df + 1.0) / 2.0) - gammaln(df / 2.0) - 0.5 * jnp.log(df * math.pi)
        return jnp.sum(constant - jnp.log(self.scale) - 0.5 * (df + 1.0) * jnp.log1p(z**2 / df))

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*k"]:
        return self.location + self.scale * jax.random.t(key, self.df, self.location.shape, self.dtype)

    def information_root_times(self, vector: Float[Array, " r"]) -> Float[Array, " k"]:
        df = jnp.asarray(self.df, self.dtype)
        return jnp.sqrt((df + 1.0) / (df + 3.0)) * vector / self.scale.reshape(-1)


class LaplaceLogLikelihood(LogLikelihood):
    """See `laplace_log_likelihood`."""

    scale: float | Array

    def distribution(self, output: Any) -> Laplace:
        return Laplace(*_location_and_scale(output, self.scale, "Laplace"))


class StudentLogLikelihood(LogLikelihood):
    """See `student_log_likelihood`."""

    scale: float | Array
    df: int | float | Array

    def distribution(self, output: Any) -> Student:
        return Student(*_location_and_scale(output, self.scale, "Student"), self.df)


def laplace_log_likelihood(f: Predict, *, scale: Any, split: Split | None = None) -> LaplaceLogLikelihood:
    """`Σ_k -|y_k - f_k| / b_k - log 2 b_k`, with `scale` b a number or an array that broadcasts to the
    output.

    The median absolute residual is `b log 2`, the mean one b. The density has a kink at y = f: its Hessian is
    zero almost everywhere, and only the Fisher information `1/b²` describes it.

    >>> import jax.numpy as jnp
    >>> log_likelihood = laplace_log_likelihood(lambda params, x: params * x, scale=0.5)
    >>> print(f"{log_likelihood(jnp.array(2.0), (1.0, 2.5)):.4f}")
    -1.0000
    """
    return LaplaceLogLikelihood(f, _given(scale, "laplace"), split=split)


def student_log_likelihood(
    f: Predict, *, scale: Any, df: int | float | Array, split: Split | None = None
) -> StudentLogLikelihood:
    """The log-density of `f(params, x) + scale · t_df`, summed over independent outputs.

    `df` is the number of degrees of freedom, a positive number; the standard deviation of the noise is
    `scale · sqrt(df / (df - 2))`.

    >>> import jax.numpy as jnp
    >>> log_likelihood = student_log_likelihood(lambda params, x: params * x, scale=1.0, df=1.0)
    >>> print(f"{log_likelihood(jnp.array(2.0), (1.0, 2.0)):.4f}")                     # Cauchy: -log π
    -1.1447
    """
    check_positive("`df`", df)
    return StudentLogLikelihood(f, _given(scale, "student"), df, split=split)


def _given(scale: Any, family: str) -> Any:
    if scales.is_function(scale) or isinstance(scale, (NoiseEstimate, OutputNoise)):
        raise TypeError(
            f"{family}_log_likelihood takes a number or an array as `scale`. A scale that depends on the"
            " inputs is written with `dv.distribution_log_likelihood`, whose prediction returns a"
            " distribution."
        )
    value = scales.normalise(scale)
    check_positive("`scale`", value)
    return value


def _location_and_scale(output: Any, scale: Any, family: str) -> tuple[Array, Array]:
    location = jnp.asarray(output)
    location = location.astype(jnp.result_type(location, jnp.float32))
    return location, scales.elementwise(scale, location.shape, family).astype(location.dtype)
