"""The Gauss–Newton matrix against JᵀSSᵀJ by loops, Hessians, and labels drawn by other means."""

from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import deltavariance as dv

pytestmark = pytest.mark.usefixtures("x64")


def net(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def linear(params: Any, x: Any) -> Any:
    return x @ params["v"]


@pytest.fixture
def params(x64: None) -> Any:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "w": jax.random.normal(keys[0], (3, 4)),
        "b": jax.random.normal(keys[1], (4,)),
        "v": 0.5 * jax.random.normal(keys[2], (4, 3)),
    }


@pytest.fixture
def inputs(x64: None) -> Any:
    return jax.random.normal(jax.random.key(5), (17, 3))


FAMILIES = {
    "gaussian": (
        lambda f: dv.gaussian_log_likelihood(f, scale=jnp.array([0.5, 1.0, 2.0])),
        lambda f: np.diag([4.0, 1.0, 0.25]),
    ),
    "categorical": (
        dv.categorical_log_likelihood,
        lambda f: np.diag(jax.nn.softmax(f)) - np.outer(jax.nn.softmax(f), jax.nn.softmax(f)),
    ),
    "bernoulli": (dv.bernoulli_log_likelihood, lambda f: np.diag(jax.nn.sigmoid(f) * jax.nn.sigmoid(-f))),
    "poisson": (dv.poisson_log_likelihood, lambda f: np.diag(np.exp(f))),
}


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("batch_size", [None, 4])
def test_against_jacobians(params: Any, inputs: Any, family: str, batch_size: int | None) -> None:
    make, information = FAMILIES[family]
    G = dv.gauss_newton(make(net), params, inputs, structure=dv.Dense(), batch_size=batch_size)
    expected = np.zeros((28, 28))
    for x in inputs:
        jacobian = jax.jacobian(net)(params, x)
        rows = np.concatenate([np.reshape(jacobian[k], (3, -1)) for k in ("b", "v", "w")], axis=1)
        expected += rows.T @ np.asarray(information(net(params, x))) @ rows / 17
    np.testing.assert_allclose(G.mean, expected, rtol=1e-9, atol=1e-12)
    diagonal = dv.gauss_newton(make(net), params, inputs, structure=dv.Diagonal())
    np.testing.assert_allclose(diagonal.diagonal(), np.diag(expected), rtol=1e-9, atol=1e-14)
    assert float(G.num_data) == 17


@pytest.mark.parametrize("family", ["gaussian", "categorical", "bernoulli", "poisson"])
def test_is_the_hessian_of_a_linear_model(inputs: Any, family: str) -> None:
    make, _ = FAMILIES[family]
    params = {"v": 0.3 * jax.random.normal(jax.random.key(2), (3, 3))}
    labels = {
        "gaussian": jnp.ones((17, 3)),
        "categorical": jnp.arange(17) % 3,
        "bernoulli": jnp.arange(51).reshape(17, 3) % 2,
        "poisson": jnp.arange(51).reshape(17, 3) % 4,
    }[family]
    H = dv.hessian(make(linear), params, (inputs, labels), structure=dv.Dense())
    G = dv.gauss_newton(make(linear), params, inputs, structure=dv.Dense())
    np.testing.assert_allclose(G.mean, H.mean, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("bernoulli", lambda p, x: dist.Bernoulli(logits=net(p, x)).to_event(1)),
        ("bernoulli", lambda p, x: distrax.Bernoulli(logits=net(p, x))),
        ("categorical", lambda p, x: dist.Categorical(logits=net(p, x))),
        ("categorical", lambda p, x: distrax.Categorical(logits=net(p, x))),
        ("poisson", lambda p, x: dist.Poisson(jnp.exp(net(p, x)))),
        ("gaussian", lambda p, x: dist.Normal(net(p, x), jnp.array([0.5, 1.0, 2.0]))),
    ],
)
def test_distributions_of_other_libraries(params: Any, inputs: Any, ours: str, theirs: Any) -> None:
    mine = dv.gauss_newton(FAMILIES[ours][0](net), params, inputs, structure=dv.Dense())
    other = dv.gauss_newton(theirs, params, inputs, structure=dv.Dense())
    np.testing.assert_allclose(other.mean, mine.mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "predict",
    [
        lambda p, x: dist.Poisson(jnp.exp(x @ p["v"])),
        lambda p, x: distrax.Normal(x @ p["v"], jnp.exp(x @ p["v"])),
        dv.categorical_log_likelihood(linear),
    ],
)
def test_drawn_labels_agree_with_the_exact_matrix(predict: Any) -> None:
    params = {"v": 0.3 * jax.random.normal(jax.random.key(2), (3, 3))}
    x = jax.random.normal(jax.random.key(3), (2000, 3))
    exact = dv.gauss_newton(predict, params, x, structure=dv.Dense()).mean
    draws = [
        dv.model_fisher(predict, params, x, key=jax.random.key(k), samples=4, structure=dv.Dense()).mean
        for k in range(6)
    ]
    error = np.std(draws, axis=0, ddof=1) / np.sqrt(6)
    # 45 distinct entries, t with 5 degrees of freedom: 9 standard errors lie beyond the 1 in 10,000 quantile.
    assert float(np.max(np.abs(np.mean(draws, axis=0) - exact) / error)) < 9
    assert float(np.max(np.abs(np.mean(draws, axis=0) - exact))) < 0.15 * float(np.max(np.abs(exact)))


