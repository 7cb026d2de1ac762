"""The variance of u from refits that are rewarded for moving it (Kallus and McInerney's implicit delta method)."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance import cases
from deltavariance.estimators.base import Estimator, PyTree, Quantity, arrays_of, components
from deltavariance.tracing import as_real_array

Penalty = Callable[[Any], Any]
Refit = Callable[[Penalty], Any]


class ImplicitDelta(Estimator):
    """`(u(θ_λ) − u(θ_₋λ)) / 2λ`, where `θ_λ` maximises `Σ_i log p(example_i) + λ u(θ, z)`.

    For small λ this is `ΔᵀH⁻¹Δ/N`, without a Hessian.

    `refit(penalty) -> params` minimises the *summed* negative log-likelihood plus `penalty(params)`, starting from the
    trained parameters, with everything random in it held fixed. A refit of the mean loss must divide the penalty by N.
    `strength` is λ, in units of 1/u: about 0.1 to 1 over the standard deviation that is expected, small enough for the
    change to be linear and large enough to stand out from the refit's own error. With `two_sided=False` one refit is
    compared with the trained parameters, at half the price and an error of order λ in place of λ².

    Training: nothing. Inference: two refits for each case and component of u, `refit_passes` each, if that is given.

    >>> import jax.numpy as jnp
    >>> y = jnp.array([1.0, 3.0, 5.0])
    >>> def refit(penalty):  # Newton's method on ½Σ(y − m)² plus the penalty
    ...     return y.mean() - jax.grad(penalty)(y.mean()) / 3
    >>> print(ImplicitDelta(y.mean(), refit, strength=0.1).variance(lambda m, z: 2.0 * m * z, jnp.array([1.0])))
    [1.333...]
    """

    params: PyTree
    refit: Refit = eqx.field(static=True)
    strength: float = eqx.field(static=True)
    two_sided: bool = eqx.field(static=True)
    refit_passes: float = eqx.field(static=True)
    training_cost: float = eqx.field(static=True)

    def __init__(
        self,
        params: PyTree,
        refit: Refit,
        *,
        strength: float,
        two_sided: bool = True,
        refit_passes: float = math.nan,
    ) -> None:
        if not strength > 0:
            raise ValueError(f"`strength` must be above 0, and is {strength}.")
        self.params, self.refit, self.strength = arrays_of(params), refit, strength
        self.two_sided, self.refit_passes, self.training_cost = two_sided, refit_passes, 0.0

    def variance(self, u: Quantity, z: PyTree) -> Float[Array, "n *u"]:
        """One after another; a change against the reward is noise of the refit and is an error."""
        n = cases.count(z, "z")
        found = [self._one(u, jax.tree.map(lambda leaf, row=row: leaf[row], z)) for row in range(n)]
        result = jnp.stack(found)
        bad = np.flatnonzero(~np.isfinite(np.asarray(result)).reshape(n, -1).all(axis=1))
        if bad.size:
            raise ValueError(
                f"{bad.size} of {n} cases gave NaN or infinity, the first at index {bad[0]}: the refit diverged. Let it"
                " start from the trained parameters, or use a smaller `strength`."
            )
        lowest = float(jnp.min(result))
        if lowest < 0:
            raise ValueError(
                f"A refit that was rewarded for raising u lowered it (the variance would be {lowest:.3g}). Train"
                " the refit closer to its optimum, or use a larger `strength`."
            )
        return result

    def _one(self, u: Quantity, case: PyTree) -> Array:
        def value(params: PyTree) -> Array:
            return as_real_array(u(params, case))

        start = value(self.params)
        moves = [self._slope(value, k) for k in range(start.size)]
        return jnp.reshape(jnp.stack(moves), start.shape)

    def _slope(self, value: Callable[[PyTree], Array], k: int) -> Array:
        def component(params: PyTree) -> Array:
            return jnp.ravel(value(params))[k]

        up = component(self.refit(lambda params: -self.strength * component(params)))
        if not self.two_sided:
            return (up - component(self.params)) / self.strength
        down = component(self.refit(lambda params: self.strength * component(params)))
        return (up - down) / (2 * self.strength)

    def inference_cost(self, u: Quantity, z: PyTree | None = None) -> float:
        return (2 if self.two_sided else 1) * self.refit_passes * components(u, self.params, z)
