"""What training minimises."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .cases import Cases
from .forecast import rollout
from .models.layers import Dropout, split_dropout
from .models.step import Static, StepModel


def case_loss(
    model: StepModel,
    case: Cases,
    static: Static,
    weights: Float[Array, "lat lon channel"],
    *,
    dropout: Dropout | None = None,
    remat: bool = False,
) -> Float[Array, ""]:
    """`Σ w (forecast - target)²`, averaged over leads, of one case (`Cases` without its leading axis).

    With `error_weights` a forecast without change has a loss of about one after six hours.
    """
    steps = case.target.shape[0]
    forecast = rollout(
        model, jnp.asarray(case.state), case.forcing, steps, static=static, dropout=dropout, remat=remat
    )
    return jnp.sum(weights * (forecast - case.target) ** 2) / steps


def error_weights(
    area: Float[Array, "lat lon"], static: Static, channel_weights: Float[Array, " channel"] | None = None
) -> Float[Array, "lat lon channel"]:
    """Area times channel weight over the squared size of a 6-hour anomaly change.

    `w_ijc = (area_ij / Σ area) · (ω_c / Σ ω) / tendency_c²`; ω is 1 for every channel by default.
    """
    ones = jnp.ones_like(static.tendency) if channel_weights is None else jnp.asarray(channel_weights)
    channels = ones / jnp.sum(ones) / static.tendency**2
    return (jnp.asarray(area) / jnp.sum(jnp.asarray(area)))[..., None] * channels


def batch_loss(
    model: StepModel,
    batch: Cases,
    case_weights: Float[Array, " n"],
    static: Static,
    weights: Float[Array, "lat lon channel"],
    *,
    dropout: Dropout | None = None,
    remat: bool = False,
) -> Float[Array, ""]:
    """The mean over cases of `case_weights · case_loss`; weights of mean one keep its scale."""
    masks = split_dropout(dropout, case_weights.shape[0])
    stacked = (
        None if dropout is None else jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *masks)
    )
    losses = jax.vmap(
        lambda case, mask: case_loss(model, case, static, weights, dropout=mask, remat=remat),
        in_axes=(0, None if stacked is None else 0),
    )(batch, stacked)
    return jnp.mean(case_weights * losses)
