"""The page itself: a template, its style, its script and the numbers, in one file."""

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..cache import atomic_write


def render(payload: Mapping[str, Any]) -> str:
    """The page as text."""
    folder = files(__package__)
    template = (folder / "template.html").read_text(encoding="utf-8")
    data = json.dumps(payload, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    parts = {
        "title": html.escape(str(payload["title"])),
        "style": (folder / "style.css").read_text(encoding="utf-8"),
        # "</" would end the script element, whatever string it stands in
        "data": data.replace("</", "<\\/"),
        "script": (folder / "plots.js").read_text(encoding="utf-8")
        + (folder / "report.js").read_text(encoding="utf-8"),
    }
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def write_report(path: str | Path, payload: Mapping[str, Any]) -> Path:
    """Writes the page whole or not at all."""
    path = Path(path)
    with atomic_write(path) as temporary:
        temporary.write_text(render(payload), encoding="utf-8")
    return path
