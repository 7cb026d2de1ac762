"""Which leaves are uncertain, what they are called, and how `where` narrows them."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deltavariance.parameters import Layout, freeze


class Head(NamedTuple):
    weight: jax.Array
    bias: jax.Array


PARAMS = {
    "body": [jnp.ones((2, 3)), jnp.zeros(3)],
    "head": Head(jnp.ones((3, 1)), jnp.zeros(1)),
    "steps": 4,
    "rate": 0.1,
    "index": jnp.arange(3),
    "key": jax.random.key(0),
    "activation": jnp.tanh,
    "nothing": None,
}


def test_only_arrays_of_real_numbers_are_uncertain() -> None:
    layout = Layout.of(PARAMS)
    assert layout.names == ("body/0", "body/1", "head/weight", "head/bias")
    assert layout.sizes == (6, 3, 3, 1)
    assert layout.size == 13
    assert hash(layout) == hash(Layout.of(PARAMS))


def test_where_as_a_function_or_a_tree_of_booleans() -> None:
    assert Layout.of(PARAMS, lambda p: p["head"]).names == ("head/weight", "head/bias")
    assert Layout.of(PARAMS, lambda p: (p["head"].bias, p["body"][0])).names == ("body/0", "head/bias")
    flags = {name: name == "body" for name in PARAMS}
    assert Layout.of(PARAMS, flags).names == ("body/0", "body/1")
    with pytest.raises(ValueError, match="none of the parameters' leaves"):
        Layout.of(PARAMS, lambda p: 3)
    with pytest.raises(ValueError, match="widen `where`"):
        Layout.of(PARAMS, lambda p: p["index"])


def test_where_on_a_module() -> None:
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    assert Layout.of(model, lambda m: m.layers[-1]).names == ("layers/1/weight", "layers/1/bias")


def test_put_replaces_and_leaves_the_rest() -> None:
    layout = Layout.of(PARAMS, lambda p: p["head"])
    changed = layout.put(PARAMS, [jnp.full((3, 1), 7.0), jnp.full(1, 8.0)])
    assert changed["activation"] is jnp.tanh
    assert changed["body"][0] is PARAMS["body"][0]
    assert float(changed["head"].bias[0]) == 8
    assert float(PARAMS["head"].bias[0]) == 0


def test_flatten_and_unflatten_with_leading_axes() -> None:
    layout = Layout.of(PARAMS)
    vectors = jnp.arange(26.0).reshape(2, 13)
    leaves = layout.unflatten(vectors)
    assert [leaf.shape for leaf in leaves] == [(2, 2, 3), (2, 3), (2, 3, 1), (2, 1)]
    np.testing.assert_array_equal(layout.flatten(leaves), vectors)


def test_freeze_and_thaw() -> None:
    arrays, frozen = freeze(PARAMS)
    assert frozen == freeze(PARAMS)[1]
    again = frozen.thaw(arrays)
    assert jax.tree.structure(again) == jax.tree.structure(PARAMS)
    assert again["steps"] == 4
