"""Diagonal plus low rank by maximum likelihood, and how far correlations should be shrunk."""

import numpy as np
from jaxtyping import Float

Matrix = Float[np.ndarray, "..."]

# No output may be explained by the common factors to more than this: its own noise would go to zero, and its
# evidence to infinity, whenever a factor happens to fit it.
_LARGEST_COMMUNALITY = 0.999


def factor_analysis(
    basis: Float[np.ndarray, "l k"],
    variances: Float[np.ndarray, " k"],
    rank: int,
    *,
    max_iterations: int = 300,
    tolerance: float = 1e-5,
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k r"]]:
    """ψ and U with `diag(ψ) + U Uᵀ` the most likely covariance of rank r, given `S = basisᵀ basis +
    diag(rest)`.

    Alternates the two conditions of a maximum: with `ψ` given, U holds the leading eigenvectors of `ψ^(-½) S
    ψ^(-½)`, scaled by the root of their eigenvalue less one; with U given, `ψ + Σ U²` are the variances. One
    step costs O(l² k).
    """
    floor = (1.0 - _LARGEST_COMMUNALITY) * variances
    rest = np.maximum(variances - np.sum(basis**2, axis=0), 0.0)
    own = 0.5 * variances
    factor = np.zeros((variances.size, rank))
    for _ in range(max_iterations):
        scaled = basis / np.sqrt(own)
        eigenvalues, vectors = _leading(scaled, rank)
        # What the sketch left out counts as diagonal, and adds its part to the variance along a direction.
        eigenvalues = eigenvalues + (rest / own) @ vectors**2
        factor = np.sqrt(own)[:, None] * vectors * np.sqrt(np.maximum(eigenvalues - 1.0, 0.0))
        updated = np.maximum(variances - np.sum(factor**2, axis=1), floor)
        change = float(np.max(np.abs(updated - own) / variances))
        own = updated
        if change < tolerance:
            break
    # Where the floor holds, the factor gives way, so that the variances stay those of the residuals.
    communality = np.sum(factor**2, axis=1)
    factor = factor * np.sqrt(np.minimum(1.0, (variances - own) / np.maximum(communality, 1e-300)))[:, None]
    return own, factor


def shrinkage_of_pairs(
    covariance: Float[np.ndarray, "k k"], fourth: Float[np.ndarray, "k k"], pairs: Float[np.ndarray, "k k"]
) -> float:
    """`Σ Var(ρ_ij) / Σ ρ_ij²` over the pairs i ≠ j: the shrinkage of correlations with the least expected
    squared error.

    The estimator of Schäfer and Strimmer (2005), for residuals of known mean zero. `fourth` holds the
    averages of `r_i² r_j²`.
    """
    spread = np.sqrt(np.diag(covariance))
    outer = np.outer(spread, spread)
    rho, fourth = covariance / outer, fourth / outer**2
    off = ~np.eye(spread.size, dtype=bool)
    noise = np.sum(np.maximum(fourth - rho**2, 0.0)[off] / np.maximum(pairs, 1.0)[off])
    return _ratio(float(noise), float(np.sum(rho[off] ** 2)))


def shrinkage_of_rows(basis: Float[np.ndarray, "l k"], row_fourth: float, num_data: float) -> float:
    """The same where k² numbers are too many: `row_fourth` is the average of `Σ_{i≠j} r_i² r_j²`."""
    gram = basis @ basis.T
    signal = max(float(np.sum(gram**2) - np.sum(np.sum(basis**2, axis=0) ** 2)), 0.0)
    return _ratio(max(row_fourth - signal, 0.0) / num_data, signal)


def _leading(scaled: Matrix, rank: int) -> tuple[Matrix, Matrix]:
    """The leading eigenvalues of scaledᵀ scaled and their vectors `[k, r]`, by the smaller Gram matrix."""
    if scaled.shape[0] < scaled.shape[1]:
        eigenvalues, left = np.linalg.eigh(scaled @ scaled.T)
        values = np.maximum(eigenvalues[::-1][:rank], 0.0)
        vectors = scaled.T @ left[:, ::-1][:, :rank] / np.sqrt(np.maximum(values, 1e-300))
    else:
        eigenvalues, right = np.linalg.eigh(scaled.T @ scaled)
        values, vectors = np.maximum(eigenvalues[::-1][:rank], 0.0), right[:, ::-1][:, :rank]
    missing = rank - values.size
    return np.pad(values, (0, missing)), np.pad(vectors, ((0, 0), (0, missing)))


def _ratio(noise: float, signal: float) -> float:
    return 1.0 if signal <= 0 else min(1.0, noise / signal)
