"""Fixed points, roots and minimisers against closed forms and finite differences, in double precision."""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
import pytest
from jaxtyping import Array

from deltavariance import implicit

pytestmark = pytest.mark.usefixtures("x64")


def finite_difference(function: Callable[[Array], Array], at: Array, step: float = 1e-4) -> np.ndarray:
    """Central differences of fourth order of an array-valued function of a vector: [*out, len(at)]."""
    shifts = step * jnp.eye(at.size)
    points = jnp.concatenate([at + k * shifts for k in (1, -1, 2, -2)])
    values = np.asarray(jax.jit(jax.vmap(function))(points))
    near, nearer, far, farther = values.reshape(4, at.size, *values.shape[1:])
    return np.moveaxis((8 * (near - nearer) - (far - farther)) / (12 * step), 0, -1)


def network_equilibrium(theta: Array, w0: Any = None) -> Array:
    """A small recurrent network at rest: a vector-valued fixed point without a formula."""
    weights, bias = 0.3 * theta[:9].reshape(3, 3), theta[9:]
    start = jnp.zeros(3) if w0 is None else w0
    return implicit.fixed_point(lambda p, w: jnp.tanh(p[0] @ w + p[1]), (weights, bias), start)


def coupled_root(theta: Array) -> Array:
    def residual(p: Array, w: dict[str, Array]) -> dict[str, Array]:
        x, y = w["x"], w["y"]
        return {"x": x**3 + p[0] * y - p[1], "y": jnp.exp(0.3 * y) + p[2] * x - 2.0}

    w = implicit.root(residual, theta, {"x": 0.5, "y": jnp.zeros(())})
    return jnp.stack([w["x"], w["y"]])


def ridge_like(theta: Array) -> Array:
    """A strictly convex objective that is not quadratic."""
    features = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))

    def objective(p: Array, w: Array) -> Array:
        return jnp.sum(jnp.logaddexp(0.0, features @ w)) - p[:3] @ w + 0.5 * jnp.exp(p[3]) * w @ w

    return implicit.minimum(objective, theta, jnp.zeros(3))


CASES = [
    pytest.param(network_equilibrium, np.random.default_rng(1).normal(size=12), id="fixed_point"),
    pytest.param(coupled_root, np.array([0.5, 1.0, 0.7]), id="root"),
    pytest.param(ridge_like, np.array([1.0, 2.0, 0.5, 0.2]), id="minimum"),
]


@pytest.mark.parametrize(("solution", "theta"), CASES)
def test_derivatives_agree_with_finite_differences(solution: Callable, theta: np.ndarray) -> None:
    at = jnp.asarray(theta)
    expected = finite_difference(solution, at)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(solution))(at), expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(jax.jacrev(solution)(at), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("solution", "theta"), CASES)
def test_second_derivatives_agree_with_finite_differences(solution: Callable, theta: np.ndarray) -> None:
    at = jnp.asarray(theta)
    composed = lambda t: jnp.sum(jnp.sin(solution(t)) * jnp.arange(1.0, 1.0 + solution(t).size))
    expected = finite_difference(jax.grad(composed), at)
    np.testing.assert_allclose(jax.jit(jax.hessian(composed))(at), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("solution", "theta"), CASES)
def test_a_batch_equals_a_loop(solution: Callable, theta: np.ndarray) -> None:
    batch = jnp.asarray(theta + 0.05 * np.random.default_rng(2).normal(size=(4, theta.size)))
    both = jax.jit(lambda t: (solution(t), jax.jacrev(solution)(t)))
    together = jax.jit(jax.vmap(both))(batch)
    for index, row in enumerate(batch):
        for vectorised, alone in zip(together, both(row), strict=True):
            np.testing.assert_allclose(vectorised[index], alone, rtol=1e-10, atol=1e-12)


def test_closed_forms() -> None:
    a = jnp.asarray(5.0)
    babylonian = lambda a: implicit.fixed_point(lambda a, w: 0.5 * (w + a / w), a, 1.0)
    np.testing.assert_allclose(babylonian(a), np.sqrt(5.0), rtol=1e-14)
    np.testing.assert_allclose(jax.grad(babylonian)(a), 0.5 / np.sqrt(5.0), rtol=1e-14)
    # Kepler's equation: dE/dM = 1 / (1 − e cos E)
    kepler = lambda m: implicit.root(lambda m, w: w - 0.6 * jnp.sin(w) - m, m, m)
    anomaly = kepler(jnp.asarray(1.2))
    np.testing.assert_allclose(jax.grad(kepler)(1.2), 1 / (1 - 0.6 * np.cos(float(anomaly))), rtol=1e-13)


