"""The same by laplax, a Laplace approximation in JAX: diagonal curvature, variance of the output."""

from typing import Any

import jax
import jax.numpy as jnp

import deltavariance as dv

from ..harness import Row, interleaved, once
from .networks import NETWORKS, Network


def laplax(seconds: float) -> list[Row]:
    """laplax on the first two networks, if it is installed."""
    try:
        import laplax as installed  # noqa: F401
    except ImportError:
        return [Row("laplax", "not installed: `pip install laplax`", float("nan"))]
    cases = (network for network in NETWORKS if network.name in ("mlp", "cnn"))
    return [row for case in cases for row in _compared(case, seconds)]


def _compared(case: Network, seconds: float) -> list[Row]:
    """laplax's diagonal takes one Gauss–Newton product for each of P basis vectors: one is timed, P counted.

    With squared errors its matrix is twice the second moment of u's gradient, so the two fits do the same work.
    Both variances are then taken with the same Σ, and must agree.
    """
    from laplax.curv.cov import set_posterior_fn
    from laplax.curv.ggn import create_ggn_mv
    from laplax.eval.pushforward import lin_pred_var, lin_setup, set_lin_pushforward

    u, params, z = case.build()
    n = len(z)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))

    def model(input: Any, params: Any) -> jax.Array:
        return jnp.reshape(u(params, input), (1,))

    fisher = dv.fisher(u, params, z, structure=dv.Diagonal())
    sigma = fisher.inverse(damping=1.0)
    ours = interleaved(
        {
            "variance": lambda: dv.variance(u, params, z, sigma),
            "fit": lambda: dv.fisher(u, params, z, structure=dv.Diagonal()),
        },
        seconds=seconds / 2,
    )

    product = jax.jit(create_ggn_mv(model, params, {"input": z, "target": jnp.zeros((n, 1))}, loss_fn="mse"))
    jax.block_until_ready(product(params))
    one = min(once(lambda: product(params)) for _ in range(3))

    predict = set_lin_pushforward(
        model_fn=model,
        mean_params=params,
        posterior_fn=set_posterior_fn("diagonal", n * fisher.diagonal(), layout=params),
        prior_arguments={"prior_prec": float(n)},
        pushforward_fns=[lin_setup, lin_pred_var],
    )
    variances = jax.jit(jax.vmap(lambda x: predict(x)["pred_var"]))
    jax.block_until_ready(variances(z))
    theirs = min(once(lambda: variances(z)) for _ in range(2))
    apart = float(jnp.max(jnp.abs(variances(z).ravel() / dv.variance(u, params, z, sigma) - 1)))

    variance, fit = ours["variance"].median, ours["fit"].median
    note = f"{1e3 * theirs:.0f} ms against {1e3 * variance:.1f} ms; largest relative difference {apart:.0e}"
    counted = f"extrapolated: {1e3 * one:.0f} ms for each of {size} basis vectors, against {1e3 * fit:.1f} ms"
    return [
        Row(case.title, "laplax's variance over ours", theirs / variance, None, note),
        Row(case.title, "laplax's diagonal over our Fisher fit", one * size / fit, None, counted),
    ]
