"""What every forecaster has in common: its inputs, what is fixed, and the form of its answer."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..mesh import GridMesh
from .layers import Dropout


class Forcing(eqx.Module):
    """What is known of every time beforehand; the leaves share a time axis (and, in `Cases`, one before it).

    `time` holds functions of the date (see `climatology.time_basis`), the same everywhere; `fields` holds
    what differs between cells, such as the sun, for the step that begins at each time.
    """

    time: Float[Array | np.ndarray, "*n time basis"]
    fields: Float[Array | np.ndarray, "*n time lat lon field"]


class Static(eqx.Module):
    """What a forecast needs that never changes, kept out of the model so that it is no parameter of it.

    `climatology` holds the normalised mean state as coefficients of `Forcing.time`; `tendency` the deviation
    of the normalised state's 6-hour anomaly differences, which scales what a network predicts; `graph` is
    needed by the mesh network only.
    """

    fields: Float[Array | np.ndarray, "lat lon field"]
    climatology: Float[Array | np.ndarray, "basis lat lon channel"]
    tendency: Float[Array | np.ndarray, " channel"]
    graph: GridMesh | None = None

    def mean_state(
        self, time: Float[Array | np.ndarray, "*times basis"]
    ) -> Float[Array, "*times lat lon channel"]:
        """The climatological state, normalised, at the given dates."""
        return jnp.tensordot(jnp.asarray(time), jnp.asarray(self.climatology), axes=1)


class StepModel(eqx.Module):
    """Predicts the state six hours on, for one case.

    `history` states end with the present one; the forcing's window covers them and, last, the time predicted.
    A network sees and predicts departures from the climatology m(t):
    `next = m(t+1) + (state - m(t)) + tendency · network(...)`, all in normalised units.

    `unrolled` says how a rollout runs best on a CPU: a convolution inside `lax.scan` is many times slower
    than outside, dense layers are not.
    """

    history: eqx.AbstractVar[int]
    unrolled: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def network(
        self,
        cells: Float[Array, "lat lon input"],
        time: Float[Array, " basis"],
        static: Static,
        *,
        dropout: Dropout | None,
    ) -> Float[Array, "lat lon channel"]:
        """The anomaly's change in units of `static.tendency`, from the assembled inputs of every cell."""

    def __call__(
        self,
        state: Float[Array, "history lat lon channel"],
        forcing: Forcing,
        static: Static,
        *,
        dropout: Dropout | None = None,
    ) -> Float[Array, "lat lon channel"]:
        means = static.mean_state(forcing.time)
        anomalies = state - means[:-1]
        change = self.network(
            cell_inputs(anomalies, forcing, static), jnp.asarray(forcing.time[-1]), static, dropout=dropout
        )
        return means[-1] + anomalies[-1] + static.tendency * change


def cell_inputs(
    anomalies: Float[Array, "history lat lon channel"], forcing: Forcing, static: Static
) -> Float[Array, "lat lon input"]:
    """Everything a cell knows: its past anomalies, the forcing of the step ahead, and its fixed fields."""
    past = jnp.concatenate(list(anomalies), axis=-1)
    return jnp.concatenate([past, jnp.asarray(forcing.fields[-2]), jnp.asarray(static.fields)], axis=-1)


def input_size(*, channels: int, history: int, forcing_fields: int, static_fields: int) -> int:
    """The length of `cell_inputs`' last axis."""
    return channels * history + forcing_fields + static_fields
