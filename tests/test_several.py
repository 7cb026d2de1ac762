"""Several covariances at once against one after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.several import Several

pytestmark = pytest.mark.usefixtures("x64")


def network(params, x):
    h = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.stack([h.sum(), (h @ params["v"])[0] ** 2])


@pytest.fixture
def setting():
    rng = np.random.default_rng(0)
    params = {
        "w": jnp.asarray(rng.normal(size=(3, 4))),
        "b": jnp.asarray(rng.normal(size=4)),
        "v": jnp.asarray(rng.normal(size=(4, 2))),
    }
    x, y = jnp.asarray(rng.normal(size=(30, 3))), jnp.asarray(rng.normal(size=(30, 2)))
    likelihood = dv.gaussian_log_likelihood(network, scale=0.7)
    fit = lambda structure: dv.fisher(likelihood, params, (x, y), structure=structure)
    return params, x[:7], fit


def test_each_gets_what_it_gets_alone(setting):
    params, z, fit = setting
    diagonal, eigen, dense = fit(dv.Diagonal()), fit(dv.EigenKronecker()), fit(dv.Dense())
    snapshots = [jax.tree.map(lambda p, k=k: p * (1 + 0.01 * k), params) for k in range(3)]
    sigmas = {
        "diagonal": [diagonal.inverse(d) for d in (1e-3, 1e-1, 10.0)],
        "EKFAC": (eigen.inverse(1e-2), eigen.inverse(1.0)),
        "dense": dense.inverse(1e-2),
        "SWAG": dv.swag(snapshots),
        "same twice": [dv.as_covariance(params, 1.0)] * 2,
    }
    is_sigma = lambda node: isinstance(node, dv.Covariance)
    for ask in (dv.variance, dv.block_variances, dv.covariance):
        found = ask(network, params, z, sigmas)
        alone = jax.tree.map(lambda sigma: ask(network, params, z, sigma), sigmas, is_leaf=is_sigma)  # noqa: B023
        assert jax.tree.structure(found) == jax.tree.structure(alone)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, alone)
    batches = dv.variance(network, params, z, sigmas, batch_size=2)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10),
        batches,
        dv.variance(network, params, z, sigmas),
    )


def test_what_members_share_is_held_once(setting):
    _, _, fit = setting
    eigen = fit(dv.EigenKronecker())
    (group,) = Several.of([eigen.inverse(10.0**k) for k in range(5)]).groups
    sizes = [leaf.size for leaf in jax.tree.leaves(eigen.inverse(1.0))]
    assert sum(leaf.size for leaf in group.shared) + sum(leaf.size for leaf in group.stacked) // 5 == sum(
        sizes
    )
    assert sum(leaf.size for leaf in group.shared) > 0


def test_what_cannot_be_used_together(setting):
    params, z, fit = setting
    curvature = fit(dv.Diagonal())
    with pytest.raises(TypeError, match=r"it holds \['Fisher'\].*inverse"):
        dv.variance(network, params, z, curvature)
    with pytest.raises(TypeError, match="it is empty"):
        dv.variance(network, params, z, [])
    part = dv.as_covariance({"w": params["w"]}, 1.0)
    with pytest.raises(ValueError, match="of the same parameters"):
        dv.variance(network, params, z, [curvature.inverse(1.0), part])
