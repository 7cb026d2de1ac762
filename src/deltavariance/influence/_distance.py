"""How strange a case is to the training data: distances in gradient space."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.curvature import Curvature
from deltavariance.variance import variance

PyTree = Any
Function = Callable[[Any, Any], Any]


def mahalanobis(
    u: Function,
    params: PyTree,
    z: PyTree,
    F: Curvature,
    *,
    damping: Any = 0.0,
    batch_size: int | None = None,
) -> Float[Array, "n *u"]:
    """The squared Mahalanobis distance `ΔᵀF⁻¹Δ` of u's gradient from the training gradients: `[n, *u.shape]`.

    At converged parameters training gradients have mean zero and covariance F, the empirical Fisher information; the
    distance says how far the step that learning u(z) would take lies outside their distribution. It does not shrink
    with N: it is N times the Delta Variance with Σ = F⁻¹/N. Works for any u, whatever its inputs.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> x, y = jnp.array([1.0, -1.0, 2.0]), jnp.array([1.1, -0.8, 1.9])
    >>> F = dv.fisher(lambda w, xy: -0.5 * (xy[1] - w * xy[0]) ** 2, jnp.array(0.95), (x, y))
    >>> d = dv.influence.mahalanobis(lambda w, x: w * x, jnp.array(0.95), jnp.array([1.0, 10.0]), F)
    >>> print(d[1] / d[0])
    100.0
    """
    return variance(u, params, z, F.inverse(damping=damping, num_data=1), batch_size=batch_size)


def mahalanobis_level(
    u: Function,
    params: PyTree,
    z: PyTree,
    log_likelihood: Function,
    data: PyTree,
    F: Curvature,
    *,
    damping: Any = 0.0,
    batch_size: int | None = None,
) -> Float[Array, "n *u"]:
    """The empirical level of `mahalanobis`: the share of training gradients that lie no further out, in [0, 1].

    A level near 1 marks a case as out of distribution. The gradient of u must be in the units of a training gradient
    for the level to mean that share: let u be a log-likelihood, or divide a Gaussian mean by its noise.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> y = jnp.array([1.0, 2.0, 3.0, 6.0])
    >>> score = lambda m, y: -0.5 * (y - m) ** 2
    >>> F = dv.fisher(score, jnp.mean(y), y)
    >>> print(dv.influence.mahalanobis_level(score, jnp.mean(y), jnp.array([3.1, 5.5, 9.0]), score, y, F))
    [0.25 0.75 1.  ]
    """
    here = mahalanobis(u, params, z, F, damping=damping, batch_size=batch_size)
    known = jnp.sort(mahalanobis(log_likelihood, params, data, F, damping=damping, batch_size=batch_size))
    return jnp.searchsorted(known, here, side="right") / known.size
