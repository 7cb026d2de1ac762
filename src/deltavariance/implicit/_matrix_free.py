"""The largest eigenvalues of symmetric operators that are known by their products only."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ._certify import certify
from ._gaps import inverse_differences, report_near_multiples
from ._general import Eigensystem
from ._lanczos import largest_ritz_pairs


def largest_eigenvalues(
    matvec: Callable[[Array], Array],
    size: int,
    k: int = 1,
    *,
    key: PRNGKeyArray | None = None,
    rtol: float | None = None,
    max_restarts: int = 300,
    dtype: Any = None,
    throw: bool = True,
) -> Float[Array, " k"]:
    """The k largest eigenvalues of a symmetric operator given by its products, in ascending order.

    The smallest are `-largest_eigenvalues(lambda v: -matvec(v), ...)[::-1]`.

    Found by Lanczos iteration with thick restarts; differentiated with `dλ_i = x_iᵀ dA x_i`, which costs one
    product with dA per eigenvalue, in forward and reverse mode and to any order. Nothing of size n × n is built.

    **Arguments:**

    - `matvec`: the product `v -> A v` with a symmetric A, a function of arrays of shape `[size]`; it closes
        over the parameters that A depends on. That it is symmetric is tested on random vectors.
    - `size`: n, the length of v.
    - `k`: how many eigenvalues; the largest in value, not in absolute value.
    - `key`: of the random start; a fixed one by default. The result depends on it only to rounding.
    - `rtol`: accepted residual ‖A x − λ x‖ relative to the largest |λ|; by default ε^0.85.
    - `max_restarts`: sweeps allowed, each of some k + 20 products.
    - `dtype`: of v; the default floating-point type if left out.
    - `throw`: whether failure raises `ConvergenceError`, also under `jit`, or yields NaN.

    Memory: (2 k + 40) n numbers.

    >>> import jax, jax.numpy as jnp
    >>> import deltavariance as dv
    >>> stretched = lambda s: dv.implicit.largest_eigenvalues(lambda v: s * jnp.arange(1.0, 101.0) * v, 100, k=2)
    >>> print(jnp.round(stretched(2.0), 1), jnp.round(jax.jacobian(stretched)(2.0), 1))
    [198. 200.] [ 99. 100.]
    """
    operator = _SymmetricOperator(matvec, size, k, key, rtol, max_restarts, dtype, throw)
    return operator.values(operator.leaves)[-k:]


def largest_eigenvectors(
    matvec: Callable[[Array], Array],
    size: int,
    k: int = 1,
    *,
    key: PRNGKeyArray | None = None,
    rtol: float | None = None,
    max_restarts: int = 300,
    dtype: Any = None,
    throw: bool = True,
) -> Eigensystem:
    """As `largest_eigenvalues`, with the eigenvectors: columns of length 1 whose largest entry is positive.

    The derivative of a vector solves `(λ_i − A) ẋ_i = P Ȧ x_i` on the complement of the vectors found, where
    the operator is positive definite, by conjugate gradients.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> top = dv.implicit.largest_eigenvectors(lambda v: jnp.array([1.0, 5.0, 3.0]) * v, 3)
    >>> print(top.values, top.right[:, 0])
    [5.] [0. 1. 0.]
    """
    operator = _SymmetricOperator(matvec, size, k, key, rtol, max_restarts, dtype, throw)
    values, vectors = operator.pairs(operator.leaves)
    values, vectors = values[-k:], vectors[:, -k:]
    row = jnp.argmax(jnp.abs(jax.lax.stop_gradient(vectors)), axis=0)
    vectors = vectors * jnp.sign(jnp.take_along_axis(vectors, row[None, :], axis=0))
    return Eigensystem(values, vectors, vectors)


class _SymmetricOperator:
    """One operator with what it closes over taken out as `leaves`, and the functions that differentiate by them."""

    def __init__(
        self,
        matvec: Callable[[Array], Array],
        size: int,
        k: int,
        key: PRNGKeyArray | None,
        rtol: float | None,
        max_restarts: int,
        dtype: Any,
        throw: bool,
    ) -> None:
        if not 1 <= k <= size:
            raise ValueError(f"k must lie between 1 and size = {size}, and is {k}.")
        dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
        probe = jax.ShapeDtypeStruct((size,), dtype)
        out = jax.eval_shape(matvec, probe)
        if getattr(out, "shape", None) != (size,):
            raise ValueError(f"matvec(v) must return an array of shape ({size},) like v, and returned {out}.")
        dtype = jnp.promote_types(dtype, out.dtype)
        self.epsilon = float(np.finfo(dtype).eps)
        self.dtype, self.size, self.throw = dtype, size, throw
        # One more than asked for, to see how far the last is from the next.
        self.count = min(k + 1, size)
        self.rtol = self.epsilon**0.85 if rtol is None else rtol
        self.max_restarts = max_restarts
        closed = eqx.filter_closure_convert(matvec, jax.ShapeDtypeStruct((size,), dtype))
        captured, self.static = eqx.partition(closed, eqx.is_array)
        # The key travels as an argument: it may be traced, and the functions below must not close over it.
        self.leaves = (captured, jax.random.key_data(jax.random.key(0) if key is None else key))
        self.pairs = jax.custom_jvp(self._pairs)
        self.pairs.defjvp(self._pairs_jvp)
        self.values = jax.custom_jvp(lambda leaves: self.pairs(leaves)[0])
        self.values.defjvp(self._values_jvp)

    def product(self, leaves: PyTree, vector: Array) -> Array:
        product: Array = eqx.combine(leaves[0], self.static)(vector)
        return product.astype(self.dtype)

    def _pairs(self, leaves: PyTree) -> tuple[Array, Array]:
        def matvec(vector: Array) -> Array:
            return self.product(leaves, vector)

        key = jax.random.wrap_key_data(leaves[1])
        found = largest_ritz_pairs(
            matvec, self.size, self.count, key, self.rtol, self.max_restarts, self.dtype
        )
        one, two = jax.random.normal(key, (2, self.size), self.dtype)
        there, back = one @ matvec(two), two @ matvec(one)
        scale = jnp.linalg.norm(matvec(one)) * jnp.linalg.norm(two) + jnp.linalg.norm(matvec(two))
        symmetric = ~(jnp.abs(there - back) > 1e3 * self.epsilon * self.size**0.5 * scale)
        lopsided = "matvec(v) is not symmetric: vᵀ A w and wᵀ A v differ on random vectors"
        found = certify(found, symmetric, jnp.abs(there - back), lopsided, self.throw, "difference is")
        slow = (
            f"largest_eigenvalues did not converge within {self.max_restarts} restarts (allow more with "
            "max_restarts, or a larger rtol; eigenvalues that almost coincide take long)"
        )
        return certify(
            (found.values, found.vectors), found.converged.astype(bool), found.residual, slow, self.throw
        )

    def _changes(self, leaves: PyTree, tangents: PyTree, vectors: Array) -> Array:
        """`Ȧ x_i` for each column, as rows [k, n]."""

        def images(leaves: PyTree) -> Array:
            return jax.vmap(lambda v: self.product(leaves, v))(vectors.T)

        change: Array = jax.jvp(images, (leaves,), (tangents,))[1]
        return change

    def _values_jvp(self, primals: tuple[PyTree], tangents: tuple[PyTree]) -> tuple[Array, Array]:
        values, vectors = self.pairs(*primals)
        left = report_near_multiples(values, vectors)
        return values, jnp.sum(left.T * self._changes(*primals, *tangents, vectors), axis=1)

    def _pairs_jvp(
        self, primals: tuple[PyTree], tangents: tuple[PyTree]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (leaves,) = primals
        values, vectors = self.pairs(leaves)
        changes = self._changes(leaves, *tangents, vectors)
        mixed = report_near_multiples(values, vectors).T @ changes.T
        among = vectors @ (mixed * inverse_differences(values).T)
        if self.count == self.size:
            return (values, vectors), (jnp.diagonal(mixed), among)

        def beyond(value: Array, change: Array) -> Array:
            def outside(v: Array) -> Array:
                return v - vectors @ (vectors.T @ v)

            spread = jnp.max(jnp.abs(values))

            def shifted(v: Array) -> Array:
                rest = outside(v)
                return outside(value * rest - self.product(leaves, rest)) + spread * (v - rest)

            tolerance = self.epsilon**0.65  # what rounding lets conjugate gradients reach in practice
            structure = jax.ShapeDtypeStruct((self.size,), self.dtype)
            operator = lx.FunctionLinearOperator(shifted, structure, lx.positive_semidefinite_tag)
            solver = lx.CG(tolerance, tolerance * 1e-3, max_steps=20 * self.size + 100)
            solution: Array = lx.linear_solve(
                operator, outside(change), solver=solver, throw=self.throw
            ).value
            return solution

        return (values, vectors), (jnp.diagonal(mixed), among + jax.vmap(beyond)(values, changes).T)
