"""The Hessian of the average negative log-likelihood, in any structure, and what to do where it is indefinite."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from deltavariance.covariance import Covariance, DiagonalCovariance
from deltavariance.covariance.definite import Clip, Rule
from deltavariance.covariance.matrix_free import check_definite
from deltavariance.curvature.base import Curvature
from deltavariance.curvature.definiteness import Definiteness, spectra_of
from deltavariance.curvature.products import HessianProduct
from deltavariance.curvature.stream import BatchSum, mean_over, negative_log_likelihood
from deltavariance.memory import DEFAULT_BUDGET
from deltavariance.parameters import Layout, Where
from deltavariance.structures import Block, Dense, Diagonal, MatrixFree, Structure
from deltavariance.variance import hashable

PyTree = Any
# Hessian-vector products taken together: enough to fill matrix products, few enough to hold.
AT_ONCE = 16
# Up to this many parameters a diagonal is computed exactly, by P Hessian-vector products.
EXACT_UP_TO = 2048


class Hessian(Curvature):
    """A Hessian of the average negative log-likelihood. Unlike a Fisher information it can be indefinite.

    `standard_error` is that of the diagonal, leaf by leaf, where the diagonal is an estimate.
    """

    standard_error: list[Array] | None = None

    def inverse(
        self,
        damping: Any = 1e-8,
        *,
        prior_precision: Any = None,
        num_data: Any = None,
        indefinite: Rule | None = None,
    ) -> Covariance:
        """`Σ = (H + damping·I + prior_precision/N)⁻¹ / N`.

        Eigenvalues of `H + prior_precision/N + damping·I` that are not safely positive (not above what rounding makes
        of zero) fall under the rule `indefinite`: `dv.Clip()` (the default: a negative eigenvalue counts as 0, then
        damping is added, so the direction keeps a large variance) or `dv.Drop()` (no variance there). Either way a
        warning says how many there are and how negative; `definiteness` says more.
        """
        sigma: Covariance
        rule = Clip() if indefinite is None else indefinite
        count = self._count(damping, num_data)
        if isinstance(self.structure, MatrixFree):
            if indefinite is not None:
                raise ValueError(
                    "`MatrixFree` knows no eigenvalues, so no rule for them applies: use `dv.Dense()`."
                )
            sigma = super().inverse(damping, prior_precision=prior_precision, num_data=num_data)
            check_definite(sigma)
            return sigma
        found = self.definiteness(damping, prior_precision=prior_precision, num_data=num_data)
        variances = [
            rule.variances(spectrum.values, unsafe, damping, count)
            for spectrum, unsafe in zip(found.spectra, found.unsafe, strict=True)
        ]
        if found.is_known and found.count:
            warnings.warn(found.in_words(type(rule).__name__), stacklevel=2)
        assemble: Any = getattr(self.structure, "assemble", None) or _assemble_diagonal
        sigma = assemble(found.spectra, variances, self.layout)
        return sigma

    def definiteness(
        self, damping: Any = 1e-8, *, prior_precision: Any = None, num_data: Any = None
    ) -> Definiteness:
        """Which eigenvalues of `H + prior_precision/N + damping·I` are not safely positive, and where Δ meets them."""
        count = self._count(damping, num_data)
        spectra = spectra_of(self.structure, self.mean, self.layout, prior_precision, count)
        return Definiteness.of(spectra, damping, self.layout)

    def _count(self, damping: Any, num_data: Any) -> Array:
        if isinstance(damping, (int, float)) and damping < 0:
            raise ValueError(f"damping must be at least 0, and it is {damping}.")
        count = self.num_data if num_data is None else num_data
        if count is None:
            raise ValueError("N is not known. Give `num_data=`, the number of training examples.")
        return jnp.asarray(count)


def _assemble_diagonal(spectra: Any, variances: Any, layout: Layout) -> Covariance:
    return DiagonalCovariance(variances=tuple(layout.unflatten(jnp.concatenate(variances))), layout=layout)


def hessian(
    log_likelihood: Callable[[Any, Any], Any],
    params: PyTree,
    data: PyTree,
    *,
    structure: Structure | None = None,
    where: Where | Layout = None,
    weights: Any = None,
    mask: Any = None,
    num_data: int | None = None,
    key: PRNGKeyArray | None = None,
    probes: int = 64,
    batch_size: int | None = None,
    memory_budget: int | None = None,
) -> Curvature:
    """`H = −Σ_n w_n ∇² log p(example_n) / Σ_n w_n`, the Hessian of the average negative log-likelihood.

    - `Dense()` (the default) and `Block()` are exact: one Hessian-vector product a parameter.
    - `Diagonal()` is exact up to 2048 parameters; beyond, it is estimated by `E v ∘ Hv` over random signs, from
      `probes` products drawn with `key`; `standard_error` of the result says how well.
    - `LowRank(rank)` finds leading eigenpairs through products with H; `MatrixFree()` stores nothing but how to
      multiply by H.

    The log-likelihood is that of the data alone. A prior or weight decay belongs in `inverse(prior_precision=)`.

    Cost: a Hessian-vector product is about four gradients over the data.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> data = jnp.array([1.0, 3.0])
    >>> H = dv.hessian(lambda p, y: -0.5 * (y - p["mean"]) ** 2 / 0.5**2, {"mean": jnp.array(2.0)}, data)
    >>> H.mean.tolist(), float(H.inverse(damping=0.0).diagonal()[0])
    ([[4.0]], 0.125)
    """
    chosen = Dense() if structure is None else structure
    layout = where if isinstance(where, Layout) else Layout.of(params, where)
    hashable(log_likelihood)
    together = min(AT_ONCE, layout.size)
    options: dict[str, Any] = {
        "weights": weights,
        "mask": mask,
        "batch_size": batch_size,
        "memory_budget": max(1, (DEFAULT_BUDGET if memory_budget is None else memory_budget) // together),
    }

    def accumulate(what: BatchSum, arguments: Any = None) -> tuple[Any, Array]:
        return mean_over(what, log_likelihood, params, data, layout, arguments=arguments, **options)

    error: list[Array] | None = None
    if isinstance(chosen, (Dense, Block)):
        members = (
            chosen.members(layout) if isinstance(chosen, Block) else [("all", tuple(range(len(layout))))]
        )
        chosen.check(layout)
        groups = Groups(tuple(numbers for _, numbers in members))
        blocks, weight = accumulate(hessian_blocks, groups)
        mean = tuple(blocks) if isinstance(chosen, Block) else blocks[0]
    elif isinstance(chosen, MatrixFree):
        operator = HessianProduct.of(log_likelihood, params, data, weights, mask, layout)
        mean, weight = operator, jnp.sum(operator.weights)
    elif isinstance(chosen, Diagonal) and layout.size <= EXACT_UP_TO:
        flat, weight = accumulate(exact_diagonal)
        mean = layout.unflatten(flat)
    elif isinstance(chosen, Diagonal):
        draws = jax.random.key(0) if key is None else key
        if probes < 2:
            raise ValueError(f"probes must be at least 2, for the standard error's sake, and it is {probes}.")
        # Each probe is a mean over all data before it is squared, so the error is that of the probes alone.
        (flat, variance_of_one), weight = _hutchinson(accumulate, layout, draws, probes)
        mean = layout.unflatten(flat)
        error = layout.unflatten(jnp.sqrt(variance_of_one / probes))
    else:
        of_products: Any = getattr(chosen, "of_hessian", None)
        if of_products is None:
            raise ValueError(
                f"A Hessian cannot be kept as {type(chosen).__name__}, which needs a sum of outer products. Use"
                " `dv.Dense()`, `dv.Block()`, `dv.Diagonal()` or `dv.LowRank(rank)`, or `dv.gauss_newton` with this"
                " structure."
            )
        chosen, mean, weight = of_products(accumulate, products, layout)
    if not isinstance(weight, jax.core.Tracer) and not all(
        bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(mean)
    ):
        raise ValueError(
            "The Hessian holds NaN or infinity: the data, the parameters or a second derivative of the"
            " log-likelihood are"
            " not finite (a square root or logarithm at zero, a division by zero). `dv.fisher` names the batch and"
            " leaf."
        )
    counted = weight if num_data is None else jnp.asarray(float(num_data))
    return Hessian(chosen, mean, weight, counted, layout, error)


class Groups:
    """The leaves of each block, as a static part of what is compiled."""

    def __init__(self, members: tuple[tuple[int, ...], ...]) -> None:
        self.members = members

    def __hash__(self) -> int:
        return hash(self.members)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Groups) and other.members == self.members


jax.tree_util.register_static(Groups)


def hessian_blocks(
    log_likelihood: Callable[..., Any],
    params: PyTree,
    batch: PyTree,
    weights: Array,
    layout: Layout,
    groups: Groups,
) -> list[Array]:
    """The weighted sum of a batch's Hessians, `[G, G]` for each group, column by column."""
    found = []
    for members in groups.members:
        part = sublayout(layout, members)
        multiply = _product(log_likelihood, params, batch, weights, part)
        columns = jax.lax.map(
            lambda i, part=part, multiply=multiply: multiply(_unit(i, part)),
            jnp.arange(part.size),
            batch_size=min(AT_ONCE, part.size),
        )
        found.append((columns + columns.T) / 2)
    return found


