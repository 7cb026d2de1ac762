"""Log-likelihoods from distribution objects of other libraries (numpyro, distrax, TensorFlow Probability)."""

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from deltavariance.likelihood.base import LogLikelihood, Split


class WrappedDistribution:
    """A foreign distribution behind the two methods used here: `log_prob(y)`, summed, and `sample(key)`."""

    def __init__(self, wrapped: Any) -> None:
        missing = [name for name in ("log_prob", "sample") if not callable(getattr(wrapped, name, None))]
        if missing:
            raise TypeError(
                f"The prediction returned {type(wrapped).__name__}, which has no method"
                f" {' nor '.join(missing)}. It should return a distribution with log_prob(y) and"
                " sample(key), such as numpyro's or distrax's; for a plain array of outputs use"
                " `dv.gaussian_log_likelihood` or its companions."
            )
        self.wrapped = wrapped

    def log_prob(self, y: Any) -> Scalar:
        """`log p(y)`, summed over a batch of independent outputs."""
        return jnp.sum(self.wrapped.log_prob(y))

    def sample(self, key: PRNGKeyArray) -> Any:
        """One draw of y, from `sample(key)` or `sample(seed=key)`, whichever the distribution has."""
        if "seed" in inspect.signature(self.wrapped.sample).parameters:
            return self.wrapped.sample(seed=key)
        return self.wrapped.sample(key)


class DistributionLogLikelihood(LogLikelihood):
    """See `distribution_log_likelihood`."""

    def distribution(self, output: Any) -> WrappedDistribution:
        return WrappedDistribution(output)

    def output_hessian_sqrt(self, output: Any) -> Float[Array, "k r"]:
        raise NotImplementedError(
            f"The information of a {type(output).__name__} about its parameters is not known in closed form"
            " here. Use `dv.model_fisher`, which draws labels, or one of dv.gaussian_log_likelihood,"
            " categorical_log_likelihood, bernoulli_log_likelihood and poisson_log_likelihood."
        )


def distribution_log_likelihood(
    predict: Callable[[Any, Any], Any], *, split: Split | None = None
) -> DistributionLogLikelihood:
    """`log p(y)` for `p = predict(params, x)`, any distribution object with `log_prob` and `sample`.

    Where `log_prob` returns an array, its entries are taken for independent outputs of one case and summed.

    >>> import jax.numpy as jnp, numpyro.distributions as dist
    >>> log_likelihood = distribution_log_likelihood(lambda params, x: dist.Gamma(params, x))
    >>> print(f"{log_likelihood(jnp.array(1.0), (2.0, 0.5)):.4f}")                       # log 2 - 2 · 0.5
    -0.3069
    """
    return DistributionLogLikelihood(predict, split=split)
