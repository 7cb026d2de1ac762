"""The benchmark's parts against slow loops, its stages when interrupted, and its maps against dense matrices."""

import dataclasses

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import deltavariance as dv
from deltaweather.benchmark import Architecture, BenchmarkSettings, Judged, ask, demo_settings, result_folder
from deltaweather.benchmark.curvatures import average_fisher, loss_scale
from deltaweather.benchmark.delta import damped_variances, diagonal_variances
from deltaweather.benchmark.estimates import best_of, block_scaled, plain
from deltaweather.benchmark.members import Workshop
from deltaweather.benchmark.question import Question, Start, observed, split_by_lead, starts_of
from deltaweather.benchmark.scores import difference, draws_of, score
from deltaweather.benchmark.several import layer_of
from deltaweather.data import Dataset, open_dataset
from deltaweather.loss import batch_loss
from deltaweather.maps import Field, exact_cells, variance_map
from deltaweather.models import SiteConfig, build_model
from deltaweather.prepare import prepare
from deltaweather.quantities import default_quantities
from deltaweather.train import Stage, TrainConfig

TRAINING = TrainConfig((Stage(6, 1, 1e-3),), batch_size=8, evaluate_every=3, validation_steps=1)
SMALL = Architecture("small", SiteConfig(history=2, width=6, layers=1), TRAINING)
SETTINGS = dataclasses.replace(demo_settings(3), architectures=(SMALL,), swag=Stage(8), swag_snapshots=2)


@pytest.fixture(scope="module")
def paris() -> Dataset:
    return open_dataset()


