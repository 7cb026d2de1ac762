"""The marginal likelihood of a Gaussian posterior, and the prior precision and noise scale that it chooses."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Float

from deltavariance.curvature.base import Curvature
from deltavariance.structures.prior import precisions

PyTree = Any


def marginal_likelihood(
    curvature: Curvature, params: PyTree, log_likelihood: Any, *, prior_precision: Any, damping: Any = 0.0
) -> Float[Array, ""]:
    """`log p(data) ≈ log p(data | θ) − ½ Σ τ θ² + ½ Σ log τ + ½ log det Σ`, by Laplace's method.

    `curvature` is H (or a Gauss–Newton or Fisher matrix) at the trained parameters θ, `log_likelihood` the log-density
    of all the data there (a number, normalising constants included), and `prior_precision` τ that of the Gaussian
    prior around zero, as in `curvature.inverse`, positive for every parameter. Exact for a linear model with
    Gaussian noise at its maximum a posteriori. Differentiable in τ; each value costs no new decomposition where τ is
    one number a block.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> ll = dv.gaussian_log_likelihood(lambda p, x: p["mean"] * x, scale=1.0)
    >>> params, data = {"mean": jnp.array(0.5)}, (jnp.ones(1), jnp.ones(1))     # y ~ N(0, 2), θ at its posterior mode
    >>> H = dv.hessian(ll, params, data)
    >>> total = ll(params, (1.0, 1.0))
    >>> print(f"{dv.marginal_likelihood(H, params, total, prior_precision=1.0):.4f}")     # log N(1; 0, 2)
    -1.5155
    """
    layout = curvature.layout
    sigma = curvature.inverse(damping, prior_precision=prior_precision)
    prior = precisions(prior_precision, layout)
    leaves = layout.take(params)
    pull = sum((jnp.sum(tau * leaf**2) for tau, leaf in zip(prior, leaves, strict=True)), jnp.zeros(()))
    spread = sum(
        (
            jnp.sum(jnp.log(jnp.broadcast_to(tau, leaf.shape)))
            for tau, leaf in zip(prior, leaves, strict=True)
        ),
        jnp.zeros(()),
    )
    return jnp.asarray(log_likelihood) - pull / 2 + spread / 2 + sigma.logdet() / 2


@dataclass(frozen=True)
class Evidence:
    """What the marginal likelihood chose: `prior_precision` goes into `inverse`, `noise_scale` into the likelihood."""

    prior_precision: float | dict[str, float]
    noise_scale: float | None
    log_marginal_likelihood: float


def maximise_marginal_likelihood(
    curvature: Curvature,
    params: PyTree,
    log_likelihood: Any,
    *,
    per_block: bool = False,
    noise_scale: float | None = None,
    squares: Any = None,
    outputs: int | None = None,
    start: float = 1.0,
) -> Evidence:
    """The prior precision that maximises `marginal_likelihood`, by BFGS on its logarithm, without any refit.

    `per_block` chooses one for each leaf (where the structure allows it). With `noise_scale`, the Gaussian scale with
    which `curvature` was made, the scale is chosen too: give `squares`, the sum of squared residuals over all data,
    and `outputs`, how many numbers that is; `log_likelihood` is then not read. The parameters stay where they are, so
    refit and repeat where the choice moves them.
    """
    layout = curvature.layout
    if noise_scale is not None and (squares is None or outputs is None):
        raise ValueError(
            "To choose the noise scale, give `squares` and `outputs`: the residuals' sum and their number."
        )
    blocks = len(layout) if per_block else 1

    def objective(x: Array, _: Any) -> Array:
        taus = jnp.exp(x[:blocks])
        if noise_scale is None:
            prior: Any = dict(zip(layout.names, taus, strict=True)) if per_block else taus[0]
            return -marginal_likelihood(curvature, params, log_likelihood, prior_precision=prior)
        # C scales with 1/scale²: log det(ρ N C + τ) = P log ρ + log det(N C + τ/ρ).
        scale = jnp.exp(x[blocks])
        ratio = (noise_scale / scale) ** 2
        assert outputs is not None
        total = -0.5 * squares / scale**2 - outputs * (jnp.log(scale) + 0.5 * jnp.log(2 * jnp.pi))
        shrunk = taus / ratio
        prior = dict(zip(layout.names, shrunk, strict=True)) if per_block else shrunk[0]
        value = marginal_likelihood(curvature, params, total, prior_precision=prior)
        # The call above drew towards zero and spread by τ/ρ where τ itself is meant.
        squared = [jnp.sum(leaf**2) for leaf in layout.take(params)]
        given = list(taus) if per_block else [taus[0]] * len(layout)
        pull = sum(((tau / ratio - tau) * s for tau, s in zip(given, squared, strict=True)), jnp.zeros(()))
        # The logarithms agree: ½P log(τ/ρ) is ½P log τ with the −½P log ρ that log det Σ lacks.
        return -(value + pull / 2)

    count = blocks + (0 if noise_scale is None else 1)
    first = jnp.full(count, jnp.log(start))
    if noise_scale is not None:
        first = first.at[blocks].set(jnp.log(noise_scale))
    found: Any = optimistix.minimise(
        objective, optimistix.BFGS(rtol=1e-8, atol=1e-8), first, max_steps=500, throw=False
    )
    values = jnp.exp(found.value)
    chosen: Any = (
        {name: float(v) for name, v in zip(layout.names, values, strict=False)}
        if per_block
        else float(values[0])
    )
    return Evidence(
        chosen, None if noise_scale is None else float(values[blocks]), -float(objective(found.value, None))
    )
