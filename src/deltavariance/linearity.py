"""How far a quantity is from linear over the spread of its parameters: second-order terms, and sampling."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from deltavariance import cases
from deltavariance.covariance import Covariance
from deltavariance.tracing import as_real_array
from deltavariance.variance import variance

PyTree = Any
Quantity = Callable[[Any, Any], Any]

# Beyond this many parameters exact traces, one Hessian-vector product a parameter, need to be asked for.
LARGEST_EXACT = 2_000


def second_order(
    u: Quantity,
    params: PyTree,
    z: PyTree,
    sigma: Covariance,
    *,
    key: PRNGKeyArray | None = None,
    samples: int = 100,
) -> tuple[Float[Array, "n *u"], Float[Array, "n *u"]]:
    """The bias of `u` and its variance to second order, `(bias, v2)`, each `[n, *u.shape]`.

    With parameters normal about `params`, of covariance Σ, and ∇²u = H, the quadratic expansion of u has

        E[u] − u(params) = bias = ½ tr(Σ H),        Var[u] = v2 = ΔᵀΣΔ + ½ tr(Σ H Σ H).

    Where `v2` differs much from `dv.variance`, or the bias is not small beside the standard deviation, the
    linearisation is in doubt; `dv.check_linear` then says more. (Terms with third derivatives are of the same
    order in Σ as the second term of `v2`, and left out.)

    Nothing of size P × P is built: the traces are sums over P columns of a square root of Σ, with one
    Hessian-vector product each. Above 2,000 parameters give a `key`: the traces are then estimated from `samples`
    random directions, with a relative error of the order of `√(2 / samples)` or less.

    Cost: per case and column (or direction) one Hessian-vector product a component of u.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = jnp.array([1.0, 2.0])
    >>> sigma = dv.as_covariance(params, 0.1)
    >>> bias, v2 = dv.second_order(lambda p, z: z * jnp.sum(p**2), params, jnp.ones(1), sigma)
    >>> print(bias, v2)  # ½ · 0.1 · (2 + 2), and 0.1 · (2² + 4²) + ½ · 0.1² · (2² + 2²)
    [0.2] [2.04]
    """
    cases.count(z, "z")
    layout = sigma.layout
    layout.check(params)
    columns = sigma.sqrt_columns
    dtype = jnp.result_type(*layout.dtypes)
    if key is None:
        if columns > LARGEST_EXACT:
            raise ValueError(
                f"Exact second-order terms would take {columns:,} Hessian-vector products for each case and component. "
                "Give `key=` to estimate them from `samples=` random directions, or narrow the parameters with"
                " `where=`."
            )
        probes, weight = jnp.eye(columns, dtype=dtype), 1.0
    else:
        probes, weight = jax.random.rademacher(key, (samples, columns), dtype), 1.0 / samples
    point = layout.take(params)

    def flat(leaves: list[Array], case: PyTree) -> Array:
        return jnp.ravel(as_real_array(u(layout.put(params, leaves), case)))

    def one(case: PyTree) -> tuple[Array, Array]:
        gradient = jax.jacrev(lambda leaves: flat(leaves, case))

        def add(total: tuple[Array, Array], probe: Array) -> tuple[tuple[Array, Array], None]:
            along = [
                leaf.astype(at.dtype) for leaf, at in zip(sigma.multiply_sqrt(probe), point, strict=True)
            ]
            _, bent = jax.jvp(gradient, (point,), (along,))  # H s, a row for each component
            rows = layout.flatten(bent)
            trace = rows @ layout.flatten(along)
            square = jnp.sum(rows * sigma.matvec(rows), axis=-1)
            return (total[0] + weight * trace, total[1] + weight * square), None

        zeros = jnp.zeros(jax.eval_shape(flat, point, case).shape, dtype)
        (trace, square), _ = jax.lax.scan(add, (zeros, zeros), probes)
        return 0.5 * trace, 0.5 * square

    first = variance(u, params, z, sigma)
    bias, extra = jax.jit(lambda z: jax.lax.map(one, z))(z)
    return jnp.reshape(bias, first.shape), first + jnp.reshape(extra, first.shape)


class Linearity(eqx.Module):
    """What sampled parameters say about the linearisation of u; every array is `[n, *u.shape]`.

    - `delta_std`: √(ΔᵀΣΔ); `sampled_std`: the standard deviation of u over the samples.
    - `bias`: the mean of u over the samples minus u at the parameters.
    - `explained`: the share of the sampled variance that the linear function Δ·(θ − θ̄) of the same samples accounts
        for: 1 for a linear u.
    - `trusted`: whether the standard deviation agrees within `tolerance` and the bias is below `tolerance` standard
        deviations, each with twice its sampling error granted.
    """

    delta_std: Float[Array, "n *u"]
    sampled_std: Float[Array, "n *u"]
    bias: Float[Array, "n *u"]
    explained: Float[Array, "n *u"]
    samples: int = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)

    @property
    def ratio(self) -> Float[Array, "n *u"]:
        """Sampled over predicted standard deviation; 1 where both are zero."""
        both_zero = (self.delta_std == 0) & (self.sampled_std == 0)
        return jnp.where(both_zero, 1.0, self.sampled_std / jnp.where(both_zero, 1.0, self.delta_std))

    @property
    def trusted(self) -> Bool[Array, "n *u"]:
        """Whether spread and bias are within the tolerance."""
        spread = jnp.abs(self.ratio - 1) <= self.tolerance + 2 * (0.5 / self.samples) ** 0.5
        allowed = (self.tolerance + 2 * self.samples**-0.5) * self.sampled_std
        return spread & (jnp.abs(self.bias) <= allowed)

    def __str__(self) -> str:
        good, total = int(jnp.sum(self.trusted)), self.trusted.size
        ratio = np.asarray(self.ratio).ravel()
        worst = int(np.nanargmax(np.abs(np.log(np.maximum(ratio, 1e-30)))))
        shift = np.abs(np.asarray(self.bias)) / np.maximum(np.asarray(self.sampled_std), 1e-30)
        verdict = (
            "The linearisation can be trusted"
            if good == total
            else f"The linearisation can be trusted for {good} of {total} values"
        )
        advice = (
            ""
            if good == total
            else " For the others report sampled values (post.sample), or choose a transform in which u is straighter."
        )
        return (
            f"{verdict}, to {self.tolerance:.0%}: over {self.samples} sampled parameters the standard deviation is "
            f"{ratio.min():.2f} to {ratio.max():.2f} times the predicted one (furthest off: value {worst}), the mean "
            f"moves by at most {shift.max():.2f} standard deviations, and the linear part explains at least "
            f"{float(jnp.min(self.explained)):.0%} of the variance.{advice}"
        )


def check_linear(
    u: Quantity,
    params: PyTree,
    z: PyTree,
    sigma: Covariance,
    *,
    key: PRNGKeyArray,
    samples: int = 1000,
    tolerance: float = 0.1,
    batch_size: int = 32,
) -> Linearity:
    """Compare the Delta Variance of u with u at parameters sampled from N(params, Σ).

    Returns a `Linearity` with one value a case and component; printed, it says in a sentence how far the
    linearisation can be trusted. `batch_size` samples are evaluated side by side. Cost: `samples` evaluations of u for
    each case, and one gradient.

    >>> import jax, jax.numpy as jnp
    >>> import deltavariance as dv
    >>> sigma = dv.as_covariance(jnp.ones(1), 1e-4)
    >>> cube = lambda p, z: z * p[0] ** 3
    >>> report = dv.check_linear(cube, jnp.ones(1), jnp.arange(1.0, 3.0), sigma, key=jax.random.key(0))
    >>> print(report.trusted)
    [ True  True]
    >>> print(str(report)[:32])
    The linearisation can be trusted
    """
    if samples < 2:
        raise ValueError(f"A spread needs at least 2 samples, and samples is {samples}.")
    layout = sigma.layout
    delta = variance(u, params, z, sigma)
    point = layout.take(params)

    def deviations(draw: Array) -> tuple[Array, Array]:
        """u's change at one draw, and what the linear function makes of it, for all cases."""
        leaves = layout.unflatten(draw)

        def flat(leaves: list[Array], case: PyTree) -> Array:
            return as_real_array(u(layout.put(params, leaves), case))

        moved = [a + jnp.asarray(b, a.dtype) for a, b in zip(point, leaves, strict=True)]
        tangent = [jnp.asarray(b, a.dtype) for a, b in zip(point, leaves, strict=True)]
        there = jax.vmap(flat, (None, 0))(moved, z)
        here, straight = jax.jvp(lambda p: jax.vmap(flat, (None, 0))(p, z), (point,), (tangent,))
        return there - here, straight

    draws = sigma.sample(key, (samples,))
    actual, linear = jax.jit(lambda d: jax.lax.map(deviations, d, batch_size=batch_size))(draws)
    spread = jnp.var(actual, axis=0, ddof=1)
    left = jnp.var(actual - linear, axis=0, ddof=1)
    explained = jnp.where(spread > 0, 1 - left / jnp.where(spread > 0, spread, 1.0), 1.0)
    return Linearity(
        delta_std=jnp.sqrt(delta),
        sampled_std=jnp.sqrt(spread),
        bias=jnp.mean(actual, axis=0),
        explained=explained,
        samples=samples,
        tolerance=tolerance,
    )
