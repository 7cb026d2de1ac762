"""The mean state by date and hour, and the functions of the date that carry it."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float, Float64

ANNUAL = 3
DIURNAL = 2


def time_basis(
    times: np.ndarray, *, annual: int = ANNUAL, diurnal: int = DIURNAL
) -> Float[np.ndarray, "time basis"]:
    """Products of the first harmonics of the year and of the day, as far as the hours tell them apart.

    With 6-hourly times the day gives four functions, 1, cos, sin and cos of twice the angle (its sine is zero
    at all four hours), so that every hour has a mean of its own; with `annual` = 3 the year gives seven: 28
    in all.

    >>> time_basis(np.arange("2001-01-01", "2001-03-01", 6, dtype="datetime64[h]")).shape
    (236, 28)
    """
    hours = times.astype("datetime64[s]").astype(np.int64) / 3600
    day = (hours / 24) % 1
    year = ((times - times.astype("datetime64[Y]")) / np.timedelta64(1, "s")) / (365.25 * 86400)
    return (
        np.einsum("ta,td->tad", _harmonics(year, annual), _daily(day, diurnal))
        .reshape(len(times), -1)
        .astype(np.float32)
    )


def _harmonics(phase: Float64[np.ndarray, " time"], count: int) -> Float64[np.ndarray, "time functions"]:
    angles = 2 * np.pi * phase[:, None] * np.arange(1, count + 1)
    return np.concatenate([np.ones((len(phase), 1)), np.cos(angles), np.sin(angles)], axis=1)


def _daily(phase: Float64[np.ndarray, " time"], count: int) -> Float64[np.ndarray, "time functions"]:
    functions = _harmonics(phase, count)
    hours = np.unique(np.round(phase * 24, 6)) / 24
    # A harmonic that vanishes at all hours, or repeats another one, would make the fit singular.
    kept: list[int] = []
    for column in range(functions.shape[1]):
        if np.linalg.matrix_rank(_harmonics(hours, count)[:, [*kept, column]], tol=1e-6) > len(kept):
            kept.append(column)
    return functions[:, kept]


class ClimatologyFit:
    """Least squares of the state on the functions of the date, accumulated over chunks of time."""

    def __init__(self) -> None:
        self._gram: Float64[np.ndarray, "basis basis"] | None = None
        self._moment: Float64[np.ndarray, "basis ..."] | None = None

    def add(
        self, basis: Float[np.ndarray, "time basis"], state: Float[np.ndarray, "time lat lon channel"]
    ) -> None:
        wide = basis.astype(np.float64)
        gram, moment = wide.T @ wide, np.tensordot(wide.T, state.astype(np.float64), axes=1)
        self._gram = gram if self._gram is None else self._gram + gram
        self._moment = moment if self._moment is None else self._moment + moment

    def coefficients(self) -> Float[np.ndarray, "basis lat lon channel"]:
        """The minimiser; of several (a record of less than a year) the one of least norm."""
        if self._gram is None or self._moment is None:
            raise ValueError("No states were added: a climatology needs the training years.")
        flat = np.linalg.lstsq(self._gram, self._moment.reshape(len(self._gram), -1), rcond=1e-10)[0]
        return np.asarray(flat.reshape(self._moment.shape), dtype=np.float32)


def fit_climatology(
    chunks: Iterable[tuple[np.ndarray, np.ndarray]],
) -> Float[np.ndarray, "basis lat lon channel"]:
    """Coefficients of the mean state, from chunks of (functions of the date, normalised states)."""
    fit = ClimatologyFit()
    for basis, state in chunks:
        fit.add(basis, state)
    return fit.coefficients()
