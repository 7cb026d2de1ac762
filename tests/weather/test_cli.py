"""The command line: what it prints, and sentences in place of tracebacks."""

from pathlib import Path

import pytest

from deltaweather.cli import COMMANDS, build_parser, main

from .records import record


def test_info_on_the_embedded_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--quantities"]) == 0
    out = capsys.readouterr().out
    assert "Paris (embedded): a single site at 48.85 N, 2.35 E" in out
    assert "validation: 2170 starts of a forecast of 5 days" in out
    assert "Contains modified Copernicus Climate Change Service information" in out
    assert "21 quantities of interest" in out


def test_info_with_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.nc"
    record(3 * 1461, start="2004-01-01").to_netcdf(path)
    arguments = [
        "--data",
        str(path),
        "--years",
        "2004-2005",
        "--resolution",
        "4",
        "--variables",
        "2m_temperature",
    ]
    assert main(["info", *arguments]) == 0
    out = capsys.readouterr().out
    assert "regional grid of 2 x 2 cells" in out
    assert "2004-01-01T00:00 to 2005-12-31T18:00" in out
    assert "10m_u" not in out


def test_a_short_record_is_described_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.nc"
    record(40).to_netcdf(path)
    assert main(["info", "--data", str(path)]) == 0
    assert "test: 0 starts of a forecast of 5 days" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["info", "--data", "nowhere.nc"], "'nowhere.nc' does not exist"),
        (["info", "--variables", "2m_temprature"], "Did you mean '2m_temperature'"),
        (["info", "--years", "soon"], "Years are given as first-last"),
        (["info", "--years", "1950-1960"], "none of it falls in the years 1950 to 1960"),
        (["simulate", "--years", "-1"], "must be positive"),
    ],
)
def test_errors_are_sentences(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("deltaweather: ")
    assert says in captured.err
    assert "Traceback" not in captured.err


def test_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "info", "--data", "nowhere.nc"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    build_parser()
    for name, _, text in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        assert text[1:20] in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["nonsense"])
    assert stop.value.code == 2
