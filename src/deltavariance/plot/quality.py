"""Quality against cost: one point an estimator."""

from typing import Any

from deltavariance.estimators.comparison import Comparison


def quality_against_cost(
    table: Comparison, *, score: str = "combined", cost: str = "time", ax: Any = None
) -> Any:
    """Draw `score` with its standard error over `cost`, on a logarithmic axis, and return the matplotlib axes.

    `score` is any of a `Result`'s scores ("combined", "improvement", "correlation", "log_likelihood",
    "removal_auc"), `cost` is "time" (measured, in plain passes) or "inference_cost" (as stated). Estimators
    that cost nothing, or whose cost is not known, stand in a column of their own at the left.
    """
    scores = ("combined", "improvement", "correlation", "log_likelihood", "removal_auc")
    costs = ("time", "inference_cost")
    if score not in scores or cost not in costs:
        raise ValueError(
            f"`score` must be one of {scores} and `cost` one of {costs}; {score!r} and {cost!r} were given."
        )
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    placed = [(row, getattr(row, score), getattr(row, cost)) for row in table]
    known = [price for _, _, price in placed if price > 0]
    left = min(known, default=1.0) / 3
    for row, value, price in placed:
        x = price if price > 0 else left
        (line, *_) = ax.errorbar(x, value.value, yerr=value.standard_error, fmt="o", capsize=3)
        ax.annotate(
            row.name,
            (x, value.value),
            xytext=(6, 4),
            textcoords="offset points",
            color=line.get_color(),
            fontsize="small",
        )
    ax.set_xscale("log")
    ax.set_xlabel(
        "time of a variance, in plain passes" if cost == "time" else "plain passes a case, as stated"
    )
    ax.set_ylabel(score.replace("_", " ") + (" (lower is better)" if score == "removal_auc" else ""))
    ax.margins(x=0.25)
    return ax
