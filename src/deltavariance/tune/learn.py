"""Learn Σ: gradients of a loss through `ΔᵀΣΔ` into what is free in Σ, with Optax."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance.cases import count
from deltavariance.covariance import Covariance
from deltavariance.metrics.cases import Cases, brief, require_finite
from deltavariance.metrics.families import Family
from deltavariance.metrics.noise_model import NoiseModel
from deltavariance.tune.free import EachVariance, Free
from deltavariance.tune.noise import noise as fit
from deltavariance.variance import variance

PyTree = Any
Loss = Callable[[Array, Array], Array]
"""`loss(errors [b, *u], variance [b, *u]) -> scalar`, a mean over the b cases of a step."""


class LearnedCovariance(eqx.Module):
    """`sigma` as learned, α and β fitted on top of it (`noise`), and the loss before each step (`losses`)."""

    sigma: Covariance
    noise: NoiseModel
    losses: Float[Array, " steps"]

    def __repr__(self) -> str:
        ends = brief(self.losses[jnp.array([0, -1])])
        return f"LearnedCovariance({type(self.sigma).__name__}, loss from and to {ends}, {self.noise!r})"


def learn(
    u: Callable[[Any, Any], Any],
    params: PyTree,
    z: PyTree,
    targets: Cases,
    sigma: Covariance,
    *,
    key: PRNGKeyArray,
    free: Free | None = None,
    loss: Loss | None = None,
    family: str | Family = "laplace",
    regularisation: float = 1.0,
    optimiser: optax.GradientTransformation | None = None,
    steps: int = 200,
    cases_per_step: int | None = None,
) -> LearnedCovariance:
    """Change what is `free` in Σ so that the loss of the errors `targets − u(params, z)` falls.

    Minimises `loss + (λ/n) Σ_j (√(1 + θ_j²) − 1)`, where θ = 0 is the Σ given and every θ_j is a logarithm of
    a factor (or an entry of the low-rank part): the data must pay for every change.

    Args:
        sigma: where to start: a Fisher's inverse, or `dv.as_covariance(params, 1.0)` from scratch.
        free: `EachVariance()` (the default: the parameters of a diagonal, the eigenvectors of a Kronecker or
            dense Σ), `EachSide()` (Kronecker factors), `EachBlock()`, or `AddLowRank(rank)`.
        loss: an own `loss(errors, variance)`, each `[b, *u.shape]`, averaged over cases. Without one, the
            negative log-likelihood of errors with variance `α + ν` in the given family, α learned beside Σ.
        family: of the default loss and of the noise model returned. A Student needs its degrees of freedom
            here.
        regularisation: λ, counted in cases.
        optimiser: an Optax transformation; Adam with a rate of 0.05 that decays to zero along a cosine unless
            given.
        cases_per_step: how many of the cases are drawn for a step; all unless given.

    Cost: a step costs one variance of its cases and the backward pass through its contraction.

    >>> import deltavariance as dv
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> z = jax.random.normal(keys[0], (400, 2))
    >>> e = jax.random.normal(keys[1], (400,)) * jnp.sqrt(4.0 * z[:, 0] ** 2 + 0.01)
    >>> params = {"w": jnp.zeros(2)}
    >>> start = dv.as_covariance(params, 1.0)
    >>> learned = learn(lambda p, z: p["w"] @ z, params, z, e, start, family="gaussian", key=keys[2])
    >>> first, second = learned.sigma.diagonal()
    >>> bool(first > 2.5), bool(second < 0.1)
    (True, True)
    """
    n = count(z, "z")
    values = jax.jit(jax.vmap(u, in_axes=(None, 0)))(params, z)
    observed = jnp.asarray(targets)
    if observed.shape != values.shape:
        raise ValueError(
            f"`targets` has shape {observed.shape} and u of these cases has shape {values.shape}; one target"
            " for each case and component is needed."
        )
    errors = observed - values
    require_finite(errors, "targets − u(params, z)")
    before = variance(u, params, z, sigma)
    start_noise = fit(errors, before, family)
    batch = n if cases_per_step is None else cases_per_step
    if not 1 <= batch <= n:
        raise ValueError(f"`cases_per_step` is {batch} for {n} cases.")
    chosen: Free = EachVariance() if free is None else free
    start_key, draw_key = jax.random.split(key)
    scale = jnp.mean(errors**2, axis=0)
    floor = 1e-6 * jnp.where(scale > 0, scale, 1.0)
    theta = _Unknowns(
        chosen.start(sigma, start_key),
        jnp.log(jnp.maximum(start_noise.alpha, floor)),
        # The size of Σ as a whole is fitted beforehand, so that no factor needs to travel far.
        jnp.log(jnp.maximum(start_noise.beta, 1e-3 * floor.max() / jnp.maximum(before.mean(), 1e-30))).mean()
        if loss is None
        else jnp.zeros(()),
    )
    own = _negative_log_likelihood(start_noise.family) if loss is None else _own(loss)
    rate = optax.cosine_decay_schedule(0.05, steps)
    optimise = optax.adam(rate) if optimiser is None else optimiser

    def objective(theta: _Unknowns, index: Array) -> Array:
        built = chosen.build(sigma.scale(jnp.exp(theta.common)), theta.free)
        some = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], z)
        v = variance(u, params, some, built, check=False)
        pull = sum(jnp.sum(jnp.sqrt(1 + t**2) - 1) for t in jax.tree.leaves(theta.free))
        return own(errors[index], v, theta.log_alpha) + regularisation / n * pull

    @jax.jit
    def run(theta: _Unknowns, indices: Array) -> tuple[_Unknowns, Array]:
        def step(state: Any, index: Array) -> tuple[Any, Array]:
            theta, optimiser_state = state
            value, gradient = jax.value_and_grad(objective)(theta, index)
            updates, optimiser_state = optimise.update(gradient, optimiser_state, theta)
            return (optax.apply_updates(theta, updates), optimiser_state), value

        (theta, _), losses = jax.lax.scan(step, (theta, optimise.init(theta)), indices)
        return theta, losses

    theta, losses = run(theta, _draws(draw_key, n, batch, steps))
    if not bool(jnp.all(jnp.isfinite(losses))):
        first = int(jnp.argmin(jnp.isfinite(losses)))
        raise FloatingPointError(
            f"The loss was not finite at step {first} of {steps}. Try an `optimiser` with a smaller rate, or"
            " look whether the loss is defined for a variance near zero."
        )
    learned = chosen.build(sigma.scale(jnp.exp(theta.common)), theta.free)
    return LearnedCovariance(learned, fit(errors, variance(u, params, z, learned), family), losses)


class _Unknowns(eqx.Module):
    free: Any
    log_alpha: Array
    common: Array


def _negative_log_likelihood(family: Family) -> Callable[[Array, Array, Array], Array]:
    return lambda e, v, log_alpha: -jnp.mean(family.log_density(e, jnp.exp(log_alpha) + v))


def _own(loss: Loss) -> Callable[[Array, Array, Array], Array]:
    return lambda e, v, log_alpha: loss(e, v)


def _draws(key: PRNGKeyArray, n: int, batch: int, steps: int) -> Array:
    """The cases of each step, `[steps, batch]`, none twice in a step."""
    if batch == n:
        return jnp.broadcast_to(jnp.arange(n), (steps, n))
    return jax.vmap(lambda k: jax.random.choice(k, n, (batch,), replace=False))(jax.random.split(key, steps))
