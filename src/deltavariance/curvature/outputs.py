"""What a model predicts for one input: an output, and a distribution around it."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from deltavariance.likelihood import (
    Bernoulli,
    Categorical,
    GaussianWithScale,
    LogLikelihood,
    OutputDistribution,
    Poisson,
)

PyTree = Any


def distribution_of(predict: Callable[[Any, Any], Any], params: PyTree, x: PyTree) -> Any:
    """The distribution of the label of x, from a log-likelihood of this library or a function that returns one."""
    if isinstance(predict, LogLikelihood):
        return predict.distribution(predict.predict(params, x))
    found = predict(params, x)
    if not callable(getattr(found, "log_prob", None)) or not callable(getattr(found, "sample", None)):
        raise TypeError(
            f"predict(params, x) must return a distribution with log_prob(y) and sample(key), and it returned"
            f" {type(found).__name__}. For a plain array of outputs the noise is not known: give a log-likelihood"
            " such as"
            " `dv.gaussian_log_likelihood(predict, scale=...)` in its place."
        )
    return found


def output_and_distribution(
    predict: Callable[[Any, Any], Any], params: PyTree, x: PyTree
) -> tuple[Any, OutputDistribution]:
    """The output that the parameters reach, and its distribution, whose information is known in closed form."""
    if isinstance(predict, LogLikelihood):
        output = predict.predict(params, x)
        distribution = predict.distribution(output)
        return (output, distribution) if isinstance(distribution, OutputDistribution) else foreign(output)
    found = distribution_of(predict, params, x)
    if isinstance(found, (Categorical, Bernoulli)):
        return found.logits, found
    if isinstance(found, Poisson):
        return found.log_rate, found
    if isinstance(found, GaussianWithScale):
        return (found.mean, found.scale), found
    if isinstance(found, OutputDistribution):
        raise TypeError(
            f"predict(params, x) returned a {type(found).__name__} of this library, and which of its numbers depend"
            " on the"
            " parameters cannot be told. Give the log-likelihood itself (`dv.gaussian_log_likelihood(f, scale=...)`)."
        )
    return foreign(found)


def foreign(distribution: Any) -> tuple[Any, OutputDistribution]:
    """A distribution of another library in terms of ours, where its family is one of four."""
    base = distribution
    while _is(base, "Independent"):
        base = getattr(base, "base_dist", None) or base.distribution
    if _is(base, "Normal"):
        mean, scale = jnp.broadcast_arrays(jnp.asarray(base.loc), jnp.asarray(base.scale))
        return (mean, scale), GaussianWithScale(mean, scale, True)
    if _is(base, "Categorical", "CategoricalLogits", "CategoricalProbs"):
        logits = jax.nn.log_softmax(jnp.asarray(base.logits))
        return logits, Categorical(logits)
    if _is(base, "Bernoulli", "BernoulliLogits", "BernoulliProbs"):
        logits = jnp.asarray(base.logits)
        return logits, Bernoulli(logits)
    if _is(base, "Poisson"):
        log_rate = jnp.log(jnp.asarray(base.rate))
        return log_rate, Poisson(log_rate)
    raise TypeError(
        f"The information of a {type(distribution).__name__} about its parameters is not known in closed form here. Use"
        " `dv.model_fisher`, which draws labels, or one of dv.gaussian_log_likelihood, categorical_log_likelihood,"
        " bernoulli_log_likelihood and poisson_log_likelihood."
    )


def _is(distribution: Any, *names: str) -> bool:
    """Whether it is of one of these classes of numpyro or distrax, if they are in use at all."""
    for library in ("numpyro.distributions", "distrax"):
        module = sys.modules.get(library)
        kinds = tuple(kind for name in names if isinstance(kind := getattr(module, name, None), type))
        if kinds and isinstance(distribution, kinds):
            return True
    return False
