"""Errors and variances that are related but noisy, for three quantities, with ties."""

import numpy as np
import pytest


@pytest.fixture
def cases() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    variance = rng.gamma(2.0, size=(57, 3)) * np.array([1e-8, 1.0, 1e6])
    variance[10:20] = variance[10]  # a group of ties
    return rng.laplace(size=(57, 3)) * np.sqrt(variance), variance
