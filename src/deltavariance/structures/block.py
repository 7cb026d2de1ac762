"""Keep dense blocks: one for each leaf, or one for each named group of leaves."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.rows import outer_sum
from deltavariance.covariance.base import LARGEST_DENSE
from deltavariance.covariance.block import BlockCovariance, joined_leaves, split_leaves
from deltavariance.covariance.definite import Spectrum, semidefinite_variances
from deltavariance.covariance.eigenpairs import eigenpairs, with_diagonal
from deltavariance.memory import physical_memory
from deltavariance.parameters import Layout
from deltavariance.structures.base import Structure
from deltavariance.structures.prior import precisions
from deltavariance.tracing import ExampleGradients


class Block(Structure):
    """Dense blocks of the curvature, `[G, G]` for each leaf, or for each group of leaves, and nothing between them.

    `groups` maps a name to the leaves that belong together: names as `block_variances` shows them, or their
    beginnings (`{"encoder": ["encoder"], "head": ["head/w", "head/b"]}`). A leaf that no group names is a block of
    its own.

    Fit: Σ G² multiplications an example beyond one gradient. Decomposition: about 10 G³, kept: another damping costs
    nothing.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"w": jnp.ones(2), "b": jnp.zeros(())}
    >>> def log_likelihood(p, example):
    ...     return -0.5 * (example["x"] @ p["w"] + p["b"] - example["y"]) ** 2
    >>> data = {"x": jnp.eye(2), "y": jnp.zeros(2)}
    >>> F = dv.fisher(log_likelihood, params, data, structure=dv.Block({"all": ["w", "b"]}))
    >>> F.inverse(damping=1e-2).blocks
    ('all',)
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...] = eqx.field(static=True)
    limit: int = eqx.field(static=True)

    def __init__(
        self, groups: Mapping[str, str | Sequence[str]] | None = None, *, limit: int = LARGEST_DENSE
    ) -> None:
        named = {} if groups is None else groups
        self.groups = tuple(
            (name, (leaves,) if isinstance(leaves, str) else tuple(leaves)) for name, leaves in named.items()
        )
        self.limit = limit

    def members(self, layout: Layout) -> list[tuple[str, tuple[int, ...]]]:
        """Each block's name and the numbers of its leaves."""
        taken: dict[int, str] = {}
        found = []
        for name, prefixes in self.groups:
            numbers = []
            for prefix in prefixes:
                here = [
                    n
                    for n, leaf in enumerate(layout.names)
                    if leaf == prefix or leaf.startswith(prefix + "/")
                ]
                if not here:
                    raise ValueError(
                        f"The group {name!r} names {prefix!r}, and no uncertain parameter is called that or begins with"
                        f" it. The parameters are {list(layout.names)}."
                    )
                numbers += here
            for number in numbers:
                if number in taken:
                    raise ValueError(
                        f"The parameter {layout.names[number]!r} is in two groups, {taken[number]!r} and {name!r}. Each"
                        " belongs to one block."
                    )
                taken[number] = name
            found.append((name, tuple(sorted(numbers))))
        found += [(leaf, (n,)) for n, leaf in enumerate(layout.names) if n not in taken]
        for name, numbers_of in found:
            refuse(sum(layout.sizes[n] for n in numbers_of), self.limit, name)
        return sorted(found, key=lambda block: block[1])

    def check(self, layout: Layout) -> None:
        """Raise, before anything is allocated, if a block is too large."""
        self.members(layout)

    def statistic(self, gradients: ExampleGradients, weights: Float[Array, "K B"]) -> tuple[Array, ...]:
        return tuple(outer_sum(gradients, weights, numbers) for _, numbers in self.members(gradients.layout))

    def spectra(
        self, mean: Sequence[Array], layout: Layout, *, prior_precision: Any, num_data: Any
    ) -> list[Spectrum]:
        """The eigenpairs of `C + prior_precision/N`, block by block; without a varied prior, those kept of C."""
        blocks = self.members(layout)
        prior = precisions(_by_leaf(prior_precision, blocks, layout), layout)
        return [
            block_spectrum(matrix, layout, prior, numbers, name, num_data)
            for matrix, (name, numbers) in zip(mean, blocks, strict=True)
        ]

    def covariance(
        self, mean: Sequence[Array], layout: Layout, *, damping: Any, prior_precision: Any, num_data: Any
    ) -> BlockCovariance:
        spectra = self.spectra(mean, layout, prior_precision=prior_precision, num_data=num_data)
        variances = [semidefinite_variances(found.values, damping, num_data) for found in spectra]
        return self.assemble(spectra, variances, layout)

    def assemble(
        self, spectra: Sequence[Spectrum], variances: Sequence[Array], layout: Layout
    ) -> BlockCovariance:
        """Σ from eigenvectors and the variances along them."""
        return BlockCovariance(
            vectors=tuple(vectors_of(found) for found in spectra),
            variances=tuple(variances),
            members=tuple(found.members for found in spectra),
            names=tuple(found.name for found in spectra),
            layout=layout,
        )

    def diagonal(self, mean: Sequence[Array], layout: Layout) -> list[Array]:
        leaves: dict[int, Array] = {}
        for matrix, (_, numbers) in zip(mean, self.members(layout), strict=True):
            leaves |= zip(numbers, split_leaves(jnp.diagonal(matrix), layout, numbers), strict=True)
        return [leaves[number] for number in range(len(layout))]


