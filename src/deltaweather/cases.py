"""Forecasts to be made or learned from: past states, the forcing throughout, and what came."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int64

from .models.step import Forcing


class Cases(eqx.Module):
    """One case a row, normalised; `forcing` covers the times of `state` and then those of `target`."""

    state: Float[Array | np.ndarray, "n history lat lon channel"]
    forcing: Forcing
    target: Float[Array | np.ndarray, "n steps lat lon channel"]


@runtime_checkable
class CaseSource(Protocol):
    """Where cases come from: a record in memory, or a store that reads what is asked for.

    `starts` are time indices of the last known state of each case.
    """

    def cases(self, starts: Int64[np.ndarray, " n"], history: int, steps: int) -> Cases: ...


@dataclass(frozen=True)
class Record:
    """A normalised record in memory.

    **Shapes** `states` `[time, lat, lon, channel]`; the leaves of `forcing` have the same leading axis.
    """

    states: Float[np.ndarray, "time lat lon channel"]
    forcing: Forcing

    def cases(self, starts: Int64[np.ndarray, " n"], history: int, steps: int) -> Cases:
        starts = np.asarray(starts)
        first, last = int(starts.min()) - history + 1, int(starts.max()) + steps
        if first < 0 or last >= len(self.states):
            raise IndexError(
                f"A case with {history} past states and {steps} steps reads times {first} to {last}, but the "
                f"record has {len(self.states)}. Leave out starts too near its ends."
            )
        times = starts[:, None] + np.arange(1 - history, steps + 1)[None]
        states = self.states[times]
        forcing = jax.tree.map(lambda x: np.asarray(x)[times], self.forcing)
        return Cases(states[:, :history], forcing, states[:, history:])
