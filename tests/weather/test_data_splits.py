"""Splits: the paper's years, fractions, and the promise that no two share a state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaweather.data import PAPER_YEARS, Splits, open_dataset
from deltaweather.data.splits import default_splits, forecast_starts, split_by_fractions, split_by_years

from .records import record


def six_hourly(first: str, last: str) -> np.ndarray:
    return np.arange(np.datetime64(first, "s"), np.datetime64(last, "s"), np.timedelta64(6, "h"))


def test_the_papers_years_are_the_default() -> None:
    times = six_hourly("1979-01-01T06", "2025-07-01")
    splits = default_splits(times)
    spans = [
        (str(times[a])[:13], str(times[b - 1])[:13])
        for a, b in (splits.train, splits.validation, splits.test)
    ]
    assert spans == [
        ("1979-01-01T06", "2013-12-31T18"),
        ("2014-01-01T00", "2017-12-31T18"),
        ("2018-01-01T00", "2021-12-31T18"),
    ]
    assert splits == split_by_years(times, PAPER_YEARS)


@pytest.mark.parametrize(
    "span", [("2000-01-01", "2010-01-01"), ("2013-01-01", "2015-01-01"), ("2016-01-01", "2022-01-01")]
)
def test_records_without_the_papers_years_are_split_by_fractions(span: tuple[str, str]) -> None:
    times = six_hourly(*span)
    splits = default_splits(times)
    assert splits == split_by_fractions(times)
    assert splits.train[1] == pytest.approx(0.7 * len(times), abs=1)
    assert splits.test[1] == len(times)


@given(
    st.integers(0, 2**32 - 1), st.integers(40, 200), st.integers(1, 8), st.integers(1, 3), st.floats(0.0, 0.1)
)
def test_starts_against_a_loop(seed: int, times: int, steps: int, history: int, holes: float) -> None:
    rng = np.random.default_rng(seed)
    usable, follows = rng.random(times) >= holes, rng.random(times - 1) >= holes
    first, last = sorted(rng.choice(times + 1, 2, replace=False).tolist())
    expected = []
    for t in range(times):
        window = range(t - history + 1, t + steps + 1)
        if window[0] < first or window[-1] >= last:
            continue
        if all(usable[s] for s in window) and all(follows[s] for s in window[:-1]):
            expected.append(t)
    assert forecast_starts(usable, follows, (first, last), steps, history).tolist() == expected


@pytest.mark.parametrize("steps", [1, 20])
def test_no_state_serves_two_splits(steps: int) -> None:
    opened = open_dataset(record(600))
    seen = []
    for split in ("train", "validation", "test"):
        starts = opened.starts(split, steps=steps, history=2)  # type: ignore[arg-type]
        seen.append({int(s) for t in starts for s in range(t - 1, t + steps + 1)})
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[2]
    assert max(seen[0]) < min(seen[1])
    assert max(seen[1]) < min(seen[2])


def test_one_start_a_day_falls_on_midnight() -> None:
    opened = open_dataset(record(600, start="2005-01-01T06"))
    for every, hours in ((4, {0}), (2, {0, 12})):
        times = opened.times[opened.starts("train", steps=20, every=every)]
        assert {
            int(h) for h in (times - times.astype("datetime64[D]")).astype("timedelta64[h]").astype(int)
        } == hours
    third = opened.times[opened.starts("train", every=12)]
    assert set(np.diff(third).astype("timedelta64[h]").astype(int).tolist()) == {72}


def test_other_splits() -> None:
    ds = record(3 * 1461, start="2004-01-01")
    by_years = open_dataset(ds, split=((None, 2004), (2005, 2005), (2006, None)))
    assert str(by_years.times[by_years.splits.validation[0]])[:10] == "2005-01-01"
    assert by_years.splits.validation[1] - by_years.splits.validation[0] == 1460
    given = Splits((0, 100), (200, 300), (300, 400))
    assert open_dataset(ds, split=given).splits is given
    assert open_dataset(ds, split=(0.5, 0.3, 0.2)).splits.train == (0, round(0.5 * 4383))


def test_refusals() -> None:
    ds = record(400)
    with pytest.raises(ValueError, match="No time of the record"):
        open_dataset(ds, split="paper")
    with pytest.raises(ValueError, match="in order and must not overlap"):
        open_dataset(ds, split=((None, 2005), (2005, 2006), (2007, None)))
    with pytest.raises(ValueError, match="sum of at most 1"):
        open_dataset(ds, split=(0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match="too short to split"):
        open_dataset(ds.isel(time=slice(0, 3)), split=(0.98, 0.01, 0.01))
    with pytest.raises(ValueError, match="in order, disjoint"):
        open_dataset(ds, split=Splits((0, 200), (100, 300), (300, 400)))
    with pytest.raises(ValueError, match=r"no start for a forecast of 90 steps"):
        open_dataset(ds).starts("test", steps=90)
