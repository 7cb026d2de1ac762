"""Per-example gradients in factored form.

For n cases and a u with K components, the gradient with respect to one leaf is a sum of forms, each of them kept
as small as its use allows:

| form | gradient of one case and component, in the form's frame | kept |
|---|---|---|
| `Products` | `G[n,i,o] = Σ_t a[n,t,i] g[n,t,o]` | `a [B,N,T,I]`, `g [K,B,N,T,O]` |
| `Rows` | row `numbers[t]` of `[V, D]` receives `g[t]`, summed over t | `numbers [B,T]`, `g [K,B,T,D]` |
| `Dense` | itself | `[K, B, *leaf shape]`, or with the axes that scans stacked in front |

`N` counts independent matrices in a stack (scanned layers, heads, groups of a convolution), `T` the uses that share
one. A form's `path` leads from the leaf to the frame.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from deltavariance.parameters import Layout
from deltavariance.tracing.plan import Use
from deltavariance.tracing.views import Path, Scanned


def _over_leading(function: Callable[..., Array], axes: int) -> Callable[..., Array]:
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def widened(x: Array) -> Array:
    """Half-precision factors are contracted in float32."""
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


def reordered(x: Array, order: Sequence[int]) -> Array:
    """`transpose`, as a reshape where it only moves axes of length one: XLA on a CPU would copy."""
    long = [axis for axis in order if x.shape[axis] != 1]
    if long == sorted(long):
        return jnp.reshape(x, [x.shape[axis] for axis in order])
    return jnp.transpose(x, order)


def with_axis(x: Array, axis: int) -> Array:
    """`expand_dims` as a reshape: as the broadcast that it is otherwise, XLA on a CPU would copy."""
    return jnp.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


class Part(eqx.Module):
    """One use of a weight: what was recorded, `[*scans, B, ...]`, and its cotangent, `[*scans, B, K, ...]`.

    The axes stay where scans and batching put them: moving them would copy what is largest in memory.
    """

    recorded: Array
    cotangent: Array
    use: Use = eqx.field(static=True)

    @property
    def scans(self) -> int:
        return len(self.use.lengths)

    def _arrange(self, x: Array, batch: Sequence[int], stack_first: bool) -> Array:
        """`[*scans, *batch axes, N, T, F]` to `[*batch axes as told, N', T', F]`: mapped scans join N, others T.

        With `stack_first`, N' comes before the batch axes.
        """
        stacked = [axis for axis, sliced in enumerate(self.use.mapped) if sliced]
        shared = [axis for axis, sliced in enumerate(self.use.mapped) if not sliced]
        n, t, f = range(x.ndim - 3, x.ndim)
        n_size = math.prod(x.shape[axis] for axis in (*stacked, n))
        t_size = math.prod(x.shape[axis] for axis in (*shared, t))
        sizes = [x.shape[axis] for axis in batch]
        front = (*stacked, n, *batch) if stack_first else (*batch, *stacked, n)
        shape = (n_size, *sizes, t_size) if stack_first else (*sizes, n_size, t_size)
        return jnp.reshape(reordered(x, (*front, *shared, t, f)), (*shape, x.shape[f]))

    def inputs(self, *, stack_first: bool = False) -> Float[Array, "..."]:
        """`a [B, N, T, I]`, or `[N, B, T, I]`."""
        assert self.use.rule is not None
        a = _over_leading(self.use.rule.inputs, self.scans + 1)(self.recorded)
        return self._arrange(a, (self.scans,), stack_first)

    def cotangents(self, *, stack_first: bool = False) -> Float[Array, "..."]:
        """`g [K, B, N, T, O]`, or `[N, K, B, T, O]`."""
        rule, k = self.use.rule, self.scans + 1
        assert rule is not None
        if self.cotangent.shape[k] == 1:
            # Without the axis of its one component: carried through, it would cost XLA on a CPU a copy.
            g = _over_leading(rule.cotangents, self.scans + 1)(jnp.squeeze(self.cotangent, k), self.recorded)
            return with_axis(self._arrange(g, (self.scans,), stack_first), 1 if stack_first else 0)
        each = jax.vmap(rule.cotangents, in_axes=(0, None))
        g = _over_leading(each, self.scans + 1)(self.cotangent, self.recorded)
        return self._arrange(g, (k, self.scans), stack_first)

    def cases(self, start: Any, size: int) -> "Part":
        """The part of some consecutive cases."""
        return Part(
            jax.lax.dynamic_slice_in_dim(self.recorded, start, size, axis=self.scans),
            jax.lax.dynamic_slice_in_dim(self.cotangent, start, size, axis=self.scans),
            self.use,
        )

    def component(self, k: Any, size: int = 1) -> "Part":
        """The part of one component of u, or of `size` of them."""
        some = jax.lax.dynamic_slice_in_dim(self.cotangent, k, size, axis=self.scans + 1)
        return Part(self.recorded, some, self.use)


class Products(eqx.Module):
    """Uses of a weight in products, all by the same path: they only lengthen the list of pairs (a, g)."""

    parts: tuple[Part, ...]
    path: Path = eqx.field(static=True)
    frame: tuple[int, ...] = eqx.field(static=True)
    pairs: int = eqx.field(static=True)

    @property
    def components(self) -> int:
        return int(self.parts[0].cotangent.shape[self.parts[0].scans + 1])

    @property
    def count(self) -> int:
        """B, the number of cases held."""
        return int(self.parts[0].recorded.shape[self.parts[0].scans])

    def factors(self) -> tuple[Float[Array, "B N T I"], Float[Array, "K B N T O"]]:
        """`a` and `g`. Cost: no arithmetic, but a convolution's patches are laid out here."""
        return self._joined(stack_first=False)

    def stacked_factors(self) -> tuple[Float[Array, "N B T I"], Float[Array, "N K B T O"]]:
        """`factors` with the stack in front: where a scan has left it there, nothing is moved."""
        return self._joined(stack_first=True)

    def _joined(self, *, stack_first: bool) -> tuple[Array, Array]:
        a = [widened(part.inputs(stack_first=stack_first)) for part in self.parts]
        g = [widened(part.cotangents(stack_first=stack_first)) for part in self.parts]
        if len(a) == 1:
            return a[0], g[0]
        return jnp.concatenate(a, axis=-2), jnp.concatenate(g, axis=-2)

    def explicit(self) -> Float[Array, "K B N I O"]:
        """`G = Σ_t a_t g_tᵀ` in the frame. Cost: K·B·N·T·I·O multiplications, and as many numbers less T."""
        a, g = self.factors()
        if g.shape[0] == 1:
            # With axes of length one among the batch axes XLA would copy G once more to order them.
            return jnp.einsum("bnti,bnto->bnio", a, g[0])[None]
        return jnp.einsum("bnti,kbnto->kbnio", a, g)

    def seen(self, leaf: Array) -> Float[Array, "N I O"]:
        """An array of the leaf's shape (a diagonal, say) in this form's frame."""
        return jnp.reshape(self.path.apply(leaf), self.frame)

    def dense(self, shape: Sequence[int]) -> Array:
        return _home(self.path, self.explicit(), shape, 2)

    def cases(self, start: Any, size: int) -> "Products":
        return Products(
            tuple(part.cases(start, size) for part in self.parts), self.path, self.frame, self.pairs
        )

    def component(self, k: Any, size: int = 1) -> "Products":
        return Products(
            tuple(part.component(k, size) for part in self.parts), self.path, self.frame, self.pairs
        )


