"""A curvature as a positive semi-definite operator: what multiplies, and has a square root."""

from typing import Any

from deltavariance.covariance import Covariance, DiagonalCovariance, KroneckerCovariance
from deltavariance.covariance.kronecker import Piece
from deltavariance.curvature.base import Curvature
from deltavariance.curvature.definiteness import spectra_of
from deltavariance.structures import Block, Dense, Diagonal, Kronecker
from deltavariance.structures.eigen_kronecker import InBasis


def as_operator(curvature: Curvature) -> Covariance:
    """The mean of outer products C itself (not its inverse) in the form in which a Σ is kept."""
    structure, mean, layout = curvature.structure, curvature.mean, curvature.layout
    if isinstance(structure, Diagonal):
        return DiagonalCovariance(variances=tuple(mean), layout=layout)
    if isinstance(structure, (Dense, Block)):
        spectra = spectra_of(structure, mean, layout, None, 1.0)
        found: Covariance = structure.assemble(spectra, [abs_part(s.values) for s in spectra], layout)
        return found
    if isinstance(structure, InBasis):
        pieces = tuple(
            tuple(Piece(basis, values) for basis, values in zip(bases, eigenvalues, strict=True))
            for bases, eigenvalues in zip(structure.bases, mean, strict=True)
        )
        return KroneckerCovariance(pieces=pieces, kinds=structure.names_of_kinds, layout=layout)
    if isinstance(structure, Kronecker):
        return KroneckerCovariance(
            pieces=tuple(tuple(_piece(moment) for moment in moments) for moments in mean),
            kinds=tuple(structure.kinds_of(mean)),
            layout=layout,
        )
    operator: Any = getattr(structure, "operator", None)
    if operator is None:
        raise ValueError(f"A curvature kept as {type(structure).__name__} cannot stand in a sandwich.")
    kept: Covariance = operator(mean, layout)
    return kept


def abs_part(values: Any) -> Any:
    """Eigenvalues of a mean of outer products: one below 0 is a rounding error."""
    return values.clip(0)


def _piece(moment: Any) -> Piece:
    basis, left, right = moment.spectrum()
    return Piece(basis, left[:, :, None] * right[:, None, :])