@pytest.fixture(scope="module")
def shop(paris: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    task, sizes = prepare(paris, SMALL.model, validation_starts=64, validation_steps=1)
    starts = paris.starts("train", steps=1, history=2)[:400]
    return Workshop(
        paris, task, sizes, starts, SMALL, SETTINGS, result_folder(tmp_path_factory.mktemp("stages")), 0
    )


@pytest.fixture(scope="module")
def asked(paris: Dataset, shop: Workshop) -> tuple[Question, Start, eqx.Module]:
    table = [q for q in default_quantities(paris) if q.lead <= 8 and q.topic != "heat"]
    question = ask(paris, shop.task.static, table)
    starts = starts_of(shop.task.source, paris.starts("test", steps=8)[:6], 2, 8)
    return question, starts, build_model(SMALL.model, shop.sizes, shop.task.static, key=jax.random.key(1))


def test_a_question_is_its_rollout_and_leads_give_the_same(asked: tuple[Question, Start, eqx.Module]) -> None:
    question, starts, model = asked
    case = jax.tree.map(lambda x: x[0], starts)
    whole = np.asarray(question(model, case))
    for where, part in split_by_lead(question):
        assert len({question.quantities[k].lead for k in where}) == 1
        np.testing.assert_allclose(part(model, case), whole[list(where)], rtol=1e-5)
    assert sorted(k for where, _ in split_by_lead(question) for k in where) == list(range(len(whole)))


def test_truth_is_read_from_the_record(paris: Dataset) -> None:
    table = default_quantities(paris)
    start = int(paris.starts("test", steps=20)[11])
    found = observed(paris, table, np.array([start]))[0]
    states = paris.states(np.arange(start + 1, start + 21))[:, 0, 0]
    warmth, rain = paris.channel("2m_temperature"), paris.channel("total_precipitation_6hr")
    names = [q.name for q in table]
    assert found[names.index("mean temperature at Paris, day 3")] == pytest.approx(
        states[8:12, warmth].mean(), rel=1e-6
    )
    assert found[names.index("rain at Paris, day 1")] == pytest.approx(
        1000 * states[:4, rain].sum(), rel=1e-4
    )


def test_all_diagonals_in_one_pass_equal_one_at_a_time(asked: tuple[Question, Start, eqx.Module]) -> None:
    question, starts, model = asked
    rng = np.random.default_rng(0)
    draw = lambda: jax.tree.map(lambda x: jnp.asarray(rng.uniform(0.5, 2, x.shape), jnp.float32), model)
    sigmas = {"a": [dv.as_covariance(model, draw()) for _ in range(3)], "b": [dv.as_covariance(model, 1.0)]}
    for split in (False, True):
        found = diagonal_variances(question, model, starts, sigmas, detailed={"a": [0, 2]}, split_leads=split)
        for name, family in sigmas.items():
            for k, sigma in enumerate(family):
                expected = dv.variance(question, model, starts, sigma)
                np.testing.assert_allclose(found.variances[name][k], expected, rtol=2e-4)
        for place, k in enumerate((0, 2)):
            own = found.parts["a"][place]
            expected = dv.block_variances(question, model, starts, sigmas["a"][k])
            for layer in own:
                slow = sum(v for block, v in expected.items() if layer_of(block) == layer)
                np.testing.assert_allclose(own[layer], slow, rtol=2e-4, atol=1e-9)
            np.testing.assert_allclose(sum(own.values()), found.variances["a"][k], rtol=1e-4)


def test_damped_variances_of_split_leads(shop: Workshop, asked: tuple[Question, Start, eqx.Module]) -> None:
    question, starts, model = asked
    fisher = dv.fisher(
        lambda m, case: -0.5 * jnp.sum((question(m, case) - 1.0) ** 2), model, starts, progress=False
    )
    curves = damped_variances(question, model, starts, fisher, (1e-2, 1e2), split_leads=True)
    for k, damping in enumerate((1e-2, 1e2)):
        expected = dv.variance(question, model, starts, fisher.inverse(damping))
        np.testing.assert_allclose(curves[k], expected, rtol=1e-3)


def test_the_average_of_training_is_a_fisher_of_single_examples(shop: Workshop) -> None:
    """Squared batch gradients over c², times B: checked against gradients of the likelihood that c stands for."""
    trained = shop.base().value
    values = int(np.prod(shop.task.static.climatology.shape[1:]))
    c = loss_scale(trained, values)
    assert c == pytest.approx(2 * np.mean(trained.history[-1].training) / values)
    # The Gaussian of variances v/w with n v the mean loss: its negative log-density is the loss over c.
    v = float(np.mean(trained.history[-1].training)) / values
    batch = shop.task.source.cases(shop.starts[:1], 2, 1)
    residual = np.asarray(
        jax.vmap(lambda s, f: trained.model(s, f, shop.task.static))(jnp.asarray(batch.state), batch.forcing)
    ) - np.asarray(batch.target[:, 0])
    negative = 0.5 * float(np.sum(np.asarray(shop.task.weights) * residual**2)) / v
    loss = float(batch_loss(trained.model, batch, jnp.ones(1), shop.task.static, shop.task.weights))
    assert loss / c == pytest.approx(negative, rel=1e-4)
    like = dv.fisher(
        lambda m, x: -jnp.sum(m(x.state, x.forcing, shop.task.static) ** 2),
        trained.model,
        Start(jnp.asarray(batch.state), batch.forcing),
        progress=False,
    )
    found = average_fisher(trained, like, values=values, num_data=400)
    squares = np.concatenate([np.ravel(s) for s in jax.tree.leaves(trained.squares.average())])
    np.testing.assert_allclose(found.diagonal(), 8 * squares / c**2, rtol=1e-5)
    assert float(found.num_data) == 400


def test_an_ensemble_grows_and_a_killed_run_goes_on(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    three = shop.ensemble()
    assert len(three.value) == 3
    leaves = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(m)]) for m in three.value]
    assert np.abs(leaves[0] - leaves[1]).max() > 1e-3  # members differ
    grown = dataclasses.replace(shop, settings=dataclasses.replace(SETTINGS, members=4, together=False))
    trained: list[int] = []
    from deltaweather.benchmark import members

    real = members.train

    def counted(*given: object, **more: object) -> object:
        trained.append(1)
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(members, "train", counted)
    four = grown.ensemble()
    assert len(trained) == 1
    for old, new in zip(three.value, four.value, strict=False):
        assert all(
            np.array_equal(a, b) for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)
        )
    shop.base()
    assert len(trained) == 1  # kept since another test or trained here once
    grown.ensemble()
    assert len(trained) == 1


