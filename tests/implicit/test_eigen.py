"""Eigenvalues and eigenvectors against dense formulas and finite differences, in double precision."""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jaxtyping import Array

from deltavariance import implicit
from deltavariance.implicit import _general

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(0)
SQUARE, DIRECTION, OTHER = RNG.normal(size=(3, 6, 6))


def derivative(
    function: Callable[[Array], Array], at: np.ndarray, along: np.ndarray, h: float = 1e-3
) -> np.ndarray:
    """Directional derivative by central differences of sixth order."""
    values = jax.jit(jax.vmap(function))(jnp.stack([at + k * h * along for k in (1, -1, 2, -2, 3, -3)]))
    one, m1, two, m2, three, m3 = np.asarray(values)
    return (45 * (one - m1) - 9 * (two - m2) + (three - m3)) / (60 * h)


def test_general_matrix_with_complex_pairs() -> None:
    values, right, left = implicit.eigenvectors(SQUARE)
    expected = np.sort_complex(np.linalg.eigvals(SQUARE))
    assert np.abs(expected.imag).max() > 0.5
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    np.testing.assert_allclose(implicit.eigenvalues(SQUARE), expected, rtol=1e-12)
    np.testing.assert_allclose(SQUARE @ right, right * values, atol=1e-12)
    np.testing.assert_allclose(left.conj().T @ SQUARE, values[:, None] * left.conj().T, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(right, axis=0), 1.0, rtol=1e-13)
    # Vectors to different eigenvalues are biorthogonal.
    overlap = left.conj().T @ right
    np.testing.assert_allclose(overlap - np.diag(np.diag(overlap)), 0.0, atol=1e-12)


def test_real_eigenvalues_ascend() -> None:
    similar = OTHER @ np.diag([3.0, -1.0, 2.0, 7.0, 0.5, -4.0]) @ np.linalg.inv(OTHER)
    values = implicit.eigenvalues(similar, real=True)
    assert values.dtype == jnp.float64
    np.testing.assert_allclose(values, [-4.0, -1.0, 0.5, 2.0, 3.0, 7.0], rtol=1e-10)
    np.testing.assert_allclose(implicit.eigenvalues(similar).real, values)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: lambda a: jax.vmap(f)(a[None])])
def test_complex_values_where_real_ones_were_promised_are_an_error(wrap: Callable) -> None:
    with pytest.raises(RuntimeError, match=r"complex eigenvalues.*imaginary part is 1\.000e"):
        jax.block_until_ready(
            wrap(lambda a: implicit.eigenvalues(a, real=True))(jnp.array([[0.0, 1.0], [-1.0, 0.0]]))
        )


def test_derivative_of_the_values_is_the_formula_of_left_and_right_vectors() -> None:
    tangent = jax.jvp(implicit.eigenvalues, (SQUARE,), (DIRECTION,))[1]
    numbers, left, right = scipy.linalg.eig(SQUARE, left=True)
    formula = np.einsum("ji,jk,ki->i", left.conj(), DIRECTION, right) / np.einsum(
        "ji,ji->i", left.conj(), right
    )
    order = np.lexsort((numbers.imag, numbers.real))
    np.testing.assert_allclose(tangent, formula[order], rtol=1e-10)
    # Twelve digits from another side: the sum of all is the trace.
    np.testing.assert_allclose(tangent.sum(), np.trace(DIRECTION), rtol=1e-12)


