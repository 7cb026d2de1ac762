"""Is this Σ to be trusted? A few numbers about the fit, and what they mean in words."""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp

from deltavariance.curvature import Fisher
from deltavariance.curvature.stream import hessian_trace, mean_gradient
from deltavariance.structures import Structure

PyTree = Any

# Beyond a factor of ten between tr F and tr H, the log-likelihood is not that of the data: see `docs/concepts.md`.
RATIO_LIMIT = 10.0
# The mean gradient of a converged fit is some fraction of its standard error; far beyond it, training has not ended.
CONVERGENCE_LIMIT = 3.0


@dataclass(frozen=True)
class Report:
    """What `fit` found. `warnings` says in words what is likely to be wrong, and is empty where nothing is.

    - `trace_ratio` is tr F / tr H (about 1 for a well-specified log-likelihood), with Hutchinson's standard error;
    - `gradient_over_spread` is the root mean square over parameters of the mean score in units of its standard error
      √(F/N): about 0 after convergence, about 1 for a random draw, large where training stopped early;
    - `dead` counts parameters whose score was 0 on every example: the data say nothing of them.
    """

    structure: str
    reason: str
    num_data: float
    parameters: int
    damping: float
    trace_fisher: float
    trace_hessian: float
    trace_hessian_error: float
    gradient_over_spread: float
    dead: int
    warnings: tuple[str, ...]

    @property
    def trace_ratio(self) -> float:
        return self.trace_fisher / self.trace_hessian if self.trace_hessian else float("inf")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"Σ: {self.structure} ({self.reason})",
            f"N = {self.num_data:g} examples, P = {self.parameters:,} parameters, damping {self.damping:g}",
            f"tr F = {self.trace_fisher:.4g}, tr H = {self.trace_hessian:.4g} ± {self.trace_hessian_error:.2g},"
            f" ratio {self.trace_ratio:.3g} (about 1 if the log-likelihood fits the data)",
            f"mean gradient over its spread: {self.gradient_over_spread:.3g} (below 1 if training has converged)",
            f"parameters without any score: {self.dead:,}",
        ]
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in self.warnings)])

    __repr__ = __str__


def make_report(
    fisher: Fisher,
    log_likelihood: Any,
    params: PyTree,
    data: PyTree,
    *,
    structure: Structure,
    reason: str,
    damping: float,
    key: Any,
    probes: int = 8,
    **options: Any,
) -> Report:
    """Measure what a report says: one more gradient over the data, and `probes` Hessian-vector products."""
    layout = fisher.layout
    diagonal = fisher.diagonal()
    gradient = layout.flatten(mean_gradient(log_likelihood, params, data, layout, **options))
    trace, error = hessian_trace(log_likelihood, params, data, layout, key=key, probes=probes, **options)
    assert fisher.num_data is not None
    alive = diagonal > 0
    squares = jnp.where(alive, gradient**2 / jnp.where(alive, diagonal, 1) * fisher.num_data, 0)
    spread = jnp.sqrt(jnp.sum(squares) / jnp.maximum(jnp.sum(alive), 1))
    numbers: dict[str, Any] = {
        "num_data": float(fisher.num_data),
        "trace_fisher": float(jnp.sum(diagonal)),
        "trace_hessian": float(trace),
        "trace_hessian_error": float(error),
        "gradient_over_spread": float(spread),
        "dead": int(jnp.sum(~alive)),
    }
    return Report(
        structure=type(structure).__name__,
        reason=reason,
        parameters=layout.size,
        damping=damping,
        warnings=tuple(_warnings(numbers, layout.size)),
        **numbers,
    )


def _warnings(numbers: dict[str, Any], size: int) -> list[str]:
    found = []
    fisher, hessian, error = numbers["trace_fisher"], numbers["trace_hessian"], numbers["trace_hessian_error"]
    if hessian <= 2 * error:
        found.append(
            f"tr H is {hessian:.3g}, not safely positive: the parameters are not at a minimum of the"
            " negative log-likelihood, so no Σ that inverts H means much. Train on, or use the Fisher information."
        )
    elif fisher > RATIO_LIMIT * hessian:
        found.append(
            f"tr F is {fisher / hessian:.3g} times tr H. The log-likelihood claims a noise that is too small (or"
            " outputs are correlated, or scores are those of a sum): estimate the noise with `dv.estimate_noise`. As it"
            " stands, F⁻¹ and H⁻¹ give variances that are too small; the sandwich does not depend on the noise scale."
        )
    elif hessian > RATIO_LIMIT * fisher:
        found.append(
            f"tr H is {hessian / max(fisher, 1e-300):.3g} times tr F. The log-likelihood claims a noise that is too"
            " large (a loss without its 1/σ², say), or the network has fitted its training data all but exactly:"
            " estimate the noise with `dv.estimate_noise`, on held-out data in the second case."
        )
    if numbers["gradient_over_spread"] > CONVERGENCE_LIMIT:
        found.append(
            f"The mean gradient is {numbers['gradient_over_spread']:.3g} times its standard error: training has"
            " not converged on this log-likelihood (or a strong regulariser pulls), and the formula speaks of converged"
            " parameters."
        )
    if numbers["dead"]:
        found.append(
            f"{numbers['dead']:,} of {size:,} parameters have no score on any example (dead units, unused leaves)."
            " Their variance is set by damping or the prior alone, and a quantity that depends on them inherits it."
        )
    return found


def default_key() -> Any:
    """Probes are the same in every call, so that a report can be repeated."""
    return jax.random.key(0)
