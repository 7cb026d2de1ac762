"""Fixed points of an iteration."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jaxtyping import Array, PyTree

from ._certify import certify, largest_entry
from ._state import floating_state, machine_epsilon, matched_state
from ._theorem import implicit_solution


def fixed_point(
    step: Callable[[Any, Any], Any],
    params: PyTree,
    w0: PyTree,
    *,
    solver: optx.AbstractFixedPointSolver | optx.AbstractRootFinder | None = None,
    linear_solver: lx.AbstractLinearSolver | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 10_000,
    throw: bool = True,
) -> PyTree:
    """The fixed point `w = step(params, w)` of an iteration, as a differentiable function of `params`.

    The derivative comes from the implicit function theorem at the solution,

        dw/dθ = (I − ∂step/∂w)⁻¹ ∂step/∂θ,

    never from the iterations, so memory does not grow with their number. `step` may close over further traced
    values, such as the case `z` of a quantity: they are differentiated and vectorised as well.

    **Arguments:**

    - `step`: the iteration `step(params, w) -> w`; `w` is any pytree of real arrays.
    - `params`: any pytree, handed to `step` as it is.
    - `w0`: where the iteration starts. The solution does not depend on it, unless there are several.
    - `solver`: an Optimistix solver; plain iteration by default. `optimistix.Newton` finds fixed points that
        repel the iteration, and converges in fewer, dearer steps.
    - `linear_solver`: a Lineax solver for the linear system of the derivative; by default a factorisation up
        to 512 unknowns and GMRES beyond.
    - `rtol`, `atol`: iteration stops when one step changes `w` by less than `atol + rtol |w|`; by default ε^¾
        with ε the machine epsilon. The error left is that change over one minus the rate of convergence.
    - `max_steps`: iterations allowed.
    - `throw`: whether a failure to converge raises `ConvergenceError`, also under `jit`; otherwise it yields
        NaN in every entry of that case. Inside compiled code JAX may wrap the error; it stays a
        `RuntimeError` whose message quotes the residual.

    **Returns:** the fixed point, with the structure of `w0`.

    Cost: the iterations, and for a derivative one linear solve of the size of `w` per tangent or cotangent.

    >>> import jax, jax.numpy as jnp
    >>> import deltavariance as dv
    >>> root_of = lambda a: dv.implicit.fixed_point(lambda a, w: 0.5 * (w + a / w), a, jnp.ones(()))
    >>> print(f"{root_of(2.0):.4f}  {jax.grad(root_of)(2.0):.4f}")  # √a and 1 / (2√a)
    1.4142  0.3536
    """
    what = "fixed_point(step, params, w0)"
    start = floating_state(w0, what)
    start = matched_state(lambda w: step(params, w), start, "step(params, w)")
    tolerance = machine_epsilon(start) ** 0.75
    rtol = tolerance if rtol is None else rtol
    atol = tolerance if atol is None else atol
    iteration: Any = solver
    if solver is None:
        iteration = optx.FixedPointIteration(rtol=rtol, atol=atol, norm=max_norm_in_default_precision)

    def residual(w: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: a.astype(b.dtype) - b, step(params, w), w)

    def solve(w: PyTree) -> PyTree:
        def advance(w: PyTree, _: None) -> PyTree:
            return jax.tree.map(lambda a, b: a.astype(b.dtype), step(params, w), w)

        found: optx.Solution = optx.fixed_point(advance, iteration, w, max_steps=max_steps, throw=False)
        left = largest_entry(residual(found.value))
        # Rounding in large entries can keep a small one from settling: the size of the whole decides then.
        settled = left <= atol + rtol * largest_entry(found.value)
        converged = ((found.result == optx.RESULTS.successful) | settled) & jnp.isfinite(left)
        complaint = (
            f"{what} did not converge within {max_steps} steps (start closer, allow more steps with max_steps, "
            "or pass solver=optimistix.Newton(rtol, atol) where the iteration does not contract)"
        )
        return certify(found.value, converged, left, complaint, throw)

    return implicit_solution(residual, start, solve, linear_solver, throw)


def max_norm_in_default_precision(change: PyTree) -> Array:
    """The loop of `FixedPointIteration` carries its error in the default precision from the start."""
    return jnp.asarray(optx.max_norm(change)).astype(jnp.result_type(float))
