"""From an epistemic variance to the variance of the error: fit `s = α + β ν` by maximum likelihood.

One parameter is profiled out. With the mixture `r = (1 − x) a/ā + x ν/ν̄` and `s = τ r`, the best τ for a
given x has a closed form (Gaussian `mean(e²/r)`, Laplace `2 mean(|e|/√r)²`) or a short iteration (Student).
What is left is a search over x in [0, 1]: a grid in logit x that spans sixteen powers of ten, a
golden-section search between the neighbours of its best point, and the two ends, which are the solutions β =
0 and α = 0.
"""

import functools
from collections.abc import Callable
from functools import singledispatch

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from deltavariance.metrics.cases import Cases, Weights, as_pair, as_weights, known, weighted_mean
from deltavariance.metrics.families import Family, Gaussian, Laplace, Student, as_family
from deltavariance.metrics.noise_model import NoiseModel

_GRID = np.linspace(-18.0, 18.0, 37)
_GOLDEN_STEPS = 28  # shrinks a bracket of two to 3e-6 in logit x
_SKETCH_STEPS = 10
_DEGREES = 2 + np.array([0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
_TAU_STEPS = 40


def noise(
    errors: Cases,
    variance: Cases,
    family: str | Family = "laplace",
    *,
    aleatoric: Cases | None = None,
    weights: Weights = None,
) -> NoiseModel:
    """The most likely α, β ≥ 0 of `s = α + β ν(z)`, one pair a quantity.

    Args:
        errors: target minus prediction on validation data, `[n, *q]`.
        variance: the epistemic variance ν of the same cases, `[n, *q]`.
        family: "laplace" (`s = 2b²`, the paper's), "gaussian", "student" (degrees of freedom fitted too, one
            value a quantity), or a family object, such as `Student(df=4)` with its degrees of freedom held
            fixed.
        aleatoric: the user's own noise variance a(z), `[n, *q]`; then `s = α a(z) + β ν(z)`.
        weights: how often each case counts, `[n]`.

    Solutions at the ends, α = 0 and β = 0, are found exactly. Where ν is constant, α and β cannot be told
    apart and all goes into α. Cost: some 70 passes over the n errors.

    >>> import jax
    >>> nu = jax.random.uniform(jax.random.key(0), (5000,))
    >>> e = jax.random.laplace(jax.random.key(1), (5000,)) * jnp.sqrt((0.5 + 2.0 * nu) / 2)
    >>> model = noise(e, nu)
    >>> bool(abs(model.alpha - 0.5) < 0.1), bool(abs(model.beta - 2.0) < 0.2)
    (True, True)
    """
    e, v = as_pair(errors, variance)
    a = jnp.ones_like(e) if aleatoric is None else as_pair(errors, aleatoric, "aleatoric")[1]
    _require_errors(e)
    return fit_noise(as_family(family), e, v, a, as_weights(weights, e))


@functools.partial(jax.jit, static_argnames="sketch")
def fit_noise(
    family: Family | None,
    e: Float[Array, "n *q"],
    v: Float[Array, "n *q"],
    a: Float[Array, "n *q"],
    w: Float[Array, " n"],
    *,
    sketch: bool = False,
) -> NoiseModel:
    """`noise` without its checks, compiled; None is a Student whose degrees of freedom are fitted.

    A sketch searches half as finely, to 0.03 in logit x: enough for the likelihood that is reached, to second
    order.
    """
    unit_e, unit_v, unit_a = (_unit(weighted_mean(x, w)) for x in (e**2, v, a))
    errors, parts = e / jnp.sqrt(unit_e), (a / unit_a, v / unit_v)
    if family is None:
        family = _best_degrees(errors, parts, w)
    share, tau, _ = _mixture(family, errors, parts, w, sketch)
    x, rest = share
    return NoiseModel(family, tau * rest * unit_e / unit_a, tau * x * unit_e / unit_v)


Parts = tuple[Array, Array]


def _mixture(
    family: Family, e: Array, parts: Parts, w: Array, sketch: bool = False
) -> tuple[Parts, Array, Array]:
    """The best `(x, 1 − x)`, its τ and its mean negative log-likelihood, for each quantity."""

    def profile(share: Parts) -> tuple[Array, Array]:
        x, rest = share
        r = rest * parts[0] + x * parts[1]
        tau = scale_of(family, e, r, w)
        loss = -weighted_mean(family.log_density(e, tau * r), w)
        return jnp.where(jnp.isfinite(loss), loss, jnp.inf), tau

    def loss_at(t: Array) -> Array:
        return profile(_shares(t))[0]

    q = e.shape[1:]
    grid = jnp.asarray(_GRID[:: 2 if sketch else 1], e.dtype)
    losses = lax.map(lambda t: loss_at(jnp.full(q, t)), grid)
    start = grid[jnp.argmin(losses, axis=0)]
    step = grid[1] - grid[0]
    inner = _golden(loss_at, start - step, start + step, _SKETCH_STEPS if sketch else _GOLDEN_STEPS)

    zero, one = jnp.zeros(q, e.dtype), jnp.ones(q, e.dtype)
    share, (loss, tau) = _shares(inner), profile(_shares(inner))
    slack = 4 * float(np.finfo(e.dtype).eps)
    # α = 0 first: where ν is constant all three are equal, and the last that is as good, β = 0, is kept.
    for end in ((one, zero), (zero, one)):
        loss_end, tau_end = profile(end)
        take = loss_end <= loss + slack * (1 + jnp.abs(loss))
        share = (jnp.where(take, end[0], share[0]), jnp.where(take, end[1], share[1]))
        tau, loss = jnp.where(take, tau_end, tau), jnp.where(take, loss_end, loss)
    return share, tau, loss


def _golden(function: Callable[[Array], Array], low: Array, high: Array, steps: int) -> Array:
    """The place of the least value between low and high, elementwise, by golden sections."""
    ratio = (5**0.5 - 1) / 2

    def step(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, left, right, at_left, at_right = state
        go_left = at_left < at_right
        low, high = jnp.where(go_left, low, left), jnp.where(go_left, right, high)
        new = jnp.where(go_left, high - ratio * (high - low), low + ratio * (high - low))
        at_new = function(new)
        return (
            low,
            high,
            jnp.where(go_left, new, right),
            jnp.where(go_left, left, new),
            jnp.where(go_left, at_new, at_right),
            jnp.where(go_left, at_left, at_new),
        )

    left, right = high - ratio * (high - low), low + ratio * (high - low)
    state = lax.fori_loop(0, steps, step, (low, high, left, right, function(left), function(right)))
    return jnp.where(state[4] < state[5], state[2], state[3])


def _best_degrees(e: Array, parts: Parts, w: Array) -> Student:
    """Degrees of freedom per quantity: the best of a grid, refined while the mixture x is held."""
    grid = jnp.asarray(_DEGREES, e.dtype)
    shares, _, losses = lax.map(lambda df: _mixture(Student(df), e, parts, w), grid)
    best = jnp.argmin(losses, axis=0)[None]
    x, rest = (jnp.take_along_axis(share, best, axis=0)[0] for share in shares)
    r = rest * parts[0] + x * parts[1]
    centre = jnp.log(grid - 2)[best[0]]

    def loss_at(log_excess: Array) -> Array:
        family = Student(2 + jnp.exp(log_excess))
        return -weighted_mean(family.log_density(e, scale_of(family, e, r, w) * r), w)

    return Student(2 + jnp.exp(_golden(loss_at, centre - 1.0, centre + 1.0, _GOLDEN_STEPS)))


@singledispatch
def scale_of(family: Family, e: Array, r: Array, w: Array) -> Array:
    """The τ that makes errors of variance `τ r` most likely. Register a function to add a family."""
    raise TypeError(
        f"The family {family!r} has no rule for its scale; register one with `scale_of.register`."
    )


@scale_of.register
def _(family: Gaussian, e: Array, r: Array, w: Array) -> Array:
    return weighted_mean(e**2 / r, w)


@scale_of.register
def _(family: Laplace, e: Array, r: Array, w: Array) -> Array:
    return 2 * weighted_mean(jnp.abs(e) / jnp.sqrt(r), w) ** 2


@scale_of.register
def _(family: Student, e: Array, r: Array, w: Array) -> Array:
    """The fixed point `κ = mean((df + 1) y/(df + y/κ))`, y = e²/r, of the squared scale κ = τ (df − 2)/df."""
    df = family.df.astype(e.dtype)
    y = e**2 / r

    def step(_: Array, kappa: Array) -> Array:
        return weighted_mean((df + 1) * y / (df + y / kappa), w)

    kappa = lax.fori_loop(0, _TAU_STEPS, step, weighted_mean(jnp.minimum(y, 1e6), w))
    return kappa * df / (df - 2)


def _shares(t: Array) -> Parts:
    return jax.nn.sigmoid(t), jax.nn.sigmoid(-t)


def _unit(mean: Array) -> Array:
    return jnp.where(mean > 0, mean, 1.0)


def _require_errors(e: Array) -> None:
    if known(e) and not bool(jnp.all(jnp.any(e != 0, axis=0))):
        raise ValueError(
            "All errors of a quantity are exactly zero, so no noise can be fitted to it. Errors are targets"
            " minus predictions on data that the model has not been trained on."
        )
