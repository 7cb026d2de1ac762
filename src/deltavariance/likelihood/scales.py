"""From what a user calls a scale to the covariance of the noise across the outputs of one case."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from deltavariance.likelihood.checks import check_positive, concrete
from deltavariance.likelihood.noise_estimate import NoiseEstimate
from deltavariance.likelihood.noise_models import FullCovariance, IndependentNoise, OutputNoise


def normalise(scale: Any) -> Any:
    """A given scale as it is kept: a Python number (hashable), an array, or an `OutputNoise`; checked."""
    noise = scale.noise if isinstance(scale, NoiseEstimate) else scale
    if isinstance(noise, OutputNoise):
        return noise
    if isinstance(noise, (bool, np.bool_)):
        raise TypeError(
            "`scale` is a boolean; it should be a standard deviation in the units of the targets."
        )
    if isinstance(noise, (int, float, np.floating, np.integer)):
        check_positive("`scale`", float(noise))
        return float(noise)
    try:
        array = jnp.asarray(noise)
    except TypeError as error:
        raise TypeError(
            "`scale` should be a number, an array of standard deviations, a root of the covariance [k, k],"
            " a function scale(x) or scale(params, x), or the result of `dv.estimate_noise`; got"
            f" {type(noise).__name__}."
        ) from error
    array = array.astype(jnp.result_type(array, jnp.float32))
    if (
        array.ndim != 2 or array.shape[0] != array.shape[1]
    ):  # a square matrix may be a root, with entries of any sign
        check_positive("`scale`", array)
    return array


def reads_as_covariance(scale: Any) -> bool:
    """Whether a matrix is symmetric with correlations: someone's covariance rather than a root of one."""
    if isinstance(scale, (float, OutputNoise)) or not concrete(scale):
        return False
    matrix = np.asarray(scale)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
        return False
    off = matrix - np.diag(np.diag(matrix))
    return bool(np.any(off)) and bool(
        np.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-8 * np.abs(matrix).max())
    )


def resolve(scale: Any, shape: tuple[int, ...], *, symmetric: bool = False) -> OutputNoise:
    """The noise of one case whose output has this shape.

    Anything that broadcasts to the shape is a standard deviation per output; a matrix `[k, k]`, k the number
    of outputs, that does not is a root of their covariance.
    """
    size = math.prod(shape)
    if isinstance(scale, OutputNoise):
        if scale.size != size:
            raise ValueError(
                f"The noise was given for {scale.size} outputs, and the prediction for one example has shape"
                f" {shape}, that is {size} outputs."
            )
        return scale
    array = jnp.asarray(scale)
    if _broadcasts(array.shape, shape):
        return IndependentNoise(jnp.broadcast_to(array, shape).reshape(size))
    if array.shape == (size, size):
        if symmetric:
            raise ValueError(
                f"`scale` is a symmetric matrix {array.shape} for {size} outputs, which looks like their covariance. A"
                " matrix given as `scale` is a root R of the covariance, C = R Rᵀ, in the units of the targets. Pass"
                " `covariance=C`, or its Cholesky factor as `scale`."
            )
        return FullCovariance.from_root(array)
    raise ValueError(
        f"`scale` has shape {array.shape}, which fits neither the prediction's shape {shape} for one example"
        f" nor a root [{size}, {size}] of the covariance of its outputs."
    )


def elementwise(scale: Any, shape: tuple[int, ...], family: str) -> Array:
    """A standard deviation or other spread per output, for the families that have no covariance."""
    array = jnp.asarray(scale)
    if not _broadcasts(array.shape, shape):
        raise ValueError(
            f"The {family} log-likelihood has one scale per output: `scale` of shape {array.shape} does not"
            f" broadcast to the prediction's shape {shape}."
        )
    return jnp.broadcast_to(array, shape)


def is_function(scale: Any) -> bool:
    """Whether a scale is a function of the inputs, rather than given numbers."""
    return callable(scale) and not isinstance(scale, (jax.Array, np.ndarray, OutputNoise))


def takes_params(scale: Callable[..., Any]) -> bool:
    """Whether a scale function is `scale(params, x)` rather than `scale(x)`."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = list(inspect.signature(scale).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    required = sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)
    if required not in (1, 2):
        raise TypeError(
            f"`scale` is a function with {required} required positional arguments; it should be scale(x) or"
            " scale(params, x). Wrap it: `scale=lambda params, x: ...`."
        )
    return required == 2


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))
