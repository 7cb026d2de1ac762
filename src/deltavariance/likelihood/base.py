"""What a likelihood is here: a prediction, and a distribution around it.

A log-likelihood made by this package can be called, as any function `(params, example) -> scalar`, and also
shows its two halves. That is what the Gauss–Newton matrix and the true Fisher need:

    predict(params, x)            -> output        the numbers that the parameters reach
    distribution(output)          -> p(y | output) with log_prob, sample and the root of its information
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

Predict = Callable[[Any, Any], Any]
Split = Callable[[Any], tuple[Any, Any]]


class OutputDistribution(eqx.Module):
    """`p(y | output)` for one case, as a function of the output that the parameters reach.

    The information is that of the distribution about its output, `E[s sᵀ]` with `s = ∂ log p(y | output) / ∂
    output` and y drawn from the distribution itself. For an exponential family in its natural parameters
    (categorical and Bernoulli logits, Poisson log-rates, the mean of a Gaussian whose noise is given) this is
    also the Hessian of `-log p`, whatever y is.
    """

    @abc.abstractmethod
    def log_prob(self, y: Any) -> Scalar:
        """`log p(y | output)`, summed over the output's entries, with every normalising constant."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Any:
        """One draw of y."""

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """r, the number of columns of the information's root."""

    @abc.abstractmethod
    def information_root_times(self, vector: Float[Array, " r"]) -> Float[Array, " k"]:
        """`S v`, where `S Sᵀ` is the information about the (flattened) output; S itself is not formed."""

    def information_root(self) -> Float[Array, "k r"]:
        """S `[k, r]` with `S Sᵀ` the information about the flattened output, k numbers long."""
        return jax.vmap(self.information_root_times, out_axes=1)(jnp.eye(self.rank, dtype=self.dtype))

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The floating-point type of the output."""


class LogLikelihood(eqx.Module):
    """A log-likelihood `(params, example) -> scalar` that knows its prediction and its distribution.

    `example` is `(x, y)` or `{"x": x, "y": y}`; `split`, a function from an example to `(x, y)`, reads any
    other form.

    Instances are immutable pytrees. One without arrays inside can be hashed and compared by content, and so
    be a static argument of `jax.jit`; one that holds an array (a vector of scales, a covariance) is passed to
    `jit` as any other pytree, by `equinox.filter_jit`.
    """

    f: Predict
    split: Split | None = eqx.field(default=None, kw_only=True)

    @abc.abstractmethod
    def distribution(self, output: Any) -> Any:
        """`p(y | output)` for an output that `predict` returned."""

    def predict(self, params: Any, x: Any) -> Any:
        """The output for one case, array or pytree of arrays, through which alone the parameters act."""
        return self.f(params, x)

    def __call__(self, params: Any, example: Any) -> Scalar:
        x, y = split_example(example, self.split)
        return self.distribution(self.predict(params, x)).log_prob(y)

    def output_hessian_sqrt(self, output: Any) -> Float[Array, "k r"]:
        """S `[k, r]` with `S Sᵀ` the information about the output, flattened as `ravel_pytree` does.

        With `J` the Jacobian of the flattened output with respect to the parameters, `(JᵀS)(JᵀS)ᵀ` averaged
        over cases is the generalised Gauss–Newton matrix, equal to the true Fisher.
        """
        return self.distribution(output).information_root()


def split_example(example: Any, split: Split | None = None) -> tuple[Any, Any]:
    """`(x, y)` of one example, or of one batch of examples.

    >>> split_example({"x": 1.0, "y": 2.0})
    (1.0, 2.0)
    >>> split_example({"image": 1.0, "label": 2.0}, split=lambda e: (e["image"], e["label"]))
    (1.0, 2.0)
    """
    if split is not None:
        return split(example)
    if isinstance(example, Mapping):
        if set(example) == {"x", "y"}:
            return example["x"], example["y"]
        raise ValueError(
            f"An example has the keys {sorted(map(str, example))}, and which of them are inputs and which"
            " targets is not known. Use the keys 'x' and 'y', or pass `split=lambda e: (inputs, targets)`."
        )
    if isinstance(example, (tuple, list)) and len(example) == 2:
        return example[0], example[1]
    raise ValueError(
        "An example should be a pair (x, y) or a dictionary with the keys 'x' and 'y'; got"
        f" {_describe(example)}. Pass `split=lambda e: (inputs, targets)` for another form."
    )


def match_target(output: Any, y: Any) -> Array:
    """y as an array of the output's shape; axes of length one may differ, anything else is an error.

    Without this check a target `[k, 1]` against an output `[k]` would broadcast to `[k, k]` residuals.
    """
    target = jnp.asarray(y)
    shape = jnp.shape(output)
    if target.shape == shape:
        return target
    if _without_units(target.shape) == _without_units(shape):
        return target.reshape(shape)
    raise ValueError(
        f"The prediction for one example has shape {shape} and its target has shape {target.shape}. They"
        " must agree: f(params, x) and the log-likelihood take one example, without a batch axis."
    )


def flatten(output: Any) -> Float[Array, " k"]:
    """An output (any pytree of arrays) as one vector."""
    return ravel_pytree(output)[0]


def _without_units(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _describe(example: Any) -> str:
    if isinstance(example, (tuple, list)):
        return f"a {type(example).__name__} of {len(example)} entries"
    shape = getattr(example, "shape", None)
    return type(example).__name__ if shape is None else f"an array of shape {tuple(shape)}"
