"""What the training data say about the parameters: the likelihood of a step, and Fisher informations of it."""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int64, Key

import deltavariance as dv

from ..cases import CaseSource
from ..models import Static, StepModel
from ..train import Trained
from .question import Start

BATCH = 256


class NextState(eqx.Module):
    """The model's normalised state after one step: the mean of the likelihood."""

    static: Static

    def __call__(self, model: StepModel, start: Start) -> Float[Array, "lat lon channel"]:
        return model(start.state, start.forcing, self.static)


def step_examples(
    source: CaseSource, indices: Int64[np.ndarray, " n"], history: int, size: int = BATCH
) -> Iterator[tuple[Start, Float[Array, "b lat lon channel"]]]:
    """Batches of (start, next state)."""
    for k in range(0, len(indices), size):
        cases = source.cases(indices[k : k + size], history, 1)
        start = Start(jnp.asarray(cases.state), jax.tree.map(jnp.asarray, cases.forcing))
        yield start, jnp.asarray(cases.target)[:, 0]


def spread(indices: Int64[np.ndarray, " n"], count: int) -> Int64[np.ndarray, " m"]:
    """At most `count` of the indices, evenly over all of them."""
    where = np.linspace(0, len(indices) - 1, min(count, len(indices))).round().astype(np.int64)
    return np.asarray(indices)[np.unique(where)]


def step_noise(
    model: StepModel, source: CaseSource, indices: Int64[np.ndarray, " n"], static: Static
) -> dv.NoiseEstimate:
    """The covariance of the one-step residuals over cells and variables, on validation cases.

    Neighbouring cells err together: an independent Gaussian would count the same evidence many times over.
    """
    data = step_examples(source, indices, model.history)
    return dv.estimate_noise(NextState(static), model, data)


def exact_fisher(
    model: StepModel,
    source: CaseSource,
    indices: Int64[np.ndarray, " n"],
    static: Static,
    noise: dv.NoiseEstimate,
    *,
    structure: dv.Structure,
    num_data: int,
) -> dv.Fisher:
    """The Fisher information at the trained parameters, of single examples under the residuals' covariance."""
    likelihood = dv.gaussian_log_likelihood(NextState(static), scale=noise)
    cases = source.cases(indices, model.history, 1)
    start = Start(jnp.asarray(cases.state), jax.tree.map(jnp.asarray, cases.forcing))
    data = (start, jnp.asarray(cases.target)[:, 0])
    return dv.fisher(
        likelihood, model, data, structure=structure, num_data=num_data, batch_size=BATCH, progress=False
    )


def model_fisher(
    model: StepModel,
    source: CaseSource,
    indices: Int64[np.ndarray, " n"],
    static: Static,
    noise: dv.NoiseEstimate,
    key: Key[Array, ""],
    *,
    num_data: int,
) -> dv.Curvature:
    """The diagonal of the true Fisher information: next states drawn from the model and its residuals' covariance."""
    likelihood = dv.gaussian_log_likelihood(NextState(static), scale=noise)
    cases = source.cases(indices, model.history, 1)
    start = Start(jnp.asarray(cases.state), jax.tree.map(jnp.asarray, cases.forcing))
    return dv.model_fisher(likelihood, model, start, key=key, num_data=num_data, batch_size=BATCH)


def loss_scale(trained: Trained, values: int) -> float:
    """c in `loss = c · (-log p)`, for the independent Gaussian whose variances the loss's weights imply.

    The loss `Σ w r²` over n values is `2 v` times a negative log-likelihood of variances `v / w`, and its mean is
    `n v`: so c is twice the mean loss over n.
    """
    mean = float(np.mean(trained.history[-1].training))
    return 2 * mean / values


def average_fisher(trained: Trained, like: dv.Curvature, *, values: int, num_data: int) -> dv.Curvature:
    """The paper's: the moving average that training collected, as a Fisher information of single examples.

    Squared gradients of the mean over a batch of B are, near convergence, 1/B of the squared gradients of one.
    """
    squares = trained.squares
    factor = squares.batch_size / loss_scale(trained, values) ** 2
    mean = [factor * s for s in jax.tree.leaves(squares.average())]
    count = jnp.asarray(float(num_data))
    return dv.Curvature(dv.Diagonal(), mean, count, count, like.layout)


def adam_fisher(trained: Trained, *, batch_size: int, values: int, num_data: int) -> dv.Curvature:
    """Adam's ν as a Fisher information: free with any training that used it."""
    return dv.fisher_from_adam(
        trained.optimiser_state,
        num_data=num_data,
        batch_size=batch_size,
        reduction="mean",
        loss_scale=loss_scale(trained, values),
        params=trained.model,
    )
