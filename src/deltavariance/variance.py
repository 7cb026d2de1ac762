"""The number: `Var[u(z)] ≈ Δᵀ Σ Δ` with `Δ = ∇_θ u(z)`, for any u, cases by the batch."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from deltavariance import cases as _cases
from deltavariance.covariance import Covariance
from deltavariance.memory import largest_batch
from deltavariance.parameters import Frozen, Layout, freeze
from deltavariance.several import Several
from deltavariance.tracing import ExampleGradients, as_real_array, example_gradients

PyTree = Any
Quantity = Callable[[Any, Any], Any]


def variance(
    u: Quantity,
    params: PyTree,
    z: PyTree,
    sigma: Covariance | PyTree,
    *,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    check: bool = True,
) -> Float[Array, "n *u"] | PyTree:
    """The Delta Variance `ΔᵀΣΔ` of `u(params, z[i])` for each case i: `[n, *u.shape]`.

    `u(params, z)` takes one case and returns a scalar or an array of any shape, of which every component gets its
    variance; one forward pass serves them all. With `check`, a NaN in u or its gradient is an error that names the
    case (not inside `jit`). Cases run in batches that keep within `memory_budget` bytes.

    Several Σ of the same parameters, in a list or dictionary, share the gradients, and are answered in kind.

    Cost: one gradient a component, however many Σ there are; each adds its contraction.

    >>> import jax.numpy as jnp
    >>> import deltavariance as dv
    >>> params = {"rate": jnp.array(0.9)}
    >>> sigma = dv.as_covariance(params, 1e-4)
    >>> years = jnp.array([1.0, 10.0])
    >>> v = dv.variance(lambda p, z: p["rate"] ** z, params, years, sigma)
    >>> bool(jnp.allclose(v, (years * 0.9 ** (years - 1)) ** 2 * 1e-4))
    True
    """
    return _run(_total, u, params, z, sigma, batch_size, memory_budget, check)


def block_variances(
    u: Quantity,
    params: PyTree,
    z: PyTree,
    sigma: Covariance | PyTree,
    *,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    check: bool = True,
) -> dict[str, Float[Array, "n *u"]] | PyTree:
    """`variance` split by block: `{block name: [n, *u.shape]}`, summing to the whole. Same cost."""
    return _run(_parts, u, params, z, sigma, batch_size, memory_budget, check)


def covariance(
    u: Quantity,
    params: PyTree,
    z: PyTree,
    sigma: Covariance | PyTree,
    *,
    joint: bool = False,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    check: bool = True,
) -> Float[Array, "..."] | PyTree:
    """`Δ_k Σ Δ_l` among the k components of u: `[n, k, k]`; with `joint`, among all cases too: `[n·k, n·k]`.

    Components are flattened in C order; in the joint matrix the case varies slowest. Cost: one gradient a component,
    written out (K·P numbers a case, or n·k·P at once for `joint`), and one multiplication by Σ.
    """
    if joint and not isinstance(sigma, Covariance):
        raise TypeError(
            "A joint covariance over all cases is made for one Σ at a time: ask for each by itself."
        )
    if not joint:
        return _run(_cross, u, params, z, sigma, batch_size, memory_budget, check)
    rows = gradient_rows(
        u, params, z, sigma.layout, batch_size=batch_size, memory_budget=memory_budget, check=check
    )
    rows = jnp.reshape(rows, (-1, sigma.layout.size))
    return rows @ sigma.matvec(rows).T


def gradient_rows(
    u: Quantity,
    params: PyTree,
    z: PyTree,
    layout: Layout,
    *,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    check: bool = True,
) -> Float[Array, "n k P"]:
    """All gradients written out: `[n, k, P]`. Only for few parameters or few cases."""
    return _run(_rows, u, params, z, _Bare(layout), batch_size, memory_budget, check)


class _Bare:
    """In place of a Σ where only the layout is needed. Static and without arrays."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __hash__(self) -> int:
        return hash(self.layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bare) and other.layout == self.layout


jax.tree_util.register_static(_Bare)


def _shaped(x: Array, gradients: ExampleGradients) -> Array:
    return jnp.reshape(jnp.moveaxis(x, 0, 1), gradients.value.shape)


def _total(gradients: ExampleGradients, sigma: Any) -> Any:
    if isinstance(sigma, Several):
        return sigma.contract(_total, gradients)
    parts = list(sigma.block_quadratic(gradients).values())
    return _shaped(sum(parts[1:], parts[0]), gradients)


def _parts(gradients: ExampleGradients, sigma: Any) -> Any:
    if isinstance(sigma, Several):
        return sigma.contract(_parts, gradients)
    return {name: _shaped(part, gradients) for name, part in sigma.block_quadratic(gradients).items()}