class Rows(eqx.Module):
    """Rows picked from a table: row `numbers[b, t]` receives `g[k, b, t]`. A row picked twice receives both."""

    numbers: Int[Array, "B T"]
    g: Float[Array, "K B T D"]
    path: Path = eqx.field(static=True)
    frame: tuple[int, ...] = eqx.field(static=True)

    @property
    def count(self) -> int:
        """B, the number of cases held."""
        return int(self.g.shape[1])

    def seen(self, leaf: Array) -> Float[Array, "V D"]:
        """An array of the leaf's shape (a diagonal, say) in this form's frame."""
        return jnp.reshape(self.path.apply(leaf), self.frame)

    def merged(self) -> Float[Array, "K B T D"]:
        """`g` with the shares of equal rows summed into the first pick and zero in the others."""
        g = widened(self.g)

        def one(numbers: Array, g: Array) -> Array:
            first = jnp.argmax(numbers[:, None] == numbers[None, :], axis=1)
            return jnp.zeros_like(g).at[first].add(g)

        return jax.vmap(jax.vmap(one), in_axes=(None, 0))(self.numbers, g)

    def dense(self, shape: Sequence[int]) -> Array:
        def one(numbers: Array, g: Array) -> Array:
            return jnp.zeros(self.frame, g.dtype).at[numbers].add(g)

        table = jax.vmap(jax.vmap(one), in_axes=(None, 0))(self.numbers, widened(self.g))
        return _home(self.path, table, shape, 2)

    def cases(self, start: Any, size: int) -> "Rows":
        return Rows(
            jax.lax.dynamic_slice_in_dim(self.numbers, start, size, axis=0),
            jax.lax.dynamic_slice_in_dim(self.g, start, size, axis=1),
            self.path,
            self.frame,
        )

    def component(self, k: Any, size: int = 1) -> "Rows":
        return Rows(
            self.numbers, jax.lax.dynamic_slice_in_dim(self.g, k, size, axis=0), self.path, self.frame
        )


