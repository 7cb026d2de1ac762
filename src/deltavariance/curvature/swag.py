"""SWAG: the spread of parameters along a trajectory of training, as a Σ."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from deltavariance.covariance.factor import FactorCovariance
from deltavariance.parameters import Layout, Where

PyTree = Any


def swag(
    snapshots: Sequence[PyTree],
    *,
    where: Where | Layout = None,
    rank: int | None = None,
    floor: float = 0.0,
) -> FactorCovariance:
    """`Σ = ½ diag(s²) + ½ D Dᵀ / (K−1)` from K ≥ 2 snapshots of the parameters.

    `s²` is the variance of each parameter over the snapshots (mean square less squared mean, not below `floor`), and
    the columns of D are the deviations from their mean of the last `rank` snapshots (all, if not given; K is then
    `rank` in the formula). The snapshots are taken once a step or an epoch at a constant learning rate, whose noise
    is taken to be the posterior's: no 1/N is added, and the scale is worth checking.

    Cost: K·P numbers.

    >>> import jax.numpy as jnp
    >>> sigma = swag([{"w": jnp.array([0.0, 1.0])}, {"w": jnp.array([2.0, 1.0])}])
    >>> sigma.to_dense().tolist()
    [[1.5, 0.0], [0.0, 0.0]]
    """
    snapshots = list(snapshots)
    if len(snapshots) < 2:
        raise ValueError(
            f"SWAG needs at least two snapshots of the parameters, and {len(snapshots)} was given."
        )
    if rank is not None and rank < 2:
        raise ValueError(f"rank must be at least 2, and it is {rank}: it counts the snapshots in D.")
    layout = where if isinstance(where, Layout) else Layout.of(snapshots[0], where)
    for number, snapshot in enumerate(snapshots):
        layout.check(snapshot, f"Snapshot {number}'s Σ")
    rows = jnp.stack([layout.flatten(layout.take(snapshot)) for snapshot in snapshots])
    deviations = rows - jnp.mean(rows, axis=0)
    variances = jnp.maximum(jnp.mean(deviations**2, axis=0), floor)
    last = deviations if rank is None else deviations[-rank:]
    columns = last.T / jnp.sqrt(2.0 * (last.shape[0] - 1))
    return FactorCovariance(variances=tuple(layout.unflatten(variances / 2)), columns=columns, layout=layout)
