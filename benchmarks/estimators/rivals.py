"""Every estimator for one trained network, and how long each took to make."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import deltavariance as dv
from deltavariance import estimators as rivals
from deltavariance.covariance.kronecker import Piece

from .sets import Part, network, quantities
from .training import PRIOR, passes, snapshots, trainer

ENSEMBLE, GRADIENT = "ensemble of 10", "gradient alone (Σ = I)"
UNTUNED, TUNED = "Delta, sandwich in EKFAC's basis", "the same, tuned"
DAMPINGS = 10.0 ** np.arange(-9, 4)
RATES = np.array([0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])


class Fitted:
    """The trained networks of one split, and the curvatures of the first of them."""

    def __init__(self, log_likelihood: Any, outputs: int, part: Part, key: Any) -> None:
        self.part, self.log_likelihood = part, log_likelihood
        self.data = (jnp.asarray(part.x), jnp.asarray(part.y))
        self.key = key
        count = len(part.y)
        train = trainer(log_likelihood, network(outputs, part.x.shape[1]))
        price = {"training_passes": passes(count)}
        self.ensemble = rivals.train_ensemble(train, key, 10, self.data, **price)
        self.bootstrapped = rivals.train_ensemble(
            train, jax.random.fold_in(key, 1), 10, self.data, bootstrap=True, **price
        )
        self.params = self.ensemble.member(0)
        self.training_seconds = 9 * min(_seconds(lambda: train(key, self.data)) for _ in range(2))
        self.walk = snapshots(log_likelihood, self.params, jax.random.fold_in(key, 2), self.data)
        self.sandwich()
        self.fit_seconds = min(_seconds(self.sandwich) for _ in range(2))
        self.fixed = self._fixed()

    def curvature(self, structure: Any) -> Any:
        return dv.fisher(self.log_likelihood, self.params, self.data, structure=structure)

    def sandwich(self, damping: float = 1e-8) -> Any:
        return eigen_sandwich(self.log_likelihood, self.params, self.data, damping)

    def _fixed(self) -> dict[str, Any]:
        """Whatever does not depend on the quantity."""
        params, prior = self.params, {"prior_precision": PRIOR}
        full = self.curvature(dv.Dense())
        bread = dv.gauss_newton(self.log_likelihood, params, self.data[0], structure=dv.Dense())
        bread_diagonal = dv.gauss_newton(self.log_likelihood, params, self.data[0], structure=dv.Diagonal())
        diagonal = self.curvature(dv.Diagonal())
        ekfac = self.curvature(dv.EigenKronecker()).inverse(1e-8, **prior)
        self.untuned = self.sandwich()
        last = rivals.LastLayer(
            params, self.log_likelihood, self.data, where=lambda p: p["last"], structure=dv.Dense(), **prior
        )
        delta = {
            UNTUNED: self.untuned,
            "Delta, diagonal": diagonal.inverse(1e-8, **prior),
            "Delta, diagonal sandwich": dv.sandwich(bread_diagonal, diagonal, 1e-8, **prior),
            "Delta, EKFAC": ekfac,
            "Delta, full Fisher": full.inverse(1e-8, **prior),
            "Delta, sandwich": dv.sandwich(bread, full, 1e-8, **prior),
        }
        key = jax.random.fold_in(self.key, 3)
        return {
            ENSEMBLE: self.ensemble,
            "ensemble of 3": self.ensemble[:3],
            "bootstrapped ensemble of 10": self.bootstrapped,
            "constant": rivals.Constant(params),
            GRADIENT: rivals.GradientNorm(params),
            **{name: rivals.DeltaVariance(params, sigma) for name, sigma in delta.items()},
            "last layer": last,
            "SWAG, 10 draws": rivals.SWAG(self.walk, samples=10, key=key),
            "EKFAC, 10 draws": rivals.SampledPosterior(params, ekfac, samples=10, key=key),
        }

    def tuned(self, u: Callable[..., Any], z: Any, targets: Any) -> dict[str, Any]:
        """What is chosen on validation cases: a dropout rate; the sandwich's damping and block scales."""
        errors = targets - jax.vmap(lambda case: u(self.params, case))(z)
        dropout = rivals.MCDropout(self.params, rate=0.1, samples=10, key=jax.random.fold_in(self.key, 4))
        spread = jnp.stack([dropout.with_rate(float(rate)).variance(u, z) for rate in RATES])
        rate = dv.tune.best_damping(spread, errors, RATES)
        variances = jnp.stack([dv.variance(u, self.params, z, self.sandwich(float(d))) for d in DAMPINGS])
        sigma = self.sandwich(float(dv.tune.best_damping(variances, errors, DAMPINGS)))
        parts = dv.block_variances(u, self.params, z, sigma)
        sigma = sigma.scale(dv.tune.block_scales(parts, errors))
        return {
            "dropout, 10 draws, tuned rate": dropout.with_rate(float(rate)),
            TUNED: rivals.DeltaVariance(self.params, sigma),
        }

    def compare(self, kind: str, timing: int) -> dict[str, Any]:
        """A table for each quantity."""
        found = {}
        first = self.part.validation
        for name, u, z, targets in quantities(kind, self.part, self.params):
            head = jax.tree.map(lambda leaf: leaf[:first], z)
            entrants = self.fixed | self.tuned(u, head, targets[:first])
            found[name] = rivals.compare(
                entrants,
                u,
                z,
                targets,
                key=jax.random.key(0),
                params=self.params,
                validation=first,
                reference=ENSEMBLE,
                block_length=4,
                timing=timing,
            )
        return found


def eigen_sandwich(log_likelihood: Any, params: Any, data: Any, damping: float) -> Any:
    """`G⁻¹ F G⁻¹ / N` with both in the eigenbasis of G's Kronecker factors, of F only the diagonal there."""
    G = dv.gauss_newton(log_likelihood, params, data[0], structure=dv.EigenKronecker())
    F = dv.fisher(log_likelihood, params, data, structure=G.structure)
    bread = G.inverse(damping, prior_precision=PRIOR)
    pieces = tuple(
        tuple(Piece(p.basis, F.num_data * f * p.variances**2) for p, f in zip(old, found, strict=True))
        for old, found in zip(bread.pieces, F.mean, strict=True)
    )
    return eqx.tree_at(lambda sigma: sigma.pieces, bread, pieces)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(jax.tree.leaves(work()))
    return time.perf_counter() - start
