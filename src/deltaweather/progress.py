"""A line that says how far training is and when it will end."""

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class TrainingProgress:
    """Updates done and to do, last and best validation loss, time spent and left; silent unless `shown`."""

    def __init__(self, updates: int, *, shown: bool, title: str = "training") -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[losses]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._progress.add_task(title, total=updates, losses="")

    def __enter__(self) -> "TrainingProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def evaluated(self, losses: list[float], best: list[float]) -> None:
        """Shows the members' mean loss, and the mean of their best."""
        text = f"validation {sum(losses) / len(losses):.4f}, best {sum(best) / len(best):.4f}"
        self._progress.update(self._task, losses=text)
