"""A Σ of which nothing is stored: products by conjugate gradients."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
from jaxtyping import Array, Float

from deltavariance.contraction.rows import over_rows
from deltavariance.covariance.base import Covariance, block_factors
from deltavariance.covariance.factor import adding_up
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients


class Operator(eqx.Module):
    """A symmetric matrix that is known by its products, `C v` for one flat vector."""

    @abc.abstractmethod
    def __call__(self, vector: Float[Array, " P"]) -> Float[Array, " P"]:
        """`C v`."""


class MatrixFreeCovariance(Covariance):
    """`Σ = D (C + shift)⁻¹ D / N` with C known by its products; each product of Σ is a solve by conjugate gradients.

    Cost of `ΔᵀΣΔ`: for each case and component as many products with C as the solver takes steps, each a pass over
    the data. `residual` says how well a system was solved. There is no square root: draws, the log-determinant and
    the diagonal go through `to_dense`, for small cases.
    """

    operator: Operator
    shift: Float[Array, " P"]
    num_data: Float[Array, ""]
    solver: Any = eqx.field(static=True)
    factors: tuple[Array, ...]
    layout: Layout = eqx.field(static=True)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        parts = over_rows(self._shares, gradients, range(len(self.layout)))
        return {name: parts[..., number] for number, name in enumerate(self.layout.names)}

    def _shares(self, rows: Float[Array, "K b P"]) -> Float[Array, "K b L"]:
        product = self._apply(rows)
        found = self.layout.unflatten(rows * product)
        shares = jnp.stack([jnp.sum(x, axis=tuple(range(2, x.ndim))) for x in found], axis=-1)
        return adding_up(shares, jnp.sum(rows * product, axis=-1))

    def solve(self, vector: Float[Array, " P"]) -> Float[Array, " P"]:
        """`(C + shift)⁻¹ v`."""
        operator = lineax.FunctionLinearOperator(
            self.curvature, jax.ShapeDtypeStruct(vector.shape, vector.dtype), lineax.positive_semidefinite_tag
        )
        found: Array = lineax.linear_solve(operator, vector, self.solver, throw=False).value
        return found

    def curvature(self, vector: Float[Array, " P"]) -> Float[Array, " P"]:
        """`(C + shift) v`."""
        return self.operator(vector) + self.shift * vector

    def residual(self, vectors: Float[Array, "... P"]) -> Float[Array, "..."]:
        """`|v − (C + shift) x| / |v|` for the solution x that Σ uses for v. Cost: one more product than the solve."""
        flat = jnp.reshape(vectors, (-1, vectors.shape[-1]))

        def one(v: Array) -> Array:
            return jnp.linalg.norm(v - self.curvature(self.solve(v))) / jnp.linalg.norm(v)

        return jnp.reshape(jax.lax.map(one, flat), vectors.shape[:-1])

    def _each(self) -> Float[Array, " P"]:
        return self.layout.flatten(
            [jnp.full(shape, factor) for factor, shape in zip(self.factors, self.layout.shapes, strict=True)]
        )

    def _apply(self, vectors: Float[Array, "... P"]) -> Float[Array, "... P"]:
        each = self._each()
        flat = jnp.reshape(vectors * each, (-1, vectors.shape[-1]))
        solved = jax.lax.map(self.solve, flat, batch_size=min(8, flat.shape[0]))
        return each * jnp.reshape(solved, vectors.shape) / self.num_data

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        return self.layout.unflatten(self._apply(self.layout.flatten(leaves)))

    def multiply_sqrt(self, noise: Float[Array, "... P"]) -> list[Array]:
        """By the eigendecomposition of the matrix written out: small cases."""
        dense = self.to_dense()
        values, vectors = jnp.linalg.eigh((dense + dense.T) / 2)
        return self.layout.unflatten((noise * jnp.sqrt(jnp.maximum(values, 0))) @ vectors.T)

    def logdet(self) -> Float[Array, ""]:
        """From the matrix written out: small cases."""
        return jnp.linalg.slogdet(self.to_dense())[1]

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "MatrixFreeCovariance":
        chosen = block_factors(factors, self.blocks)
        roots = tuple(old * jnp.sqrt(jnp.asarray(new)) for old, new in zip(self.factors, chosen, strict=True))
        return eqx.tree_at(lambda sigma: sigma.factors, self, roots)


# Steps of the power iterations by which a negative eigenvalue is looked for.
STEPS = 40


def check_definite(sigma: Covariance) -> None:
    """Raise if `C + shift` is seen to have a negative eigenvalue, for which conjugate gradients would answer nonsense.

    By power iterations, first for the largest eigenvalue and then from there for the lowest: 80 products with C. An
    eigenvalue that is hardly negative can go unseen; the residual of a solve then tells.
    """
    assert isinstance(sigma, MatrixFreeCovariance)
    lowest, largest = _extremes(sigma)
    if not isinstance(lowest, jax.core.Tracer) and float(lowest) <= 0:
        raise ValueError(
            f"The curvature, damping and prior included, has an eigenvalue of at most {float(lowest):.3g} (the"
            " largest is about"
            f" {float(largest):.3g}), and conjugate gradients need a positive definite matrix. Raise `damping=`, state"
            " `prior_precision=`, train on, or use `dv.gauss_newton` or `dv.Dense()` with a rule for such eigenvalues."
        )


@eqx.filter_jit
def _extremes(sigma: MatrixFreeCovariance) -> tuple[Array, Array]:
    start = jax.random.normal(jax.random.key(0), sigma.shift.shape, sigma.shift.dtype)

    def towards(multiply: Any) -> tuple[Array, Array]:
        def step(_: Any, v: Array) -> Array:
            product = multiply(v)
            return product / jnp.linalg.norm(product)

        v = jax.lax.fori_loop(0, STEPS, step, start / jnp.linalg.norm(start))
        return v, v @ sigma.curvature(v)

    _, first = towards(sigma.curvature)
    # Where the first is negative it is the one of the largest size, and already the answer.
    _, second = towards(lambda v: sigma.curvature(v) - first * v)
    return jnp.minimum(first, second), jnp.maximum(first, second)
