"""Several estimators on the same held-out data: scores with standard errors, and times."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance import cases as _cases
from deltavariance.estimators.base import Estimator, PyTree, Quantity
from deltavariance.estimators.comparison import Comparison, Result, Score
from deltavariance.estimators.sampled import Sampled
from deltavariance.estimators.timing import ratios
from deltavariance.metrics import NoiseModel, block_counts, correlation, log_likelihood, removal_auc
from deltavariance.metrics.cases import weighted_mean
from deltavariance.tracing import as_real_array
from deltavariance.tune.noise import noise as fit_noise

_SCORES = 4


def compare(
    estimators: Mapping[str, Estimator],
    u: Quantity,
    z: PyTree,
    targets: Float[Array, "n *u"],
    *,
    key: PRNGKeyArray,
    params: PyTree | None = None,
    predictions: Float[Array, "n *u"] | None = None,
    validation: int | float = 0.5,
    family: str = "laplace",
    reference: str | None = None,
    block_length: int = 1,
    repeats: int = 200,
    timing: int = 5,
) -> Comparison:
    """Score several estimators of the variance of `u` by how well they describe its errors on held-out cases.

    All estimators are scored on the *same* errors, `targets − predictions`, so that only their variances differ. The
    noise model `α + βν` of each is fitted on the first cases and every score taken on the others, so neither a wrong
    scale nor missing observation noise counts against an estimator, in the likelihood or elsewhere.

    Args:
        estimators: by the names that the table shows.
        z, targets: cases that none of the models was trained on, and the true values of u there. If neighbours
            are alike keep them in order, and give a `block_length`.
        params: the model behind `predictions` and behind the plain pass that times are in units of. By default that
            of the first estimator with parameters (of an ensemble, its first member).
        predictions: by default `u(params, z)`.
        validation: how many of the cases the noise is fitted on, as a number or as a share of them.
        reference: whom `improvement` compares with; the first estimator by default.
        block_length, repeats: of the block bootstrap over cases behind the standard errors.
        timing: rounds of time measurement, in which all take turns; 0 to leave it out.

    Cost: one `variance` on all cases by each estimator, and `timing` more; the scores are small beside it.

    >>> import jax, jax.numpy as jnp
    >>> from deltavariance.estimators import Constant, GradientNorm
    >>> params = {"w": jnp.array(1.0)}
    >>> u = lambda p, z: p["w"] * z
    >>> z = jax.random.normal(jax.random.key(0), (400,))
    >>> truth = z + z * jax.random.laplace(jax.random.key(1), (400,))
    >>> two = {"constant": Constant(params), "gradient": GradientNorm(params)}
    >>> table = compare(two, u, z, truth, key=jax.random.key(2), timing=0)
    >>> bool(table["gradient"].improvement.value > 3 * table["gradient"].improvement.standard_error)
    True
    """
    if not estimators:
        raise ValueError("`estimators` is empty: give a mapping from names to estimators.")
    n = _cases.count(z, "z")
    first = _split(validation, n)
    reference = next(iter(estimators)) if reference is None else reference
    if reference not in estimators:
        raise ValueError(f"The reference {reference!r} is not among the estimators {list(estimators)}.")
    params = _params_of(estimators) if params is None else params
    plain = _plain_pass(u, params, z)
    values = plain() if predictions is None else jnp.asarray(predictions)
    targets = jnp.asarray(targets)
    if targets.shape != values.shape:
        raise ValueError(
            f"`targets` has shape {targets.shape} and u gives {values.shape}: one target is needed for each case and"
            " component."
        )
    errors = jnp.reshape(targets - values, (n, -1))
    variances = {name: jnp.reshape(one.variance(u, z), (n, -1)) for name, one in estimators.items()}
    fitted = [fit_noise(errors[:first], v[:first], family) for v in variances.values()]
    noises = jax.tree.map(lambda *leaves: jnp.stack(leaves), *fitted)
    stacked = jnp.stack([v[first:] for v in variances.values()])
    counts = block_counts(key, n - first, block_length, repeats).astype(errors.dtype)
    scores, draws = _score(errors[first:], stacked, noises, counts)
    works = {name: (lambda one=one: one.variance(u, z)) for name, one in estimators.items()}
    times, seconds = ratios(works, plain, timing)
    home = list(estimators).index(reference)
    spread = jnp.std(draws, axis=0, ddof=1)
    gain = jnp.std(draws[:, :, 3] - draws[:, home, 3][:, None], axis=0, ddof=1)
    rows = []
    for number, (name, one) in enumerate(estimators.items()):
        auc, corr, likelihood, combined = (
            Score(float(scores[number, k]), float(spread[number, k])) for k in range(_SCORES)
        )
        better = Score(float(scores[number, 3] - scores[home, 3]), float(gain[number]))
        costs = one.inference_cost(u, z), one.training_cost
        rows.append(Result(name, auc, corr, likelihood, combined, better, times[name], *costs))
    return Comparison(tuple(rows), reference, n - first, seconds)


@eqx.filter_jit
def _score(
    errors: Float[Array, "n q"],
    variances: Float[Array, "estimators n q"],
    noises: NoiseModel,
    counts: Float[Array, "repeats n"],
) -> tuple[Float[Array, "estimators scores"], Float[Array, "repeats estimators scores"]]:
    """All scores on the cases as they are, and on each draw of them; averaged over the quantities."""

    def one(variance: Array, noise: NoiseModel, weights: Array) -> Array:
        left = removal_auc(errors, variance, weights=weights) / weighted_mean(jnp.abs(errors), weights)
        corr = correlation(errors, variance, weights=weights)
        likelihood = log_likelihood(errors, variance, noise, weights=weights)
        each = jnp.stack([jnp.mean(left), jnp.mean(corr), jnp.mean(likelihood)])
        return jnp.append(each, (1 - each[0] + each[1] + each[2]) / 3)

    def every(weights: Array) -> Array:
        return jax.vmap(one, in_axes=(0, 0, None))(variances, noises, weights)

    return every(jnp.ones(errors.shape[0], errors.dtype)), jax.lax.map(every, counts)


def _split(validation: int | float, n: int) -> int:
    first = validation if isinstance(validation, int) else round(validation * n)
    if not 2 <= first <= n - 4:
        raise ValueError(
            f"`validation` = {validation} leaves {first} of {n} cases to fit the noise on and {n - first} to score;"
            " give a share between 0 and 1 or a number of cases, so that some are left for both."
        )
    return first


def _params_of(estimators: Mapping[str, Estimator]) -> Any:
    for one in estimators.values():
        if isinstance(one, Sampled):
            return one.example_params()
        if hasattr(one, "params"):
            return one.params
    raise ValueError("None of the estimators holds parameters: give `params=`, the model that is asked.")


def _plain_pass(u: Quantity, params: PyTree, z: PyTree) -> Any:
    """u of all cases without any variance, compiled, as a function of nothing."""

    @eqx.filter_jit
    def values(params: PyTree, z: PyTree) -> Array:
        return jax.vmap(lambda case: as_real_array(u(params, case)))(z)

    return lambda: values(params, z)
