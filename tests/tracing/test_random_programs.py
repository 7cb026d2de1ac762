"""Random small programs: the library and plain per-example differentiation agree.

The same 25 programs on every run: five seeds, because hypothesis varies its first examples and a single seed
gives 25 of a kind. With `RANDOM_PROGRAMS=500` in the environment, 500 new ones.
"""

import os
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

import deltavariance as dv
from deltavariance.tracing import example_gradients
from tests.tracing.test_zoo import close, random_variances, rows
from tests.zoo import Draw, programs, reference

EXPLORE = os.environ.get("RANDOM_PROGRAMS")
OPTIONS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


def agree(program: programs.Program, vector: bool, seed: int) -> None:
    with jax.enable_x64(True):
        u, params, z = programs.made(program, vector=vector, draw=Draw(seed, jnp.float64))
        variances = random_variances(params)

        @jax.jit
        def everything(params: Any, z: Any) -> Any:
            found = list(example_gradients(u, params, z).dense().values())
            variance = dv.variance(u, params, z, dv.as_covariance(params, variances))
            return reference.example_gradients(u, params, z), found, variance

        expected, found, variance = everything(params, z)
        assert all(bool(jnp.all(jnp.isfinite(g))) for g in expected)
        close(found, expected, 1e-10, "gradients")
        diagonal = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(variances)])
        close([variance], [rows(expected, 3, (3,) if vector else ()) ** 2 @ diagonal], 1e-10, "variance")


random_case = hypothesis.given(program=programs.programs(), vector=st.booleans(), seed=st.integers(0, 2**16))


@pytest.mark.parametrize("group", range(5))
def test_random_programs(group: int) -> None:
    few = hypothesis.settings(max_examples=5, **OPTIONS)
    hypothesis.seed(group)(few(random_case(agree)))()


@pytest.mark.skipif(EXPLORE is None, reason="RANDOM_PROGRAMS says how many new programs to draw")
@hypothesis.settings(max_examples=int(EXPLORE or 1), print_blob=True, **OPTIONS)
@random_case
def test_new_random_programs(program: programs.Program, vector: bool, seed: int) -> None:
    agree(program, vector, seed)
