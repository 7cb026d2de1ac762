"""The numbers in which a Σ is linear once its basis is held: its variances, out and back in."""

from collections.abc import Sequence
from functools import singledispatch

import equinox as eqx
from jaxtyping import Array

from deltavariance.contraction.kronecker import full
from deltavariance.covariance import Covariance, DiagonalCovariance
from deltavariance.covariance.block import BlockCovariance, SpectralCovariance
from deltavariance.covariance.kronecker import KroneckerCovariance


@singledispatch
def own_variances(sigma: Covariance) -> list[Array] | None:
    """The variances of Σ along its own basis, an array a piece; None where no basis is at hand."""
    return None


@singledispatch
def with_variances(sigma: Covariance, variances: Sequence[Array]) -> Covariance:
    """Σ with other variances along the same basis."""
    raise TypeError(
        f"A {type(sigma).__name__} has no basis of its own in which its variances could be changed. Start"
        " from a diagonal, Kronecker, block or dense Σ, as `F.inverse()` makes them."
    )


@own_variances.register
def _(sigma: DiagonalCovariance) -> list[Array] | None:
    return list(sigma.variances)


@with_variances.register
def _(sigma: DiagonalCovariance, variances: Sequence[Array]) -> Covariance:
    return DiagonalCovariance(variances=tuple(variances), layout=sigma.layout)


@own_variances.register
def _(sigma: BlockCovariance) -> list[Array] | None:
    return list(sigma.variances)


@with_variances.register
def _(sigma: BlockCovariance, variances: Sequence[Array]) -> Covariance:
    return eqx.tree_at(lambda s: s.variances, sigma, tuple(variances))


@own_variances.register
def _(sigma: SpectralCovariance) -> list[Array] | None:
    return [sigma.variances]


@with_variances.register
def _(sigma: SpectralCovariance, variances: Sequence[Array]) -> Covariance:
    return eqx.tree_at(lambda s: s.variances, sigma, variances[0])


@own_variances.register
def _(sigma: KroneckerCovariance) -> list[Array] | None:
    return [full(piece.variances) for pieces in sigma.pieces for piece in pieces]


@with_variances.register
def _(sigma: KroneckerCovariance, variances: Sequence[Array]) -> Covariance:
    return eqx.tree_at(
        lambda s: [piece.variances for pieces in s.pieces for piece in pieces], sigma, list(variances)
    )