def _cross(gradients: ExampleGradients, sigma: Any) -> Any:
    if isinstance(sigma, Several):
        return sigma.contract(_cross, gradients)
    return sigma.cross(gradients)


def _rows(gradients: ExampleGradients, sigma: Any) -> Array:
    return jnp.moveaxis(gradients.rows(), 0, 1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _contract(
    what: Callable[[ExampleGradients, Any], Any],
    u: Frozen,
    params: Frozen,
    u_arrays: list[Array],
    arrays: list[Array],
    z: PyTree,
    sigma: Any,
) -> tuple[Any, Array]:
    """The compiled heart: gradients, contraction, and for each case whether u and its result are finite."""
    gradients = example_gradients(u.thaw(u_arrays), params.thaw(arrays), z, where=sigma.layout)
    if not any(gradients.leaves):
        # Seen once a compilation, as is all that only the function's text can tell.
        warnings.warn(f"{u} does not depend on any uncertain parameter: its variance is 0.", stacklevel=5)
    result = what(gradients, sigma)
    n = gradients.cases
    finite = [
        jnp.all(jnp.isfinite(jnp.reshape(x, (n, -1))), axis=1)
        for x in [gradients.value, *jax.tree.leaves(result)]
    ]
    return result, jnp.all(jnp.stack(finite), axis=0)


def _run(
    what: Callable[[ExampleGradients, Any], Any],
    u: Quantity,
    params: PyTree,
    z: PyTree,
    sigma: Any,
    batch_size: int | None,
    memory_budget: int | None,
    check: bool,
) -> Any:
    n = _cases.count(z, "z")
    if not isinstance(sigma, (Covariance, _Bare)):
        sigma = Several.of(sigma)
    sigma.layout.check(params)
    u_arrays, u_frozen = hashable(u)
    arrays, frozen = freeze(params)
    call = functools.partial(_contract, what, u_frozen, frozen)
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((u_arrays, arrays, z, sigma)))
    size = (
        n
        if n == 1 and batch_size is None
        else largest_batch((u_arrays, u_frozen), (arrays, frozen), z, sigma.layout, batch_size, memory_budget)
    )
    if n <= size:
        result, finite = call(u_arrays, arrays, z, sigma)
    elif traced:
        # Inside a trace the batches become a loop; a fresh Python loop would be compiled once a batch.
        result, finite = lax.map(
            lambda case: jax.tree.map(
                lambda x: x[0], call(u_arrays, arrays, jax.tree.map(lambda x: x[None], case), sigma)
            ),
            z,
            batch_size=size,
        )
    else:
        size = _cases.even_size(n, size)
        found = []
        for start in range(0, n, size):
            stop = min(start + size, n)
            part = call(u_arrays, arrays, _cases.pad(_cases.take(z, start, stop), size), sigma)
            found.append(jax.tree.map(lambda x, real=stop - start: x[:real], part))
        result, finite = jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)
    if check and not isinstance(finite, jax.core.Tracer):
        _raise_unless_finite(np.asarray(finite), u_frozen, u_arrays, frozen, arrays, z, sigma.layout)
    return result


def hashable(u: Quantity) -> tuple[list[Array], Frozen]:
    """A function as arrays and a hashable rest; an object that cannot be hashed is an error with advice."""
    if not callable(u):
        raise TypeError(f"u must be a function u(params, z), and it is a {type(u).__name__}.")
    arrays, frozen = freeze(u)
    try:
        hash(frozen)
    except TypeError:
        raise TypeError(
            f"The function {u!r:.100} cannot be hashed, so it cannot be compiled once and kept. Wrap it in a plain"
            " function: `def quantity(params, z): ...`."
        ) from None
    return arrays, frozen


def _raise_unless_finite(
    finite: Any, u: Frozen, u_arrays: Any, params: Frozen, arrays: Any, z: PyTree, layout: Layout
) -> None:
    if finite.all():
        return
    bad = np.flatnonzero(~finite)
    first = jax.tree.map(lambda leaf: leaf[int(bad[0])], z)
    value = np.asarray(as_real_array(u.thaw(u_arrays)(params.thaw(arrays), first)))
    what = (
        "u itself is not finite"
        if not np.isfinite(value).all()
        else "u is finite and its gradient or variance is not"
    )
    raise ValueError(
        f"{len(bad)} of {len(finite)} cases gave NaN or infinity, the first at index {int(bad[0])}: {what} there."
        " Typical causes are a square root or logarithm at zero and a division by zero (`jnp.where` around them does"
        " not help the gradient: mask the argument too), or non-finite parameters. `check=False` returns the numbers"
        " as they are."
    )
