"""One curvature at many dampings: Σ that differ by a multiple of the identity in their inverse."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deltavariance.covariance import Covariance
from deltavariance.curvature import Curvature
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients
from deltavariance.tune.nodes import Nodes, choose_nodes
from deltavariance.tune.own_variances import own_variances, with_variances

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
    variances = own_variances(first)
    # Split damping and clipped eigenvalues do not only add to the inverse, so that one Σ is compared.
    if variances is not None and _same(
        _with_added(first, variances, added[middle]), inverse(float(dampings[middle]))
    ):
        nodes = choose_nodes([1 / np.asarray(variance) for variance in variances], added[rising])
        mixing = np.empty_like(nodes.mixing)
        mixing[rising] = nodes.mixing
        members = [_with_added(first, variances, added[rising[node]]) for node in nodes.chosen]
        nodes = Nodes(nodes.chosen, mixing)
    else:
        members = [first if d == least else inverse(float(d)) for d in dampings]
        nodes = Nodes(np.arange(len(dampings)), np.eye(len(dampings)))
    differing, common = _split(members)
    return DampedFamily(
        members=differing, common=common, mixing=jnp.asarray(nodes.mixing), layout=first.layout
    )


def _with_added(sigma: Covariance, variances: Sequence[Array], added: float) -> Covariance:
    """`(Σ⁻¹ + added·I)⁻¹`, in the same basis."""
    return with_variances(sigma, [1 / (1 / variance + added) for variance in variances])


def _same(predicted: Covariance, found: Covariance) -> bool:
    """Whether a Σ of the family is what adding to the inverse of another predicted."""
    treedefs: list[Any] = [jax.tree.structure(sigma) for sigma in (predicted, found)]
    return treedefs[0] == treedefs[1] and all(
        a is b or np.allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=0)
        for a, b in zip(jax.tree.leaves(predicted), jax.tree.leaves(found), strict=True)
    )


def _split(members: Sequence[Covariance]) -> tuple[Any, Any]:
    """What differs, stacked, and what all have in common: the very same arrays."""
    columns = list(zip(*(jax.tree.leaves(member) for member in members), strict=True))
    treedef = jax.tree.structure(members[0])
    same = [all(leaf is column[0] for leaf in column) for column in columns]
    stacked = [None if s else jnp.stack(column) for s, column in zip(same, columns, strict=True)]
    shared = [column[0] if s else None for s, column in zip(same, columns, strict=True)]
    return jax.tree.unflatten(treedef, stacked), jax.tree.unflatten(treedef, shared)
