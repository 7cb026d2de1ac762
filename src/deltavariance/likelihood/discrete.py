"""Categorical, Bernoulli and Poisson log-likelihoods in their natural parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from deltavariance.likelihood.base import LogLikelihood, OutputDistribution, Predict, Split, match_target


class Categorical(OutputDistribution):
    """One draw from C classes for each leading entry of `logits [*k, C]`.

    The information is `diag(p) - p pᵀ` for each draw, with the root `diag(√p) - p √pᵀ`.
    """

    logits: Float[Array, "*k C"]

    def log_prob(self, y: Any) -> Scalar:
        classes = self.logits.shape[-1]
        log_p = jax.nn.log_softmax(self.logits)
        labels = jnp.asarray(y)
        if jnp.issubdtype(labels.dtype, jnp.integer):
            chosen = match_target(self.logits[..., 0], labels)
            known = (chosen >= 0) & (chosen < classes)
            picked = jnp.take_along_axis(log_p, jnp.where(known, chosen, 0)[..., None], axis=-1)[..., 0]
            # A label outside of the classes has no probability: NaN, rather than that of some other class.
            return jnp.sum(jnp.where(known, picked, jnp.nan))
        if labels.shape == self.logits.shape:
            return jnp.sum(labels * jax.nn.log_softmax(self.logits))
        raise ValueError(
            f"Categorical targets should be integers of shape {self.logits.shape[:-1]}, or class"
            f" probabilities of the logits' shape {self.logits.shape}; got {labels.dtype} of shape"
            f" {labels.shape}."
        )

    def sample(self, key: PRNGKeyArray) -> Int[Array, "*k"]:
        return jax.random.categorical(key, self.logits)

    @property
    def rank(self) -> int:
        return self.logits.size

    def information_root_times(self, vector: Float[Array, " r"]) -> Float[Array, " k"]:
        p = jax.nn.softmax(self.logits)
        scaled = jnp.sqrt(p) * vector.reshape(p.shape)
        return (scaled - p * jnp.sum(scaled, axis=-1, keepdims=True)).reshape(-1)

    @property
    def dtype(self) -> Any:
        return self.logits.dtype


class Bernoulli(OutputDistribution):
    """Independent events with log-odds `logits [*k]`; the information of each is `p (1 - p)`."""

    logits: Float[Array, "*k"]

    def log_prob(self, y: Any) -> Scalar:
        outcome = match_target(self.logits, y).astype(self.dtype)
        possible = (outcome >= 0) & (outcome <= 1)
        log_p = outcome * jax.nn.log_sigmoid(self.logits) + (1 - outcome) * jax.nn.log_sigmoid(-self.logits)
        return jnp.sum(jnp.where(possible, log_p, jnp.nan))

    def sample(self, key: PRNGKeyArray) -> Int[Array, "*k"]:
        return jax.random.bernoulli(key, jax.nn.sigmoid(self.logits)).astype(jnp.int32)

    @property
    def rank(self) -> int:
        return self.logits.size

    def information_root_times(self, vector: Float[Array, " r"]) -> Float[Array, " k"]:
        logits = self.logits.reshape(-1)
        # √(p (1 - p)), by logarithms so that a confident prediction does not round p to one.
        return vector * jnp.exp(0.5 * (jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits)))

    @property
    def dtype(self) -> Any:
        return self.logits.dtype


class Poisson(OutputDistribution):
    """Independent counts with rates `exp(log_rate [*k])`; the information about each log-rate is the rate."""

    log_rate: Float[Array, "*k"]

    def log_prob(self, y: Any) -> Scalar:
        count = match_target(self.log_rate, y).astype(self.dtype)
        log_p = count * self.log_rate - jnp.exp(self.log_rate) - gammaln(count + 1)
        return jnp.sum(jnp.where(count >= 0, log_p, jnp.nan))

    def sample(self, key: PRNGKeyArray) -> Int[Array, "*k"]:
        return jax.random.poisson(key, jnp.exp(self.log_rate), self.log_rate.shape)

    @property
    def rank(self) -> int:
        return self.log_rate.size

    def information_root_times(self, vector: Float[Array, " r"]) -> Float[Array, " k"]:
        return vector * jnp.exp(0.5 * self.log_rate.reshape(-1))

    @property
    def dtype(self) -> Any:
        return self.log_rate.dtype


class CategoricalLogLikelihood(LogLikelihood):
    """See `categorical_log_likelihood`."""

    def distribution(self, output: Any) -> Categorical:
        logits = _natural(output)
        if logits.ndim == 0 or logits.shape[-1] < 2:
            raise ValueError(
                "categorical_log_likelihood needs logits [..., C] over C ≥ 2 classes; f returned shape"
                f" {logits.shape}. For one logit an event use `bernoulli_log_likelihood`."
            )
        return Categorical(logits)


class BernoulliLogLikelihood(LogLikelihood):
    """See `bernoulli_log_likelihood`."""

    def distribution(self, output: Any) -> Bernoulli:
        return Bernoulli(_natural(output))


class PoissonLogLikelihood(LogLikelihood):
    """See `poisson_log_likelihood`."""

    def distribution(self, output: Any) -> Poisson:
        return Poisson(_natural(output))


def categorical_log_likelihood(f: Predict, *, split: Split | None = None) -> CategoricalLogLikelihood:
    """`Σ log softmax(f(params, x))[y]`, where f returns logits `[..., C]` and y holds classes `[...]`.

    Instead of classes y may hold class probabilities `[..., C]` (one-hot or soft labels): the cross-entropy
    then. A class outside of 0..C-1 gives NaN.

    >>> import jax.numpy as jnp
    >>> log_likelihood = categorical_log_likelihood(lambda params, x: params * x)
    >>> print(f"{log_likelihood(jnp.zeros(4), (1.0, 2)):.4f}")                      # -log 4
    -1.3863
    """
    return CategoricalLogLikelihood(f, split=split)


def bernoulli_log_likelihood(f: Predict, *, split: Split | None = None) -> BernoulliLogLikelihood:
    """`Σ y log p + (1 - y) log(1 - p)` with `p = sigmoid(f(params, x))`: f returns log-odds, y holds 0, 1 or
    between.

    >>> import jax.numpy as jnp
    >>> log_likelihood = bernoulli_log_likelihood(lambda params, x: params * x)
    >>> print(f"{log_likelihood(jnp.zeros(()), (1.0, 1)):.4f}")
    -0.6931
    """
    return BernoulliLogLikelihood(f, split=split)


def poisson_log_likelihood(f: Predict, *, split: Split | None = None) -> PoissonLogLikelihood:
    """`Σ y η - exp(η) - log y!` with `η = f(params, x)` the logarithm of the rate and y a count.

    An exposure is an offset inside f: `lambda params, x: g(params, x) + jnp.log(x["exposure"])`.

    >>> import jax.numpy as jnp
    >>> log_likelihood = poisson_log_likelihood(lambda params, x: params * x)
    >>> print(f"{log_likelihood(jnp.zeros(()), (1.0, 2)):.4f}")                     # -1 - log 2
    -1.6931
    """
    return PoissonLogLikelihood(f, split=split)


def _natural(output: Any) -> Array:
    """The output in at least single precision, in which the density is computed."""
    array = jnp.asarray(output)
    return array.astype(jnp.result_type(array, jnp.float32))
