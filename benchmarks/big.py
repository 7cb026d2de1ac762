"""A transformer of 100 million parameters: what fits and variances take, and how cost grows."""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import deltavariance as dv

from .harness import Row, describe, once, verdict, write
from .harness.results import table
from .harness.timing import Work

TITLE = "A transformer of 100 million parameters"
TEXT = (
    "Fits and variances in float32 of a pre-norm transformer whose blocks are stacked by `lax.scan`. Peak memory is the"
    " process's largest resident set so far, in the order of the rows. Exponents are slopes of log time against log"
    " size over two decades, medians of repeated calls after compilation; a moderate width keeps every block alike."
)
MEMORY = 24.0
EXPONENT = 1.05


def transformer(width: int, layers: int, tokens: int, length: int) -> tuple[Callable[..., Any], Any]:
    """Causal attention with heads of 64 channels, GELU layers four times as wide; log-probability of the next token."""
    heads = max(1, width // 64)
    generator = np.random.default_rng(0)

    def normal(*shape: int, fan: int) -> jax.Array:
        return jnp.asarray(generator.standard_normal(shape, np.float32) / np.sqrt(fan, dtype=np.float32))

    wide = 4 * width
    params = {
        "embed": normal(tokens, width, fan=width),
        "head": normal(width, tokens, fan=width),
        "blocks": {
            "qkv": normal(layers, 3, width, width, fan=width),
            "o": normal(layers, width, width, fan=width * layers),
            "up": normal(layers, width, wide, fan=width),
            "down": normal(layers, wide, width, fan=wide * layers),
        },
    }

    def norm(x: jax.Array) -> jax.Array:
        x = x - x.mean(-1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)

    def block(x: jax.Array, own: Any) -> tuple[jax.Array, None]:
        q, k, v = (part.reshape(length, heads, -1) for part in jnp.einsum("td,cdk->ctk", norm(x), own["qkv"]))
        scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(width // heads).astype(np.float32)
        scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
        x = x + jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v).reshape(length, width) @ own["o"]
        return x + jax.nn.gelu(norm(x) @ own["up"]) @ own["down"], None

    def u(p: Any, z: Any) -> jax.Array:
        x = lax.scan(block, p["embed"][z["tokens"]], p["blocks"])[0]
        return jax.nn.log_softmax(norm(x)[-1] @ p["head"])[z["next"]]

    return u, params


def cases(number: int, tokens: int, length: int) -> Any:
    generator = np.random.default_rng(1)
    drawn = {
        "tokens": generator.integers(0, tokens, (number, length)),
        "next": generator.integers(0, tokens, number),
    }
    return jax.tree.map(jnp.asarray, drawn)


def peak() -> float:
    """The largest resident set of this process so far, in GB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def structures() -> dict[str, Any]:
    return {"Diagonal": dv.Diagonal(), "Kronecker": dv.Kronecker()}


def large(arguments: argparse.Namespace) -> list[Row]:
    """One fit, one Σ and one variance in each structure, each timed from nothing (compilation included)."""
    u, params = transformer(arguments.width, arguments.layers, arguments.tokens, arguments.length)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    data = cases(arguments.cases, arguments.tokens, arguments.length)
    title = f"{size / 1e6:.1f} million parameters, {arguments.cases} sequences of {arguments.length}"
    rows = []
    for name, structure in structures().items():
        held: dict[str, Any] = {}

        def fit(structure: Any = structure, held: dict[str, Any] = held) -> Any:
            held["F"] = dv.fisher(u, params, data, structure=structure, batch_size=arguments.batch)
            return held["F"].mean

        def invert(held: dict[str, Any] = held) -> Any:
            held["sigma"] = held.pop("F").inverse(damping=1e-8)
            return held["sigma"]

        def use(held: dict[str, Any] = held) -> Any:
            held["v"] = dv.variance(u, params, data, held["sigma"], batch_size=arguments.batch)
            return held["v"]

        for what, work in {"fit": fit, "inverse": invert, "variance": use}.items():
            seconds = once(work)
            rows.append(Row(title, f"{name}, {what}: peak memory, GB", peak(), MEMORY, f"{seconds:.1f} s"))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
        if not bool(jnp.all(jnp.isfinite(held["v"]) & (held["v"] > 0))):
            raise RuntimeError(f"{name}: the variances are {held['v']}.")
    return rows


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _median(work: Work, repeats: int) -> float:
    once(work)
    return float(np.median([once(work) for _ in range(repeats)]))


def growth(repeats: int) -> list[Row]:
    """Time against parameters (by depth, at fixed width) and against data (at a fixed batch), over two decades."""
    width, tokens, length, batch = 64, 64, 32, 8
    rows = []
    for name, structure in structures().items():
        by_depth: dict[str, list[float]] = {"fit": [], "variance": []}
        sizes = []
        for layers in (4, 13, 40, 126, 400):
            u, params = transformer(width, layers, tokens, length)
            sizes.append(sum(leaf.size for leaf in jax.tree.leaves(params)))
            fit, use = _works(u, params, cases(batch, tokens, length), structure, batch)
            by_depth["fit"].append(_median(fit, repeats))
            by_depth["variance"].append(_median(use, repeats))
        rows += [_growth(f"parameters, {sizes[0]:,} to {sizes[-1]:,}", name, sizes, by_depth)]
        by_data: dict[str, list[float]] = {"fit": [], "variance": []}
        numbers = (16, 48, 160, 480, 1600)
        u, params = transformer(width, 4, tokens, length)
        for number in numbers:
            fit, use = _works(u, params, cases(number, tokens, length), structure, batch)
            by_data["fit"].append(_median(fit, repeats))
            by_data["variance"].append(_median(use, repeats))
        rows += [_growth(f"data, {numbers[0]} to {numbers[-1]} sequences", name, numbers, by_data)]
    return [row for pair in rows for row in pair]


def _works(u: Any, params: Any, data: Any, structure: Any, batch: int) -> tuple[Work, Work]:
    def fit() -> Any:
        return dv.fisher(u, params, data, structure=structure, batch_size=batch).mean

    sigma = dv.fisher(u, params, data, structure=structure, batch_size=batch).inverse(damping=1e-6)
    return fit, lambda: dv.variance(u, params, data, sigma, batch_size=batch)


def _growth(what: str, name: str, sizes: Sequence[float], seconds: dict[str, list[float]]) -> list[Row]:
    rows = [
        Row(
            what,
            f"{name}, {key}: exponent",
            exponent(sizes, found),
            EXPONENT,
            f"{1e3 * found[0]:.1f} to {1e3 * found[-1]:.0f} ms",
        )
        for key, found in seconds.items()
    ]
    print("\n".join(table(rows).splitlines()[2:]), flush=True)
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--tokens", type=int, default=12_000)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--cases", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeated calls for each point of a growth curve"
    )
    parser.add_argument("--only", choices=["large", "growth"])


def main(arguments: argparse.Namespace) -> None:
    """Print each row as it is measured; write docs/results/big.md and .json at full size."""
    start = time.perf_counter()
    rows: list[Row] = []
    if arguments.only != "growth":
        rows += large(arguments)
    if arguments.only != "large":
        rows += growth(arguments.repeats)
    print(f"{verdict(rows)} {time.perf_counter() - start:.0f} s")
    if arguments.only is None and arguments.width * arguments.layers >= 512 * 28:
        page = write("big", TITLE, TEXT, rows, describe("python -m benchmarks big"))
        print(f"Written: {page.relative_to(page.parents[2])} and .json")
