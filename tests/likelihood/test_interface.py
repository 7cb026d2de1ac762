"""What a likelihood accepts, how it behaves under `jit`, and what it says about bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deltavariance.likelihood import (
    FullCovariance,
    LowRankCovariance,
    categorical_log_likelihood,
    gaussian_log_likelihood,
    laplace_log_likelihood,
    student_log_likelihood,
)


def f(params, x):
    return params * x


def test_examples_as_pairs_dictionaries_and_by_split():
    by_pair = gaussian_log_likelihood(f, scale=0.5)
    wanted = by_pair(jnp.array(2.0), (1.0, 2.5))
    assert by_pair(jnp.array(2.0), {"x": 1.0, "y": 2.5}) == wanted
    by_split = gaussian_log_likelihood(f, scale=0.5, split=lambda e: (e["image"], e["label"]))
    assert by_split(jnp.array(2.0), {"image": 1.0, "label": 2.5}) == wanted
    with pytest.raises(ValueError, match="'image', 'label'"):
        by_pair(jnp.array(2.0), {"image": 1.0, "label": 2.5})
    with pytest.raises(ValueError, match="tuple of 3 entries"):
        by_pair(jnp.array(2.0), (1.0, 2.0, 3.0))


def test_a_likelihood_without_arrays_is_a_static_argument():
    traces = []

    def run(log_likelihood, params, example):
        traces.append(1)
        return log_likelihood(params, example)

    jitted = jax.jit(run, static_argnums=0)
    first, same = gaussian_log_likelihood(f, scale=0.5), gaussian_log_likelihood(f, scale=0.5)
    other = gaussian_log_likelihood(f, scale=0.25)
    assert first == same
    assert hash(first) == hash(same)
    assert first != other
    jitted(first, 2.0, (1.0, 2.5))
    jitted(same, 2.0, (1.0, 2.5))
    assert len(traces) == 1
    assert jitted(other, 2.0, (1.0, 2.5)) != jitted(first, 2.0, (1.0, 2.5))
    assert categorical_log_likelihood(f) == categorical_log_likelihood(f)
    assert hash(student_log_likelihood(f, scale=1.0, df=3.0)) == hash(
        student_log_likelihood(f, scale=1.0, df=3.0)
    )


def test_a_likelihood_with_arrays_is_a_pytree():
    traces = []

    @eqx.filter_jit
    def run(log_likelihood, params, example):
        traces.append(1)
        return log_likelihood(params, example)

    example = (jnp.ones(2), jnp.zeros(2))
    narrow = gaussian_log_likelihood(f, covariance=np.eye(2))
    wide = gaussian_log_likelihood(f, covariance=4.0 * np.eye(2))
    values = [run(noise, jnp.array(1.0), example) for noise in (narrow, wide)]
    assert len(traces) == 1
    np.testing.assert_allclose(values[0] - values[1], -0.75 + np.log(4.0), rtol=1e-6)


def test_the_scale_can_be_learned_by_differentiation():
    def value(log_scale):
        return gaussian_log_likelihood(f, scale=jnp.exp(log_scale))(jnp.array(1.0), (1.0, 3.0))

    np.testing.assert_allclose(jax.jit(jax.grad(value))(0.0), 2.0**2 - 1.0, rtol=1e-6)


def test_unit_axes_may_differ_and_nothing_else():
    column = gaussian_log_likelihood(lambda params, x: jnp.reshape(params * x, (1,)), scale=1.0)
    assert column(jnp.array(1.0), (1.0, 1.0)) == column(jnp.array(1.0), (1.0, np.ones(1)))
    with pytest.raises(ValueError, match=r"shape \(3,\) and its target has shape \(2,\)"):
        gaussian_log_likelihood(f, scale=1.0)(jnp.array(1.0), (jnp.ones(3), jnp.ones(2)))


def test_the_noise_must_be_given_once():
    with pytest.raises(ValueError, match="neither was given"):
        gaussian_log_likelihood(f)
    with pytest.raises(ValueError, match="both were given"):
        gaussian_log_likelihood(f, scale=1.0, covariance=np.eye(2))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, np.array([1.0, 0.0])])
def test_scales_must_be_positive(scale):
    for build in (gaussian_log_likelihood, laplace_log_likelihood):
        with pytest.raises(ValueError, match="positive and finite"):
            build(f, scale=scale)


def test_bad_covariances():
    with pytest.raises(ValueError, match="not positive definite"):
        gaussian_log_likelihood(f, covariance=np.ones((2, 2)))
    with pytest.raises(ValueError, match="symmetric"):
        gaussian_log_likelihood(f, covariance=np.array([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="matrix"):
        gaussian_log_likelihood(f, covariance=np.ones(3))
    with pytest.raises(ValueError, match="singular"):
        FullCovariance.from_root(np.array([[1.0, 1.0], [1.0, 1.0]]))
    with pytest.raises(ValueError, match="diagonal"):
        LowRankCovariance(np.ones(3), np.ones((2, 1)))
    with pytest.raises(ValueError, match="diagonal of a low-rank"):
        LowRankCovariance(np.zeros(3), np.ones((3, 1)))


def test_a_symmetric_matrix_as_scale_is_ambiguous():
    """A covariance read as its own root would be wrong by its square."""
    log_likelihood = gaussian_log_likelihood(f, scale=np.array([[1.0, 0.5], [0.5, 1.0]]))
    with pytest.raises(ValueError, match="covariance=C"):
        eqx.filter_jit(log_likelihood)(jnp.array(1.0), (jnp.ones(2), jnp.ones(2)))
    # For outputs of that very shape the same matrix is a standard deviation for each.
    assert jnp.isfinite(log_likelihood(jnp.array(1.0), (jnp.ones((2, 2)), jnp.ones((2, 2)))))


def test_noise_of_another_size():
    with pytest.raises(ValueError, match="3 outputs"):
        gaussian_log_likelihood(f, covariance=np.eye(3))(jnp.array(1.0), (jnp.ones(2), jnp.ones(2)))
    with pytest.raises(ValueError, match="fits neither"):
        gaussian_log_likelihood(f, scale=np.ones(3))(jnp.array(1.0), (jnp.ones(2), jnp.ones(2)))


def test_a_scale_function_of_unclear_arguments():
    with pytest.raises(TypeError, match="3 required positional"):
        gaussian_log_likelihood(f, scale=lambda a, b, c: 1.0)
    network = eqx.nn.MLP(1, 1, 4, 1, key=jax.random.key(0), final_activation=jax.nn.softplus)
    assert jnp.isfinite(gaussian_log_likelihood(f, scale=network)(jnp.array(1.0), (jnp.ones(1), jnp.ones(1))))


def test_categorical_needs_classes():
    with pytest.raises(ValueError, match="bernoulli_log_likelihood"):
        categorical_log_likelihood(f)(jnp.array(1.0), (1.0, 0))
    with pytest.raises(ValueError, match="integers of shape"):
        categorical_log_likelihood(f)(jnp.ones(3), (1.0, 0.5))
