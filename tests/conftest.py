"""Fixtures shared by all tests."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision for the length of one test."""
    with jax.enable_x64(True):
        yield
