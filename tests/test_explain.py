"""Which form each leaf gets is a promise of its own: an exact gradient in the wrong form is a slow one."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import deltavariance as dv


def forms(u: Any, params: Any, z: Any) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    return {leaf.name: (leaf.forms, leaf.uses) for leaf in dv.explain(u, params, z).leaves}


def test_a_rollout_lists_its_steps() -> None:
    params = {"w": jnp.zeros((5, 5)), "b": jnp.zeros(5)}

    def u(params: Any, x: Any) -> Any:
        return lax.scan(lambda h, _: (jnp.tanh(h @ params["w"] + params["b"]), None), x, None, length=20)[
            0
        ].sum()

    assert forms(u, params, jnp.zeros((3, 5))) == {"w": (("Products",), (20,)), "b": (("Dense",), ())}


def test_stacked_layers_are_single_uses() -> None:
    params = {"w": jnp.zeros((16, 5, 5)), "b": jnp.zeros((16, 5))}

    def u(params: Any, x: Any) -> Any:
        return lax.scan(lambda h, p: (jnp.tanh(h @ p["w"] + p["b"]), None), x, params)[0].sum()

    assert forms(u, params, jnp.zeros((3, 5)))["w"] == (("Products",), (1,))


def test_convolutions_look_ups_and_what_falls_back() -> None:
    params = {
        "k": jnp.zeros((3, 3, 2, 4)),
        "e": jnp.zeros((10, 6)),
        "m": jnp.zeros((4, 4)),
        "s": jnp.zeros(4),
    }

    def u(params: Any, case: Any) -> Any:
        image, words = case
        y = lax.conv_general_dilated(
            image[None], params["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return (
            jnp.sum(y @ params["m"] * params["s"])
            + jnp.sum(params["e"][words])
            + jnp.sum(jnp.exp(params["m"]))
        )

    found = dv.explain(u, params, (jnp.zeros((2, 8, 8, 2)), jnp.zeros((2, 3), int)))
    by_name = {leaf.name: leaf for leaf in found.leaves}
    assert (by_name["k"].forms, by_name["k"].uses) == (("Products",), (64,))
    assert (by_name["e"].forms, by_name["e"].uses) == (("Rows",), (3,))
    # One use that no rule knows makes the whole leaf plain, and the reason is given.
    assert by_name["m"].forms == ("Dense",)
    assert by_name["m"].reason == "used by `exp`"
    assert "used by `exp`" in str(found)
    assert "Products" in repr(found)


def test_the_passage_through_calls_is_seen() -> None:
    params = {"w": jnp.zeros((4, 4))}
    layer = jax.jit(lambda w, x: jnp.tanh(x @ w.astype(jnp.float32).T))

    def u(params: Any, x: Any) -> Any:
        x = jax.checkpoint(layer)(params["w"], x)
        x = lax.cond(x[0] > 0, lambda x: x @ params["w"], lambda x: x, x)
        x = lax.switch(1, [lambda x: x, lambda x: layer(params["w"], x)], x)
        return jnp.sum(jax.nn.relu(x))

    leaf = dv.explain(u, params, jnp.zeros((2, 4))).leaves[0]
    assert set(leaf.forms) == {"Products"}
    assert leaf.reason == ""


def test_unused_leaves_and_components_are_told() -> None:
    params = {"w": jnp.zeros((4, 3)), "idle": jnp.zeros(7)}
    found = dv.explain(lambda p, x: x @ p["w"], params, jnp.zeros((2, 4)))
    assert found.components == 3
    assert {leaf.name: leaf.forms for leaf in found.leaves} == {"idle": (), "w": ("Products",)}
    assert "no use" in str(found)
