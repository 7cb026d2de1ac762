"""Results on disk: a cache with one file a case, so that a run can be taken up again; a table at the end."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .machine import REPOSITORY


@dataclass(frozen=True)
class Row:
    """One number: what was asked of it, what was measured, and what both are relative to."""

    case: str
    what: str
    measured: float
    asked: float | None = None
    note: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.asked is None:
            return None
        return self.measured >= self.asked if self.at_least else self.measured <= self.asked


def verdict(rows: Sequence[Row]) -> str:
    asked = [row for row in rows if row.met is not None]
    return f"{sum(bool(row.met) for row in asked)} of {len(asked)} asked numbers are met."


class Cache:
    """JSON files under `out/bench`: what was measured under the same key is not measured again.

    A key of None takes what there is; `fresh` takes nothing.
    """

    def __init__(self, name: str, key: str | None, *, fresh: bool = False) -> None:
        self.folder = REPOSITORY / "out" / "bench" / name
        self.key = key
        self.fresh = fresh

    def get(self, case: str, measure: Callable[[], Sequence[Row]]) -> list[Row]:
        path = self.folder / f"{case}.json"
        if not self.fresh and path.exists():
            kept = json.loads(path.read_text())
            if self.key in (None, kept["key"]):
                return [Row(**row) for row in kept["rows"]]
        rows = list(measure())
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"key": self.key, "rows": [asdict(row) for row in rows]}, indent=1))
        return rows


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" if abs(value) < 1e5 else f"{value:.2g}"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = ["| case | what | asked | measured | | note |", "|---|---|---|---|---|---|"]
    for row in rows:
        asked = "" if row.asked is None else ("≥ " if row.at_least else "≤ ") + _number(row.asked)
        mark = {True: "met", False: "**missed**", None: ""}[row.met]
        lines.append(f"| {row.case} | {row.what} | {asked} | {_number(row.measured)} | {mark} | {row.note} |")
    return "\n".join(lines)


def write(name: str, title: str, text: str, rows: Sequence[Row], about: dict[str, Any]) -> Path:
    """`docs/results/{name}.md` for readers and `.json` for programs."""
    folder = REPOSITORY / "docs" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    facts = "\n".join(f"- {key}: `{value}`" for key, value in about.items())
    page = folder / f"{name}.md"
    page.write_text(f"# {title}\n\n{text}\n\n{verdict(rows)}\n\n{table(rows)}\n\n## Made by\n{facts}\n")
    kept = {"about": about, "rows": [asdict(row) | {"met": row.met} for row in rows]}
    page.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
    return page
