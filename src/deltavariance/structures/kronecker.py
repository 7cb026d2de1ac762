"""KFAC: for each weight, the second moments of its inputs and of its cotangents."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deltavariance.contraction.basis import Basis
from deltavariance.contraction.diagonal import leaf_square_sum
from deltavariance.contraction.moments import Sharing, dense_moment, products_moments, rows_moments
from deltavariance.covariance.damped import damped, split
from deltavariance.covariance.kronecker import KroneckerCovariance, Piece
from deltavariance.covariance.spectrum import spectrum
from deltavariance.parameters import Layout
from deltavariance.structures.base import Structure
from deltavariance.structures.pieces import Kind, covering_forms, whole
from deltavariance.structures.prior import precisions
from deltavariance.tracing import ExampleGradients
from deltavariance.tracing.gradients import Form, Rows, add_up
from deltavariance.tracing.views import Path


class Moment(eqx.Module):
    """Second moments of the two sides of one piece, `C ≈ left ⊗ right / count`.

    A side is `[N, F, F]`, or `[N, F]` if only its diagonal is kept. A dense or diagonal piece is all right side.
    """

    left: Array
    right: Array
    count: Float[Array, ""]
    path: Path = eqx.field(static=True)
    frame: tuple[int, int, int] = eqx.field(static=True)
    kind: Kind = eqx.field(static=True)

    def diagonal(self) -> Float[Array, "N I O"]:
        left, right = (
            jnp.diagonal(m, axis1=1, axis2=2) if m.ndim == 3 else m for m in (self.left, self.right)
        )
        return left[:, :, None] * right[:, None, :] * self._over_count()

    def spectrum(self) -> tuple[Basis, Float[Array, "N I"], Float[Array, "N O"]]:
        """The eigenbasis of both sides, the left eigenvalues, and the right ones divided by the count."""
        left, left_basis = (self.left, None) if self.left.ndim == 2 else spectrum(self.left)
        right, right_basis = (self.right, None) if self.right.ndim == 2 else spectrum(self.right)
        return Basis(left_basis, right_basis, self.path, self.frame), left, right * self._over_count()

    def _over_count(self) -> Array:
        return jnp.where(self.count > 0, 1 / jnp.where(self.count > 0, self.count, 1), 0)


Moments = list[tuple[Moment, ...]]


class Kronecker(Structure):
    """Kronecker factors (KFAC): a weight's block of the curvature is `A ⊗ G / count`.

    `A = Σ a aᵀ` and `G = Σ g gᵀ` run over the inputs and cotangents of all uses of the weight, `count` is how many
    there were. With `sharing="expand"` every position that shares the weight (a pixel, a token, a time step) is a use
    of its own: right when positions hardly interact in the loss. With `"reduce"` an example is one use with the mean
    input and the summed cotangent: right when the loss sees an average over positions. Both are the dense block
    exactly where inputs and cotangents are independent (one linear layer with a Gaussian likelihood, T = 1; reduced,
    also the mean of a linear layer over positions).

    Stacks of weights (scanned layers, heads, groups) have factors each. Rows of a table have `diag(frequencies) ⊗ G`.
    A leaf that is no product (a bias, a scale), or is used in ways that have no common frame, is a dense block up to
    `dense_up_to` entries and a diagonal beyond; a side wider than `widest` is kept as a diagonal. `kinds` says which.

    The damping is exact: `(A ⊗ G / count + damping·I)⁻¹`, in the eigenbasis of A and G. With `split_damping` it is
    shared out to the factors instead, `(A + π√d) ⊗ (G + √d/π)`, where `π² = mean λ(A) / mean λ(G)`: an
    approximation that is never below the damped curvature, and cheaper to use.

    Fit: one gradient, and I² + O² multiplications a use. Memory: 2·(I² + O²) numbers a weight.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}
    >>> def log_likelihood(p, example):
    ...     return -0.5 * jnp.sum((example["x"] @ p["w"] + p["b"] - example["y"]) ** 2)
    >>> data = {"x": jnp.eye(2), "y": jnp.zeros((2, 1))}
    >>> F = dv.fisher(log_likelihood, params, data, structure=dv.Kronecker())
    >>> F.structure.kinds(F.mean, F.layout)
    {'b': 'dense', 'w': 'kronecker'}
    """

    sharing: Sharing = eqx.field(static=True, default="expand")
    split_damping: bool = eqx.field(static=True, default=False)
    dense_up_to: int = eqx.field(static=True, default=256)
    widest: int = eqx.field(static=True, default=8192)

    def __check_init__(self) -> None:
        if self.sharing not in ("expand", "reduce"):
            raise ValueError(f"sharing must be 'expand' or 'reduce', and it is {self.sharing!r}.")

    def statistic(self, gradients: ExampleGradients, weights: Float[Array, "K B"]) -> Moments:
        weights = jnp.broadcast_to(weights, (gradients.components, gradients.cases))
        return [self._leaf(gradients, number, weights) for number in range(len(gradients.layout))]

    def _leaf(self, gradients: ExampleGradients, number: int, weights: Array) -> tuple[Moment, ...]:
        forms, shape = gradients.leaves[number], gradients.layout.shapes[number]
        pieces = covering_forms(forms, shape)
        if pieces is not None:
            return tuple(self._factored(form, weights) for form in pieces)
        path, frame = whole(shape)
        total = jnp.sum(weights)
        left = total[None, None]
        if 0 < frame[2] <= self.dense_up_to:
            rows = add_up([form.dense(shape) for form in forms], shape, gradients)
            right = dense_moment(jnp.reshape(rows, (*rows.shape[:2], -1)), weights)
            return (Moment(left, right, total, path, frame, Kind.DENSE),)
        diagonal = leaf_square_sum(forms, gradients, shape, weights)
        return (Moment(left, jnp.reshape(diagonal, (1, -1)), total, path, frame, Kind.DIAGONAL),)

    def _factored(self, form: Form, weights: Array) -> Moment:
        if isinstance(form, Rows):
            v, d = form.frame
            left, right, count = rows_moments(form, weights, d <= self.widest)
            return Moment(left, right, count, form.path, (1, v, d), Kind.ROWS)
        n, i, o = form.frame  # type: ignore[union-attr]
        left, right, count = products_moments(form, weights, self.sharing, i <= self.widest, o <= self.widest)  # type: ignore[arg-type]
        return Moment(left, right, count, form.path, (n, i, o), Kind.KRONECKER)  # type: ignore[union-attr]

    def covariance(
        self, mean: Moments, layout: Layout, *, damping: Any, prior_precision: Any, num_data: Any
    ) -> KroneckerCovariance:
        prior = precisions(prior_precision, layout)

        def piece(moment: Moment, tau: Array, name: str, shape: tuple[int, ...]) -> Piece:
            basis, left, right = moment.spectrum()
            if self.split_damping and moment.kind in (Kind.KRONECKER, Kind.ROWS):
                return split(basis, left, right, damping, tau, num_data, name)
            return damped(basis, left[:, :, None] * right[:, None, :], damping, tau, num_data, name, shape)

        pieces = tuple(
            tuple(piece(moment, tau, name, shape) for moment in moments)
            for moments, tau, name, shape in zip(mean, prior, layout.names, layout.shapes, strict=True)
        )
        return KroneckerCovariance(pieces=pieces, kinds=tuple(self.kinds_of(mean)), layout=layout)

    def diagonal(self, mean: Moments, layout: Layout) -> list[Array]:
        bases = [
            tuple(Basis(None, None, moment.path, moment.frame) for moment in moments) for moments in mean
        ]
        return add_pieces(bases, [tuple(moment.diagonal() for moment in moments) for moments in mean], layout)

    def kinds(self, mean: Moments, layout: Layout) -> dict[str, str]:
        """How each leaf is kept: "kronecker", "rows", "dense" or "diagonal", or "3 kronecker" if in pieces."""
        return dict(zip(layout.names, self.kinds_of(mean), strict=True))

    def kinds_of(self, mean: Moments) -> list[str]:
        found = []
        for moments in mean:
            kinds = sorted({moment.kind.value for moment in moments})
            found.append(kinds[0] if len(moments) == 1 else f"{len(moments)} {' and '.join(kinds)}")
        return found


def add_pieces(
    bases: Sequence[Sequence[Basis]], values: Sequence[Sequence[Array]], layout: Layout
) -> list[Array]:
    """The diagonal of `(L ⊗ R) diag(values) (L ⊗ R)ᵀ` for each piece, put together leaf by leaf."""
    results = []
    for pieces, found, shape in zip(bases, values, layout.shapes, strict=True):
        first, *rest = [Piece(basis, v).diagonal(shape) for basis, v in zip(pieces, found, strict=True)]
        results.append(sum(rest, first))
    return results
