"""What is measured of each network: time, memory and compilation, against one plain batched gradient."""

from typing import Any

import jax
import jax.numpy as jnp

import deltavariance as dv

from ..harness import Compiled, Row, Timing, compiled, interleaved, once, ratio
from .networks import Network, Quantity, mlp, rollout

MEGA = 1e6
COMPONENTS = 21


def plain_gradient(u: Quantity) -> Any:
    """The unit of every ratio: the gradient of the sum over the batch."""
    return jax.grad(lambda p, z: jnp.sum(jax.vmap(u, (None, 0))(p, z)))


def _sigma(params: Any) -> Any:
    """Variances that are not all equal, so that no product with them can be left out."""
    return dv.as_covariance(params, jax.tree.map(lambda leaf: 1e-6 * (1.0 + jnp.cos(leaf) ** 2), params))


def _size(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _note(times: Timing, base: Timing) -> str:
    return f"{1e3 * times.median:.1f} ms against {1e3 * base.median:.1f} ms"


def network(case: Network, seconds: float) -> list[Row]:
    """The public calls `dv.variance` and `dv.fisher` against a jitted gradient: time, memory, compilation."""
    u, params, z = case.build()
    sigma = _sigma(params)
    gradient = compiled(plain_gradient(u), params, z)
    variance = compiled(lambda p, z, s: dv.variance(u, p, z, s), params, z, sigma)
    fisher = compiled(lambda p, z: dv.fisher(u, p, z, structure=dv.Diagonal()).mean, params, z)

    works = {
        "plain": lambda: gradient.call(params, z),
        "variance": lambda: dv.variance(u, params, z, sigma),
        "fisher": lambda: dv.fisher(u, params, z, structure=dv.Diagonal()),
    }
    times = interleaved(works, seconds=seconds)
    base = times["plain"]
    rows = [
        Row(
            case.title,
            "variance, time",
            ratio(times["variance"], base),
            case.variance,
            _note(times["variance"], base),
        )
    ]
    rows.append(
        Row(
            case.title,
            "Fisher fit, time",
            ratio(times["fisher"], base),
            case.fisher,
            _note(times["fisher"], base),
        )
    )
    rows += _memory(case, gradient, {"variance": variance, "Fisher fit": fisher}, _size(params))
    rows += [
        _compilation(case.title, "variance", variance, gradient),
        _compilation(case.title, "Fisher fit", fisher, gradient),
    ]
    if case.name == "mlp":
        rows.append(_naive(case, params, z, u, sigma, times["variance"], base))
    return rows


def _memory(case: Network, gradient: Compiled, ours: dict[str, Compiled], size: int) -> list[Row]:
    """Temporaries as a ratio; without a limit of its own, a case may add two numbers a parameter."""
    asked = case.memory
    if asked is None:
        asked = (gradient.temporary + 2 * 4 * size) / gradient.temporary
    rows = []
    for name, one in ours.items():
        note = f"{one.temporary / MEGA:.1f} MB against {gradient.temporary / MEGA:.1f} MB"
        limit = None if name == "Fisher fit" and case.fisher is None else asked
        rows.append(
            Row(case.title, f"{name}, temporary memory", one.temporary / gradient.temporary, limit, note)
        )
    return rows


def _compilation(title: str, what: str, one: Compiled, base: Compiled) -> Row:
    """At most three times the plain gradient's, or one second more."""
    asked = max(3.0, (base.seconds + 1.0) / base.seconds)
    note = f"{one.seconds:.2f} s ({one.trace:.2f} tracing) against {base.seconds:.2f} s ({base.trace:.2f})"
    return Row(title, f"{what}, trace and compile", one.seconds / base.seconds, asked, note)


def _naive(
    case: Network, params: Any, z: Any, u: Quantity, sigma: Any, variance: Timing, base: Timing
) -> Row:
    """vmap(grad), after and apart from the interleaving: it slows whatever runs beside it."""
    values = jax.tree.map(lambda leaf: 1e-6 * (1.0 + jnp.cos(leaf) ** 2), params)

    def by_vmap(p: Any, z: Any, values: Any) -> jax.Array:
        each = jax.vmap(jax.grad(u), (None, 0))(p, z)
        parts = jax.tree.map(
            lambda g, v: jnp.sum(jnp.reshape(g**2 * v, (g.shape[0], -1)), axis=1), each, values
        )
        return sum(jax.tree.leaves(parts), jnp.zeros(()))

    built = compiled(by_vmap, params, z, values)
    jax.block_until_ready(built.call(params, z, values))
    slow = sorted(once(lambda: built.call(params, z, values)) for _ in range(3))[1]
    note = f"{1e3 * slow:.0f} ms and {built.temporary / 1e9:.1f} GB, {slow / base.median:.0f} plain gradients"
    return Row(case.title, "vmap(grad) over variance", slow / variance.median, 20.0, note, at_least=True)


def dispatch(seconds: float) -> list[Row]:
    """A second call with one case of a small network: what the call itself costs."""
    u, params, z = mlp(width=32, batch=1)
    sigma = _sigma(params)
    gradient = jax.jit(plain_gradient(u))
    works = {"plain": lambda: gradient(params, z), "variance": lambda: dv.variance(u, params, z, sigma)}
    times = interleaved(works, repeats=40, calls=25, seconds=seconds, warm=5)
    extra = 1e3 * (times["variance"].median - times["plain"].median)
    note = f"{1e3 * times['variance'].median:.3f} ms against {1e3 * times['plain'].median:.3f} ms"
    return [
        Row("one case of an MLP 64-32-32-1", "variance, ms more than a jitted gradient", extra, 0.3, note)
    ]


def array_valued(seconds: float) -> list[Row]:
    """21 components of the rollout's last state against one forward pass and 21 vmapped pull-backs."""
    title = f"the rollout, u with {COMPONENTS} components"
    u, params, z = rollout(components=COMPONENTS)
    sigma = _sigma(params)

    def pullbacks(p: Any, z: Any) -> Any:
        value, pull = jax.vjp(lambda q: jax.vmap(u, (None, 0))(q, z), p)
        one = lambda e: pull(jnp.broadcast_to(e, value.shape))[0]  # noqa: E731
        return jax.vmap(one)(jnp.eye(COMPONENTS, dtype=value.dtype))

    base = compiled(pullbacks, params, z)
    variance = compiled(lambda p, z, s: dv.variance(u, p, z, s), params, z, sigma)
    works = {"plain": lambda: base.call(params, z), "variance": lambda: dv.variance(u, params, z, sigma)}
    times = interleaved(works, seconds=seconds)
    note = _note(times["variance"], times["plain"])
    cost = ratio(times["variance"], times["plain"])
    memory = f"{variance.temporary / MEGA:.1f} MB against {base.temporary / MEGA:.1f} MB"
    return [
        Row(title, "variance, time over one forward and 21 pull-backs", cost, 1.3, note),
        Row(title, "variance, temporary memory", variance.temporary / base.temporary, None, memory),
        _compilation(title, "variance", variance, base),
    ]
