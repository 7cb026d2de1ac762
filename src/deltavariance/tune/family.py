"""One curvature at many dampings: Σ that differ by a multiple of the identity in their inverse."""

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance.contraction.separable import Separable
from deltavariance.covariance import Covariance, DiagonalCovariance
from deltavariance.covariance.block import BlockCovariance, SpectralCovariance
from deltavariance.covariance.kronecker import KroneckerCovariance
from deltavariance.curvature import Curvature
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients
from deltavariance.tune.nodes import Nodes, choose_nodes

_AT_ONCE = 1 << 26  # numbers of all the Σ that are held together: 256 MB in float32
VALUE = "u"


class DampedFamily(Covariance):
    """`Σ_d = (C + d·I + prior)⁻¹ / N` for a grid of dampings d, contracted with the same gradients.

    It answers `block_quadratic` with a part for each damping where a Σ has one for each block, and with u
    itself under the name `VALUE`; so the batches, the memory budget and the compilation of
    `dv.block_variances` serve it. Gradients are traced once, and rotated into the eigenbasis once.
    """

    members: Any  # the array leaves that differ among the Σ, stacked along a first axis
    common: Any  # what they share
    mixing: Float[Array, "dampings nodes"]
    layout: Layout = eqx.field(static=True)

    def block_quadratic(self, gradients: ExampleGradients) -> dict[str, Float[Array, "K B"]]:
        def one(member: Any) -> Array:
            parts = list(eqx.combine(member, self.common).block_quadratic(gradients).values())
            total: Array = sum(parts[1:], parts[0])
            return total

        size = sum(leaf[0].size for leaf in jax.tree.leaves(self.members))
        together = max(1, min(self.mixing.shape[1], _AT_ONCE // max(1, size)))
        nodes = jax.lax.map(one, self.members, batch_size=together)
        all_dampings = jnp.tensordot(self.mixing.astype(nodes.dtype), nodes, axes=1)
        value = jnp.moveaxis(jnp.reshape(gradients.value, (gradients.cases, -1)), 0, 1)
        return {VALUE: value} | {name(number): v for number, v in enumerate(all_dampings)}

    def multiply(self, leaves: Sequence[Array]) -> list[Array]:
        raise TypeError(
            "This is a family of Σ, one for each damping, and not one Σ. Use `F.inverse(damping=...)`."
        )

    def multiply_sqrt(self, noise: Float[Array, "... R"]) -> list[Array]:
        return self.multiply([])

    def logdet(self) -> Float[Array, ""]:
        raise TypeError("A family of Σ has no single determinant. Use `F.inverse(damping=...)`.")

    def scale(self, factors: Mapping[str, Any] | Array | float) -> "DampedFamily":
        raise TypeError("Scale the Σ of one damping: `F.inverse(damping=...).scale(factors)`.")


def name(number: int) -> str:
    """What the part of the damping with this number is called."""
    return f"damping {number}"


def damped_family(
    curvature: Curvature, dampings: np.ndarray, *, prior_precision: Any = None, num_data: Any = None
) -> DampedFamily:
    """The family of a curvature's inverses at the given dampings, none of which takes another decomposition.

    Where Σ is diagonal in a basis of its own, its variances at every damping follow from those at the least,
    and few nodes stand for the whole grid (see `nodes`). Other structures are inverted once for each damping.
    """

    def inverse(damping: float) -> Covariance:
        return curvature.inverse(damping, prior_precision=prior_precision, num_data=num_data)

    least = float(np.min(dampings))
    first = inverse(least)
    count = curvature.num_data if num_data is None else num_data
    added = np.asarray(count, np.float64) * (np.asarray(dampings, np.float64) - least)
    rising = np.argsort(added)
    middle = rising[len(rising) // 2]
    precisions = own_precisions(first)
    if precisions is not None and _follows(first, inverse(float(dampings[middle])), added[middle]):
        nodes = choose_nodes(precisions, added[rising])
        mixing = np.empty_like(nodes.mixing)
        mixing[rising] = nodes.mixing
        members = [with_added(first, added[rising[node]]) for node in nodes.chosen]
        nodes = Nodes(nodes.chosen, mixing)
    else:
        members = [first if d == least else inverse(float(d)) for d in dampings]
        nodes = Nodes(np.arange(len(dampings)), np.eye(len(dampings)))
    differing, common = _split(members)
    return DampedFamily(
        members=differing, common=common, mixing=jnp.asarray(nodes.mixing), layout=first.layout
    )


@singledispatch
def own_precisions(sigma: Covariance) -> list[np.ndarray] | None:
    """The precisions of Σ in its own basis, leaf by leaf; None where it has no such basis at hand."""
    return None


@own_precisions.register
def _(sigma: DiagonalCovariance) -> list[np.ndarray] | None:
    return [1 / np.asarray(v) for v in sigma.variances]


@own_precisions.register
def _(sigma: KroneckerCovariance) -> list[np.ndarray] | None:
    weights = [piece.variances for pieces in sigma.pieces for piece in pieces]
    if any(isinstance(weight, Separable) for weight in weights):
        return None  # split damping: the damping went into the factors, and not onto the eigenvalues
    return [1 / np.asarray(weight) for weight in weights]


@own_precisions.register
def _(sigma: BlockCovariance) -> list[np.ndarray] | None:
    return [1 / np.asarray(v) for v in sigma.variances]


@own_precisions.register
def _(sigma: SpectralCovariance) -> list[np.ndarray] | None:
    return [1 / np.asarray(sigma.variances)]


@singledispatch
def with_added(sigma: Covariance, added: float) -> Any:
    """`(Σ⁻¹ + added·I)⁻¹`, in the same basis."""
    raise TypeError(f"No rule adds to the inverse of a {type(sigma).__name__}.")


@with_added.register
def _(sigma: DiagonalCovariance, added: float) -> DiagonalCovariance:
    raised = tuple(_raised(v, added) for v in sigma.variances)
    return DiagonalCovariance(variances=raised, layout=sigma.layout)


@with_added.register
def _(sigma: KroneckerCovariance, added: float) -> KroneckerCovariance:
    weights = [piece.variances for pieces in sigma.pieces for piece in pieces]
    return eqx.tree_at(
        lambda s: [piece.variances for pieces in s.pieces for piece in pieces],
        sigma,
        [_raised(weight, added) for weight in weights],
    )


@with_added.register
def _(sigma: BlockCovariance, added: float) -> BlockCovariance:
    raised = tuple(_raised(v, added) for v in sigma.variances)
    return eqx.tree_at(lambda s: s.variances, sigma, raised)


@with_added.register
def _(sigma: SpectralCovariance, added: float) -> SpectralCovariance:
    return eqx.tree_at(lambda s: s.variances, sigma, _raised(sigma.variances, added))


def _raised(variances: Any, added: float) -> Array:
    return 1 / (1 / jnp.asarray(variances) + added)


def _follows(first: Covariance, other: Covariance, added: float) -> bool:
    """Whether another Σ of the family is what adding to the inverse of the first predicts."""
    treedefs: list[Any] = [jax.tree.structure(sigma) for sigma in (first, other)]
    if treedefs[0] != treedefs[1]:
        return False
    predicted = jax.tree.leaves(with_added(first, added))
    return all(
        np.allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=0)
        for a, b in zip(predicted, jax.tree.leaves(other), strict=True)
    )


def _split(members: Sequence[Covariance]) -> tuple[Any, Any]:
    """What differs, stacked, and what all have in common: the very same arrays."""
    columns = list(zip(*(jax.tree.leaves(member) for member in members), strict=True))
    treedef = jax.tree.structure(members[0])
    same = [all(leaf is column[0] for leaf in column) for column in columns]
    stacked = [None if s else jnp.stack(column) for s, column in zip(same, columns, strict=True)]
    shared = [column[0] if s else None for s, column in zip(same, columns, strict=True)]
    return jax.tree.unflatten(treedef, stacked), jax.tree.unflatten(treedef, shared)
