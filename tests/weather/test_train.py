"""Training: its arithmetic against plain loops, and what must not change when it is interrupted."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deltaweather import checkpoint
from deltaweather.cases import Cases, Record
from deltaweather.forecast import rollout
from deltaweather.loss import batch_loss, case_loss, error_weights
from deltaweather.models import Forcing, SiteConfig, Sizes, Static, StepModel, build_model
from deltaweather.train import (
    Sample,
    Stage,
    Task,
    TrainConfig,
    Trained,
    member_path,
    train,
    train_members,
)

LAT, LON, CHANNELS, BASIS = 2, 3, 2, 3
CONFIG = TrainConfig(
    (Stage(6, 1, 1e-2), Stage(5, 2, 1e-2)), batch_size=8, evaluate_every=2, validation_steps=2, dropout=0.2
)


def make_task() -> Task:
    rng = np.random.default_rng(0)
    times = 120
    anomalies = np.zeros((times, LAT, LON, CHANNELS))
    for t in range(1, times):
        anomalies[t] = 0.5 * anomalies[t - 1] + 0.5 * rng.normal(size=anomalies.shape[1:])
    time = rng.normal(size=(times, BASIS)).astype(np.float32)
    climatology = (0.1 * rng.normal(size=(BASIS, LAT, LON, CHANNELS))).astype(np.float32)
    states = (anomalies + np.tensordot(time, climatology, axes=1)).astype(np.float32)
    forcing = Forcing(time, np.zeros((times, LAT, LON, 0), np.float32))
    static = Static(np.zeros((LAT, LON, 1), np.float32), climatology, np.array([0.5, 0.7], np.float32))
    area = jnp.asarray(rng.uniform(0.5, 1.5, (LAT, LON)), jnp.float32)
    return Task(Record(states, forcing), np.arange(90, 110), static, error_weights(area, static))


def make_model(task: Task, key: int = 0) -> StepModel:
    return build_model(
        SiteConfig(history=2, width=8, layers=1),
        Sizes(CHANNELS, BASIS, 0, 1),
        task.static,
        key=jax.random.key(key),
    )


def same(one: object, two: object) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs if eqx.is_array(a))


SAMPLE = Sample(np.arange(5, 80), jax.random.key(7))


class Interrupted(Exception):
    pass


def test_loss_is_the_weighted_square_averaged_over_leads() -> None:
    task, steps = make_task(), 3
    model = make_model(task)
    cases = task.source.cases(np.array([10, 20]), 2, steps)
    area = np.random.default_rng(3).uniform(0.5, 1.5, (LAT, LON))
    importance = np.array([1.0, 3.0])
    weights = error_weights(jnp.asarray(area), task.static, jnp.asarray(importance))
    expected = []
    for n in range(2):
        case = jax.tree.map(lambda x, n=n: jnp.asarray(x[n]), cases)
        forecast = np.asarray(rollout(model, case.state, case.forcing, steps, static=task.static))
        total = 0.0
        for k in range(steps):
            for i in range(LAT):
                for j in range(LON):
                    for c in range(CHANNELS):
                        error = (forecast[k, i, j, c] - cases.target[n, k, i, j, c]) / [0.5, 0.7][c]
                        total += area[i, j] / area.sum() * importance[c] / 4 * error**2 / steps
        expected.append(total)
        np.testing.assert_allclose(case_loss(model, case, task.static, weights), total, rtol=1e-5)
    found = batch_loss(model, cases, jnp.array([0.5, 3.0]), task.static, weights)
    np.testing.assert_allclose(found, (0.5 * expected[0] + 3.0 * expected[1]) / 2, rtol=1e-5)


def test_cases_are_windows_of_the_record() -> None:
    task = make_task()
    record = task.source
    assert isinstance(record, Record)
    cases = record.cases(np.array([7, 30]), 3, 4)
    np.testing.assert_array_equal(cases.state[1], record.states[28:31])
    np.testing.assert_array_equal(cases.target[1], record.states[31:35])
    np.testing.assert_array_equal(cases.forcing.time[1], np.asarray(record.forcing.time)[28:35])
    with pytest.raises(IndexError, match="reads times -1 to"):
        record.cases(np.array([1]), 3, 4)
    with pytest.raises(IndexError, match="has 120"):
        record.cases(np.array([116]), 3, 4)


def test_every_epoch_uses_every_start_once_in_a_new_order() -> None:
    sample = Sample(np.arange(100, 124), jax.random.key(1))
    epochs = [np.concatenate([sample.batch(8 * e + k, 3)[0] for k in range(8)]) for e in range(2)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), sample.starts)
    assert (epochs[0] != epochs[1]).any()
    weights = np.random.default_rng(0).uniform(size=24)
    weighted = Sample(sample.starts, sample.key, weights)
    starts, chosen = weighted.batch(5, 3)
    np.testing.assert_array_equal(starts, sample.batch(5, 3)[0])  # the order does not depend on the weights
    np.testing.assert_allclose(chosen, weights[starts - 100], rtol=1e-6)
    assert (Sample(sample.starts, jax.random.key(2)).batch(0, 24)[0] != sample.batch(0, 24)[0]).any()
    with pytest.raises(ValueError, match="batch of 25"):
        sample.batch(0, 25)


def test_training_learns_and_keeps_the_best() -> None:
    task = make_task()
    config = TrainConfig((Stage(200, 1, 1e-2),), batch_size=16, evaluate_every=20, validation_steps=1)
    model = make_model(task)
    trained = train(model, task, SAMPLE, config)
    losses = [e.validation[0] for e in trained.history]
    cases = task.source.cases(task.validation, 2, 1)
    means = np.asarray(task.static.mean_state(cases.forcing.time))
    best_possible = means[:, 2] + 0.5 * (cases.state[:, 1] - means[:, 1])  # the law that made the record
    floor = np.mean(np.sum(task.weights * (best_possible - cases.target[:, 0]) ** 2, axis=(1, 2, 3)))
    assert floor < 0.85 * losses[0]
    assert min(losses) < 1.1 * floor
    assert trained.validation_loss == pytest.approx(min(losses))
    again = batch_loss(trained.model, cases, jnp.ones(len(task.validation)), task.static, task.weights)
    assert float(again) == pytest.approx(min(losses), rel=1e-5)
    assert same(model, make_model(task))  # the model passed in is as it was


@pytest.mark.parametrize("last", [1, 3, 7, 9])
def test_an_interrupted_run_ends_at_the_same_bits(tmp_path: Path, last: int) -> None:
    task = make_task()
    whole = train(make_model(task), task, SAMPLE, CONFIG)

    def interrupt(update: int, model: StepModel, batch: Cases) -> None:
        if update == last:
            raise Interrupted

    path = tmp_path / "run.safetensors"
    with pytest.raises(Interrupted):
        train(make_model(task), task, SAMPLE, CONFIG, path=path, observe=interrupt)
    seen: list[int] = []
    resumed = train(
        make_model(task),
        task,
        SAMPLE,
        CONFIG,
        path=path,
        observe=lambda update, model, batch: seen.append(update),
    )
    assert seen[0] <= last
    assert seen[0] == {1: 0, 3: 2, 7: 6, 9: 8}[last]  # goes on from the last evaluation
    for part in ("model", "last", "optimiser_state", "squares"):
        assert same(getattr(whole, part), getattr(resumed, part)), part
    assert whole.history == resumed.history
    assert whole.validation_loss == resumed.validation_loss
    finished = train(make_model(task), task, SAMPLE, CONFIG, path=path, observe=interrupt)
    assert same(whole.model, finished.model)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    task = make_task()
    path = tmp_path / "run.safetensors"
    train(make_model(task), task, SAMPLE, CONFIG, path=path)
    with pytest.raises(ValueError, match="another start, sample or configuration"):
        train(make_model(task), task, Sample(SAMPLE.starts, jax.random.key(8)), CONFIG, path=path)


def test_squares_are_the_average_of_the_batch_gradients_seen() -> None:
    task = make_task()
    config = TrainConfig((Stage(7, 2),), batch_size=8, evaluate_every=3, validation_steps=2, fisher_decay=0.1)
    expected: list[list[np.ndarray]] = []

    differentiate = eqx.filter_jit(eqx.filter_grad(batch_loss))

    def observe(update: int, model: StepModel, batch: Cases) -> None:
        _, weights = weighted.batch(update, 8)
        gradient = differentiate(model, batch, jnp.asarray(weights), task.static, task.weights)
        expected.append([np.asarray(g) ** 2 for g in jax.tree.leaves(gradient)])

    weighted = Sample(SAMPLE.starts, SAMPLE.key, np.random.default_rng(1).uniform(0, 2, len(SAMPLE.starts)))
    trained = train(make_model(task), task, weighted, config, observe=observe)
    shares = 0.1 * 0.9 ** np.arange(6, -1, -1)
    for k, found in enumerate(jax.tree.leaves(trained.squares.average())):
        average = sum(s * g[k] for s, g in zip(shares, expected, strict=True)) / shares.sum()
        np.testing.assert_allclose(found, average, rtol=1e-3, atol=1e-9)
    assert trained.squares.batch_size == 8


def test_constant_weights_scale_gradients_and_nothing_else() -> None:
    """Weights of two double the gradient and quadruple its square; clipping and Adam hide that from the steps."""
    task = make_task()
    config = TrainConfig((Stage(1),), batch_size=8, evaluate_every=1, validation_steps=1)
    one = train(make_model(task), task, SAMPLE, config)
    two = train(make_model(task), task, Sample(SAMPLE.starts, SAMPLE.key, np.full(75, 2.0)), config)
    for a, b in zip(jax.tree.leaves(one.squares.squares), jax.tree.leaves(two.squares.squares), strict=True):
        np.testing.assert_allclose(4 * a, b, rtol=1e-5, atol=1e-12)


def test_a_stage_without_progress_ends_early_and_the_best_is_kept() -> None:
    task = make_task()
    config = TrainConfig((Stage(40, 1, 0.0), Stage(40, 1, 0.0)), batch_size=8, evaluate_every=2, patience=3)
    trained = train(make_model(task), task, SAMPLE, config)
    # A rate of zero changes nothing: the first evaluation is the best, three more end the first stage, three the next.
    assert [(e.stage, e.update) for e in trained.history] == [
        (0, 2),
        (0, 4),
        (0, 6),
        (0, 8),
        (1, 2),
        (1, 4),
        (1, 6),
    ]
    assert same(trained.model, make_model(task))


def test_members_together_equal_members_apart(tmp_path: Path) -> None:
    task = make_task()
    models = [make_model(task, k) for k in range(3)]
    rng = np.random.default_rng(2)
    samples = [
        Sample(rng.choice(SAMPLE.starts, 40), jax.random.key(k), rng.uniform(0, 2, 40)) for k in range(3)
    ]
    config = TrainConfig((Stage(6),), batch_size=8, evaluate_every=3, validation_steps=1, dropout=0.2)
    apart = train_members(models, task, samples, config, path=tmp_path / "apart.safetensors")
    together = train_members(models, task, samples, config, together=True, path=tmp_path / "all.safetensors")
    again = train_members(models, task, samples, config, together=True, path=tmp_path / "all.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "all.safetensors",
        *(f"apart-00{k}.safetensors" for k in range(3)),
    ]
    for a, b, c in zip(apart, together, again, strict=True):
        assert a.validation_loss == pytest.approx(b.validation_loss, rel=1e-4)
        for x, y in zip(jax.tree.leaves(a.model), jax.tree.leaves(b.model), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
        assert same(b.model, c.model)
    assert not same(apart[0].model, apart[1].model)


def test_members_need_samples_that_fit() -> None:
    task = make_task()
    with pytest.raises(ValueError, match="2 models, 1 samples"):
        train_members([make_model(task)] * 2, task, [SAMPLE], CONFIG)
    samples = [SAMPLE, Sample(np.arange(5, 60), SAMPLE.key)]
    with pytest.raises(ValueError, match="one size"):
        train_members([make_model(task)] * 2, task, samples, CONFIG, together=True)


def test_a_refit_starts_from_the_weights_given() -> None:
    task = make_task()
    config = TrainConfig((Stage(2, 1, 0.0),), batch_size=8, evaluate_every=1)
    first = train(
        make_model(task), task, SAMPLE, TrainConfig((Stage(20, 1, 1e-2),), batch_size=8, evaluate_every=10)
    )
    refit: Trained = train(first.model, task, SAMPLE, config)
    assert same(refit.last, first.model)


def test_checkpoints_keep_every_bit_and_shape(tmp_path: Path) -> None:
    tree = {
        "scalar": jnp.asarray(3, jnp.int32),
        "half": jnp.arange(4, dtype=jnp.bfloat16),
        "odd": np.asfortranarray(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)),
        "text": "kept from the target",
        "empty": jnp.zeros((0, 2)),
    }
    path = tmp_path / "deep" / "tree.safetensors"
    checkpoint.save(path, tree, {"stage": 3, "list": [1.5, None]})
    loaded, metadata = checkpoint.load(path, tree)
    assert metadata == {"stage": 3, "list": [1.5, None]}
    assert loaded["text"] == tree["text"]
    for name in ("scalar", "half", "odd", "empty"):
        assert loaded[name].dtype == tree[name].dtype  # type: ignore[attr-defined]
        assert loaded[name].shape == tree[name].shape  # type: ignore[attr-defined]
        np.testing.assert_array_equal(np.asarray(loaded[name]), np.asarray(tree[name]))
    with pytest.raises(ValueError, match="expected"):
        checkpoint.load(path, {**tree, "odd": np.zeros((4, 3), np.float32)})
    with pytest.raises(ValueError, match="missing"):
        checkpoint.load(path, {**tree, "more": np.zeros(1)})


def test_a_failed_save_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tree.safetensors"
    checkpoint.save(path, {"x": jnp.ones(3)})

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(path, {"x": jnp.zeros(3)})
    assert [p.name for p in tmp_path.iterdir()] == ["tree.safetensors"]
    loaded, _ = checkpoint.load(path, {"x": jnp.zeros(3)})
    np.testing.assert_array_equal(loaded["x"], 1.0)


def test_member_paths_are_numbered() -> None:
    assert member_path("runs/cnn.safetensors", 4) == Path("runs/cnn-004.safetensors")
    assert member_path(None, 4) is None