class Dense(eqx.Module):
    """The plain per-example gradient, `[*stack, K, B, *rest]`.

    The first `stack` axes of the leaf stay in front of those of components and cases, where scans have put them:
    moving them would copy what may be the largest array there is.
    """

    g: Float[Array, "..."]
    stack: int = eqx.field(static=True, default=0)

    @property
    def count(self) -> int:
        """B, the number of cases held."""
        return int(self.g.shape[self.stack + 1])

    def dense(self, shape: Sequence[int]) -> Array:
        g = widened(self.g)
        return g if self.stack == 0 else jnp.moveaxis(g, (self.stack, self.stack + 1), (0, 1))

    def cases(self, start: Any, size: int) -> "Dense":
        return Dense(jax.lax.dynamic_slice_in_dim(self.g, start, size, axis=self.stack + 1), self.stack)

    def component(self, k: Any, size: int = 1) -> "Dense":
        return Dense(jax.lax.dynamic_slice_in_dim(self.g, k, size, axis=self.stack), self.stack)


Form = Products | Rows | Dense


class ExampleGradients(eqx.Module):
    """The gradients of n cases: for each leaf of `layout`, the forms whose sum is its gradient."""

    leaves: tuple[tuple[Form, ...], ...]
    value: Float[Array, "B *u"]
    layout: Layout = eqx.field(static=True)

    @property
    def cases(self) -> int:
        return self.value.shape[0]

    @property
    def components(self) -> int:
        """K, the number of components of u."""
        return int(np.prod(self.value.shape[1:]))

    def leaf(self, number: int) -> Float[Array, "K B ..."]:
        """Leaf number `number`'s gradient written out: `[K, B, *shape]`."""
        shape = self.layout.shapes[number]
        return add_up([form.dense(shape) for form in self.leaves[number]], shape, self)

    def rows(self) -> Float[Array, "K B P"]:
        """All gradients written out and joined: `[K, B, P]`. Cost: K·B·P numbers."""
        return self.layout.flatten([self.leaf(number) for number in range(len(self.layout))])

    def dense(self) -> dict[str, Array]:
        """`{leaf name: [n, *u.shape, *leaf.shape]}`, for inspection and tests."""
        return {
            name: jnp.reshape(jnp.moveaxis(self.leaf(number), 0, 1), (*self.value.shape, *shape))
            for number, (name, shape) in enumerate(zip(self.layout.names, self.layout.shapes, strict=True))
        }


def add_up(terms: Sequence[Array], shape: Sequence[int], gradients: ExampleGradients) -> Array:
    """The sum of a leaf's terms; a leaf without any has gradient zero."""
    if not terms:
        return jnp.zeros((gradients.components, gradients.cases, *shape), widened(gradients.value).dtype)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _home(path: Path, value: Array, shape: Sequence[int], leading: int) -> Array:
    """Carry gradients with leading axes from a frame back to the leaf's shape."""
    return _over_leading(lambda one: path.transpose(one, shape), leading)(value)