def test_closed_over_cases_are_vectorised_and_differentiated() -> None:
    tables = jnp.asarray(np.random.default_rng(3).normal(size=(5, 2)))

    def u(p: Array, z: Array) -> Array:
        # z is an integer; it picks a row of the parameters inside the step.
        return implicit.fixed_point(lambda p, w: 0.5 * jnp.sin(w) + p[z], p, jnp.zeros(2)).sum()

    gradients = jax.vmap(jax.grad(u), (None, 0))(tables, jnp.arange(5))
    resting = jax.jit(lambda row: implicit.fixed_point(lambda p, w: 0.5 * jnp.sin(w) + p, row, jnp.zeros(2)))
    for z in range(5):
        w = np.asarray(resting(tables[z]))
        expected = np.zeros((5, 2))
        expected[z] = 1 / (1 - 0.5 * np.cos(w))
        np.testing.assert_allclose(gradients[z], expected, rtol=1e-12)
    shift = lambda c: implicit.fixed_point(lambda _, w: 0.5 * jnp.sin(w) + c, None, 0.0)
    np.testing.assert_allclose(
        jax.grad(shift)(0.3), finite_difference(lambda c: shift(c[0]), jnp.array([0.3]))[0], rtol=1e-8
    )


def test_newton_finds_a_fixed_point_that_repels() -> None:
    step = lambda a, w: a * w * (1 - w)  # the logistic map: 1 − 1/a repels for a > 3
    newton = optx.Newton(1e-10, 1e-10)
    found = lambda a: implicit.fixed_point(step, a, 0.6, solver=newton)
    np.testing.assert_allclose(found(3.5), 1 - 1 / 3.5, rtol=1e-12)
    np.testing.assert_allclose(jax.grad(found)(3.5), 1 / 3.5**2, rtol=1e-12)


def test_newton_that_overshoots_is_rescued() -> None:
    # Newton's method on arctan diverges from any start beyond 1.39.
    found = lambda a: implicit.root(lambda a, w: jnp.arctan(w - a), a, 0.0)
    np.testing.assert_allclose(found(30.0), 30.0, rtol=1e-12)
    np.testing.assert_allclose(jax.grad(found)(30.0), 1.0, rtol=1e-12)


def test_the_scale_of_the_residual_does_not_matter() -> None:
    found = lambda scale: implicit.root(lambda a, w: scale * (jnp.exp(w) - a), 4.0, 0.0)
    np.testing.assert_allclose(jax.vmap(found)(jnp.array([1e-12, 1.0, 1e12])), np.log(4.0), rtol=1e-10)


@pytest.mark.parametrize("unknowns", [40, 700])
def test_many_unknowns(unknowns: int) -> None:
    """Below and above the size from which GMRES replaces the factorisation."""
    matrix = np.random.default_rng(4).normal(size=(unknowns, unknowns)) / np.sqrt(unknowns) * 0.4
    found = lambda b: implicit.fixed_point(lambda b, w: matrix @ w + b, b, jnp.zeros(unknowns))
    b = jnp.ones(unknowns)
    np.testing.assert_allclose(found(b), np.linalg.solve(np.eye(unknowns) - matrix, b), rtol=1e-8)
    gradient = jax.grad(lambda b: found(b)[3])(b)
    np.testing.assert_allclose(gradient, np.linalg.inv(np.eye(unknowns) - matrix)[3], rtol=1e-6, atol=1e-8)


