"""Skill against plain loops; the linear autoregression against a record whose law is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deltaweather.autoregression import fit_autoregression
from deltaweather.cases import Cases, Record
from deltaweather.climatology import fit_climatology, time_basis
from deltaweather.models import Forcing, SiteConfig, Sizes, Static, build_model
from deltaweather.skill import (
    beaten_by,
    climatology,
    measure,
    model_forecaster,
    persistence,
    skill_rows,
    skill_table,
)

LAT, LON, CHANNELS = 2, 3, 2


def make_record(noise: float = 0.3) -> tuple[Record, Static]:
    """A linear law in all cells and channels with two lags, about a known climatology."""
    rng = np.random.default_rng(0)
    values, times = LAT * LON * CHANNELS, 900
    one = 0.5 * np.linalg.qr(rng.normal(size=(values, values)))[0]
    two = 0.4 * np.linalg.qr(rng.normal(size=(values, values)))[0]
    x = rng.normal(size=(times, values))
    for t in range(2, times):
        x[t] = one @ x[t - 1] + two @ x[t - 2] + noise * rng.normal(size=values)
    time = rng.normal(size=(times, 3)).astype(np.float32)
    means = rng.normal(size=(3, LAT, LON, CHANNELS)).astype(np.float32)
    states = x.reshape(times, LAT, LON, CHANNELS) * np.array([1.0, 5.0]) + np.tensordot(time, means, axes=1)
    forcing = Forcing(time, np.zeros((times, LAT, LON, 0), np.float32))
    static = Static(np.zeros((LAT, LON, 1), np.float32), means, np.array([1.0, 5.0], np.float32))
    return Record(states.astype(np.float32), forcing), static


def test_scores_equal_plain_loops() -> None:
    record, static = make_record()
    area = np.random.default_rng(1).uniform(0.5, 2.0, (LAT, LON))
    starts, steps = np.arange(10, 160), 3  # more than one chunk, the last one short

    def wrong(cases: Cases) -> jax.Array:
        return jnp.asarray(cases.target) * 0.5 + 0.3

    forecasters = {"wrong": wrong, "persistence": persistence(static), "climatology": climatology(static)}
    skills = measure(forecasters, record, starts, static, area, steps=steps, history=2)
    means = np.tensordot(np.asarray(record.forcing.time, np.float64), np.asarray(static.climatology), axes=1)
    share = area / area.sum()
    for k in range(steps):
        for c in range(CHANNELS):
            truth = record.states[starts + k + 1][..., c].astype(np.float64)
            mean = means[starts + k + 1][..., c]
            present = record.states[starts][..., c] - means[starts][..., c]
            for name, forecast in (("wrong", 0.5 * truth + 0.3), ("persistence", mean + present)):
                mse = np.mean([(share * (f - t) ** 2).sum() for f, t in zip(forecast, truth, strict=True)])
                reference = np.mean([(share * (m - t) ** 2).sum() for m, t in zip(mean, truth, strict=True)])
                product = np.sum(share * (forecast - mean) * (truth - mean))
                scale = np.sqrt(np.sum(share * (forecast - mean) ** 2) * np.sum(share * (truth - mean) ** 2))
                np.testing.assert_allclose(skills[name].mse[k, c], mse, rtol=1e-4)
                np.testing.assert_allclose(skills[name].relative[k, c], mse / reference, rtol=1e-4)
                np.testing.assert_allclose(skills[name].acc[k, c], product / scale, rtol=1e-4)
    np.testing.assert_allclose(skills["climatology"].relative, 1.0, rtol=1e-5)
    np.testing.assert_array_equal(skills["climatology"].acc, 0.0)
    np.testing.assert_allclose(
        skills["wrong"].rmse(np.array([2.0, 3.0])) ** 2, skills["wrong"].mse * [4.0, 9.0]
    )
    ratio = beaten_by(skills, "wrong", step=2)
    np.testing.assert_allclose(ratio["climatology"], skills["climatology"].mse[1] / skills["wrong"].mse[1])
    assert set(ratio) == {"persistence", "climatology"}


def test_autoregression_reaches_the_floor_of_the_law_that_made_the_record() -> None:
    """With all components and enough lags, six-hour errors are the noise and nothing else, out of sample."""
    record, static = make_record(noise=0.3)
    fitted = fit_autoregression(
        record, np.arange(5, 700), static, steps=2, lags=2, components=LAT * LON * CHANNELS
    )
    area = np.ones((LAT, LON))
    skills = measure(
        {"linear": fitted.forecaster(static), "persistence": persistence(static)},
        record,
        np.arange(720, 890),
        static,
        area,
        steps=2,
        history=4,
    )
    np.testing.assert_allclose(skills["linear"].mse[0], 0.09 * np.array([1.0, 25.0]), rtol=0.12)
    assert (skills["linear"].mse[0] < 0.5 * skills["persistence"].mse[0]).all()


def test_autoregression_equals_least_squares_on_the_raw_values() -> None:
    """All components are a change of basis: coefficients of an independent regression give the same forecast."""
    record, static = make_record()
    starts = np.arange(5, 400)
    fitted = fit_autoregression(record, starts, static, steps=3, lags=2, components=12, ridge=0.0)
    anomalies = record.states - np.tensordot(
        np.asarray(record.forcing.time), np.asarray(static.climatology), axes=1
    )
    flat = anomalies.reshape(len(anomalies), -1).astype(np.float64)
    inputs = np.concatenate([flat[starts - 1], flat[starts], np.ones((len(starts), 1))], axis=1)
    cases = record.cases(np.array([500, 600]), 3, 3)
    forecast = (
        np.asarray(fitted.forecaster(static)(cases))
        - np.asarray(static.mean_state(cases.forcing.time))[:, 3:]
    )
    for k in range(3):
        solution = np.linalg.lstsq(inputs, flat[starts + k + 1], rcond=None)[0]
        for row, start in enumerate((500, 600)):
            expected = np.concatenate([flat[start - 1], flat[start], [1.0]]) @ solution
            np.testing.assert_allclose(forecast[row, k].ravel(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("states", [595, 10])  # more and fewer states than values
def test_few_components_keep_the_leading_ones(states: int) -> None:
    record, static = make_record()
    starts = np.arange(5, 5 + states)
    fitted = fit_autoregression(record, starts, static, steps=1, lags=1, components=3)
    assert fitted.patterns.shape == (12, 3)
    np.testing.assert_allclose(fitted.patterns.T @ fitted.patterns, np.eye(3), atol=1e-5)
    anomalies = record.states - np.tensordot(
        np.asarray(record.forcing.time), np.asarray(static.climatology), axes=1
    )
    flat = (anomalies[starts] / fitted.deviations).reshape(states, -1)
    kept = np.linalg.svd(flat, compute_uv=False)[:3]
    np.testing.assert_allclose(np.linalg.norm(flat @ fitted.patterns, axis=0), kept, rtol=1e-3)


def test_a_model_sees_no_more_history_than_it_was_made_for() -> None:
    record, static = make_record()
    model = build_model(
        SiteConfig(history=2, width=4), Sizes(CHANNELS, 3, 0, 1), static, key=jax.random.key(0)
    )
    long, short = record.cases(np.array([50, 60]), 5, 2), record.cases(np.array([50, 60]), 2, 2)
    forecast = model_forecaster(model, static)
    np.testing.assert_allclose(forecast(long), forecast(short), rtol=1e-6)


def test_the_climatology_recovers_its_coefficients_from_chunks() -> None:
    times = np.arange("2001-01-01", "2004-01-01", 6, dtype="datetime64[h]")
    basis = time_basis(times)
    assert basis.shape == (len(times), 28)
    assert np.linalg.matrix_rank(basis) == 28
    rng = np.random.default_rng(0)
    coefficients = rng.normal(size=(28, LAT, LON, CHANNELS)).astype(np.float32)
    states = np.tensordot(basis, coefficients, axes=1)
    chunks = [(basis[k : k + 500], states[k : k + 500]) for k in range(0, len(times), 500)]
    np.testing.assert_allclose(fit_climatology(chunks), coefficients, atol=1e-3)


@pytest.mark.parametrize(("hours", "functions"), [(24, 7), (12, 14), (6, 28), (1, 35)])
def test_the_basis_has_one_function_for_each_that_the_hours_can_tell_apart(
    hours: int, functions: int
) -> None:
    times = np.arange("2001-01-01", "2002-01-01", hours, dtype="datetime64[h]")
    assert time_basis(times).shape[1] == functions
    assert np.linalg.matrix_rank(time_basis(times)) == functions


def test_a_short_record_has_a_bounded_climatology() -> None:
    times = np.arange("2001-01-01", "2001-02-01", 6, dtype="datetime64[h]")
    basis = time_basis(times)
    states = np.random.default_rng(0).normal(size=(len(times), 1, 1, 1)).astype(np.float32) + 10
    mean = np.tensordot(basis, fit_climatology([(basis, states)]), axes=1)
    assert np.abs(mean - 10).max() < 3


def test_the_report_holds_every_score() -> None:
    record, static = make_record()
    skills = measure(
        {"climatology": climatology(static)},
        record,
        np.arange(10, 40),
        static,
        np.ones((LAT, LON)),
        steps=4,
        history=1,
    )
    rows = skill_rows(skills, ["temperature", "rain"], np.array([2.0, 3.0]))
    assert len(rows) == 8
    assert rows[5]["channel"] == "rain"
    assert rows[5]["lead_hours"] == 12.0
    assert rows[5]["rmse"] == pytest.approx(3.0 * float(np.sqrt(skills["climatology"].mse[1, 1])))
    table = skill_table(skills, ["temperature", "rain"], np.array([2.0, 3.0]), leads={"24 h": 4})
    assert table.row_count == 2
    assert [c.header for c in table.columns] == ["channel", "forecast", "24 h"]
