"""Draw the figures of the paper: `python -m examples.figures [--out FOLDER] [names ...]`."""

import argparse
import time
from pathlib import Path

from . import cost, eigenvalues, survival

FIGURES = {"survival": survival.draw, "eigenvalues": eigenvalues.draw, "cost": cost.draw}


def main() -> None:
    """Draw those asked for, all by default, and say where they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(FIGURES)}; all if left out")
    parser.add_argument("--out", type=Path, default=Path("out/figures"), help="folder to write to")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(FIGURES)
    if unknown:
        parser.error(f"no figure is called {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    for name in arguments.names or FIGURES:
        start = time.perf_counter()
        paths = FIGURES[name](arguments.out)
        print(f"{name} ({time.perf_counter() - start:.0f} s): " + ", ".join(str(path) for path in paths))


if __name__ == "__main__":
    main()
