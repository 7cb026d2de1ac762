"""The bootstrap variance, by refitting."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ._values import Quantity, Refit, resampled_values


def _rademacher(key: PRNGKeyArray, shape: tuple[int, int]) -> Array:
    return 1.0 + jax.random.rademacher(key, shape, jnp.result_type(float))


def _poisson(key: PRNGKeyArray, shape: tuple[int, int]) -> Array:
    return jax.random.poisson(key, 1.0, shape).astype(jnp.result_type(float))


def _multinomial(key: PRNGKeyArray, shape: tuple[int, int]) -> Array:
    repeats, examples = shape
    drawn = jax.random.randint(key, shape, 0, examples)
    rows = jnp.arange(repeats)[:, None]
    return jnp.zeros(shape, jnp.result_type(float)).at[rows, drawn].add(1.0)


# Each has mean 1 and variance 1 (multinomial: 1 − 1/N, its counts always summing to N).
WEIGHTINGS: Mapping[str, Callable[[PRNGKeyArray, tuple[int, int]], Array]] = MappingProxyType(
    {"rademacher": _rademacher, "poisson": _poisson, "multinomial": _multinomial}
)


def bootstrap_weights(
    key: PRNGKeyArray, repeats: int, num_data: int, weights: str = "rademacher", epsilon: float = 1.0
) -> Float[Array, "repeats N"]:
    """Random weights `1 + ε (w − 1)`, where w is, for each example of each refit,

    - `"rademacher"`: 0 or 2 with equal chance: random halves of the data;
    - `"poisson"`: how often an example is drawn, independently of the others;
    - `"multinomial"`: how often it is drawn in N draws with replacement, the classical bootstrap.

    >>> import jax
    >>> import deltavariance as dv
    >>> w = dv.resampling.bootstrap_weights(jax.random.key(0), 5, 40, "multinomial")
    >>> print(w.shape, w.sum(axis=1))
    (5, 40) [40. 40. 40. 40. 40.]
    """
    if weights not in WEIGHTINGS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTINGS)}, and is {weights!r}.")
    if not 0 < epsilon <= 1:
        raise ValueError(f"epsilon must lie in (0, 1], 1 being the bootstrap itself, and is {epsilon}.")
    if num_data < 1:
        raise ValueError(f"num_data must be at least 1, and is {num_data}.")
    return 1.0 + epsilon * (WEIGHTINGS[weights](key, (repeats, num_data)) - 1.0)


def bootstrap(
    refit: Refit,
    u: Quantity,
    z: PyTree,
    *,
    num_data: int,
    key: PRNGKeyArray,
    repeats: int = 200,
    epsilon: float = 1.0,
    weights: str = "rademacher",
    vectorised: bool | None = None,
    batch_size: int = 32,
) -> Float[Array, "n *u"]:
    """The bootstrap variance of `u(params, z[i])` for each case i: `[n, *u.shape]`.

    With θ_r the parameters refitted with random weights 1 + ε (w_r − 1), see `bootstrap_weights`,

        V = 1 / ε² · Var_r[u(θ_r)],

    estimated without bias from `repeats` refits; its own relative error is about √(2 / repeats). There is no
    factor ½ for Rademacher weights: half-samples of a mean vary by S²/N, as the mean itself does. As ε falls V
    approaches the Delta Variance with the sandwich covariance H⁻¹FH⁻¹/N. For multinomial weights the limit is
    smaller by the factor 1 − 1/N only if the mean gradient is not zero; at converged parameters it is the same.

    `refit(weights) -> params` and the options are described at `resampled_values`. Cost: `repeats` refits.

    >>> import jax, jax.numpy as jnp
    >>> import deltavariance as dv
    >>> y = jnp.arange(100.0)
    >>> mean = lambda w: jnp.sum(w * y) / jnp.sum(w)
    >>> v = dv.resampling.bootstrap(
    ...     mean, lambda m, z: m, jnp.zeros(1), num_data=100, key=jax.random.key(0), repeats=4000
    ... )
    >>> bool(abs(v[0] / (jnp.var(y) / 100) - 1) < 0.1)
    True
    """
    if repeats < 2:
        raise ValueError(f"A variance needs at least 2 refits, and repeats is {repeats}.")
    rows = bootstrap_weights(key, repeats, num_data, weights, epsilon)
    values = resampled_values(refit, u, z, rows, vectorised=vectorised, batch_size=batch_size)
    return jnp.var(values, axis=0, ddof=1) / epsilon**2
