"""What a comparison of estimators found: a frozen table."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

HEADINGS = {
    "name": "estimator",
    "removal_auc": "error left",
    "correlation": "correlation",
    "log_likelihood": "log-likelihood",
    "combined": "mean of three",
    "improvement": "improvement",
    "time": "time",
    "inference_cost": "passes",
    "training_cost": "training",
}


@dataclass(frozen=True)
class Score:
    """A number with its standard error."""

    value: float
    standard_error: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.standard_error:.3f}"


@dataclass(frozen=True)
class Result:
    """One estimator's line. All scores are means over the quantities, on the cases that nothing was fitted to.

    `removal_auc` is in units of the mean error, and lower is better; in `correlation`, `log_likelihood` and
    `combined = (1 − removal_auc + correlation + log_likelihood) / 3` higher is. `improvement` is `combined` less the
    reference's, from paired draws of cases. `time` is in units of a plain pass over the same cases, and
    `inference_cost`, `training_cost` are what the estimator itself states.
    """

    name: str
    removal_auc: Score
    correlation: Score
    log_likelihood: Score
    combined: Score
    improvement: Score
    time: float
    inference_cost: float
    training_cost: float


@dataclass(frozen=True)
class Comparison:
    """Several estimators on the same cases. Prints as a table; `to_pandas()` gives a data frame."""

    rows: tuple[Result, ...]
    reference: str
    cases: int
    seconds_of_a_pass: float

    def __getitem__(self, name: str) -> Result:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(
            f"There is no estimator {name!r} in this table, only {[row.name for row in self.rows]}."
        )

    def __iter__(self) -> Iterator[Result]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_pandas(self) -> Any:
        """A data frame with one row an estimator; a score takes two columns, `name` and `name_se`."""
        import pandas

        return pandas.DataFrame([_flat(row) for row in self.rows]).set_index("name")

    def __str__(self) -> str:
        lines = [
            tuple(HEADINGS.values()),
            *[tuple(_text(getattr(row, name)) for name in HEADINGS) for row in self.rows],
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
        body = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        body.append(
            f"{self.cases} cases; ± is a standard error; improvement over {self.reference!r}; time in units of a plain"
            " pass."
        )
        return "\n".join(body)

    __repr__ = __str__


def _flat(row: Result) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in asdict(row).items():
        if isinstance(value, dict):
            flat |= {name: value["value"], f"{name}_se": value["standard_error"]}
        else:
            flat[name] = value
    return flat


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.3g}"
    return str(value)
