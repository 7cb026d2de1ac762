"""The number itself: against dense matrices made without the library, and everything that may go wrong with it."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv

pytestmark = pytest.mark.usefixtures("x64")


def network(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


@pytest.fixture
def params(x64: None) -> Any:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "w": jax.random.normal(keys[0], (3, 4)),
        "b": jax.random.normal(keys[1], (4,)),
        "v": jax.random.normal(keys[2], (4, 2)),
        "name": "a setting that is no array",
    }


@pytest.fixture
def z(x64: None) -> Any:
    return jax.random.normal(jax.random.key(1), (7, 3))


def dense_rows(u: Any, params: Any, z: Any) -> np.ndarray:
    """[n, k, P] by plain Jacobians, leaves in the order of their names."""
    names = ("b", "v", "w")
    jacobian = jax.jacrev(lambda arrays, case: u({**params, **arrays}, case))
    rows = []
    for case in z:
        leaves = jacobian({name: params[name] for name in names}, case)
        rows.append(
            np.concatenate([np.reshape(leaves[name], (-1, params[name].size)) for name in names], axis=1)
        )
    return np.stack(rows)


def random_covariance(size: int) -> np.ndarray:
    root = np.random.default_rng(2).normal(size=(size, size))
    return root @ root.T / size


def test_dense_sigma_equals_the_matrix_product(params: Any, z: Any) -> None:
    matrix = random_covariance(24)
    sigma = dv.as_covariance(params, jnp.asarray(matrix))
    rows = dense_rows(network, params, z)
    expected = np.einsum("nkp,pq,nlq->nkl", rows, matrix, rows)
    np.testing.assert_allclose(dv.covariance(network, params, z, sigma), expected, rtol=1e-10)
    diagonal = np.einsum("nkk->nk", expected)
    np.testing.assert_allclose(dv.variance(network, params, z, sigma), diagonal, rtol=1e-10)
    parts = dv.block_variances(network, params, z, sigma)
    assert set(parts) == {"b", "v", "w"}
    np.testing.assert_allclose(sum(parts.values()), diagonal, rtol=1e-10)


def test_joint_covariance_across_cases(params: Any, z: Any) -> None:
    matrix = random_covariance(24)
    rows = dense_rows(network, params, z).reshape(14, 24)
    joint = dv.covariance(network, params, z, dv.as_covariance(params, jnp.asarray(matrix)), joint=True)
    np.testing.assert_allclose(joint, rows @ matrix @ rows.T, rtol=1e-9, atol=1e-12)


def test_diagonal_sigma_and_its_blocks(params: Any, z: Any) -> None:
    variances = jax.tree.map(lambda x: x**2 + 0.1 if hasattr(x, "shape") else x, params)
    sigma = dv.as_covariance(params, variances)
    rows = dense_rows(network, params, z)
    terms = rows**2 * np.concatenate([np.ravel(variances[name]) for name in ("b", "v", "w")])
    np.testing.assert_allclose(dv.variance(network, params, z, sigma), terms.sum(-1), rtol=1e-10)
    parts = dv.block_variances(network, params, z, sigma)
    np.testing.assert_allclose(parts["v"], terms[:, :, 4:12].sum(-1), rtol=1e-10)
    scaled = dv.variance(network, params, z, sigma.scale({"v": 3.0}))
    np.testing.assert_allclose(scaled, terms.sum(-1) + 2 * terms[:, :, 4:12].sum(-1), rtol=1e-10)


def test_image_shaped_quantities_and_their_components(params: Any, z: Any) -> None:
    def image(params: Any, x: Any) -> Any:
        y = network(params, x)
        return jnp.stack([y, y**2, y[::-1]])

    sigma = dv.as_covariance(params, 0.01)
    rows = dense_rows(image, params, z).reshape(7, 3, 2, 24)
    found = dv.variance(image, params, z, sigma)
    assert found.shape == (7, 3, 2)
    np.testing.assert_allclose(found, 0.01 * (rows**2).sum(-1), rtol=1e-10)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 100])
def test_batches_change_nothing(params: Any, z: Any, batch_size: int) -> None:
    sigma = dv.as_covariance(params, 0.5)
    whole = dv.variance(network, params, z, sigma)
    np.testing.assert_allclose(
        dv.variance(network, params, z, sigma, batch_size=batch_size), whole, rtol=1e-12
    )
    traced = jax.jit(lambda p, z: dv.variance(network, {**params, **p}, z, sigma, batch_size=batch_size))
    arrays = {name: params[name] for name in ("b", "v", "w")}
    np.testing.assert_allclose(traced(arrays, z), whole, rtol=1e-12)


def test_a_small_budget_means_small_batches_and_the_same_answer(params: Any, z: Any) -> None:
    sigma = dv.as_covariance(params, 0.5)
    whole = dv.variance(network, params, z, sigma)
    np.testing.assert_allclose(dv.variance(network, params, z, sigma, memory_budget=1), whole, rtol=1e-12)


def test_inside_jit_grad_and_vmap(params: Any, z: Any) -> None:
    arrays = {name: params[name] for name in ("b", "v", "w")}
    sigma = dv.as_covariance(arrays, {"b": 0.1, "v": 0.2, "w": 0.3})
    whole = dv.variance(network, arrays, z, sigma)
    np.testing.assert_allclose(
        jax.jit(lambda p, z, s: dv.variance(network, p, z, s))(arrays, z, sigma), whole
    )
    one_by_one = jax.vmap(lambda case: dv.variance(network, arrays, case[None], sigma)[0])(z)
    np.testing.assert_allclose(one_by_one, whole, rtol=1e-12)
    # dv/dσ_p² = Δ_p², and the derivative by the parameters agrees with finite differences.
    by_sigma = jax.grad(lambda s: dv.variance(network, arrays, z, s)[2, 1])(sigma)
    np.testing.assert_allclose(by_sigma.diagonal(), dense_rows(network, params, z)[2, 1] ** 2, rtol=1e-10)

    def total(b: Any) -> Any:
        return jnp.sum(dv.variance(network, {**arrays, "b": b}, z, sigma))

    step = 1e-6 * jnp.eye(4)[1]
    slope = (total(arrays["b"] + step) - total(arrays["b"] - step)) / 2e-6
    np.testing.assert_allclose(jax.grad(total)(arrays["b"])[1], slope, rtol=1e-6)


def test_a_second_call_does_not_trace_again(params: Any, z: Any) -> None:
    calls = []

    def counted(params: Any, x: Any) -> Any:
        calls.append(1)
        return network(params, x)

    sigma = dv.as_covariance(params, 0.5)
    dv.variance(counted, params, z, sigma)
    before = len(calls)
    dv.variance(counted, params, z + 1, sigma)
    assert len(calls) == before


def test_nothing_given_is_changed(params: Any, z: Any) -> None:
    frozen = {name: np.array(leaf) if hasattr(leaf, "shape") else leaf for name, leaf in params.items()}
    for leaf in frozen.values():
        if isinstance(leaf, np.ndarray):
            leaf.setflags(write=False)
    dv.variance(network, frozen, np.asarray(z), dv.as_covariance(frozen, 0.5))


def test_where_narrows_to_a_subtree(params: Any, z: Any) -> None:
    sigma = dv.as_covariance(params, 0.5, where=lambda p: p["v"])
    rows = dense_rows(network, params, z)[:, :, 4:12]
    np.testing.assert_allclose(dv.variance(network, params, z, sigma), 0.5 * (rows**2).sum(-1), rtol=1e-10)


class TestErrors:
    def test_whole_numbers(self, params: Any, z: Any) -> None:
        with pytest.raises(TypeError, match="floating-point numbers, and it returned int"):
            dv.variance(lambda p, x: jnp.argmax(network(p, x)), params, z, dv.as_covariance(params, 1.0))

    def test_several_results(self, params: Any, z: Any) -> None:
        with pytest.raises(TypeError, match="must return one array"):
            dv.variance(lambda p, x: (x, x), params, z, dv.as_covariance(params, 1.0))

    def test_not_a_number(self, params: Any, z: Any) -> None:
        def root(params: Any, x: Any) -> Any:
            return jnp.sqrt(network(params, x)[0])

        with pytest.raises(ValueError, match="cases gave NaN or infinity, the first at index"):
            dv.variance(root, params, z, dv.as_covariance(params, 1.0))
        found = dv.variance(root, params, z, dv.as_covariance(params, 1.0), check=False)
        assert bool(jnp.isnan(found).any())

    def test_finite_with_an_infinite_gradient(self, params: Any) -> None:
        with pytest.raises(ValueError, match="u is finite and its gradient or variance is not"):
            dv.variance(
                lambda p, x: jnp.sqrt(jnp.sum(x * p["w"][:, 0])),
                params,
                jnp.zeros((2, 3)),
                dv.as_covariance(params, 1.0),
            )

    def test_no_parameter_in_it(self, params: Any, z: Any) -> None:
        def constant(params: Any, x: Any) -> Any:
            return jnp.sum(x)

        with pytest.warns(UserWarning, match="constant does not depend on any uncertain parameter"):
            found = dv.variance(constant, params, z, dv.as_covariance(params, 1.0))
        np.testing.assert_array_equal(found, 0)

    def test_no_float_parameter(self, z: Any) -> None:
        with pytest.raises(ValueError, match="No uncertain parameter was found"):
            dv.as_covariance({"steps": 3, "count": jnp.arange(3)}, 1.0)

    def test_complex_parameter(self, x64: None) -> None:
        with pytest.raises(TypeError, match="'a' is complex"):
            dv.as_covariance({"a": jnp.zeros(3, complex)}, 1.0)

    def test_unequal_axes(self, params: Any, z: Any) -> None:
        with pytest.raises(ValueError, match=r"different lengths: \{'x': 7, 'y': 3\}"):
            dv.variance(network, params, {"x": z, "y": z[:3]}, dv.as_covariance(params, 1.0))

    def test_no_axis_and_no_case(self, params: Any, z: Any) -> None:
        with pytest.raises(ValueError, match="leading axis of cases"):
            dv.variance(network, params, 3.0, dv.as_covariance(params, 1.0))
        with pytest.raises(ValueError, match="holds no case"):
            dv.variance(network, params, z[:0], dv.as_covariance(params, 1.0))

    def test_sigma_of_another_model(self, params: Any, z: Any) -> None:
        other = dv.as_covariance({**params, "v": jnp.zeros((4, 5))}, 1.0)
        with pytest.raises(
            ValueError, match=r"expects parameter 'v' with shape \(4, 5\), which has shape \(4, 2\)"
        ):
            dv.variance(network, params, z, other)

    def test_a_batch_that_cannot_fit(self, params: Any, z: Any) -> None:
        with pytest.raises(MemoryError, match=r"bytes .* a case.* would fit"):
            dv.variance(network, params, z, dv.as_covariance(params, 1.0), batch_size=10**12)

    def test_an_indefinite_matrix(self, x64: None) -> None:
        with pytest.raises(ValueError, match="positive semi-definite"):
            dv.as_covariance({"a": jnp.zeros(2)}, jnp.array([[1.0, 2.0], [2.0, 1.0]]))

    def test_a_variance_without_trouble_warns_of_nothing(self, params: Any, z: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dv.variance(network, params, z, dv.as_covariance(params, 1.0))