def test_labels_do_not_depend_on_batches(params: Any, inputs: Any) -> None:
    def predict(p: Any, x: Any) -> Any:
        return dist.Normal(net(p, x), 1.0)

    key = jax.random.key(1)
    whole = dv.model_fisher(predict, params, inputs, key=key)
    cut = dv.model_fisher(predict, params, inputs, key=key, batch_size=5)
    listed = dv.model_fisher(predict, params, iter([inputs[:9], inputs[9:]]), key=key)
    np.testing.assert_allclose(cut.diagonal(), whole.diagonal(), rtol=1e-12)
    np.testing.assert_allclose(listed.diagonal(), whole.diagonal(), rtol=1e-12)
    other = dv.model_fisher(predict, params, inputs, key=jax.random.key(2))
    assert not np.allclose(other.diagonal(), whole.diagonal())


def test_weights_count_examples(params: Any, inputs: Any) -> None:
    ll = dv.categorical_log_likelihood(net)
    weights = np.arange(17) % 3
    repeated = jnp.repeat(inputs, weights, axis=0)
    weighted = dv.gauss_newton(ll, params, inputs, weights=weights)
    np.testing.assert_allclose(
        weighted.diagonal(), dv.gauss_newton(ll, params, repeated).diagonal(), rtol=1e-11
    )
    assert float(weighted.num_data) == weights.sum()


@pytest.mark.parametrize("structure", [dv.Kronecker(), dv.EigenKronecker(), dv.Block()], ids=str)
def test_every_structure_holds_it(params: Any, inputs: Any, structure: Any) -> None:
    G = dv.gauss_newton(dv.categorical_log_likelihood(net), params, inputs, structure=structure)
    v = dv.variance(net, params, inputs[:4], G.inverse(damping=1e-2))
    assert v.shape == (4, 3)
    if not isinstance(structure, dv.Kronecker) or isinstance(structure, dv.EigenKronecker):
        exact = dv.gauss_newton(dv.categorical_log_likelihood(net), params, inputs, structure=dv.Dense())
        np.testing.assert_allclose(G.trace(), exact.trace(), rtol=1e-10)


def test_errors_in_words(params: Any, inputs: Any) -> None:
    with pytest.raises(TypeError, match="gaussian_log_likelihood"):
        dv.gauss_newton(net, params, inputs)
    with pytest.raises(TypeError, match="model_fisher"):
        dv.gauss_newton(lambda p, x: dist.Gamma(jnp.exp(net(p, x)), 1.0), params, inputs)