def _by_leaf(prior_precision: Any, blocks: Sequence[tuple[str, tuple[int, ...]]], layout: Layout) -> Any:
    """A mapping from block names as one from leaf names; anything else as it is."""
    if not isinstance(prior_precision, Mapping) or not set(prior_precision) <= {name for name, _ in blocks}:
        return prior_precision
    return {
        layout.names[n]: prior_precision[name] for name, ns in blocks if name in prior_precision for n in ns
    }


def block_spectrum(
    matrix: Array, layout: Layout, prior: Sequence[Array], members: Sequence[int], name: str, num_data: Any
) -> Spectrum:
    """The eigenpairs of one block with its prior. A prior that is one number moves the eigenvalues alone."""
    numbers = tuple(members)
    if all(prior[n] is prior[numbers[0]] and prior[n].size == 1 for n in numbers):
        values, vectors = eigenpairs(matrix)
        return Spectrum(values + jnp.reshape(prior[numbers[0]], ()) / num_data, vectors, numbers, name)
    each: list[Array] = [jnp.zeros(())] * len(layout)
    for n in numbers:
        each[n] = jnp.broadcast_to(prior[n], layout.shapes[n])
    values, vectors = with_diagonal(matrix, joined_leaves(each, layout, numbers) / num_data)
    return Spectrum(values, vectors, numbers, name)


def vectors_of(spectrum: Spectrum) -> Float[Array, "G G"]:
    """The eigenvectors of a block that has been decomposed."""
    assert spectrum.vectors is not None
    return spectrum.vectors


def refuse(size: int, limit: int, what: str) -> None:
    """Raise before a matrix is made that is too large to be wanted, or to be held with its eigenvectors."""
    needed = 3 * 8 * size**2
    memory = physical_memory()
    if size <= limit and (memory is None or needed <= memory):
        return
    fits = limit if memory is None else min(limit, int((memory / 24) ** 0.5))
    raise MemoryError(
        f"A dense matrix for {size:,} parameters ({what}) takes {4 * size**2:,} bytes in float32, and {needed:,}"
        " while it is"
        f" decomposed in float64. Up to {fits:,} parameters would fit. Use `dv.EigenKronecker()`, `dv.Kronecker()`,"
        " `dv.LowRank(rank)` or `dv.Diagonal()`, or narrow the parameters with `where=`."
    )
