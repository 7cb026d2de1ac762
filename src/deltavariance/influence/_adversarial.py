"""What one bad example could do to a prediction."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from deltavariance.curvature import Curvature
from deltavariance.variance import variance

PyTree = Any
Function = Callable[[Any, Any], Any]


def adversarial_shift(
    u: Function,
    params: PyTree,
    z: PyTree,
    H: Curvature,
    *,
    offset: Any,
    epsilon: float = 1.0,
    damping: Any = 1e-8,
) -> Float[Array, "n *u"]:
    """How far u(z) moves if an example with the target `u(z) + offset` is slipped into the training.

    The example enters the average training loss as `ε/2N · (u(z) − target)²`. To first order in ε/N the new u is

        u(z) + ε · offset · ΔᵀH⁻¹Δ / N,

    `[n, *u.shape]`, signed like the offset: the Delta Variance of the Laplace posterior H⁻¹/N, read as robustness.
    `offset` may be one number or an array that broadcasts to the result. The error is of order (ε/N)².

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> y = jnp.array([0.0, 1.0, 2.0, 3.0])
    >>> F = dv.fisher(lambda m, y: -0.5 * (y - m) ** 2, jnp.mean(y), y)  # 5/4 in place of the Hessian, which is 1
    >>> print(dv.influence.adversarial_shift(lambda m, z: m, jnp.mean(y), jnp.zeros(1), F, offset=10.0))
    [2.]
    """
    return epsilon * offset * _delta_variance(u, params, z, H, damping)


def adversarial_noise(
    u: Function,
    params: PyTree,
    z: PyTree,
    H: Curvature,
    *,
    noise: Any,
    epsilon: float = 1.0,
    damping: Any = 1e-8,
) -> Float[Array, "n *u"]:
    """The mean square by which u(z) moves if the slipped-in target is u(z) plus noise of standard deviation `noise`.

        E[(shift)²] = (ε · noise · ΔᵀH⁻¹Δ / N)² + O((ε/N)³),        `[n, *u.shape]`.

    As `adversarial_shift` in all else.
    """
    return (epsilon * noise * _delta_variance(u, params, z, H, damping)) ** 2


def _delta_variance(u: Function, params: PyTree, z: PyTree, H: Curvature, damping: Any) -> Array:
    return variance(u, params, z, H.inverse(damping=damping))
