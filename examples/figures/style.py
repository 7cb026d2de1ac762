"""One look for all figures: colours that survive colour blindness, and styles that survive a grey printer."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

# From the palette of Okabe and Ito, chosen to differ in lightness as well as in hue.
TRUTH, DELTA, BOOTSTRAP, DROPOUT = "#000000", "#D55E00", "#56B4E9", "#009E73"

SETTINGS: Mapping[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "savefig.bbox": "tight",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "deltavariance",
}


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write the figure as PNG and PDF, the latter without a date so that equal numbers give equal files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    figure.savefig(paths[0])
    figure.savefig(paths[1], metadata={"CreationDate": None})
    plt.close(figure)
    return paths


def write_csv(folder: Path, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Numbers beside the figure, six digits each."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in rows:
            writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in row])
    return path
