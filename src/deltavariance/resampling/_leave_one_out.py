"""The leave-one-out variance, by refitting."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ._values import Quantity, Refit, resampled_values


def leave_one_out_weights(num_data: int, epsilon: float = 1.0) -> Float[Array, "N N"]:
    """Row i gives example i the weight 1 − ε and every other the weight 1.

    >>> import deltavariance as dv
    >>> print(dv.resampling.leave_one_out_weights(2, epsilon=0.5))
    [[0.5 1. ]
     [1.  0.5]]
    """
    if num_data < 2:
        raise ValueError(f"Leaving one example out needs at least 2 examples, and num_data is {num_data}.")
    if not 0 < epsilon <= 1:
        raise ValueError(f"epsilon must lie in (0, 1], 1 leaving the example out wholly, and is {epsilon}.")
    return 1.0 - epsilon * jnp.eye(num_data)


def leave_one_out(
    refit: Refit,
    u: Quantity,
    z: PyTree,
    *,
    num_data: int,
    epsilon: float = 1.0,
    vectorised: bool | None = None,
    batch_size: int = 32,
) -> Float[Array, "n *u"]:
    """The leave-one-out variance of `u(params, z[i])` for each case i: `[n, *u.shape]`.

    With θ_j the parameters refitted after example j lost the part ε of its weight,

        V = N / ε² · Var_j[u(θ_j)],        Var_j[x] = 1/N Σ_j (x_j − x̄)²,

    the mean over all N examples. With `epsilon=1` each example is left out wholly; as ε falls, V approaches the
    Delta Variance with the sandwich covariance H⁻¹FH⁻¹/N, with an error of order ε/N².

    `refit(weights) -> params` and the options are described at `resampled_values`. Cost: N refits.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> y = jnp.array([1.0, 2.0, 6.0, 3.0])
    >>> mean = lambda w: jnp.sum(w * y) / jnp.sum(w)
    >>> v = dv.resampling.leave_one_out(mean, lambda m, z: m, jnp.zeros(1), num_data=4)
    >>> print(v, jnp.var(y) / 4 * (4 / 3) ** 2)
    [1.5555...] 1.5555...
    """
    weights = leave_one_out_weights(num_data, epsilon)
    values = resampled_values(refit, u, z, weights, vectorised=vectorised, batch_size=batch_size)
    return num_data / epsilon**2 * jnp.var(values, axis=0)
