"""Kinds of u, z and params: array answers, keys and integers, containers, unused leaves, linear algebra."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .case import Case, Draw, Made


def vector_valued(draw: Draw) -> Made:
    """One component does not depend on the parameters, two are the same."""

    def u(p: Any, x: Any) -> jax.Array:
        y = jnp.tanh(x @ p["w"] + p["b"])
        return jnp.concatenate([y, y[:1], jnp.ones(1, x.dtype), (p["w"] @ y).sum(keepdims=True)])

    return u, {"w": draw(3, 4), "b": draw(4)}, draw(3, 3)


def image_valued(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        return jnp.tanh(x @ p["left"])[:, :, None] * p["planes"] + jnp.sin(p["left"].T @ x.T)[..., None]

    return u, {"left": draw(3, 2), "planes": draw(2, 3)}, draw(3, 2, 3)


def rollout_valued(draw: Draw) -> Made:
    """[time, component], through a scan and through a cond."""

    def u(p: Any, x: Any) -> jax.Array:
        def step(h: Any, _: None) -> tuple[Any, Any]:
            h = jax.lax.cond(
                h[0] > 0, lambda g: jnp.tanh(p["w"] @ g), lambda g: jnp.sin(p["w"] @ g + p["b"]), h
            )
            return h, h[:2]

        return jax.lax.scan(step, x, None, length=4)[1]

    return u, {"w": draw(3, 3), "b": draw(3)}, draw(3, 3)


def keys_in_z(draw: Draw) -> Made:
    """Dropout and noise drawn from a typed key, and from an old raw one, of the case."""

    def u(p: Any, z: Any) -> jax.Array:
        keep = jax.random.bernoulli(z["key"], 0.7, (4,))
        noise = jax.random.normal(z["raw"], (2,), draw.dtype)
        return jnp.sum(jnp.where(keep, jnp.tanh(z["x"] @ p["w"]), 0.0) @ p["v"] * noise)

    keys = jax.random.split(jax.random.key(3), 3)
    z = {"key": keys, "raw": jax.random.key_data(keys), "x": draw(3, 3)}
    return u, {"w": draw(3, 4), "v": draw(4, 2)}, z


def key_and_integers_in_params(draw: Draw) -> Made:
    """Leaves that are not uncertain: integers, booleans, a key, a Python number, a string, None."""

    def u(p: Any, z: Any) -> jax.Array:
        noise = jax.random.normal(p["key"], (3,), draw.dtype)
        x = jnp.where(p["mask"], z["x"], p["fill"]) * noise
        assert p["kind"] == "tanh"
        return jnp.sum(jnp.tanh(p["w"][p["permutation"]] @ x)) * p["step"]

    params = {
        "w": draw(4, 3),
        "permutation": jnp.asarray([2, 0, 3, 1]),
        "mask": jnp.asarray([True, False, True]),
    }
    return (
        u,
        params | {"key": jax.random.key(1), "fill": 0.5, "step": 3, "kind": "tanh", "nothing": None},
        {"x": draw(3, 3)},
    )


def unused_parameters(draw: Draw) -> Made:
    """Never touched; touched by code whose result is dropped; stopped; multiplied by zero; empty."""

    def u(p: Any, x: Any) -> jax.Array:
        _ = jnp.tanh(p["dropped"] @ x)
        y = jnp.tanh(p["used"] @ x)
        y = y + jax.lax.stop_gradient(p["stopped"] @ x) + 0.0 * (p["zero"] @ x)
        return jnp.sum(y) + jnp.sum(p["empty"]) + jnp.sum(jnp.argsort(p["ordered"]))

    names = ("untouched", "dropped", "used", "stopped", "zero")
    return u, {name: draw(3, 3) for name in names} | {"empty": draw(0, 3), "ordered": draw(3)}, draw(3, 3)


def closed_over_and_passed(draw: Draw) -> Made:
    """u closes over fixed arrays of the same shape and value as the parameters: those stay fixed."""
    w = draw(3, 3)

    def u(p: Any, x: Any) -> jax.Array:
        return jnp.sum(jnp.tanh(w @ jnp.tanh(p @ x)) * w[0]) + jnp.sum(jnp.sin(p @ w @ x))

    return u, w, draw(3, 3)


def shared_array(draw: Draw) -> Made:
    """One array stands at two places of the tree: two leaves, each with its own gradient."""
    w = draw(3, 3)
    return (lambda p, x: jnp.sum(jnp.tanh(p["a"] @ jnp.sin(p["b"] @ x)))), {"a": w, "b": w}, draw(3, 3)


class Layer(NamedTuple):
    weight: Any
    bias: Any


class Network(eqx.Module):
    """An Equinox module that is its own parameters, with a static field and a function as a leaf."""

    layers: tuple[Layer, ...]
    head: Any
    activation: Any
    repeats: int = eqx.field(static=True)

    def __call__(self, x: Any) -> jax.Array:
        for layer in self.layers * self.repeats:
            x = self.activation(layer.weight @ x + layer.bias)
        return x @ self.head["w"] + self.head["b"]


def containers(draw: Draw) -> Made:
    layers = tuple(Layer(draw(3, 3), draw(3)) for _ in range(2))
    network = Network(layers, {"w": draw(3), "b": draw()}, jnp.tanh, 2)
    return (lambda p, x: p(x)), network, draw(3, 3)


def tuple_params_dict_z(draw: Draw) -> Made:
    def u(p: Any, z: Any) -> jax.Array:
        (w, [b]), v = p
        (x, y), mask = z["pair"], z["mask"]
        return jnp.sum(jnp.where(mask, jnp.tanh(w @ x + b), y)) * v

    z = {"pair": (draw(3, 2), draw(3, 4)), "mask": draw.integers(0, 2, 3, 4) > 0}
    return u, ((draw(4, 2), [draw(4)]), draw()), z


def same_for_every_case(draw: Draw) -> Made:
    """u that does not look at z: a property of the model."""
    return (
        (lambda p, z: jnp.linalg.norm(jnp.tanh(p["w"]) @ p["v"])),
        {"w": draw(3, 3), "v": draw(3)},
        draw(3, 1),
    )


def fourier(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        spectrum = jnp.fft.rfft(x @ p["w"]) * jnp.exp(1j * p["phase"])
        return jnp.sum(jnp.fft.irfft(spectrum, 6) ** 3) + jnp.sum(jnp.abs(spectrum) ** 2)

    return u, {"w": draw(4, 6), "phase": draw(4)}, draw(3, 2, 4)


def complex_inputs(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        y = p["w"].astype(x.dtype) @ x + p["b"]
        return jnp.sum(jnp.abs(y) ** 2) + jnp.sum(jnp.real(jnp.exp(1j * (p["w"] @ y))))

    return u, {"w": draw(3, 3), "b": draw(3)}, draw(3, 3) + 1j * draw(3, 3)


def linear_algebra(draw: Draw) -> Made:
    def u(p: Any, x: Any) -> jax.Array:
        a = jnp.eye(3, dtype=x.dtype) * 3 + p["a"]
        y = jnp.linalg.solve(a, jnp.tanh(p["w"] @ x))
        spd = a @ a.T
        return y @ jnp.linalg.solve(spd, y) + jnp.linalg.slogdet(spd)[1] + jnp.linalg.eigvalsh(spd)[0] * x[0]

    return u, {"a": draw(3, 3), "w": draw(3, 3)}, draw(3, 3)


def implicit_functions(draw: Draw) -> Made:
    """A root and a matrix-free solve with their own derivatives, parameters closed over."""

    def u(p: Any, x: Any) -> jax.Array:
        residual = lambda y: y - 0.3 * jnp.tanh(p["w"] @ y) - x
        iterate = lambda f, start: jax.lax.fori_loop(0, 40, lambda _, y: y - f(y), start)
        solve = lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y)
        y = jax.lax.custom_root(residual, x, iterate, solve)
        matvec = lambda v: v + 0.2 * (p["w"] @ v)
        return jnp.sum(y**2) + jnp.sum(jax.lax.custom_linear_solve(matvec, y, solve, solve))

    return u, {"w": draw(3, 3)}, draw(3, 3)


CASES = (
    Case("vector-valued u", vector_valued),
    Case("image-shaped u", image_valued),
    Case("rollout-valued u", rollout_valued),
    Case("keys in z", keys_in_z),
    Case("leaves that are not uncertain", key_and_integers_in_params),
    Case("unused parameters", unused_parameters),
    Case("closed over and passed", closed_over_and_passed),
    Case("one array, two leaves", shared_array),
    Case("containers", containers),
    Case("tuple params, dict z", tuple_params_dict_z),
    Case("u that ignores z", same_for_every_case),
    Case("Fourier transform", fourier),
    Case("complex inputs", complex_inputs),
    Case("linear algebra", linear_algebra),
    Case("implicit functions", implicit_functions),
)