FORMS = {
    "values": implicit.eigenvalues,
    "right": lambda a: implicit.eigenvectors(a).right,
    "left": lambda a: implicit.eigenvectors(a).left,
    "pair values": lambda a: implicit.eigenvalues(a @ a.T, jnp.eye(6) + 0.1 * a.T @ a),
    "pair vectors": lambda a: implicit.eigenvectors(a @ a.T, jnp.eye(6) + 0.1 * a.T @ a).right,
    "matrix-free values": lambda a: implicit.largest_eigenvalues(lambda v: a @ (a.T @ v), 6, k=3),
    "matrix-free vectors": lambda a: implicit.largest_eigenvectors(lambda v: a @ (a.T @ v), 6, k=3).right,
}


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_forward_reverse_and_second(form: str) -> None:
    function = FORMS[form]
    tangent = jax.jit(lambda a: jax.jvp(function, (a,), (jnp.asarray(DIRECTION),))[1])(SQUARE)
    np.testing.assert_allclose(tangent, derivative(function, SQUARE, DIRECTION, 2e-4), rtol=1e-8, atol=1e-8)

    def scalar(a: Array) -> Array:
        out = function(a)
        weights = jnp.arange(1.0, 1.0 + out.size).reshape(out.shape)
        return jnp.sum(weights * jnp.abs(out) ** 3) + jnp.sum(jnp.cos(weights * out.real))

    gradient = jax.jit(jax.grad(scalar))
    np.testing.assert_allclose(
        jnp.vdot(gradient(SQUARE), DIRECTION), derivative(scalar, SQUARE, DIRECTION, 2e-4), rtol=1e-7
    )
    second = jax.jvp(gradient, (SQUARE,), (DIRECTION,))[1]
    np.testing.assert_allclose(second, derivative(gradient, SQUARE, DIRECTION, 2e-4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_equals_a_loop(form: str) -> None:
    batch = jnp.asarray(SQUARE + 0.1 * RNG.normal(size=(2, 6, 6)))
    function = lambda a: jnp.sum(jnp.abs(FORMS[form](a)) ** 3)
    together = jax.jit(jax.vmap(jax.value_and_grad(function)))(batch)
    for index, a in enumerate(batch):
        for vectorised, alone in zip(together, jax.jit(jax.value_and_grad(function))(a), strict=True):
            np.testing.assert_allclose(vectorised[index], alone, rtol=1e-9)


def test_the_decomposition_on_the_host_gives_the_same() -> None:
    """The way taken on accelerators."""
    batch = np.stack([SQUARE, SQUARE.T, np.full((6, 6), np.nan)])
    values, left, right = jax.jit(jax.vmap(_general._decompose_on_host))(batch)
    for a, number, l, r in zip(batch[:2], values, left, right, strict=False):
        np.testing.assert_allclose(a @ r, r * number, atol=1e-12)
        np.testing.assert_allclose(l.conj().T @ a, number[:, None] * l.conj().T, atol=1e-11)
        np.testing.assert_allclose(np.sort_complex(number), np.sort_complex(np.linalg.eigvals(a)), rtol=1e-12)
    assert np.isnan(values[2]).all()
    single = jnp.asarray(SQUARE, jnp.float32)
    numbers, _, _ = jax.jit(_general._decompose_on_host)(single)
    assert numbers.dtype == jnp.complex64
    np.testing.assert_allclose(
        np.sort_complex(numbers), np.sort_complex(np.linalg.eigvals(single)), rtol=1e-4
    )


def test_symmetric_pair_against_scipy() -> None:
    K, M = SQUARE @ SQUARE.T, OTHER @ OTHER.T + np.eye(6)
    expected, _ = scipy.linalg.eigh(K, M)
    values, vectors, _ = implicit.eigenvectors(K, M)
    np.testing.assert_allclose(values, expected, rtol=1e-11)
    np.testing.assert_allclose(vectors.T @ M @ vectors, np.eye(6), atol=1e-11)
    np.testing.assert_allclose(K @ vectors, M @ vectors * values, atol=1e-10)
    np.testing.assert_allclose(implicit.eigenvalues(np.linalg.solve(M, K), real=True), expected, rtol=1e-9)
    assert np.isnan(implicit.eigenvalues(K, -M)).all()


def laplacian(theta: Array, size: int) -> Callable[[Array], Array]:
    """A path of `size` masses with stiffnesses that grow along it: sparse, never written out."""
    stiffness = 1.0 + theta[0] * jnp.linspace(0.0, 1.0, size + 1) ** 2

    def matvec(v: Array) -> Array:
        stretch = jnp.diff(jnp.concatenate([jnp.zeros(1), v, jnp.zeros(1)]))
        return -jnp.diff(stiffness * stretch) + theta[1] * v

    return matvec


def test_matrix_free_against_dense() -> None:
    size, theta = 150, jnp.array([0.7, 0.2])
    free = lambda t: implicit.largest_eigenvectors(laplacian(t, size), size, k=4)
    dense = lambda t: implicit.eigenvectors(jax.vmap(laplacian(t, size))(jnp.eye(size)), jnp.eye(size))
    ours, full = free(theta), dense(theta)
    np.testing.assert_allclose(ours.values, full.values[-4:], rtol=1e-11)
    np.testing.assert_allclose(ours.right, full.right[:, -4:], atol=1e-7)
    only_values = lambda t: implicit.largest_eigenvalues(laplacian(t, size), size, k=4)
    expected = jax.jacfwd(lambda t: dense(t).values[-4:])(theta)
    np.testing.assert_allclose(jax.jit(jax.jacrev(only_values))(theta), expected, rtol=1e-9)
    along = jnp.array([1.0, 0.3])
    moved = jax.jit(lambda t: jax.jvp(lambda t: free(t).right, (t,), (along,))[1])(theta)
    np.testing.assert_allclose(
        moved, jax.jvp(lambda t: dense(t).right[:, -4:], (theta,), (along,))[1], atol=1e-5
    )


def test_matrix_free_finds_copies_of_a_multiple_eigenvalue() -> None:
    diagonal = jnp.concatenate([jnp.full(3, 9.0), jnp.linspace(0.0, 5.0, 197)])
    values = implicit.largest_eigenvalues(lambda v: diagonal * v, 200, k=3)
    np.testing.assert_allclose(values, 9.0, rtol=1e-10)


def test_matrix_free_depends_on_integers_of_the_case() -> None:
    table = jnp.asarray(RNG.uniform(1.0, 2.0, size=(3, 80)))
    top = lambda t, z: implicit.largest_eigenvalues(lambda v: t[z] * v, 80)[0]
    gradient = jax.jit(jax.vmap(jax.grad(top), (None, 0)))(table, jnp.arange(3))
    expected = np.zeros((3, 3, 80))
    for z in range(3):
        expected[z, z, np.argmax(table[z])] = 1.0
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_matrix_free_refuses_what_is_not_symmetric_or_too_slow() -> None:
    with pytest.raises(RuntimeError, match="not symmetric"):
        implicit.largest_eigenvalues(lambda v: jnp.asarray(SQUARE) @ v, 6)
    slow = lambda **k: implicit.largest_eigenvalues(
        laplacian(jnp.array([0.0, 0.0]), 1000), 1000, max_restarts=1, **k
    )
    with pytest.raises(RuntimeError, match=r"did not converge within 1 restarts.*residual left is"):
        slow()
    assert np.isnan(slow(throw=False)).all()


@pytest.mark.parametrize(
    "values",
    [
        lambda a: implicit.eigenvalues(jnp.diag(a)).real,
        lambda a: implicit.eigenvalues(jnp.diag(a), jnp.eye(3)),
        lambda a: implicit.largest_eigenvalues(lambda v: a * v, 3, k=1),
    ],
    ids=["general", "pair", "matrix-free"],
)
def test_near_multiples_are_reported_where_derivatives_are_taken(values: Callable) -> None:
    close, apart = jnp.array([1.0, 2.0, 2.0 + 1e-10]), jnp.array([1.0, 2.0, 3.0])
    with pytest.warns(implicit.NearMultipleEigenvalueWarning, match=r"differ by 5\.0e-11 of the largest"):
        jax.block_until_ready(jax.jit(jax.grad(lambda a: values(a)[-1]))(close))
    with pytest.warns(implicit.NearMultipleEigenvalueWarning, match="in 1 of 2 cases"):
        jax.block_until_ready(jax.vmap(jax.grad(lambda a: values(a)[-1]))(jnp.stack([apart, close])))
    with warnings.catch_warnings():
        warnings.simplefilter("error", implicit.NearMultipleEigenvalueWarning)
        jax.block_until_ready(jax.grad(lambda a: values(a)[-1])(apart))
        jax.block_until_ready(values(close))


def test_the_sum_of_a_double_eigenvalue_is_differentiated_right() -> None:
    total = lambda a: jnp.sum(implicit.eigenvalues(a, jnp.eye(3))[1:])
    with pytest.warns(implicit.NearMultipleEigenvalueWarning):
        gradient = jax.grad(total)(jnp.diag(jnp.array([1.0, 2.0, 2.0])))
    np.testing.assert_allclose(gradient, np.diag([0.0, 1.0, 1.0]), atol=1e-12)


def test_gaps() -> None:
    np.testing.assert_allclose(implicit.eigenvalue_gaps(jnp.array([1.0, 1.5, 4.0])), [0.125, 0.125, 0.625])
    assert np.isinf(implicit.eigenvalue_gaps(jnp.array([2.0])))[0]
    pair = implicit.eigenvalue_gaps(jnp.array([1 - 2j, 1 + 2j]))
    np.testing.assert_allclose(pair, 4 / np.sqrt(5))


def test_bad_input_is_explained() -> None:
    with pytest.raises(ValueError, match=r"square.*jax\.vmap"):
        implicit.eigenvalues(jnp.ones((3, 2, 2)))
    with pytest.raises(ValueError, match="K must be symmetric"):
        implicit.eigenvalues(SQUARE, np.eye(6))
    with pytest.raises(ValueError, match="same shape"):
        implicit.eigenvalues(np.eye(6), np.eye(5))
    with pytest.raises(TypeError, match="must be real"):
        implicit.eigenvalues(1j * np.eye(2))
    with pytest.raises(ValueError, match="k must lie between 1 and size = 3"):
        implicit.largest_eigenvalues(lambda v: v, 3, k=4)
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        implicit.largest_eigenvalues(lambda v: v[:2], 3)
