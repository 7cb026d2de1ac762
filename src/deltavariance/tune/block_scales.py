"""Factors for the blocks of Σ, from variances that were computed once: `ν = Σ_b f_b Δ_bᵀ Σ_b Δ_b`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance.metrics.cases import Cases, as_cases, as_pair
from deltavariance.metrics.families import Family, as_family
from deltavariance.metrics.noise_model import NoiseModel
from deltavariance.tune.noise import fit_noise
from deltavariance.tune.scale_fit import Problem, fit_factors, held_out_scores

Groups = Callable[[str], str] | Mapping[str, str]


@dataclass(frozen=True)
class CrossValidation:
    """Scores on cases without part in the fit, `[folds, *q]`; `regularisation` is what each fold chose."""

    tuned: Float[Array, "folds *q"]
    untuned: Float[Array, "folds *q"]
    regularisation: tuple[float, ...]

    @property
    def improvement(self) -> Float[Array, "*q"]:
        """The held-out score of the tuned Σ less that of the untuned, averaged over the folds."""
        return jnp.mean(self.tuned - self.untuned, axis=0)

    def __repr__(self) -> str:
        mean = [float(jnp.mean(x)) for x in (self.untuned, self.tuned)]
        return (
            f"CrossValidation(folds={len(self.regularisation)}, untuned={mean[0]:.4g}, tuned={mean[1]:.4g})"
        )


@dataclass(frozen=True, eq=False)
class BlockScales(Mapping[str, Any]):
    """One non-negative factor a block: a mapping that `sigma.scale` takes as it is.

    `noise` is α, β for the scaled variance in the family of the fit (Laplace if the score was the
    correlation). `factors` holds a number a block, or `[*q]` a block where each quantity was fitted by
    itself.
    """

    factors: Mapping[str, Any]
    noise: NoiseModel
    regularisation: float
    cross_validation: CrossValidation | None = field(default=None)

    def __getitem__(self, block: str) -> Any:
        return self.factors[block]

    def __iter__(self) -> Iterator[str]:
        return iter(self.factors)

    def __len__(self) -> int:
        return len(self.factors)

    def variance(self, parts: Mapping[str, Cases]) -> Float[Array, "n *q"]:
        """`Σ_b f_b p_b` from the parts of any cases, as `dv.block_variances` returns them."""
        missing = [name for name in self.factors if name not in parts]
        if missing or len(parts) != len(self.factors):
            raise ValueError(
                f"These scales are for the blocks {list(self.factors)}; the parts are {list(parts)}."
            )
        total = sum(self.factors[name] * jnp.asarray(part) for name, part in parts.items())
        return jnp.asarray(total)

    def __repr__(self) -> str:
        shown = [
            f"{name}: {float(f):.3g}" if np.ndim(f) == 0 else f"{name}: {list(np.shape(f))}"
            for name, f in list(self.factors.items())[:12]
        ]
        more = [f"... {len(self) - 12} more"] if len(self) > 12 else []
        tail = "" if self.cross_validation is None else f", {self.cross_validation!r}"
        return f"BlockScales({{{', '.join(shown + more)}}}, {self.noise!r}{tail})"


def block_scales(
    parts: Mapping[str, Cases],
    errors: Cases,
    *,
    score: str = "log_likelihood",
    family: str | Family = "laplace",
    regularisation: float | Sequence[float] = 1.0,
    cross_validate: int | None = None,
    groups: Groups | None = None,
    per_quantity: bool = False,
) -> BlockScales:
    """The factors with which the blocks of Σ describe these errors best.

    Maximises the log-likelihood of errors with variance `α + Σ_b f_b p_b`, with α ≥ 0 fitted beside the
    factors, or the correlation of |error| with `√(Σ_b f_b p_b)`, averaged over quantities; less a penalty
    that draws every factor towards 1 (its formula stands in `tune/scale_fit.py`).

    Args:
        parts: `dv.block_variances(u, params, z, sigma)` on validation cases, `{block: [n, *q]}`.
        errors: targets minus predictions of the same cases, `[n, *q]`.
        score: "log_likelihood" or "correlation". A correlation is blind to a common factor.
        regularisation: strength of the penalty, counted in cases: with 1, a factor of e^1.7 must gain one nat
            over all cases. A few values in a sequence are tried, and cross-validation chooses.
        cross_validate: a number of folds; then the held-out scores of the tuned and the untuned Σ are
            reported. Folds are runs of neighbouring cases, so that serial correlation does not leak. A
            regularisation chosen by cross-validation is chosen again inside each fold.
        groups: which group a block belongs to, as a function of its name or a mapping; a group has one
            factor. `lambda name: name.rpartition("/")[0]` makes groups of layers.
        per_quantity: fit factors for each quantity by itself, rather than one set for all.

    Cost: no gradients; 30 blocks and 2000 cases take some 50 ms once compiled.

    >>> import jax
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> parts = {name: jax.random.exponential(k, (4000,)) for name, k in zip("ab", keys)}
    >>> e = jax.random.normal(keys[2], (4000,)) * jnp.sqrt(9.0 * parts["a"] + 0.1 * parts["b"])
    >>> scales = block_scales(parts, e, family="gaussian")
    >>> bool(abs(scales["a"] - 9) < 1), bool(scales["b"] < 0.4)
    (True, True)
    """
    stacked, e, names, members = _arrays(parts, errors, groups)
    order = sorted(set(members.values()))
    shape = e.shape[1:]
    e, stacked = e.reshape(e.shape[0], -1), stacked.reshape(e.shape[0], -1, stacked.shape[-1])
    chosen = _family(family, e, stacked)
    problem = Problem(stacked, e, _score_family(score, chosen)).padded()
    strengths = (
        [float(regularisation)]
        if isinstance(regularisation, (int, float))
        else [float(strength) for strength in regularisation]
    )
    if not strengths or min(strengths) < 0:
        raise ValueError(
            f"`regularisation` is {regularisation}; give a number that is zero or more, or several."
        )
    if per_quantity:
        each = [
            _tune(problem.quantity(q), len(e), len(order), strengths, cross_validate)
            for q in range(e.shape[1])
        ]
        factors = jnp.stack([f for f, _, _ in each], axis=1).reshape((-1, *shape))
        scaled = jnp.einsum("nqb,bq->nq", stacked, factors.reshape(len(factors), -1))
        ones = jnp.ones_like(e)
        model = fit_noise(chosen, e, scaled, ones, ones[:, 0])
        strength = float(np.mean([s for _, s, _ in each]))
        validation = None if cross_validate is None else _joined([v for _, _, v in each if v is not None])
    else:
        factors, strength, validation = _tune(problem, len(e), len(order), strengths, cross_validate)
        ones = jnp.ones_like(e)
        model = fit_noise(chosen, e, stacked @ factors, ones, ones[:, 0])
    return BlockScales(
        MappingProxyType({name: factors[members[name]] for name in names}),
        _shaped_noise(model, shape),
        strength,
        None if validation is None else _shaped_validation(validation, shape),
    )


def _tune(
    problem: Problem, cases: int, blocks: int, strengths: Sequence[float], folds: int | None
) -> tuple[Float[Array, " blocks"], float, CrossValidation | None]:
    """Factors on all cases, the regularisation used, and the honest scores if they were asked for."""
    everything = (np.arange(len(problem.errors)) < cases).astype(float)
    strength = _choose(problem, everything, strengths, folds or 5)
    factors = fit_factors(problem, jnp.asarray(everything)[None], jnp.array([strength]))[0, :blocks]
    if folds is None:
        return factors, strength, None
    train, test = _folds(everything, folds)
    chosen = [_choose(problem, w, strengths, folds) for w in train]
    tuned = fit_factors(problem, jnp.asarray(train), jnp.asarray(chosen))
    before = jnp.ones_like(tuned)
    scores = [held_out_scores(problem, f, jnp.asarray(train), jnp.asarray(test)) for f in (tuned, before)]
    return factors, strength, CrossValidation(scores[0], scores[1], tuple(chosen))


def _choose(problem: Problem, weights: np.ndarray, strengths: Sequence[float], folds: int) -> float:
    """The regularisation with the best mean held-out score among the cases that have weight."""
    if len(strengths) == 1:
        return strengths[0]
    train, test = (jnp.asarray(np.tile(w, (len(strengths), 1))) for w in _folds(weights, folds))
    fits = fit_factors(problem, train, jnp.repeat(jnp.asarray(strengths), folds))
    scores = held_out_scores(problem, fits, train, test)
    return strengths[int(np.argmax(np.asarray(scores).reshape(len(strengths), -1).mean(axis=1)))]


def _folds(weights: np.ndarray, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of training and test cases, `[folds, n]`, in runs of neighbours among those with weight."""
    cases = np.flatnonzero(weights)
    if not 2 <= folds <= len(cases) // 2:
        raise ValueError(
            f"{len(cases)} cases cannot be cut into {folds} folds; two folds of two cases are the least."
        )
    test = np.zeros((folds, len(weights)))
    for row, run in zip(test, np.array_split(cases, folds), strict=True):
        row[run] = 1
    return weights - test, test