def test_memory_does_not_grow_with_the_iterations() -> None:
    def temporary_bytes(function: Callable) -> int:
        compiled = jax.jit(jax.grad(function)).lower(jnp.ones(1000)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def unrolled(steps: int) -> Callable[[Array], Array]:
        def function(a: Array) -> Array:
            w, _ = jax.lax.scan(
                lambda w, _: (0.5 * jnp.sin(w) + a, None), jnp.zeros(1000), None, length=steps
            )
            return w.sum()

        return function

    def through_the_theorem(steps: int) -> Callable[[Array], Array]:
        step = lambda a, w: 0.5 * jnp.sin(w) + a
        return lambda a: implicit.fixed_point(step, a, jnp.zeros(1000), max_steps=steps).sum()

    assert temporary_bytes(unrolled(2000)) > 10 * temporary_bytes(unrolled(20))  # what is avoided
    assert temporary_bytes(through_the_theorem(20)) == temporary_bytes(through_the_theorem(2_000_000))
    assert temporary_bytes(through_the_theorem(2_000_000)) < temporary_bytes(unrolled(200))
    # And no solver loop is stacked: a scan that stores one w per step would show its length in the program.
    assert "2000000" not in str(jax.make_jaxpr(jax.grad(unrolled(2)))(jnp.ones(1000)))


FAILURES = [
    pytest.param(lambda a, **k: implicit.fixed_point(lambda a, w: 2 * w + a, a, 1.0, **k), id="fixed_point"),
    pytest.param(lambda a, **k: implicit.root(lambda a, w: w**2 + a, a, 1.0, **k), id="root"),
    pytest.param(lambda a, **k: implicit.minimum(lambda a, w: a * w, a, 1.0, **k), id="minimum"),
]
WAYS = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "vmap": lambda f: lambda a: jax.vmap(f)(jnp.stack([a, a])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failing", FAILURES)
def test_failure_is_an_error_with_the_residual(failing: Callable, way: str) -> None:
    with pytest.raises(RuntimeError, match=r"did not converge.*the largest residual left is"):
        jax.block_until_ready(WAYS[way](failing)(jnp.ones(())))


@pytest.mark.parametrize("way", ["jit of grad", "vmap"])
@pytest.mark.parametrize("failing", FAILURES)
def test_failure_is_nan_on_request(failing: Callable, way: str) -> None:
    out = WAYS[way](lambda a: failing(a, throw=False))(jnp.ones(()))
    assert np.isnan(out).all()


def test_one_failure_spoils_only_its_own_case() -> None:
    root = lambda a: implicit.root(lambda a, w: w**2 - a, a, 1.0, throw=False)
    values = jax.vmap(root)(jnp.array([4.0, -1.0, 9.0]))
    np.testing.assert_allclose(values, [2.0, np.nan, 3.0])
    slopes = jax.jit(jax.vmap(jax.grad(root)))(jnp.array([4.0, -1.0, 9.0]))
    np.testing.assert_allclose(slopes, [1 / 4, np.nan, 1 / 6])


def test_a_maximum_is_not_taken_for_a_minimum() -> None:
    with pytest.raises(RuntimeError, match="did not converge"):
        implicit.minimum(lambda _, w: -(w**2), None, 0.5)
    # From right beside the maximum of a double well the descent leads to a minimum.
    np.testing.assert_allclose(implicit.minimum(lambda a, w: (w**2 - a) ** 2, 1.0, 1e-3), 1.0, rtol=1e-10)


def test_bad_input_is_explained() -> None:
    with pytest.raises(ValueError, match="structure"):
        implicit.fixed_point(lambda p, w: (w, w), None, 1.0)
    with pytest.raises(ValueError, match=r"shape \(2,\) came back with shape \(3,\)"):
        implicit.root(lambda p, w: jnp.ones(3), None, jnp.ones(2))
    with pytest.raises(ValueError, match="one scalar"):
        implicit.minimum(lambda p, w: w, None, jnp.ones(2))
    with pytest.raises(TypeError, match="complex"):
        implicit.root(lambda p, w: w, None, 1j)
    with pytest.raises(ValueError, match="no arrays"):
        implicit.root(lambda p, w: w, None, {})


def test_single_precision_stays_single() -> None:
    a = jnp.asarray(2.0, jnp.float32)
    w = implicit.fixed_point(lambda a, w: 0.5 * (w + a / w), a, jnp.ones((), jnp.float32))
    assert w.dtype == jnp.float32
    np.testing.assert_allclose(w, np.sqrt(2.0), rtol=1e-6)


def test_solution_of_an_ode_through_diffrax() -> None:
    """Damped growth y' = a y − b y²: its value at time 3 has a formula, and so do its derivatives."""

    def u(theta: Array) -> Array:
        term = diffrax.ODETerm(lambda t, y, p: p[0] * y - p[1] * y**2)
        controller = diffrax.PIDController(rtol=1e-11, atol=1e-13)
        solution = diffrax.diffeqsolve(
            term, diffrax.Dopri8(), 0.0, 3.0, 0.05, jnp.asarray(0.1), theta, stepsize_controller=controller
        )
        return solution.ys[0]

    def formula(theta: Array) -> Array:
        a, b = theta
        growth = jnp.exp(3.0 * a)
        return a * 0.1 * growth / (a + b * 0.1 * (growth - 1))

    theta = jnp.array([0.8, 0.5])
    np.testing.assert_allclose(u(theta), formula(theta), rtol=1e-9)
    np.testing.assert_allclose(jax.grad(u)(theta), jax.grad(formula)(theta), rtol=1e-8)


def test_steady_state_of_an_ode() -> None:
    """The composition: where a flow comes to rest, without integrating it."""
    flow = lambda p, y: p[0] * y - p[1] * y**2
    rest = lambda theta: implicit.root(flow, theta, 1.0)
    np.testing.assert_allclose(jax.grad(rest)(jnp.array([0.8, 0.5])), [1 / 0.5, -0.8 / 0.25], rtol=1e-12)


def test_linear_system_through_lineax() -> None:
    def u(theta: Array) -> Array:
        matrix = jnp.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]]) + jnp.diag(theta)
        operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
        return lx.linear_solve(operator, jnp.array([1.0, 2.0, 3.0]), solver=lx.CG(1e-14, 1e-14)).value

    theta = jnp.array([0.1, 0.2, 0.3])
    np.testing.assert_allclose(jax.jacrev(u)(theta), finite_difference(u, theta), rtol=1e-7, atol=1e-9)
