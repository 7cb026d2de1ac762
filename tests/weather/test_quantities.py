"""Quantities against plain NumPy loops, their gradients, and the counting: 21 a place, 126 in all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deltaweather.data import Dataset, open_dataset
from deltaweather.grid import Place
from deltaweather.places import BHUTAN, CAPITALS
from deltaweather.quantities import (
    Quantity,
    by_lead,
    default_quantities,
    evaluate,
    longest_lead,
    paper_quantities,
    site_quantities,
    speed_cubed,
)

from .records import record

RAIN, TEMPERATURE = "total_precipitation_6hr", "2m_temperature"
U, V = "10m_u_component_of_wind", "10m_v_component_of_wind"


@pytest.fixture(scope="module")
def globe() -> Dataset:
    return open_dataset(record(120, tuple(np.arange(-87.5, 88.0, 5.0)), tuple(np.arange(0.0, 360.0, 5.0))))


@pytest.fixture(scope="module")
def bhutan() -> Dataset:
    return open_dataset(record(120, tuple(np.arange(26.5, 28.6, 0.25)), tuple(np.arange(88.5, 92.1, 0.25))))


@pytest.fixture(scope="module")
def site() -> Dataset:
    return open_dataset()


def trajectory(dataset: Dataset) -> np.ndarray:
    return dataset.trajectories(np.array([30]), 20)[0]


def by_name(table: tuple[Quantity, ...]) -> dict[str, Quantity]:
    return {q.name: q for q in table}


@pytest.mark.parametrize("kind", ["globe", "bhutan"])
def test_the_papers_table_has_126_quantities(kind: str, request: pytest.FixtureRequest) -> None:
    dataset = request.getfixturevalue(kind)
    table = default_quantities(dataset)
    assert len(table) == 126
    assert len({q.name for q in table}) == 126
    places = {q.place for q in table}
    assert len(places) == 6
    for place in places:
        topics = [q.topic for q in table if q.place == place]
        assert [topics.count(t) for t in ("rain", "wind", "rain area", "heat")] == [5, 5, 5, 6]
    assert {q.lead for q in table if q.topic == "rain"} == {4, 8, 12, 16, 20}
    assert {q.lead for q in table if q.topic in ("rain area", "heat")} == {20}
    assert longest_lead(table) == 20


@pytest.mark.parametrize("kind", ["globe", "bhutan"])
def test_every_value_against_a_loop(kind: str, request: pytest.FixtureRequest) -> None:
    dataset = request.getfixturevalue(kind)
    x = trajectory(dataset).astype(np.float64)
    rain, heat, u, v = (dataset.channel(name) for name in (RAIN, TEMPERATURE, U, V))
    table = by_name(default_quantities(dataset))
    n, m = dataset.grid.shape
    places = BHUTAN if kind == "bhutan" else CAPITALS
    checked = 0
    for here in (places[0], places[2], places[5]):  # in the middle; on the seam; at the domain's edge
        place = here.name
        i, j = dataset.grid.nearest(here)
        for day in range(1, 6):
            state = x[4 * day - 1, i, j]
            assert float(table[f"rain at {place}, day {day}"](x.astype(np.float32))) == pytest.approx(
                1000 * state[rain], rel=1e-5
            )
            assert float(table[f"wind cubed at {place}, day {day}"](x.astype(np.float32))) == pytest.approx(
                np.hypot(state[u], state[v]) ** 3, rel=1e-5
            )
        for inradius in range(1, 7):
            cells = []
            for a in range(n):
                for b in range(m):
                    apart = min((b - j) % m, (j - b) % m) if dataset.grid.periodic else abs(b - j)
                    if abs(a - i) < inradius and apart < inradius:
                        cells.append((a, b))
            weights = np.array([dataset.grid.area_weights[c] for c in cells])
            values = np.array([x[19, a, b] for a, b in cells])
            hottest = table[f"highest temperature within {inradius} of {place}, day 5"]
            assert float(hottest(x.astype(np.float32))) == pytest.approx(values[:, heat].max(), rel=1e-6)
            if inradius > 1:
                wet = table[f"mean rain within {inradius} of {place}, day 5"]
                mean = 1000 * (weights * values[:, rain]).sum() / weights.sum()
                assert float(wet(x.astype(np.float32))) == pytest.approx(mean, rel=1e-5)
            checked += 1
    assert checked == 18


def test_squares_that_leave_bhutan_are_clipped_and_say_so(bhutan: Dataset) -> None:
    with pytest.raises(ValueError, match="leaves the domain"):
        paper_quantities(bhutan)
    table = by_name(default_quantities(bhutan))
    assert table["highest temperature within 5 of Thimphu, day 5"].note == ""
    assert (
        table["highest temperature within 6 of Thimphu, day 5"].note == "clipped to the domain: 9 x 11 cells"
    )
    assert len(paper_quantities(bhutan, BHUTAN[:2], inradii=(1, 2))) == 2 * (5 + 5 + 1 + 2)


def test_a_site_has_21(site: Dataset) -> None:
    table = default_quantities(site)
    assert len(table) == 21
    assert len({q.name for q in table}) == 21
    assert longest_lead(table) == 20


def test_site_values_against_numpy(site: Dataset) -> None:
    x = trajectory(site)[:, 0, 0].astype(np.float64)
    rain, heat, u, v = (site.channel(name) for name in (RAIN, TEMPERATURE, U, V))
    values = dict(
        zip(
            [q.name for q in site_quantities(site)],
            np.asarray(evaluate(site_quantities(site), trajectory(site))),
            strict=True,
        )
    )
    for day in range(1, 6):
        part = x[4 * (day - 1) : 4 * day]
        assert values[f"rain at Paris, day {day}"] == pytest.approx(
            1000 * part[:, rain].sum(), rel=1e-5, abs=1e-6
        )
        cubed = (np.hypot(part[:, u], part[:, v]) ** 3).mean()
        assert values[f"mean wind cubed at Paris, day {day}"] == pytest.approx(cubed, rel=1e-5)
        assert values[f"mean temperature at Paris, day {day}"] == pytest.approx(
            part[:, heat].mean(), rel=1e-6
        )
        hottest = x[: 4 * day, heat].max()
        assert values[f"highest temperature at Paris to day {day}"] == pytest.approx(hottest, rel=1e-6)
    needed = 6 * np.clip(18 - (x[:, heat] - 273.15), 0, None).sum()
    assert values["heating at Paris to day 5"] == pytest.approx(needed, rel=1e-4)


@pytest.mark.parametrize("kind", ["globe", "bhutan", "site"])
def test_nothing_after_the_lead_is_read(kind: str, request: pytest.FixtureRequest) -> None:
    dataset = request.getfixturevalue(kind)
    table = default_quantities(dataset)
    x = trajectory(dataset)
    leads = np.array([q.lead for q in table])
    for lead in (4, 12, 16):
        later = x.copy()
        later[lead:] = np.nan
        values = np.asarray(evaluate(table, later))
        np.testing.assert_array_equal(np.isfinite(values), leads <= lead)
    early = [q for q in table if q.lead == 4]
    np.testing.assert_array_equal(evaluate(early, x[:4]), evaluate(early, x))


def test_leads_are_grouped(globe: Dataset) -> None:
    table = default_quantities(globe)
    groups = by_lead(table)
    assert list(groups) == [4, 8, 12, 16, 20]
    assert sorted(k for ks in groups.values() for k in ks) == list(range(126))
    assert all(table[k].lead == lead for lead, ks in groups.items() for k in ks)
    assert len(groups[20]) == 6 * 13


def test_one_jitted_program_for_all_and_gradients(bhutan: Dataset) -> None:
    table = default_quantities(bhutan)[:21]
    x = jnp.asarray(trajectory(bhutan))
    jacobian = jax.jit(jax.jacrev(lambda y: evaluate(table, y)))(x)
    assert np.isfinite(jacobian).all()
    rain, heat = bhutan.channel(RAIN), bhutan.channel(TEMPERATURE)
    for k, q in enumerate(table):
        if q.topic in ("rain", "rain area"):  # weights of the mean, in millimetres
            assert float(jacobian[k].sum()) == pytest.approx(1000.0, rel=1e-5)
            assert float(jacobian[k, q.lead - 1, ..., rain].sum()) == pytest.approx(1000.0, rel=1e-5)
        if q.topic == "heat":  # all on the hottest cell
            assert float(jacobian[k, 19, ..., heat].max()) == 1.0
            assert float(jnp.abs(jacobian[k]).sum()) == 1.0


def test_wind_cubed_is_smooth_in_a_calm() -> None:
    gradient = jax.grad(speed_cubed, argnums=(0, 1))
    assert [float(g) for g in gradient(jnp.array(0.0), jnp.array(0.0))] == [0.0, 0.0]
    second = jax.hessian(lambda w: speed_cubed(w[0], w[1]))(jnp.zeros(2))
    np.testing.assert_array_equal(second, np.zeros((2, 2)))
    u, v = 3.0, 4.0
    np.testing.assert_allclose(gradient(u, v), (3 * 5 * u, 3 * 5 * v), rtol=1e-6)


def test_users_add_their_own(site: Dataset) -> None:
    t = site.channel(TEMPERATURE)
    frost = Quantity("frost", "frost", "Paris", 8, "K", lambda x: 273.15 - jnp.min(x[:, 0, 0, t]))
    table = (*default_quantities(site), frost)
    x = trajectory(site)
    assert float(evaluate(table, x)[-1]) == pytest.approx(273.15 - x[:8, 0, 0, t].min(), abs=1e-4)


def test_refusals(site: Dataset, bhutan: Dataset) -> None:
    x = trajectory(site)
    table = default_quantities(site)
    with pytest.raises(
        ValueError, match=r"'rain at Paris, day 2' needs a trajectory of 8 steps, but .* has 5"
    ):
        evaluate(table, x[:5])
    with pytest.raises(
        ValueError, match=r"must return one number, but it returned an array of shape \(20,\)"
    ):
        Quantity("all", "t", "p", 20, "K", lambda x: x[:, 0, 0, 0])(x)
    with pytest.raises(ValueError, match="at least 1 step"):
        Quantity("now", "t", "p", 0, "K", lambda x: x[0, 0, 0, 0])
    with pytest.raises(ValueError, match="no quantities"):
        evaluate((), x)
    with pytest.raises(ValueError, match=r"London .* outside the domain"):
        default_quantities(bhutan, [Place("London", 51.5, -0.1)])
    with pytest.raises(ValueError, match="Days are whole numbers from 1"):
        paper_quantities(bhutan, BHUTAN[:1], days=())
    dry = open_dataset(variables=["2m_temperature"])
    with pytest.raises(ValueError, match="'total_precipitation_6hr' is missing"):
        default_quantities(dry)
