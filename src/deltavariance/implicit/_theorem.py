"""The implicit function theorem: derivatives of a solution without the iterations that found it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ._certify import certify
from ._state import machine_epsilon

# Up to this many unknowns the Jacobian is written out and factorised; beyond, GMRES works with products only.
DENSE_UNKNOWNS = 512


def implicit_solution(
    residual: Callable[[PyTree], PyTree],
    w0: PyTree,
    solve: Callable[[PyTree], PyTree],
    linear_solver: lx.AbstractLinearSolver | None,
    throw: bool,
) -> PyTree:
    """`w = solve(w0)`, with the derivatives of the solution of `residual(w) = 0`.

    Where residual depends on parameters θ it closes over,

        dw/dθ = − (∂residual/∂w)⁻¹ ∂residual/∂θ.

    The iterations inside `solve` are never differentiated: forward mode solves one linear system per tangent,
    reverse mode one transposed system per cotangent, and higher derivatives follow by recursion.
    """

    def tied(w: PyTree) -> PyTree:
        # Adds zero with a derivative that depends on w: where the residual is linear in w its derivative would
        # not, and a failed solve (an error, or NaN) would go unnoticed by whoever asks for derivatives only.
        return jax.tree.map(lambda r, x: r + 0.0 * x * x, residual(w), w)

    def tangent(linear: Callable[[PyTree], PyTree], rhs: PyTree) -> PyTree:
        if linear_solver is None and sum(leaf.size for leaf in jax.tree.leaves(rhs)) <= DENSE_UNKNOWNS:
            return solve_dense(linear, rhs, throw)
        solver = krylov(rhs) if linear_solver is None else linear_solver
        operator = lx.FunctionLinearOperator(linear, jax.eval_shape(lambda: rhs))
        return lx.linear_solve(operator, rhs, solver=solver, throw=throw).value

    return jax.lax.custom_root(tied, w0, lambda _, start: solve(start), tangent)


def solve_dense(linear: Callable[[PyTree], PyTree], rhs: PyTree, throw: bool) -> PyTree:
    """The solution x of `linear(x) = rhs` by a factorisation of the written-out matrix.

    A singular matrix is an error, or NaN; the check looks at the matrix only, so that the solve stays a linear
    function of `rhs`, which reverse mode transposes.
    """
    vector, unravel = ravel_pytree(rhs)
    columns = jax.vmap(lambda e: ravel_pytree(linear(unravel(e)))[0])
    matrix = columns(jnp.eye(vector.size, dtype=vector.dtype)).T
    factors, _ = jax.lax.stop_gradient(jax.scipy.linalg.lu_factor(matrix))
    pivot_sizes = jnp.abs(jnp.diagonal(factors))
    regular = jnp.min(pivot_sizes) > 1e-3 * machine_epsilon(vector) * jnp.max(pivot_sizes)
    complaint = (
        "The Jacobian of an implicit equation is singular at its solution, which therefore has no derivative "
        "(a double root, or a continuum of solutions)"
    )
    matrix = certify(matrix, regular, jnp.min(pivot_sizes), complaint, throw, "smallest pivot is")
    return unravel(jnp.linalg.solve(matrix, vector))


def krylov(w: PyTree) -> lx.AbstractLinearSolver:
    """GMRES, to a tolerance that the precision of `w` allows."""
    tolerance = machine_epsilon(w) ** 0.75
    return lx.GMRES(rtol=tolerance, atol=tolerance, restart=50, stagnation_iters=50)