def join(
    uses: Sequence[Use],
    recorded: Sequence[Array],
    cotangents: Sequence[Array],
    plain: dict[int, Array],
    layout: Layout,
) -> tuple[tuple[Form, ...], ...]:
    """Sort the uses of each leaf into forms; products by the same path become one.

    Recorded operands come as `[*scans, B, ...]`, cotangents as `[*scans, B, K, ...]`, plain gradients as
    `[K, B, *shape]`.
    """
    leaves: list[tuple[Form, ...]] = []
    for number, shape in enumerate(layout.shapes):
        if number in plain:
            leaves.append((Dense(plain[number]),))
            continue
        products: dict[Any, list[Part]] = {}
        rows: dict[Any, list[Rows]] = {}
        added: list[tuple[Use, Array]] = []
        for use in uses:
            if use.leaf != number:
                continue
            g = cotangents[use.tap]
            if use.rule is None:
                added.append((use, g))
            elif len(use.frame) == 2:
                assert use.recorded is not None
                rows.setdefault(use.path.key, []).append(_rows(use, recorded[use.recorded], g))
            else:
                assert use.recorded is not None
                products.setdefault((use.path.key, use.frame), []).append(
                    Part(recorded[use.recorded], g, use)
                )
        forms: list[Form] = [
            Products(
                tuple(parts), parts[0].use.path, _frame(parts[0].use), sum(_pairs(part) for part in parts)
            )
            for parts in products.values()
        ]
        forms += [
            Rows(
                jnp.concatenate([row.numbers for row in found], axis=1),
                jnp.concatenate([row.g for row in found], axis=2),
                found[0].path,
                found[0].frame,
            )
            for found in rows.values()
        ]
        if added:
            forms.append(_added(added, shape))
        leaves.append(tuple(forms))
    return tuple(leaves)


def _frame(use: Use) -> tuple[int, ...]:
    """`(N, I, O)` with the stack of the scans that slice the leaf counted in N."""
    stacked = [length for length, sliced in zip(use.lengths, use.mapped, strict=True) if sliced]
    n, i, o = use.frame
    return (int(np.prod(stacked)) * n, i, o)


def _pairs(part: Part) -> int:
    shape = jax.eval_shape(part.inputs)
    return int(shape.shape[2])


def _added(uses: Sequence[tuple[Use, Array]], shape: Sequence[int]) -> Dense:
    """A leaf that is added to products: its gradient is the sum of their cotangents, `[*scans, B, K, ...]` each."""
    use, g = uses[0]
    untouched = all(isinstance(step, Scanned) for step in use.path.steps)
    if len(uses) == 1 and untouched and all(use.mapped):
        scans = len(use.lengths)
        order = (*range(scans), scans + 1, scans, *range(scans + 2, g.ndim))
        return Dense(reordered(g, order), scans)
    terms = [_summed(use, g, shape) for use, g in uses]
    return Dense(sum(terms[1:], terms[0]))


def _summed(use: Use, g: Array, shape: Sequence[int]) -> Float[Array, "K B ..."]:
    """One use's cotangents, summed over the scans that share the leaf and carried home."""
    stacked = [axis for axis, sliced in enumerate(use.mapped) if sliced]
    shared = [axis for axis, sliced in enumerate(use.mapped) if not sliced]
    # Summed where the axes are, and put in order only then: what is left is smaller by the scans' lengths.
    kept = [axis for axis in range(g.ndim) if axis not in shared]
    summed = _sum_of_leading(widened(reordered(g, (*shared, *kept))), len(shared))
    case = len(stacked)
    order = (case + 1, case, *range(case), *range(case + 2, summed.ndim))
    return _home(use.path, reordered(summed, order), shape, 2)


def _sum_of_leading(x: Array, axes: int) -> Array:
    """The sum over the first axes, as a product with ones: some forty times faster than XLA's reduction on a CPU."""
    if axes == 0:
        return x
    terms = math.prod(x.shape[:axes])
    ones = jnp.ones((1, terms), x.dtype)
    summed = jnp.matmul(ones, jnp.reshape(x, (terms, -1)), precision=jax.lax.Precision.HIGHEST)
    return jnp.reshape(summed, x.shape[axes:])


def _rows(use: Use, recorded: Array, g: Array) -> Rows:
    """A look-up's rows, the enclosing scans laid out one after another."""
    assert use.rule is not None
    scans = len(use.lengths)
    numbers = jnp.moveaxis(_over_leading(use.rule.inputs, scans + 1)(recorded), scans, 0)
    each = jax.vmap(use.rule.cotangents, in_axes=(0, None))
    shares = _over_leading(each, scans + 1)(g, recorded)
    shares = jnp.moveaxis(shares, (scans + 1, scans), (0, 1))
    numbers = jnp.reshape(numbers, (numbers.shape[0], -1))
    shares = jnp.reshape(shares, (*shares.shape[:2], numbers.shape[1], -1))
    return Rows(numbers, shares, use.path, use.frame)
