"""Training: AdamW in stages of growing forecast length, with early stopping and resumption to the same bits."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int64, Key, PyTree

from . import checkpoint
from .cases import Cases, CaseSource
from .models.step import Static, StepModel
from .progress import TrainingProgress
from .training_config import Stage as Stage
from .training_config import TrainConfig as TrainConfig
from .training_state import GradientSquares, TrainState, advance, assess, judge, restart, start

VALIDATION_BATCH = 128


@dataclass(frozen=True)
class Sample:
    """What one member learns from: time indices of starts, and a weight for each (mean one keeps the loss's scale).

    A bootstrap is either repeated starts or weights. `key` decides the order of the batches and the dropout,
    and nothing else: the same key with other weights sees the same starts in the same order.
    """

    starts: Int64[np.ndarray, " n"]
    key: Key[Array, ""]
    weights: Float[np.ndarray, " n"] | None = None

    def batch(self, update: int, size: int) -> tuple[Int64[np.ndarray, " size"], Float[np.ndarray, " size"]]:
        """Starts and weights of batch number `update`. Every epoch is a permutation that depends on key and epoch."""
        per_epoch = len(self.starts) // size
        if per_epoch == 0:
            raise ValueError(f"A batch of {size} cannot be drawn from {len(self.starts)} starts.")
        epoch, place = divmod(update, per_epoch)
        chosen = _permutation(self._seed(), epoch, len(self.starts))[place * size : (place + 1) * size]
        weights = np.ones(len(self.starts)) if self.weights is None else np.asarray(self.weights)
        return np.asarray(self.starts)[chosen], weights[chosen].astype(np.float32)

    def _seed(self) -> tuple[int, ...]:
        return tuple(np.asarray(jax.random.key_data(self.key)).ravel().tolist())


def _permutation(seed: tuple[int, ...], epoch: int, size: int) -> Int64[np.ndarray, " size"]:
    return np.random.default_rng([*seed, epoch]).permutation(size)


@runtime_checkable
class Observer(Protocol):
    """Sees every batch before its update, with the model as it is then.

    The place for an exact per-example Fisher along the way (`F = F.update(log_likelihood, model, batch)`), or
    for snapshots of the weights.
    """

    def __call__(self, update: int, model: StepModel, batch: Cases) -> None: ...


@dataclass(frozen=True)
class Evaluation:
    """One line of the history; the losses have one entry a member."""

    stage: int
    update: int
    training: list[float]
    validation: list[float]


@dataclass(frozen=True)
class Trained:
    """One trained member: the model of the best validation loss, and what was gathered on the way."""

    model: StepModel
    validation_loss: float
    last: StepModel
    optimiser_state: optax.OptState = field(repr=False)  # of the last stage: Adam's second moments are in it
    squares: GradientSquares = field(repr=False)
    history: list[Evaluation] = field(repr=False)


@dataclass(frozen=True)
class Task:
    """What is learned: cases, the starts that validate, what is fixed, and the loss's `error_weights`."""

    source: CaseSource
    validation: Int64[np.ndarray, " m"]
    static: Static
    weights: Float[Array, "lat lon channel"]


def train(
    model: StepModel,
    task: Task,
    sample: Sample,
    config: TrainConfig,
    *,
    path: str | Path | None = None,
    observe: Observer | None = None,
    progress: bool = False,
) -> Trained:
    """Trains one model, from its present weights: so a trained one is continued, or refitted to other weights.

    Validation is the loss of forecasts of `config.validation_steps` steps, every `config.evaluate_every`
    updates. A stage ends early after `config.patience` evaluations without a new best; the next begins at the
    best weights. With `path` the state is saved at every evaluation, and a call with the same arguments goes
    on from there to the same bits that an unbroken run reaches.
    """
    return _run(
        [model], task, [sample], config, stacked=False, path=path, observe=observe, progress=progress
    )[0]


def train_members(
    models: Sequence[StepModel],
    task: Task,
    samples: Sequence[Sample],
    config: TrainConfig,
    *,
    together: bool = False,
    path: str | Path | None = None,
    progress: bool = False,
) -> list[Trained]:
    """Trains several members, each on its own sample.

    One after another by default, each with a checkpoint of its own (`path` with the member's number), so that
    an ensemble can be grown later. `together` trains them at once by `vmap`: that pays for small dense
    networks and never for convolutions, whose batched weights are slow on a CPU; the samples must then be of
    one size.
    """
    if len(models) != len(samples):
        raise ValueError(
            f"Every member needs a sample of its own: got {len(models)} models, {len(samples)} samples."
        )
    if together:
        sizes = sorted({len(s.starts) for s in samples})
        if len(sizes) > 1:
            raise ValueError(
                f"Members that are trained together need samples of one size, but these have {sizes}."
            )
        return _run(models, task, samples, config, stacked=True, path=path, observe=None, progress=progress)
    return [
        train(model, task, sample, config, path=member_path(path, k), progress=progress)
        for k, (model, sample) in enumerate(zip(models, samples, strict=True))
    ]


def member_path(path: str | Path | None, member: int) -> Path | None:
    """Where the checkpoint of a member lies: `name.safetensors` becomes `name-003.safetensors`."""
    if path is None:
        return None
    path = Path(path)
    return path.with_name(f"{path.stem}-{member:03d}{path.suffix}")


def _run(
    models: Sequence[StepModel],
    task: Task,
    samples: Sequence[Sample],
    config: TrainConfig,
    *,
    stacked: bool,
    path: str | Path | None,
    observe: Observer | None,
    progress: bool,
) -> list[Trained]:
    pairs = [eqx.partition(model, eqx.is_inexact_array) for model in models]
    frame = pairs[0][1]
    members: Callable[[Sequence[PyTree]], PyTree] = _stack if stacked else _only
    params = members([arrays for arrays, _ in pairs])
    static, weights = jax.tree.map(jnp.asarray, (task.static, task.weights))  # to the device once
    state, number, first = start(params, config=config, stacked=stacked), 0, 0
    history: list[Evaluation] = []
    fingerprint = _fingerprint(frame, params, task, samples, config)
    if path is not None and Path(path).exists():
        state, number, first, history = _resume(Path(path), state, fingerprint)
    total = sum(stage.updates for stage in config.stages)
    with TrainingProgress(total, shown=progress) as bar:
        for k in range(number, len(config.stages)):
            stage, before = config.stages[k], sum(s.updates for s in config.stages[:k])
            if k > 0 and first == 0:
                state = restart(state, config=config, stage=stage, stacked=stacked)
            losses: list[Array] = []
            for n in range(first, stage.updates):
                drawn = [s.batch(before + n, config.batch_size) for s in samples]
                batch = members(
                    [task.source.cases(starts, frame.history, stage.steps) for starts, _ in drawn]
                )
                case_weights = members([jnp.asarray(w) for _, w in drawn])
                keys = members([jax.random.fold_in(s.key, before + n) for s in samples])
                if observe is not None:
                    observe(before + n, eqx.combine(state.params, frame), batch)
                state, loss = advance(
                    state,
                    batch,
                    case_weights,
                    keys,
                    static,
                    weights,
                    frame=frame,
                    config=config,
                    stage=stage,
                    stacked=stacked,
                )
                losses.append(loss)
                bar.advance(before + n + 1)
                if (n + 1) % config.evaluate_every and n + 1 < stage.updates:
                    continue
                validation = jnp.zeros(())
                for starts in np.array_split(task.validation, -(-len(task.validation) // VALIDATION_BATCH)):
                    batch = task.source.cases(starts, frame.history, config.validation_steps)
                    mean = assess(state, batch, static, weights, frame=frame, stacked=stacked)
                    validation = validation + mean * (len(starts) / len(task.validation))
                state = judge(state, validation, stacked=stacked)
                history.append(
                    Evaluation(k, n + 1, _floats(jnp.mean(jnp.stack(losses), axis=0)), _floats(validation))
                )
                losses = []
                bar.evaluated(history[-1].validation, _floats(state.best_loss))
                over = n + 1 == stage.updates or bool(jnp.all(state.stale >= config.patience))
                if path is not None:
                    _save(Path(path), state, (k + 1, 0) if over else (k, n + 1), history, fingerprint)
                if over:
                    break
            first = 0
    if not stacked:
        return [_trained(state, frame, history, 0)]
    return [_trained(jax.tree.map(lambda x, m=m: x[m], state), frame, history, m) for m in range(len(models))]


def _trained(state: TrainState, frame: StepModel, history: list[Evaluation], member: int) -> Trained:
    own = [Evaluation(e.stage, e.update, [e.training[member]], [e.validation[member]]) for e in history]
    best, last = eqx.combine(state.best, frame), eqx.combine(state.params, frame)
    return Trained(best, float(state.best_loss), last, state.optimiser, state.squares, own)


def _save(
    path: Path, state: TrainState, place: tuple[int, int], history: list[Evaluation], fingerprint: str
) -> None:
    metadata = {"place": place, "history": [asdict(e) for e in history], "fingerprint": fingerprint}
    checkpoint.save(path, state, metadata)


def _resume(path: Path, like: TrainState, fingerprint: str) -> tuple[TrainState, int, int, list[Evaluation]]:
    state, metadata = checkpoint.load(path, like)
    if metadata.get("fingerprint") != fingerprint:
        raise ValueError(
            f"The checkpoint {path.name} belongs to a training run with another start, sample or configuration. "
            "Give another path, or delete the file to train afresh."
        )
    number, first = metadata["place"]
    return state, number, first, [Evaluation(**e) for e in metadata["history"]]


def _fingerprint(
    frame: StepModel, params: PyTree, task: Task, samples: Sequence[Sample], config: TrainConfig
) -> str:
    """A hash of everything that decides the result, except the record itself."""
    digest = hashlib.sha256(repr((config, jax.tree.structure(frame))).encode())
    arrays: list[Any] = [
        *jax.tree.leaves(params),
        task.validation,
        *jax.tree.leaves(task.static),
        task.weights,
    ]
    for sample in samples:
        weights = np.ones(0) if sample.weights is None else sample.weights
        arrays += [sample.starts, jax.random.key_data(sample.key), weights]
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _stack(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _only(trees: Sequence[PyTree]) -> PyTree:
    (tree,) = trees
    return tree


def _floats(losses: Float[Array, "..."]) -> list[float]:
    return [float(x) for x in np.atleast_1d(np.asarray(losses))]
