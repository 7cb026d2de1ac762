"""Gaussian noise across the k outputs of one case, flattened: independent, full, or diagonal plus low rank.

Each model answers the same questions about its covariance C: the quadratic form `rᵀ C⁻¹ r`, `log det C`, a
root of C (to draw noise), a root of C⁻¹ (for the Gauss–Newton matrix), and what is left when some outputs
were not observed.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike, Bool, Float, Scalar

from deltavariance.likelihood.checks import check_positive, check_square, concrete


class OutputNoise(eqx.Module):
    """A covariance C `[k, k]` of the noise across the outputs of one case."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """k, the number of outputs."""

    @abc.abstractmethod
    def quadratic(self, residual: Float[Array, " k"]) -> Scalar:
        """`rᵀ C⁻¹ r`."""

    @abc.abstractmethod
    def log_det(self) -> Scalar:
        """`log det C`."""

    @abc.abstractmethod
    def root_times(self, vector: Float[Array, " k"]) -> Float[Array, " k"]:
        """`R v` with `R Rᵀ = C`."""

    @abc.abstractmethod
    def precision_root_times(self, vector: Float[Array, " k"]) -> Float[Array, " k"]:
        """`S v` with `S Sᵀ = C⁻¹`."""

    @abc.abstractmethod
    def observed(self, mask: Bool[Array, " k"]) -> "OutputNoise":
        """C with rows and columns of the outputs that were not observed replaced by those of the identity.

        With residuals set to zero there, the density is that of the observed outputs alone, up to
        `(2π)^(-missing/2)`.
        """

    @abc.abstractmethod
    def as_matrix(self) -> Float[Array, "k k"]:
        """C itself."""

    @abc.abstractmethod
    def variances(self) -> Float[Array, " k"]:
        """The diagonal of C."""


class IndependentNoise(OutputNoise):
    """C = diag(scale²), one standard deviation per output."""

    scale: Float[Array, " k"]

    @property
    def size(self) -> int:
        return self.scale.shape[0]

    def quadratic(self, residual: Float[Array, " k"]) -> Scalar:
        return jnp.sum((residual / self.scale) ** 2)

    def log_det(self) -> Scalar:
        return 2.0 * jnp.sum(jnp.log(self.scale))

    def root_times(self, vector: Float[Array, " k"]) -> Float[Array, " k"]:
        return self.scale * vector

    def precision_root_times(self, vector: Float[Array, " k"]) -> Float[Array, " k"]:
        return vector / self.scale

    def observed(self, mask: Bool[Array, " k"]) -> "IndependentNoise":
        return IndependentNoise(jnp.where(mask, self.scale, 1.0))

    def as_matrix(self) -> Float[Array, "k k"]:
        return jnp.diag(self.scale**2)

    def variances(self) -> Float[Array, " k"]:
        return self.scale**2


class FullCovariance(OutputNoise):
    """C given by a lower triangular root, `C = L Lᵀ`. Build it from a matrix with `FullCovariance.of(C)`.

    Costs O(k²) a case, and O(k³) once; with missing outputs O(k³) a case.

    >>> import jax.numpy as jnp
    >>> noise = FullCovariance.of(jnp.array([[4.0, 0.0], [0.0, 9.0]]))
    >>> float(noise.quadratic(jnp.array([2.0, 3.0])))
    2.0
    """

    root: Float[Array, "k k"]

    @staticmethod
    def of(covariance: ArrayLike) -> "FullCovariance":
        """From a symmetric positive definite matrix `[k, k]`."""
        matrix = check_square("covariance", covariance)
        if concrete(matrix):
            asymmetry = float(jnp.max(jnp.abs(matrix - matrix.T), initial=0.0))
            size = float(jnp.max(jnp.abs(matrix), initial=0.0))
            if not asymmetry <= 1e-4 * size:
                raise ValueError(
                    f"`covariance` should be symmetric; it differs from its transpose by {asymmetry:.3g}. A"
                    " triangular or other root R of the covariance (C = R Rᵀ) is given as `scale=R`."
                )
        root = jnp.linalg.cholesky(0.5 * (matrix + matrix.T))
        if concrete(root) and not bool(jnp.all(jnp.isfinite(root))):
            raise ValueError(
                "`covariance` is not positive definite. If it was estimated from fewer cases than outputs,"
                " shrink it: `dv.estimate_noise` does so, or pass a `dv.LowRankCovariance`."
            )
        return FullCovariance(root)

    @staticmethod
    def from_root(root: ArrayLike) -> "FullCovariance":
        """From any square root R `[k, k]`, not necessarily triangular: `C = R Rᵀ`."""
        square = check_square("scale", root)
        if (
            concrete(square)
            and not float(jnp.min(jnp.linalg.svd(square, compute_uv=False), initial=jnp.inf)) > 0.0
        ):
            raise ValueError(
                "`scale`, a root of the covariance, is singular: some outputs would have no noise at all."
            )
        # Rᵀ = Q T gives R Rᵀ = Tᵀ T; the signs make the diagonal positive, as a Cholesky factor's is.
        triangular = jnp.linalg.qr(square.T, mode="r").T
        return FullCovariance(triangular * jnp.sign(jnp.diagonal(triangular)))

    @property
    def size(self) -> int:
        return self.root.shape[0]

    def quadratic(self, residual: Float[Array, " k"]) -> Scalar:
        return jnp.sum(solve_triangular(self.root, residual, lower=True) ** 2)

    def log_det(self) -> Scalar:
        return 2.0 * jnp.sum(jnp.log(jnp.diagonal(self.root)))

    def root_times(self, vector: Float[Array, " k"]) -> Float[Array, " k"]:
        return self.root @ vector

    def precision_root_times(self, vector: Float[Array, " k"]) -> Float[Array, " k"]:
        return solve_triangular(self.root, vector, lower=True, trans="T")

    def observed(self, mask: Bool[Array, " k"]) -> "FullCovariance":
        kept = jnp.where(
            mask[:, None] & mask[None, :], self.as_matrix(), jnp.eye(self.size, dtype=self.root.dtype)
        )
        return FullCovariance(jnp.linalg.cholesky(kept))

    def as_matrix(self) -> Float[Array, "k k"]:
        return self.root @ self.root.T

    def variances(self) -> Float[Array, " k"]:
        return jnp.sum(self.root**2, axis=1)


class LowRankCovariance(OutputNoise):
    """C = diag(diagonal) + factor factorᵀ, with a positive diagonal `[k]` and a factor `[k, r]`.

    Costs O(k r) a case and O(k r²) once, so k may be the number of cells of a grid.

    >>> import jax.numpy as jnp
    >>> noise = LowRankCovariance(jnp.ones(3), jnp.ones((3, 1)))
    >>> float(jnp.round(noise.quadratic(jnp.ones(3)), 4))     # 3 - 9 / (1 + 3)
    0.75
    """

    diagonal: Float[Array, " k"]
    factor: Float[Array, "k r"]

    def __init__(self, diagonal: ArrayLike, factor: ArrayLike) -> None:
        d, u = jnp.asarray(diagonal), jnp.asarray(factor)
        if d.ndim != 1 or u.ndim != 2 or u.shape[0] != d.shape[0]:
            raise ValueError(
                "A low-rank covariance takes a diagonal [k] and a factor [k, r] over the k flattened"
                f" outputs; got shapes {d.shape} and {u.shape}."
            )
        check_positive("the diagonal of a low-rank covariance", d)
        dtype = jnp.result_type(d, u, jnp.float32)
        self.diagonal = d.astype(dtype)
        self.factor = u.astype(dtype)

    @property
    def size(self) -> int:
        return self.diagonal.shape[0]

    def _scaled(self) -> tuple[Float[Array, "k r"], Float[Array, "r r"]]:
        """`W = D^(-1/2) U` and `WᵀW`."""
        scaled = self.factor / jnp.sqrt(self.diagonal)[:, None]
        return scaled, scaled.T @ scaled

    def quadratic(self, residual: Float[Array, " k"]) -> Scalar:
        scaled, gram = self._scaled()
        whitened = residual / jnp.sqrt(self.diagonal)
        identity = jnp.eye(gram.shape[0], dtype=gram.dtype)
        factor = jax.scipy.linalg.cho_factor(identity + gram, lower=True)
        weights = jax.scipy.linalg.cho_solve(factor, scaled.T @ whitened)
        # Woodbury's rᵀr - (Wᵀr)ᵀ(I + WᵀW)⁻¹(Wᵀr), written as a ridge regression so that nothing cancels.
        return jnp.sum((whitened - scaled @ weights) ** 2) + jnp.sum(weights**2)

    def log_det(self) -> Scalar:
        _, gram = self._scaled()
        root = jnp.linalg.cholesky(jnp.eye(gram.shape[0], dtype=gram.dtype) + gram)
        return jnp.sum(jnp.log(self.diagonal)) + 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))

    def root_times(self, vector: Float[Array, " k"]) -> Float[Array, " k"]:
        # (I + WWᵀ)^(1/2) = I + W V c Vᵀ Wᵀ with WᵀW = V diag(λ) Vᵀ and c = (√(1+λ) - 1) / λ
        coefficient = lambda eigenvalues: 1.0 / (1.0 + jnp.sqrt(1.0 + eigenvalues))  # noqa: E731
        return jnp.sqrt(self.diagonal) * self._symmetric_power(vector, coefficient)

    def precision_root_times(self, vector: Float[Array, " k"]) -> Float[Array, " k"]:
        # the same with c = (1/√(1+λ) - 1) / λ
        coefficient = lambda eigenvalues: -1.0 / (1.0 + eigenvalues + jnp.sqrt(1.0 + eigenvalues))  # noqa: E731
        return self._symmetric_power(vector, coefficient) / jnp.sqrt(self.diagonal)

    def _symmetric_power(self, vector: Float[Array, " k"], coefficient: Any) -> Float[Array, " k"]:
        scaled, gram = self._scaled()
        eigenvalues, vectors = jnp.linalg.eigh(gram)
        basis = scaled @ vectors
        return vector + basis @ (coefficient(jnp.maximum(eigenvalues, 0.0)) * (basis.T @ vector))

    def observed(self, mask: Bool[Array, " k"]) -> "LowRankCovariance":
        return LowRankCovariance(
            jnp.where(mask, self.diagonal, 1.0), jnp.where(mask[:, None], self.factor, 0.0)
        )

    def as_matrix(self) -> Float[Array, "k k"]:
        return jnp.diag(self.diagonal) + self.factor @ self.factor.T

    def variances(self) -> Float[Array, " k"]:
        return self.diagonal + jnp.sum(self.factor**2, axis=1)
