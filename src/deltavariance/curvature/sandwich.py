"""`H⁻¹ F H⁻¹ / N`: right where the likelihood is not quite that of the data, or its scale is unknown."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from deltavariance.contraction.kronecker import full
from deltavariance.covariance import Covariance, DiagonalCovariance
from deltavariance.covariance.definite import Clip, Rule, Spectrum, semidefinite_variances
from deltavariance.covariance.kronecker import KroneckerCovariance, Piece
from deltavariance.covariance.sandwich import SandwichCovariance
from deltavariance.curvature.base import Curvature
from deltavariance.curvature.clustered import ClusteredFisher
from deltavariance.curvature.definiteness import Definiteness, spectra_of
from deltavariance.curvature.hessian import Hessian
from deltavariance.curvature.operator import as_operator
from deltavariance.structures import Block, Dense, Diagonal
from deltavariance.structures.block import vectors_of
from deltavariance.structures.eigen_kronecker import InBasis

CORRECTIONS = ("HC0", "HC1")


def sandwich(
    H: Curvature,
    F: Curvature,
    damping: Any = 1e-8,
    *,
    prior_precision: Any = None,
    num_data: Any = None,
    correction: str | None = None,
    indefinite: Rule | None = None,
) -> Covariance:
    """`Σ = H⁻¹ F H⁻¹ / N`, with `H + damping·I + prior_precision/N` for H: the robust, or Huber–White, covariance.

    It holds whether or not the likelihood is true, and does not depend on the noise scale. H is a Hessian or a
    Gauss–Newton matrix, F an empirical Fisher information of the same parameters; with
    `dv.fisher(..., groups=labels)`, the result is robust to dependence within groups.

    `correction="HC1"` multiplies by `N/(N−P)`, for P parameters; with G groups, by `G/(G−1) · (N−1)/(N−P)`, which is
    the same where each example is its own group. `None` or `"HC0"` leaves Σ as it is.

    Two matrices in one of the structures `Diagonal`, `Block` or `Dense` give a Σ of that structure. So does F in the
    Kronecker eigenbasis of H, of which it keeps the diagonal there: `H = dv.gauss_newton(..., structure=
    dv.EigenKronecker())` and then `F = dv.fisher(..., structure=H.structure)`. Any other pair is multiplied one after
    the other wherever Σ is used, and never written out.

    Where eigenvalues of H are not safely positive the rule `indefinite` applies, as in `Hessian.inverse`.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> data = jnp.array([1.0, -1.0, 3.0, -3.0])
    >>> def log_likelihood(p, y):                       # the noise scale is wrong, and it does not matter
    ...     return -0.5 * (y - p["mean"]) ** 2 / 100.0
    >>> params = {"mean": jnp.array(0.0)}
    >>> H = dv.hessian(log_likelihood, params, data)
    >>> F = dv.fisher(log_likelihood, params, data, structure=dv.Dense())
    >>> round(float(dv.sandwich(H, F, damping=0.0).diagonal()[0]), 5)                # mean square 5, over 4
    1.25
    """
    if H.layout != F.layout:
        raise ValueError(
            f"H and F are of different parameters: {list(H.layout.names)} and {list(F.layout.names)}. Make both with"
            " the"
            " same `where=`."
        )
    if correction is not None and correction not in CORRECTIONS:
        raise ValueError(f"correction must be None or one of {list(CORRECTIONS)}, and it is {correction!r}.")
    count = H.num_data if num_data is None else jnp.asarray(float(num_data))
    if count is None:
        raise ValueError("N is not known. Give `num_data=`, the number of training examples.")
    factor = _small_sample(F, count) if correction == "HC1" else 1.0
    same = type(H.structure) is type(F.structure) and isinstance(H.structure, (Diagonal, Block, Dense))
    if same and (isinstance(H.structure, Diagonal) or H.structure == F.structure):
        spectra = spectra_of(H.structure, H.mean, H.layout, prior_precision, count)
        variances = _bread(H, spectra, damping, count, Clip() if indefinite is None else indefinite)
        if isinstance(H.structure, Diagonal):
            return DiagonalCovariance(
                variances=tuple(
                    factor * count * f * jnp.reshape(b, f.shape) ** 2
                    for f, b in zip(F.mean, variances, strict=True)
                ),
                layout=H.layout,
            )
        structure: Any = H.structure
        meats = [F.mean] if isinstance(structure, Dense) else list(F.mean)
        products = [
            _product(spectrum, b, meat, factor * count)
            for spectrum, b, meat in zip(spectra, variances, meats, strict=True)
        ]
        found: Covariance = structure.assemble(
            [Spectrum(s, v, old.members, old.name) for (v, s), old in zip(products, spectra, strict=True)],
            [s for _, s in products],
            H.layout,
        )
        return found
    rule = {"indefinite": indefinite} if isinstance(H, Hessian) else {}
    bread = H.inverse(damping, prior_precision=prior_precision, num_data=count, **rule)
    shared = _in_shared_basis(bread, F, factor * count)
    if shared is not None:
        return shared
    ones = (jnp.ones(()),) * len(H.layout)
    return SandwichCovariance(
        bread=bread, meat=as_operator(F), num_data=factor * count, factors=ones, layout=H.layout
    )


def _in_shared_basis(bread: Covariance, F: Curvature, factor: Any) -> KroneckerCovariance | None:
    """`factor · B F B` if F was fitted in the very eigenbasis of B, where both are diagonal; otherwise `None`."""
    if not isinstance(bread, KroneckerCovariance) or not isinstance(F.structure, InBasis):
        return None
    bases = tuple(tuple(piece.basis for piece in pieces) for pieces in bread.pieces)
    treedefs: list[Any] = [jax.tree.structure(basis) for basis in (bases, F.structure.bases)]
    pairs = zip(jax.tree.leaves(bases), jax.tree.leaves(F.structure.bases), strict=False)
    if treedefs[0] != treedefs[1] or not all(a is b for a, b in pairs):
        return None
    pieces = tuple(
        tuple(
            Piece(piece.basis, factor * eigenvalues * full(piece.variances) ** 2)
            for piece, eigenvalues in zip(ours, found, strict=True)
        )
        for ours, found in zip(bread.pieces, F.mean, strict=True)
    )
    return KroneckerCovariance(pieces=pieces, kinds=bread.kinds, layout=bread.layout)


def _small_sample(F: Curvature, count: Any) -> Any:
    """What HC1 multiplies by. One parameter fewer than examples is the least that leaves anything to estimate."""
    size = F.layout.size
    if not isinstance(count, jax.core.Tracer) and float(count) <= size:
        raise ValueError(
            f"The correction HC1 is N/(N−P), and N = {float(count):g} is not above P = {size}. Leave the correction"
            " out, or"
            " narrow the parameters with `where=`."
        )
    if isinstance(F, ClusteredFisher):
        return F.groups / (F.groups - 1) * (count - 1) / (count - size)
    return count / (count - size)


def _bread(H: Curvature, spectra: Sequence[Spectrum], damping: Any, count: Any, rule: Rule) -> list[Array]:
    """The variances of `(H + damping)⁻¹/N` along the eigenvectors of H."""
    if not isinstance(H, Hessian):
        return [semidefinite_variances(spectrum.values, damping, count) for spectrum in spectra]
    found = Definiteness.of(spectra, damping, H.layout)
    if found.is_known and found.count:
        warnings.warn(found.in_words(type(rule).__name__), stacklevel=3)
    return [
        rule.variances(spectrum.values, unsafe, damping, count)
        for spectrum, unsafe in zip(spectra, found.unsafe, strict=True)
    ]


def _product(spectrum: Spectrum, variances: Array, meat: Array, factor: Any) -> tuple[Array, Array]:
    """The eigenvectors and eigenvalues of `factor · B F B`, none of them below 0, in float64 where possible."""
    given = (spectrum.vectors, variances, meat, factor)
    if any(isinstance(x, jax.core.Tracer) for x in given):
        vectors = vectors_of(spectrum)
        matrix = factor * ((vectors * variances) @ (vectors.T @ meat @ vectors) @ (vectors * variances).T)
        values, found = jnp.linalg.eigh((matrix + matrix.T) / 2)
        return found, jnp.maximum(values, 0)
    v, b, f = (np.asarray(x, np.float64) for x in given[:3])
    inside = (v.T @ f @ v) * b[:, None] * b * float(factor)
    exact, rotation = np.linalg.eigh((inside + inside.T) / 2)
    dtype = meat.dtype
    return jnp.asarray(v @ rotation, dtype), jnp.asarray(np.maximum(exact, 0), dtype)
