"""Several covariances against the same gradients: their variances for little more than the price of one."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from deltavariance.covariance import Covariance
from deltavariance.parameters import Layout
from deltavariance.tracing import ExampleGradients

PyTree = Any
Contraction = Callable[[ExampleGradients, Any], Any]


class Group(eqx.Module):
    """Covariances that differ only in the values of some arrays: those stacked, what they share held once."""

    stacked: list[Any]
    shared: list[Any]
    is_stacked: tuple[bool, ...] = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)
    places: tuple[int, ...] = eqx.field(static=True)

    @staticmethod
    def of(members: Sequence[Covariance], places: Sequence[int]) -> "Group":
        leaves = [jax.tree.leaves(member) for member in members]
        columns = list(zip(*leaves, strict=True))
        differs = tuple(any(leaf is not column[0] for leaf in column) for column in columns)
        return Group(
            stacked=[jnp.stack(column) for column, d in zip(columns, differs, strict=True) if d],
            shared=[column[0] for column, d in zip(columns, differs, strict=True) if not d],
            is_stacked=differs,
            treedef=jax.tree.structure(members[0]),
            places=tuple(places),
        )

    def contract(self, what: Contraction, gradients: ExampleGradients) -> list[Any]:
        """`what` of the gradients and each member, with the gradients' own products made once for all of them."""

        def one(own: list[Any]) -> Any:
            mine, common = iter(own), iter(self.shared)
            leaves = [next(mine) if stacked else next(common) for stacked in self.is_stacked]
            return what(gradients, jax.tree.unflatten(self.treedef, leaves))

        if not self.stacked:
            return [one([])] * len(self.places)
        results = jax.vmap(one)(self.stacked)
        return [jax.tree.map(lambda x, k=k: x[k], results) for k in range(len(self.places))]


class Several(eqx.Module):
    """Any pytree of covariances of the same parameters, in groups that are contracted together."""

    groups: tuple[Group, ...]
    layout: Layout = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)

    @staticmethod
    def of(sigmas: PyTree) -> "Several":
        members, treedef = jax.tree.flatten(sigmas, is_leaf=_is_module)
        wrong = [type(member).__name__ for member in members if not isinstance(member, Covariance)]
        if wrong or not members:
            raise TypeError(
                "sigma must be a covariance, or a list or dictionary of them, and"
                f" {'it is empty' if not members else f'it holds {sorted(set(wrong))}'}. A curvature becomes a"
                " covariance by `.inverse(damping)`, numbers by `dv.as_covariance(params, value)`."
            )
        layouts = {member.layout for member in members}
        if len(layouts) > 1:
            raise ValueError(
                "Covariances that are used together must be of the same parameters, and these are of "
                + " and ".join(sorted(str(list(layout.names)) for layout in layouts))
                + ". Make them with the same `where=`, or ask for one after another."
            )
        kinds: dict[Any, list[int]] = {}
        for place, member in enumerate(members):
            shapes = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(member))
            kinds.setdefault((jax.tree.structure(member), shapes), []).append(place)
        groups = tuple(Group.of([members[place] for place in places], places) for places in kinds.values())
        return Several(groups, layouts.pop(), treedef)

    def contract(self, what: Contraction, gradients: ExampleGradients) -> PyTree:
        """`what` of the gradients and each covariance, in the pytree that they came in."""
        found = {
            place: result
            for group in self.groups
            for place, result in zip(group.places, group.contract(what, gradients), strict=True)
        }
        return jax.tree.unflatten(self.treedef, [found[place] for place in range(len(found))])


def _is_module(node: Any) -> bool:
    return isinstance(node, eqx.Module)
