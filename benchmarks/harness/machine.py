"""Where and on what a measurement was made."""

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

REPOSITORY = Path(__file__).resolve().parents[2]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The short commit, with a plus if the library or the benchmarks differ from it."""
    changed = _git("status", "--porcelain", "--", "src", "benchmarks")
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def code() -> str:
    """A digest of the library's and the benchmarks' source: what a measurement may depend on."""
    digest = hashlib.sha256()
    for folder in ("src/deltavariance", "benchmarks"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def describe(command: str, packages: Sequence[str] = ()) -> dict[str, str]:
    """Everything that must stand beside a number for it to mean something later."""
    return {
        "command": command,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "machine": f"{platform.system()} {platform.machine()}, {jax.default_backend()}",
        "python": sys.version.split()[0],
        **versions(["jax", "jaxlib", "deltavariance", *packages]),
    }
