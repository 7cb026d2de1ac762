"""Ensembles: the number, how members are kept, and how they are trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltavariance.estimators import Ensemble, train_ensemble

Z = jnp.linspace(-1.0, 1.0, 7)


def models(count=4):
    return [{"w": jnp.asarray(float(k**2)), "b": jnp.arange(2.0) * k, "steps": 3} for k in range(count)]


def u(p, z):
    return jnp.sin(p["w"] * z) + p["b"] * z


def by_hand(members):
    values = np.array([[np.asarray(u(p, z)) for z in Z] for p in members])
    return ((values - values.mean(axis=0)) ** 2).sum(axis=0) / (len(members) - 1)


def test_the_number_is_the_unbiased_variance(x64):
    ensemble = Ensemble(models())
    np.testing.assert_allclose(ensemble.variance(u, Z), by_hand(models()), rtol=1e-6)
    np.testing.assert_allclose(
        ensemble.mean(u, Z), np.mean([[u(p, z) for z in Z] for p in models()], axis=0), rtol=1e-6
    )


def test_batches_change_nothing():
    ensemble = Ensemble(models())
    np.testing.assert_allclose(ensemble.variance(u, Z, batch_size=3), ensemble.variance(u, Z), rtol=1e-5)


def test_stacked_members_and_a_list_are_the_same():
    stacked = {"w": jnp.arange(4.0) ** 2, "b": jnp.arange(4.0)[:, None] * jnp.arange(2.0), "steps": 3}
    np.testing.assert_array_equal(Ensemble(stacked).variance(u, Z), Ensemble(models()).variance(u, Z))


def test_three_by_slicing():
    ensemble = Ensemble(models(6), training_passes=30.0)[:3]
    assert len(ensemble) == 3
    np.testing.assert_allclose(ensemble.variance(u, Z), by_hand(models(3)), rtol=1e-5)
    assert (ensemble.training_cost, ensemble.inference_cost(u)) == (60.0, 3.0)
    np.testing.assert_array_equal(ensemble.member(2)["b"], models(3)[2]["b"])


def test_equinox_modules_from_filter_vmap():
    keys = jax.random.split(jax.random.key(0), 3)
    stacked = eqx.filter_vmap(lambda k: eqx.nn.MLP(1, 1, 4, 1, key=k))(keys)
    single = [eqx.nn.MLP(1, 1, 4, 1, key=k) for k in keys]
    q = lambda m, z: m(z[None])
    expected = np.var([[q(m, z) for z in Z] for m in single], axis=0, ddof=1)
    np.testing.assert_allclose(Ensemble(stacked).variance(q, Z), expected, rtol=1e-4)
    np.testing.assert_allclose(Ensemble(single).variance(q, Z), expected, rtol=1e-4)


def test_members_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="Member 1 of the ensemble"):
        Ensemble([{"w": jnp.ones(2)}, {"w": jnp.ones(3)}])
    with pytest.raises(ValueError, match="leading axis of members"):
        Ensemble({"w": jnp.ones(2), "b": jnp.ones(3)})
    with pytest.raises(ValueError, match="at least 2"):
        Ensemble([{"w": jnp.ones(2)}]).variance(lambda p, z: p["w"][0] * z, Z)
    with pytest.raises(TypeError, match="member"):
        Ensemble(models())[0]


DATA = (jnp.arange(50.0), jnp.cos(jnp.arange(50.0)))


def train(key, data):
    return {"mean": jnp.mean(data[1]), "noise": jax.random.normal(key, (3,)), "name": "a"}


def test_a_member_does_not_depend_on_how_it_was_trained():
    key = jax.random.key(3)
    one = train_ensemble(train, key, 5, DATA, bootstrap=True)
    many = train_ensemble(train, key, 7, DATA, bootstrap=True, side_by_side=3)
    for k in range(5):
        np.testing.assert_allclose(one.member(k)["noise"], many.member(k)["noise"], rtol=1e-6)
        np.testing.assert_allclose(one.member(k)["mean"], many.member(k)["mean"], rtol=1e-5)


def test_without_bootstrap_all_see_the_data_themselves():
    ensemble = train_ensemble(train, jax.random.key(0), 3, DATA)
    means = [float(ensemble.member(k)["mean"]) for k in range(3)]
    np.testing.assert_allclose(means, float(DATA[1].mean()), rtol=1e-6)


def test_bootstrap_draws_rows_together_with_replacement():
    seen = []

    def look(key, data):
        seen.append(jax.tree.map(np.asarray, data))
        return {"w": jnp.zeros(())}

    train_ensemble(look, jax.random.key(0), 2, DATA, bootstrap=True)
    for x, y in seen:
        np.testing.assert_array_equal(y, np.asarray(DATA[1])[x.astype(int)])
        # Of 50 rows drawn with replacement 63 % are seen, give or take 7 %.
        assert 22 <= len(set(x.tolist())) <= 42
    assert (seen[0][0] != seen[1][0]).any()


def test_bootstrap_variance_of_a_mean():
    ensemble = train_ensemble(train, jax.random.key(1), 400, DATA, bootstrap=True, side_by_side=400)
    found = float(ensemble.variance(lambda p, z: p["mean"], jnp.zeros(1))[0])
    assert abs(found / (float(jnp.var(DATA[1])) / 50) - 1) < 4 * (2 / 400) ** 0.5


def test_an_interrupted_training_goes_on(tmp_path):
    trained = []

    def fragile(key, data):
        if not isinstance(key, jax.core.Tracer):
            if len(trained) == 3:
                raise KeyboardInterrupt
            trained.append(1)
        return train(key, data)

    key = jax.random.key(5)
    with pytest.raises(KeyboardInterrupt):
        train_ensemble(fragile, key, 5, DATA, folder=tmp_path)
    trained.clear()
    found = train_ensemble(fragile, key, 5, DATA, folder=tmp_path)
    assert len(trained) == 2
    expected = train_ensemble(train, key, 5, DATA)
    for k in range(5):
        np.testing.assert_array_equal(found.member(k)["noise"], expected.member(k)["noise"])
    assert found.member(0)["name"] == "a"


def test_members_of_another_run_are_refused(tmp_path):
    train_ensemble(train, jax.random.key(5), 2, DATA, folder=tmp_path)
    with pytest.raises(ValueError, match="key differ"):
        train_ensemble(train, jax.random.key(6), 2, DATA, folder=tmp_path)
    with pytest.raises(ValueError, match="bootstrap differ"):
        train_ensemble(train, jax.random.key(5), 2, DATA, folder=tmp_path, bootstrap=True)


def test_asked_of_any_quantity():
    """One protocol: components of any shape."""
    v = dv.estimators.Ensemble(models()).variance(lambda p, z: jnp.outer(p["b"], p["b"]) * z, Z)
    assert v.shape == (7, 2, 2)
