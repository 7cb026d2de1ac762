"""Roots of equations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jaxtyping import Array, Bool, PyTree

from ._certify import certify, largest_entry
from ._newton import newton, newton_linear_solver, small_newton_step, smaller_residual
from ._state import floating_state, matched_state
from ._theorem import implicit_solution


def root(
    residual: Callable[[Any, Any], Any],
    params: PyTree,
    w0: PyTree,
    *,
    solver: optx.AbstractRootFinder | optx.AbstractLeastSquaresSolver | None = None,
    linear_solver: lx.AbstractLinearSolver | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 256,
    throw: bool = True,
) -> PyTree:
    """The root `residual(params, w) = 0`, as a differentiable function of `params`.

    The derivative comes from the implicit function theorem at the root,

        dw/dθ = − (∂residual/∂w)⁻¹ ∂residual/∂θ,

    never from the iterations. By default Newton's method starts from `w0`; where it fails, Powell's dogleg
    method starts from `w0` and Newton's method finishes. A root is accepted when the Newton step that would
    come next is below `atol + rtol max|w|`: a criterion in units of `w`, whatever the units of the residual.
    A root at which the Jacobian is singular (a double root) has no derivative, and is an error.

    **Arguments:**

    - `residual`: `residual(params, w)`, a pytree with the structure and the shapes of `w`.
    - `params`: any pytree, handed to `residual` as it is.
    - `w0`: where the search starts; of several roots the one it leads to is found.
    - `solver`: an Optimistix root finder or least-squares solver in place of the default.
    - `linear_solver`: a Lineax solver for Newton steps and derivatives; by default a factorisation up to 512
        unknowns and GMRES beyond.
    - `rtol`, `atol`: the largest acceptable remaining Newton step; by default √ε and ε^¾ with ε the machine
        epsilon. Newton steps converge quadratically: the error itself is far smaller.
    - `max_steps`: steps allowed to each method.
    - `throw`: whether failure raises `ConvergenceError`, also under `jit`, or yields NaN.

    **Returns:** the root, with the structure of `w0`.

    Cost: per Newton step one Jacobian and its factorisation; per derivative one linear solve.

    >>> import jax, jax.numpy as jnp
    >>> import deltavariance as dv
    >>> cube_root = lambda a: dv.implicit.root(lambda a, w: w**3 - a, a, jnp.ones(()))
    >>> print(f"{cube_root(8.0):.4f}  {jax.grad(cube_root)(8.0):.4f}")  # a^(1/3) and a^(-2/3) / 3
    2.0000  0.0833
    """
    what = "root(residual, params, w0)"
    start = floating_state(w0, what)
    start = matched_state(lambda w: residual(params, w), start, "residual(params, w)")
    linear = newton_linear_solver(start) if linear_solver is None else linear_solver

    def equation(w: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: a.astype(b.dtype), residual(params, w), w)

    def solve(w: PyTree) -> PyTree:
        if solver is None:
            value = newton_then_dogleg(equation, w, linear, rtol, atol, max_steps)
        else:
            value = optx.root_find(
                lambda w, _: equation(w), solver, w, max_steps=max_steps, throw=False
            ).value
        left = largest_entry(equation(value))
        converged = small_newton_step(equation, value, linear, rtol, atol)
        complaint = (
            f"{what} did not converge within {max_steps} steps (start closer, allow more steps with max_steps, "
            "or pass another Optimistix solver; an equation without a root, or with a singular Jacobian at the "
            "root, cannot be solved)"
        )
        return certify(value, converged, left, complaint, throw)

    return implicit_solution(equation, start, solve, linear_solver, throw)


def newton_then_dogleg(
    equation: Callable[[PyTree], PyTree],
    w0: PyTree,
    linear_solver: lx.AbstractLinearSolver,
    rtol: float | None,
    atol: float | None,
    max_steps: int,
) -> PyTree:
    """Newton from `w0`; where that fails the dogleg method from `w0`, and Newton from where it ends."""

    def dogleg(start: PyTree) -> PyTree:
        method: Any = optx.Dogleg(rtol=1e-3, atol=1e-3)
        return optx.root_find(lambda w, _: equation(w), method, start, max_steps=max_steps, throw=False).value

    def pick(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)

    if isinstance(linear_solver, lx.GMRES):
        return newton(
            equation, w0, linear_solver, max_steps
        )  # the dogleg method would write out the Jacobian

    def attempt(index: int | Array, best: PyTree) -> PyTree:
        # A loop of two rounds compiles Newton's method once. Where the first round succeeded the dogleg method
        # starts at the root and stops at once, also in a vmapped batch.
        start = jax.lax.cond(index == 0, lambda w: w, dogleg, best)
        end = newton(equation, start, linear_solver, max_steps)
        good = small_newton_step(equation, end, linear_solver, rtol, atol)
        fallback = pick(jnp.asarray(index == 0), w0, pick(smaller_residual(equation, end, start), end, start))
        return pick(good, end, fallback)

    return jax.lax.fori_loop(0, 2, attempt, w0)