def _arrays(
    parts: Mapping[str, Cases], errors: Cases, groups: Groups | None
) -> tuple[Array, Array, tuple[str, ...], dict[str, int]]:
    """Parts summed by group and stacked along a last axis; errors; block names; the group number of each."""
    if not parts:
        raise ValueError(
            "`parts` is empty. Give what `dv.block_variances` returns: a variance for each block."
        )
    e = as_cases(errors, "errors")
    names = tuple(parts)
    if groups is None:
        labels = list(names)
    elif callable(groups):
        labels = [groups(name) for name in names]
    else:
        unknown = [name for name in names if name not in groups]
        if unknown:
            raise ValueError(f"`groups` does not say where the blocks {unknown} belong.")
        labels = [groups[name] for name in names]
    order = list(dict.fromkeys(labels))
    members = {name: order.index(label) for name, label in zip(names, labels, strict=True)}
    sums: list[Any] = [0.0] * len(order)
    for name in names:
        sums[members[name]] = sums[members[name]] + as_pair(e, parts[name], f"parts[{name!r}]")[1]
    return jnp.stack(sums, axis=-1), e, names, members


def _family(family: str | Family, e: Array, parts: Array) -> Family:
    """The family, with the degrees of freedom of a Student fitted to the untuned variance."""
    chosen = as_family(family)
    if chosen is not None:
        return chosen
    ones = jnp.ones_like(e)
    return fit_noise(None, e, parts.sum(axis=-1), ones, ones[:, 0]).family


def _score_family(score: str, family: Family) -> Family | None:
    table: dict[str, Family | None] = {"log_likelihood": family, "correlation": None}
    if score not in table:
        raise ValueError(f"There is no score {score!r} to fit block scales to; choose one of {list(table)}.")
    return table[score]


def _joined(validations: Sequence[CrossValidation]) -> CrossValidation:
    return CrossValidation(
        jnp.concatenate([v.tuned for v in validations], axis=1),
        jnp.concatenate([v.untuned for v in validations], axis=1),
        tuple(float(np.mean(s)) for s in zip(*(v.regularisation for v in validations), strict=True)),
    )


def _shaped_noise(model: NoiseModel, shape: tuple[int, ...]) -> NoiseModel:
    return NoiseModel(model.family, model.alpha.reshape(shape), model.beta.reshape(shape))


def _shaped_validation(validation: CrossValidation, shape: tuple[int, ...]) -> CrossValidation:
    tuned, untuned = (x.reshape((-1, *shape)) for x in (validation.tuned, validation.untuned))
    return CrossValidation(tuned, untuned, validation.regularisation)
