"""Minimisers of an objective."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jaxtyping import PyTree

from ._certify import certify, largest_entry
from ._newton import newton, newton_linear_solver, small_newton_step
from ._state import floating_state, machine_epsilon
from ._theorem import DENSE_UNKNOWNS, implicit_solution


def minimum(
    objective: Callable[[Any, Any], Any],
    params: PyTree,
    w0: PyTree,
    *,
    solver: optx.AbstractMinimiser | None = None,
    linear_solver: lx.AbstractLinearSolver | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 1000,
    throw: bool = True,
) -> PyTree:
    """The local minimiser `w = argmin objective(params, w)`, as a differentiable function of `params`.

    At the minimiser the gradient g = ∂objective/∂w is zero, and the implicit function theorem gives

        dw/dθ = − (∂²objective/∂w²)⁻¹ ∂²objective/∂w∂θ.

    BFGS descends from `w0`, and Newton steps on g = 0 finish: the function value alone locates a minimum only
    to √ε. The result is accepted when the next Newton step would be below `atol + rtol max|w|`.

    **Arguments:**

    - `objective`: `objective(params, w) -> scalar`, twice differentiable in `w` around its minimum.
    - `params`, `w0`: any pytree; the start, a pytree of real arrays.
    - `solver`: an Optimistix minimiser in place of BFGS (L-BFGS for more than some hundred unknowns).
    - `linear_solver`: a Lineax solver for Newton steps and derivatives; by default a factorisation up to 512
        unknowns and GMRES beyond.
    - `rtol`, `atol`: the largest acceptable remaining Newton step; by default √ε and ε^¾.
    - `max_steps`: steps allowed to the descent.
    - `throw`: whether failure raises `ConvergenceError`, also under `jit`, or yields NaN.

    **Returns:** the minimiser, with the structure of `w0`.

    >>> import jax, jax.numpy as jnp
    >>> import deltavariance as dv
    >>> best = lambda a: dv.implicit.minimum(lambda a, w: jnp.cosh(w - a**2) + w, a, jnp.zeros(()))
    >>> print(f"{best(1.0):.4f}  {jax.grad(best)(1.0):.4f}")  # a² − arsinh 1, and 2a
    0.1186  2.0000
    """
    what = "minimum(objective, params, w0)"
    start = floating_state(w0, what)
    shape = jax.eval_shape(objective, params, start)
    if getattr(shape, "shape", None) != ():
        raise ValueError(f"objective(params, w) must return one scalar, and returned {shape}.")
    many = sum(leaf.size for leaf in jax.tree.leaves(start)) > DENSE_UNKNOWNS
    tolerance = machine_epsilon(start) ** 0.5
    descent = solver
    if descent is None:
        descent = optx.LBFGS(tolerance, tolerance) if many else optx.BFGS(tolerance, tolerance)
    linear = newton_linear_solver(start) if linear_solver is None else linear_solver

    def slope(w: PyTree) -> PyTree:
        return jax.grad(objective, argnums=1)(params, w)

    def solve(w: PyTree) -> PyTree:
        low = optx.minimise(
            lambda w, _: objective(params, w), descent, w, max_steps=max_steps, throw=False
        ).value
        polished = newton(slope, low, linear, max_steps=8)
        # Newton's method also walks to saddles and maxima: it may only go down.
        before, after = largest_entry(slope(low)), largest_entry(slope(polished))
        rounding = machine_epsilon(w) * jnp.abs(objective(params, low)) * 10
        better = (after <= before) & (objective(params, polished) <= objective(params, low) + rounding)
        value = jax.tree.map(lambda a, b: jnp.where(better, a, b), polished, low)
        left = largest_entry(slope(value))
        converged = small_newton_step(slope, value, linear, rtol, atol)
        complaint = (
            f"{what} did not converge within {max_steps} steps (start closer, allow more steps with max_steps, "
            "or pass another Optimistix minimiser; a flat direction at the minimum has no derivative)"
        )
        return certify(value, converged, left, complaint, throw)

    return implicit_solution(slope, start, solve, linear_solver, throw)
