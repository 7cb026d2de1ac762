"""The error that is left as the most uncertain cases are removed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from deltavariance.metrics import SparsificationCurve


def sparsification(curves: Mapping[str, SparsificationCurve], *, quantity: Any = (), ax: Any = None) -> Any:
    """Draw the curves of `dv.metrics.sparsification_curve` by name, with the oracle's and random removal's.

    `quantity` is the index of one quantity, where the curves hold several. Returns the matplotlib axes.
    """
    if not curves:
        raise ValueError("`curves` is empty: give a mapping from names to sparsification curves.")
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    index = (slice(None), *(quantity if isinstance(quantity, tuple) else (quantity,)))
    for name, curve in curves.items():
        ax.plot(np.asarray(curve.fraction), np.asarray(curve.error)[index], label=name)
    first = next(iter(curves.values()))
    ax.plot(np.asarray(first.fraction), np.asarray(first.oracle)[index], "k:", label="oracle")
    ax.axhline(float(np.asarray(first.random)[index[1:]]), color="0.6", linestyle="--", label="random")
    ax.set_xlabel("share of the cases removed, most uncertain first")
    ax.set_ylabel("mean absolute error of the rest")
    ax.legend(frameon=False)
    return ax