def exact_diagonal(
    log_likelihood: Callable[..., Any], params: PyTree, batch: PyTree, weights: Array, layout: Layout, _: Any
) -> Float[Array, " P"]:
    """The weighted sum of the diagonals of a batch's Hessians."""
    multiply = _product(log_likelihood, params, batch, weights, layout)
    entries: Array = jax.lax.map(
        lambda i: multiply(_unit(i, layout))[i], jnp.arange(layout.size), batch_size=min(AT_ONCE, layout.size)
    )
    return entries


def products(
    log_likelihood: Callable[..., Any],
    params: PyTree,
    batch: PyTree,
    weights: Array,
    layout: Layout,
    vectors: Float[Array, "R P"],
) -> Float[Array, "R P"]:
    """`H v` of the weighted sum over a batch, for each row v."""
    multiply = _product(log_likelihood, params, batch, weights, layout)
    found: Array = jax.lax.map(multiply, vectors, batch_size=min(AT_ONCE, vectors.shape[0]))
    return found


def sublayout(layout: Layout, members: tuple[int, ...]) -> Layout:
    """The layout of some of the leaves."""
    return Layout(
        positions=tuple(layout.positions[n] for n in members),
        names=tuple(layout.names[n] for n in members),
        shapes=tuple(layout.shapes[n] for n in members),
        dtypes=tuple(layout.dtypes[n] for n in members),
    )


