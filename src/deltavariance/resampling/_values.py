"""Quantities of refitted models: one refit for each vector of example weights."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from deltavariance import cases

Refit = Callable[[Any], Any]
Quantity = Callable[[Any, Any], Any]


def resampled_values(
    refit: Refit,
    u: Quantity,
    z: PyTree,
    weights: Float[Array, "repeats N"] | Float[np.ndarray, "repeats N"],
    *,
    vectorised: bool | None = None,
    batch_size: int = 32,
) -> Float[Array, "repeats n *u"]:
    """`u(refit(w), z[i])` for each row w of `weights` and each case i.

    **Arguments:**

    - `refit`: `refit(weights) -> params`, the model fitted with these weights on its N examples. A weight of 1 is
        an example as it is, 0 leaves it out, 2 counts it twice. Only a refit that starts from the parameters
        found on all data, with everything random in it held fixed, measures what the data do; one that starts
        afresh adds the spread of its own starts.
    - `u`, `z`: the quantity of one case, and cases with a leading axis.
    - `weights`: one row a refit.
    - `vectorised`: whether refits may run under `vmap` and `jit`. By default that is tried by tracing `refit`
        once, and given up if it needs concrete numbers (scikit-learn, `float(...)`, a Python loop on values).
    - `batch_size`: refits that run side by side when vectorised: each keeps its own copy of all it computes.

    Cost: one refit a row.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> y = jnp.array([1.0, 2.0, 6.0])
    >>> mean = lambda w: jnp.sum(w * y) / jnp.sum(w)
    >>> without_each = 1.0 - jnp.eye(3)
    >>> print(dv.resampling.resampled_values(mean, lambda m, z: m * z, jnp.array([1.0, 10.0]), without_each))
    [[ 4.  40. ]
     [ 3.5 35. ]
     [ 1.5 15. ]]
    """
    cases.count(z, "z")
    rows = jnp.asarray(weights)

    def one(row: Array) -> Array:
        params = refit(row)
        return jnp.asarray(jax.vmap(lambda case: jnp.asarray(u(params, case)))(z))

    if vectorised is None:
        vectorised = traceable(refit, rows[0])
    if vectorised:
        values = jax.jit(lambda rows: jax.lax.map(one, rows, batch_size=min(batch_size, len(rows))))(rows)
    else:
        values = jnp.stack([one(row) for row in rows])
    return checked_finite(values)


def traceable(refit: Refit, weights: Array) -> bool:
    """Whether `refit` can be traced; any error but the need for concrete numbers is the caller's to see."""
    try:
        jax.eval_shape(lambda w: jax.tree.map(lambda leaf: leaf, _arrays(refit(w))), weights)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        return False
    return True


def _arrays(params: PyTree) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array)]


def checked_finite(values: Float[Array, "repeats *rest"]) -> Float[Array, "repeats *rest"]:
    """`values`, or an error that says how many refits went wrong."""
    if isinstance(values, jax.core.Tracer):
        return values
    bad = ~np.isfinite(np.asarray(values)).reshape(len(values), -1).all(axis=1)
    if bad.any():
        raise ValueError(
            f"u is NaN or infinite after {bad.sum()} of {len(bad)} refits, the first of them number "
            f"{int(np.argmax(bad))}. A refit that diverges, or that met too few examples of positive weight, is the "
            "usual cause: start it from the fitted parameters, damp it, or use a smaller epsilon."
        )
    return values
