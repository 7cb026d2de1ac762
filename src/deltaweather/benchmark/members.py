"""The trainings of a benchmark: base model, snapshots, ensemble; each kept by what it depends on."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int64

from ..cache import Cache, content_hash
from ..data import Dataset
from ..models import Sizes, StepModel, build_model
from ..train import Sample, Task, Trained, train, train_members
from .settings import Architecture, BenchmarkSettings

T = TypeVar("T")
BASE, MEMBER, SWAG = 0, 1, 2


@dataclass(frozen=True)
class Timed:
    """A result and the seconds that it took when it was made."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Workshop:
    """What all trainings of one architecture and seed share."""

    dataset: Dataset
    task: Task
    sizes: Sizes
    starts: Int64[np.ndarray, " n"]
    architecture: Architecture
    settings: BenchmarkSettings
    cache: Cache
    seed: int
    progress: bool = False

    def key(self, kind: int, number: int = 0) -> jax.Array:
        base = jax.random.fold_in(jax.random.key(self.settings.seed), self.seed)
        return jax.random.fold_in(jax.random.fold_in(base, kind), number)

    def inputs(self, **more: Any) -> dict[str, Any]:
        """What a stage of this workshop depends on."""
        return {
            "record": self.dataset.fingerprint,
            "model": self.architecture.model,
            "training": self.architecture.training,
            "seed": (self.settings.seed, self.seed),
            **more,
        }

    def untrained(self, kind: int, number: int = 0) -> StepModel:
        return build_model(
            self.architecture.model, self.sizes, self.task.static, key=self.key(kind, 2 * number)
        )

    def _checkpoint(self, name: str, inputs: Any) -> Any:
        return self.cache.folder / "checkpoints" / f"{name}-{content_hash(name, inputs)[:24]}.safetensors"

    def base(self) -> Timed:
        """The model whose forecasts are judged, trained on all starts."""
        inputs = self.inputs()
        path = self._checkpoint("base", inputs)

        def compute() -> Timed:
            sample = Sample(self.starts, self.key(BASE, 1))
            return timed(
                lambda: train(
                    self.untrained(BASE),
                    self.task,
                    sample,
                    self.architecture.training,
                    path=path,
                    progress=self.progress,
                )
            )

        return self._kept("base", compute, inputs, [path])

    def ensemble(self) -> Timed:
        """Bootstrapped members: own start, own order, own draw of the training starts with replacement.

        Members are stages of their own: a larger ensemble trains only those that are missing. `seconds` is for all.
        """
        inputs = [self.inputs(member=k) for k in range(self.settings.members)]
        missing = [k for k, i in enumerate(inputs) if not self.cache.path("member", i).exists()]
        made: dict[int, Timed] = {}
        common = self._checkpoint("members", [inputs[k] for k in missing])
        if missing and self.settings.together:
            result = timed(
                lambda: train_members(
                    [self.untrained(MEMBER, k) for k in missing],
                    self.task,
                    [self._bootstrap(k) for k in missing],
                    self.architecture.training,
                    together=True,
                    path=common,
                    progress=self.progress,
                )
            )
            share = result.seconds / len(missing)
            made = {k: Timed(light(t), share) for k, t in zip(missing, result.value, strict=True)}
        members = []
        for k, own in enumerate(inputs):
            path = self._checkpoint("member", own)

            def compute(k: int = k, path: Any = path) -> Timed:
                if k in made:
                    return made[k]
                one = timed(
                    lambda: train(
                        self.untrained(MEMBER, k),
                        self.task,
                        self._bootstrap(k),
                        self.architecture.training,
                        path=path,
                        progress=self.progress,
                    )
                )
                return Timed(light(one.value), one.seconds)

            members.append(self._kept("member", compute, own, [path]))
        common.unlink(missing_ok=True)
        return Timed([m.value for m in members], sum(m.seconds for m in members))

    def snapshots(self, base: Trained) -> Timed:
        """Models along one more stage of training from the base model, at even distances over its second half."""
        stage, count = self.settings.swag, self.settings.swag_snapshots
        every = max(1, stage.updates // 2 // count)
        first = stage.updates - every * count
        config = replace(self.architecture.training, stages=(stage,), evaluate_every=stage.updates)

        def compute() -> Timed:
            taken: list[StepModel] = []

            def observe(update: int, model: StepModel, batch: Any) -> None:
                if update >= first and (update - first) % every == 0 and len(taken) < count:
                    taken.append(host(model))

            def run() -> list[StepModel]:
                train(base.model, self.task, Sample(self.starts, self.key(SWAG)), config, observe=observe)
                return taken

            return timed(run)

        return self._kept("snapshots", compute, self.inputs(swag=stage, count=count), [])

    def _bootstrap(self, member: int) -> Sample:
        draw = np.random.default_rng([self.settings.seed, self.seed, member])
        chosen = draw.choice(self.starts, len(self.starts))
        return Sample(np.sort(chosen), self.key(MEMBER, 2 * member + 1))

    def _kept(self, name: str, compute: Callable[[], T], inputs: Any, checkpoints: Sequence[Any]) -> T:
        result = self.cache.stage(name, compute, inputs)
        for path in checkpoints:
            path.unlink(missing_ok=True)
        return result


def timed(compute: Callable[[], Any]) -> Timed:
    """The result, computed to its end, and the time it took."""
    start = time.perf_counter()
    value = jax.block_until_ready(compute())
    return Timed(value, time.perf_counter() - start)


def host(model: StepModel) -> StepModel:
    """The model with NumPy arrays, which no later update can touch."""
    return jax.tree.map(lambda x: np.asarray(x) if eqx.is_array(x) else x, model)


def light(trained: Trained) -> StepModel:
    """Of a member only the model is kept."""
    return host(trained.model)


def on_device(model: StepModel) -> StepModel:
    """The model with JAX arrays."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, model)
