"""Proper scores of the whole error distribution: log-likelihood and CRPS under a noise model."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.metrics.cases import Cases, Weights, as_pair, as_weights, weighted_mean
from deltavariance.metrics.families import Family
from deltavariance.metrics.noise_model import NoiseModel, as_noise


def log_likelihood(
    errors: Cases,
    variance: Cases,
    noise: NoiseModel | Family | str | None = None,
    *,
    aleatoric: Cases | None = None,
    weights: Weights = None,
) -> Float[Array, "*q"]:
    """Mean over the cases of `log p(e)`, where the error has variance `α + β ν`. Higher is better.

    Args:
        noise: what `dv.tune.noise` fitted, on other cases than these. A family or its name alone takes ν
            itself as the variance of the error; None is Gaussian with ν.
        aleatoric: the user's own `a(z)` where the noise model was fitted with one.

    >>> float(log_likelihood(jnp.array([0.0, 0.0]), jnp.array([1.0, 1.0])))
    -0.918...
    """
    e, v = as_pair(errors, variance)
    return weighted_mean(as_noise(noise).log_density(e, v, aleatoric), as_weights(weights, e))


def crps(
    errors: Cases,
    variance: Cases,
    noise: NoiseModel | Family | str | None = None,
    *,
    aleatoric: Cases | None = None,
    weights: Weights = None,
) -> Float[Array, "*q"]:
    """Mean continuous ranked probability score, in the units of the errors; lower is better.

    `∫ (P(E ≤ x) − 1[e ≤ x])² dx` in closed form for each family. For a Gaussian with `s = α + β ν`, σ = √s
    and x = e/σ it is `σ (x (2Φ(x) − 1) + 2φ(x) − 1/√π)`; for a Laplace with scale b, `|e| + b exp(−|e|/b) − ¾
    b`.

    >>> float(crps(jnp.array([0.0]), jnp.array([1.0])))
    0.2336...
    """
    e, v = as_pair(errors, variance)
    model = as_noise(noise)
    scores = model.family.crps(e, model.total(v, aleatoric))
    return weighted_mean(jnp.asarray(scores), as_weights(weights, e))
