"""Set up before any test or doctest imports the packages."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import matplotlib as mpl
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# Shapes and types of every annotated function are checked while the tests run.
install_import_hook(["deltavariance", "deltaweather"], "beartype.beartype")

mpl.use("Agg")

# Compiling takes longer than hypothesis allows an example; in continuous integration examples are fixed.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# Each compiled program takes some ten memory mappings, of which Linux allows a process 65,530 and then kills it.
MOST_MAPPINGS = 20_000


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs() -> Iterator[None]:
    """Let go of compiled programs before a worker runs out of memory mappings."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()