def _product(
    log_likelihood: Callable[..., Any], params: PyTree, batch: PyTree, weights: Array, layout: Layout
) -> Callable[[Array], Array]:
    # A row left out may hold anything, and 0·NaN is NaN: a row that counts stands in for it.
    real = weights > 0
    stand_in = jnp.where(real, jnp.arange(real.shape[0]), jnp.argmax(real))
    batch = jax.tree.map(lambda leaf: leaf[stand_in], batch)
    gradient = jax.grad(negative_log_likelihood(log_likelihood, params, batch, weights, layout))
    leaves = layout.take(params)

    def multiply(vector: Array) -> Array:
        tangent = [v.astype(leaf.dtype) for v, leaf in zip(layout.unflatten(vector), leaves, strict=True)]
        return layout.flatten(jax.jvp(gradient, (leaves,), (tangent,))[1])

    return multiply


def _unit(i: Array, layout: Layout) -> Float[Array, " P"]:
    return jnp.zeros(layout.size, layout.dtypes[0]).at[i].set(1)


def _hutchinson(
    accumulate: Callable[..., Any], layout: Layout, key: PRNGKeyArray, probes: int
) -> tuple[tuple[Array, Array], Array]:
    """The mean over random signs v of `v ∘ Hv`, and its variance from one probe to another."""
    signs = jax.random.rademacher(key, (probes, layout.size), layout.dtypes[0])
    found, weight = accumulate(products, signs)
    values = signs * found
    return (jnp.mean(values, axis=0), jnp.var(values, axis=0, ddof=1)), weight
