"""From an opened data set to what training and forecasts need: cases, climatology, fixed inputs, weights."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int64

from .cases import Cases, CaseSource, Record
from .climatology import ClimatologyFit, time_basis
from .data import Dataset
from .loss import error_weights
from .models.build import ModelConfig, Sizes
from .models.graph import GraphConfig
from .models.step import Forcing, Static
from .train import Task

BLOCK = 2048  # times read at once
WIDE = 15.0  # degrees of longitude, an hour of sun


@dataclass(frozen=True)
class DatasetCases:
    """Cases read from a data set as they are asked for: for records larger than memory."""

    dataset: Dataset
    fields: bool

    def cases(self, starts: Int64[np.ndarray, " n"], history: int, steps: int) -> Cases:
        times = np.asarray(starts)[:, None] + np.arange(1 - history, steps + 1)
        states = normalised_states(self.dataset, times.ravel()).reshape(*times.shape, *self._state_shape)
        forcing = forcing_at(self.dataset, times.ravel(), fields=self.fields)
        split = Forcing(
            forcing.time.reshape(*times.shape, -1),
            forcing.fields.reshape(*times.shape, *self.dataset.grid.shape, -1),
        )
        return Cases(jnp.asarray(states[:, :history]), split, jnp.asarray(states[:, history:]))

    @property
    def _state_shape(self) -> tuple[int, int, int]:
        return (*self.dataset.grid.shape, len(self.dataset.channels))


def normalised_states(
    dataset: Dataset, indices: Int64[np.ndarray, " n"]
) -> Float[np.ndarray, "n lat lon channel"]:
    """States in the units that models work in."""
    return np.asarray(dataset.normaliser.normalise_numpy(dataset.states(indices)))


def forcing_at(dataset: Dataset, indices: Int64[np.ndarray, " n"], *, fields: bool) -> Forcing:
    """Functions of the date and, if asked for, the data set's forcing fields, at times of the record."""
    time = time_basis(dataset.times[indices])
    if fields:
        values = dataset.forcing(indices, 1)[:, 0]
    else:
        values = np.zeros((len(indices), *dataset.grid.shape, 0), np.float32)
    return Forcing(jnp.asarray(time), jnp.asarray(values))


def wants_fields(dataset: Dataset) -> bool:
    """Whether the sun and the local hour differ enough within the domain to be worth fields of their own."""
    return dataset.grid.longitudes[-1] - dataset.grid.longitudes[0] > WIDE


def case_source(dataset: Dataset, *, memory: int = 2**31) -> CaseSource:
    """The record in memory, normalised, if it takes no more than `memory` bytes; else cases read when needed."""
    fields = wants_fields(dataset)
    cells = int(np.prod(dataset.grid.shape))
    width = len(dataset.channels) + (len(dataset.forcing_names) if fields else 0)
    if 4 * len(dataset.times) * cells * width > memory:
        return DatasetCases(dataset, fields)
    blocks = _blocks(np.arange(len(dataset.times)))
    states = np.concatenate([normalised_states(dataset, b) for b in blocks])
    forcing = [forcing_at(dataset, b, fields=fields) for b in blocks]
    time = np.concatenate([np.asarray(f.time) for f in forcing])
    return Record(states, Forcing(time, np.concatenate([np.asarray(f.fields) for f in forcing])))


def prepare_static(dataset: Dataset, config: ModelConfig) -> Static:
    """Climatology and its usual change by least squares over the training years, fixed fields, and the mesh.

    Two passes over the training years, a block at a time. The fixed fields are the data set's own and, as a picture of
    the terrain, each channel's mean and the deviation of its anomalies at every cell; all standardised over the grid.
    """
    blocks = _blocks(np.arange(*dataset.splits.train))
    blocks = [b[dataset.usable[b]] for b in blocks]
    fit = ClimatologyFit()
    for block in blocks:
        fit.add(time_basis(dataset.times[block]), normalised_states(dataset, block))
    climatology = fit.coefficients()
    squares = np.zeros(climatology.shape[1:])
    changes, states, pairs = np.zeros(climatology.shape[3]), 0, 0
    area = dataset.grid.area_weights[..., None] / dataset.grid.area_weights.size
    for block in blocks:
        mean = np.tensordot(time_basis(dataset.times[block]), climatology, axes=1)
        anomaly = normalised_states(dataset, block).astype(np.float64) - mean
        squares += (anomaly**2).sum(0)
        states += len(block)
        follow = np.diff(dataset.times[block]) == dataset.step
        changes += (area * np.diff(anomaly, axis=0)[follow] ** 2).sum((0, 1, 2))
        pairs += int(follow.sum())
    spread = np.sqrt(squares / states)
    fields = np.concatenate([dataset.static, climatology[0], spread], axis=-1)
    deviation = fields.std((0, 1))
    fields = (fields - fields.mean((0, 1))) / np.where(deviation > 1e-6, deviation, 1.0)
    tendency = np.sqrt(np.maximum(changes / max(pairs, 1), 1e-12))
    graph = config.build_graph(dataset.grid) if isinstance(config, GraphConfig) else None
    return Static(
        jnp.asarray(fields, jnp.float32), jnp.asarray(climatology), jnp.asarray(tendency, jnp.float32), graph
    )


def prepare(
    dataset: Dataset, config: ModelConfig, *, validation_starts: int = 512, validation_steps: int = 4
) -> tuple[Task, Sizes]:
    """What `train` needs, and the sizes that `build_model` needs.

    Validation starts are spread evenly over the validation years.
    """
    static = prepare_static(dataset, config)
    starts = dataset.starts("validation", steps=validation_steps, history=config.history)
    chosen = starts[np.unique(np.linspace(0, len(starts) - 1, validation_starts).round().astype(np.int64))]
    weights = error_weights(jnp.asarray(dataset.grid.area_weights, jnp.float32), static)
    fields = len(dataset.forcing_names) if wants_fields(dataset) else 0
    sizes = Sizes(len(dataset.channels), static.climatology.shape[0], fields, static.fields.shape[-1])
    return Task(case_source(dataset), chosen, static, weights), sizes


def _blocks(indices: Int64[np.ndarray, " n"]) -> list[Int64[np.ndarray, " m"]]:
    return np.array_split(indices, max(1, -(-len(indices) // BLOCK)))
