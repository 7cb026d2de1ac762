"""Running sums over residuals, in double precision on the host, from which every structure of noise is
estimated.

Each accumulator takes chunks of residuals `[b, k]` with weights `[b]`; a missing output is NaN. Everything a
structure needs is kept, and nothing that grows with the number of examples.
"""

import numpy as np
from jaxtyping import Float

Matrix = Float[np.ndarray, "..."]


class SquareSums:
    """`Σ w r²` and `Σ w` per output."""

    def __init__(self, size: int) -> None:
        self.square = np.zeros(size)
        self.weight = np.zeros(size)
        self.total = 0.0

    def add(self, residuals: Matrix, weights: Matrix) -> None:
        present = ~np.isnan(residuals)
        values = np.where(present, residuals, 0.0)
        self.square += weights @ values**2
        self.weight += weights @ present
        self.total += float(weights.sum())


class CrossSums(SquareSums):
    """Adds `Σ w r_i r_j`, `Σ w r_i² r_j²` and `Σ w` per pair of outputs."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.cross = np.zeros((size, size))
        self.fourth = np.zeros((size, size))
        self.pairs = np.zeros((size, size))

    def add(self, residuals: Matrix, weights: Matrix) -> None:
        super().add(residuals, weights)
        present = (~np.isnan(residuals)).astype(float)
        values = np.where(present > 0, residuals, 0.0)
        column = weights[:, None]
        self.cross += values.T @ (column * values)
        self.fourth += (values**2).T @ (column * values**2)
        self.pairs += present.T @ (column * present)


class Sketch(SquareSums):
    """The leading directions of `Σ w r rᵀ` in one pass: `basis [l, k]` with `basisᵀ basis` close to it, never
    above it.

    Outputs are first divided by `unit`, their spread in the first chunk, so that the sketch does not go to
    those with the largest units. With l = k it is exact.
    """

    def __init__(self, size: int, rows: int) -> None:
        super().__init__(size)
        self.rows = rows
        self.unit: Matrix | None = None
        self.basis = np.zeros((0, size))
        self.row_fourth = 0.0  # Σ w (|r|⁴ - Σ_j r_j⁴), in units: how noisy the correlations are

    def add(self, residuals: Matrix, weights: Matrix) -> None:
        if np.isnan(residuals).any():
            raise ValueError(
                "Low-rank noise is estimated from complete targets only, and some are missing (NaN). Use"
                " `structure=dv.noise.Full()`, which counts pairs, or `dv.noise.PerOutput()`."
            )
        super().add(residuals, weights)
        if self.unit is None:
            spread = np.sqrt(weights @ residuals**2 / weights.sum())
            self.unit = np.where(spread > 0, spread, spread.max() or 1.0)
        values = residuals / self.unit
        squares = np.sum(values**2, axis=1)
        self.row_fourth += float(weights @ (squares**2 - np.sum(values**4, axis=1)))
        self.basis = _compress(np.concatenate([self.basis, np.sqrt(weights)[:, None] * values]), self.rows)


def _compress(stack: Matrix, rows: int) -> Matrix:
    """The best `rows` rows B with BᵀB near stackᵀ stack."""
    if stack.shape[0] <= rows:
        return stack
    if stack.shape[0] <= stack.shape[1]:
        eigenvalues, vectors = np.linalg.eigh(stack @ stack.T)
        return vectors[:, ::-1][:, :rows].T @ stack
    eigenvalues, vectors = np.linalg.eigh(stack.T @ stack)
    leading = slice(None, -rows - 1, -1)
    return np.sqrt(np.maximum(eigenvalues[leading], 0.0))[:, None] * vectors[:, leading].T
