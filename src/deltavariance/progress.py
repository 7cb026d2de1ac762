"""A progress bar for long fits: shown at a terminal only, and never when it is not wanted."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def with_progress(items: Iterable[Item], title: str, total: int | None, show: bool) -> Iterator[Item]:
    """The items, with a bar on standard error while they last if it is a terminal and `show` is true."""
    if not show or not sys.stderr.isatty():
        return iter(items)
    return iter(track(items, title, total=total, console=Console(stderr=True), transient=True))
