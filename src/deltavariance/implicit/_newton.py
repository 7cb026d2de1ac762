"""Newton's method, stopped by the size of its steps alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jaxtyping import Array, Bool, Float, PyTree

from ._certify import largest_entry
from ._state import machine_epsilon
from ._theorem import DENSE_UNKNOWNS, krylov


class _StepwiseNewton(optx.Newton):
    """Stops when a step is small: the residual has units of its own, which no tolerance could know."""

    def terminate(
        self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any
    ) -> tuple[Bool[Array, ""], optx.RESULTS]:
        failed = state.result != optx.RESULTS.successful
        return failed | (state.diffsize < 1), state.result


def newton_linear_solver(w: PyTree) -> lx.AbstractLinearSolver:
    """A factorisation for few unknowns; for many, GMRES, which needs products with the Jacobian only."""
    unknowns = sum(leaf.size for leaf in jax.tree.leaves(w))
    return lx.AutoLinearSolver(well_posed=True) if unknowns <= DENSE_UNKNOWNS else krylov(w)


def newton(
    equation: Callable[[PyTree], PyTree],
    start: PyTree,
    linear_solver: lx.AbstractLinearSolver,
    max_steps: int,
) -> PyTree:
    """Where Newton's method gets to from `start`, whether or not that is a root.

    Steps below √ε, relative to `w`, end it: convergence being quadratic, the error is then of order ε.
    """
    epsilon = machine_epsilon(start)
    method = _StepwiseNewton(
        epsilon**0.5, epsilon**0.75, linear_solver=linear_solver, cauchy_termination=False
    )
    return optx.root_find(lambda w, _: equation(w), method, start, max_steps=max_steps, throw=False).value


def small_newton_step(
    equation: Callable[[PyTree], PyTree],
    w: PyTree,
    linear_solver: lx.AbstractLinearSolver,
    rtol: float | None,
    atol: float | None,
) -> Bool[Array, ""]:
    """Whether the Newton step at `w`, an estimate of the error of `w`, is within the tolerance."""
    epsilon = machine_epsilon(w)
    relative = epsilon**0.5 if rtol is None else rtol
    absolute = epsilon**0.75 if atol is None else atol
    value, linear = jax.linearize(equation, w)
    operator = lx.FunctionLinearOperator(linear, jax.eval_shape(lambda: w))
    step = lx.linear_solve(operator, value, solver=linear_solver, throw=False)
    size: Float[Array, ""] = largest_entry(step.value)
    return (size <= absolute + relative * largest_entry(w)) & (step.result == lx.RESULTS.successful)


def smaller_residual(equation: Callable[[PyTree], PyTree], one: PyTree, other: PyTree) -> Bool[Array, ""]:
    """Whether `one` leaves no larger a residual than `other`; never where its residual is not a number."""
    return jnp.asarray(largest_entry(equation(one)) <= largest_entry(equation(other)))
