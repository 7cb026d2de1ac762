"""What a compiled function needs: seconds to trace and compile, temporary memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Compiled:
    """`temporary` and `output` are bytes, `trace` and `build` seconds; `call` runs it."""

    trace: float
    build: float
    temporary: int
    output: int
    call: Callable[..., Any]

    @property
    def seconds(self) -> float:
        return self.trace + self.build


def compiled(function: Callable[..., Any], *arguments: Any) -> Compiled:
    """Trace and compile from nothing: all of JAX's caches are emptied first."""
    jax.clear_caches()
    start = time.perf_counter()
    lowered = jax.jit(function).lower(*arguments)
    middle = time.perf_counter()
    built = lowered.compile()
    end = time.perf_counter()
    memory = built.memory_analysis()
    if memory is None:
        raise RuntimeError("This backend does not report the memory of a compiled function.")
    return Compiled(
        middle - start, end - middle, memory.temp_size_in_bytes, memory.output_size_in_bytes, built
    )
