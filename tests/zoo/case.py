"""What a zoo case is, and how its arrays are drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Quantity = Callable[[Any, Any], jax.Array]
Made = tuple[Quantity, Any, Any]


class Draw:
    """Random arrays of one precision, drawn by NumPy so that making a model compiles nothing."""

    def __init__(self, seed: int, dtype: Any) -> None:
        self.dtype = jnp.dtype(dtype)
        self._generator = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 0.5) -> jax.Array:
        return jnp.asarray(scale * self._generator.standard_normal(shape), self.dtype)

    def positive(self, *shape: int) -> jax.Array:
        return jnp.asarray(0.5 + self._generator.random(shape), self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> jax.Array:
        return jnp.asarray(self._generator.integers(low, high, shape), jnp.int32)

    def fill(self, tree: Any, scale: float = 0.4) -> Any:
        """Every inexact leaf of `tree` (arrays or bare shapes) replaced by a random array of its shape.

        Scales and biases come out as generic as the weights: a rule that only works for zero biases
        or unit scales shows.
        """

        def one(leaf: Any) -> Any:
            if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact):
                return self(*leaf.shape, scale=scale)
            return leaf

        return jax.tree.map(one, tree)


@dataclass(frozen=True)
class Case:
    """A function u(params, z) of one case, its parameters, and a few cases z with a leading axis.

    `build` receives a `Draw`; `make` is the same from a JAX key, for tests that hold one.
    """

    name: str
    build: Callable[[Draw], Made]

    def make(self, key: jax.Array, dtype: Any) -> Made:
        words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        return self.build(Draw(int(np.asarray(words).ravel()[-1]), dtype))