def judged_cases(n: int = 80, q: int = 3, seed: int = 0) -> tuple[Judged, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    variance = rng.gamma(1.0, 1.0, (n, q)) * [1.0, 100.0, 0.01]
    target = rng.laplace(size=(n, q)) * np.sqrt(variance / 2)
    return Judged.of(np.zeros((n, q)), target, n // 2), variance, target


def test_units_and_choices_come_from_validation_alone() -> None:
    judged, variance, target = judged_cases()
    half = len(target) // 2
    np.testing.assert_allclose(judged.unit, np.abs(target[:half]).mean(0))
    np.testing.assert_allclose(judged.errors_test, target[half:] / judged.unit, rtol=1e-5)
    useless = np.ones_like(variance)
    curves = np.stack([useless, variance, 1 / variance])
    chosen = best_of(judged, "x", "delta", curves, (0.1, 1.0, 10.0))
    assert chosen.chosen == (1.0, 1.0, 1.0)
    spoilt = target.copy()
    spoilt[half:] *= -7.0  # other truths on the hold-out years
    other = best_of(Judged.of(np.zeros_like(target), spoilt, half), "x", "delta", curves, (0.1, 1.0, 10.0))
    assert other.chosen == chosen.chosen
    np.testing.assert_array_equal(other.noise.alpha, chosen.noise.alpha)
    with pytest.raises(ValueError, match="always right on the validation"):
        Judged.of(target, target, half)


def test_block_scales_find_the_block_that_matters() -> None:
    judged, variance, _ = judged_cases(600)
    other = np.random.default_rng(5).gamma(1.0, 1.0, variance.shape) * variance.mean(0)
    parts = [{"good": variance, "bad": 3 * other}, {"good": 1 / (1 + other), "bad": other}]
    mixed = plain(judged, "sum", "delta", variance + 3 * other)
    scaled = block_scaled(judged, "scaled", parts, (1.0, 2.0), ["t", "t", "s"])
    assert scaled.chosen == (1.0, 1.0, 1.0)
    counts = draws_of(300, 1, 2, 0)
    gain = difference(
        score(scaled, judged, counts).correlation, score(mixed, judged, counts).correlation, np.arange(3)
    )
    assert gain.difference > 0.05


def test_scores_are_the_librarys_and_paired() -> None:
    judged, variance, _target = judged_cases(120)
    good = plain(judged, "good", "delta", variance)
    flat = plain(judged, "flat", "baseline", np.ones_like(variance))
    counts = draws_of(60, 5, 40, 3)
    own, reference = score(good, judged, counts), score(flat, judged, counts)
    e, v = judged.errors_test, good.test
    np.testing.assert_allclose(own.auc[0], -dv.metrics.removal_auc(e, v), rtol=1e-5)
    np.testing.assert_allclose(own.correlation[0], dv.metrics.correlation(e, v), rtol=1e-4)
    np.testing.assert_allclose(own.log_likelihood[0], dv.metrics.log_likelihood(e, v, good.noise), rtol=1e-4)
    found = difference(own.correlation, reference.correlation, np.arange(3))
    expected = dv.metrics.improvement(
        dv.metrics.correlation, e, v, flat.test, key=jax.random.key(3), block_length=5, repeats=40
    )
    assert found.difference == pytest.approx(float(expected.mean), rel=1e-4)
    assert found.standard_error == pytest.approx(float(expected.mean_standard_error), rel=1e-3)
    same = difference(own.auc, own.auc, np.arange(2))
    assert same.difference == 0
    assert same.standard_error == 0


def test_own_forecasts_are_scored_by_their_own_errors() -> None:
    judged, variance, target = judged_cases(40)
    better = plain(judged, "own mean", "sampled", variance, errors=target / 2)
    same = plain(judged, "plain", "sampled", variance)
    counts = draws_of(20, 2, 2, 0)
    ratio = score(better, judged, counts).auc[0] / score(same, judged, counts).auc[0]
    np.testing.assert_allclose(ratio, 0.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ()}, "at least one architecture"),
        ({"architectures": (SMALL, SMALL)}, "a name of its own"),
        ({"members": 2}, "at least 3 members"),
        ({"seeds": 0}, "At least one seed"),
    ],
)
def test_settings_that_cannot_work(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BenchmarkSettings(**{"architectures": (SMALL,), **change})  # type: ignore[arg-type]


def test_maps_against_the_dense_matrix(
    paris: Dataset, shop: Workshop, asked: tuple[Question, Start, eqx.Module]
) -> None:
    _, starts, model = asked
    case = jax.tree.map(lambda x: x[0], starts)
    field = Field.of(paris, shop.task.static, "2m_temperature", 3)
    sigma = dv.as_covariance(model, 1e-4)
    flat, rebuild = jax.flatten_util.ravel_pytree(eqx.filter(model, eqx.is_inexact_array))
    frame = eqx.filter(model, eqx.is_inexact_array, inverse=True)
    jacobian = jax.jacobian(lambda p: field(eqx.combine(rebuild(p), frame), case))(flat)
    expected = 1e-4 * np.sum(np.asarray(jacobian) ** 2, axis=-1)
    whole = variance_map(field, model, case, sigma, key=jax.random.key(0), directions=flat.size)
    assert whole.relative_error == 0
    np.testing.assert_allclose(whole.variance, expected, rtol=1e-3)
    np.testing.assert_allclose(exact_cells(field, model, case, sigma, [(0, 0)]), expected[0], rtol=1e-3)
    few = variance_map(field, model, case, sigma, key=jax.random.key(1), directions=200)
    assert few.relative_error == pytest.approx(0.1)
    assert abs(few.variance / expected - 1).max() < 5 * few.relative_error
    with pytest.raises(ValueError, match="at least 2 directions"):
        variance_map(field, model, case, sigma, key=jax.random.key(0), directions=1)
