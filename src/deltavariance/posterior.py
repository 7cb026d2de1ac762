"""Parameters with their Σ: the object that answers questions, and that can be saved."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from safetensors import safe_open
from safetensors.numpy import save_file

from deltavariance.covariance import Covariance
from deltavariance.covariance.storage import pack, unpack
from deltavariance.report import Report
from deltavariance.variance import block_variances, covariance, variance

PyTree = Any
FORMAT = "deltavariance posterior 1"


class Posterior(eqx.Module):
    """Trained parameters and the covariance that limited data leave them with."""

    params: PyTree
    sigma: Covariance
    summary: Report | None = eqx.field(static=True, default=None)

    def variance(self, u: Callable[..., Any], z: PyTree, **options: Any) -> Float[Array, "n *u"]:
        """`dv.variance` of `u(params, z[i])`."""
        return variance(u, self.params, z, self.sigma, **options)

    def std(self, u: Callable[..., Any], z: PyTree, **options: Any) -> Float[Array, "n *u"]:
        """The square root of `variance`."""
        return jnp.sqrt(self.variance(u, z, **options))

    def block_variances(
        self, u: Callable[..., Any], z: PyTree, **options: Any
    ) -> dict[str, Float[Array, "n *u"]]:
        """`variance` split by block."""
        return block_variances(u, self.params, z, self.sigma, **options)

    def covariance(self, u: Callable[..., Any], z: PyTree, **options: Any) -> Float[Array, "..."]:
        """`dv.covariance` among the components of u, or with `joint=True` among all cases."""
        return covariance(u, self.params, z, self.sigma, **options)

    def mean(self, u: Callable[..., Any], z: PyTree) -> Float[Array, "n *u"]:
        """`u(params, z[i])` itself."""
        return jax.vmap(u, (None, 0))(self.params, z)

    def interval(
        self,
        u: Callable[..., Any],
        z: PyTree,
        *,
        level: float = 0.95,
        transform: Callable[[Array], Array] | None = None,
        inverse: Callable[[Array], Array] | None = None,
        **options: Any,
    ) -> tuple[Float[Array, "n *u"], Float[Array, "n *u"]]:
        """The central normal interval of u at `level`: lower and upper ends.

        For a quantity that is positive or bounded, give a `transform` (`jnp.log`, a logit) and its `inverse`: the
        interval is symmetric for the transformed quantity and its ends are carried back, so it stays within bounds.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, and it is {level}.")
        if (transform is None) != (inverse is None):
            raise ValueError("Give `transform` and `inverse` together, or neither.")
        width = NormalDist().inv_cdf(0.5 + level / 2)
        if transform is None or inverse is None:
            centre, spread = self.mean(u, z), self.std(u, z, **options)
            return centre - width * spread, centre + width * spread
        centre = transform(self.mean(u, z))
        # By the chain rule: the standard deviation of t(u) is |t'(u)| times that of u.
        slope = jax.vmap(jax.grad(lambda x: transform(x)))(jnp.ravel(self.mean(u, z))).reshape(centre.shape)
        spread = jnp.abs(slope) * self.std(u, z, **options)
        ends = inverse(centre - width * spread), inverse(centre + width * spread)
        return jnp.minimum(*ends), jnp.maximum(*ends)

    def sample(self, key: PRNGKeyArray, draws: int) -> PyTree:
        """Parameters drawn from the normal distribution around the trained ones: `params` with a leading axis."""
        layout = self.sigma.layout
        shifts = layout.unflatten(self.sigma.sample(key, draws))
        moved = [
            leaf + shift.astype(leaf.dtype)
            for leaf, shift in zip(layout.take(self.params), shifts, strict=True)
        ]
        rest = jax.tree.map(
            lambda leaf: (
                jnp.broadcast_to(leaf, (draws, *jnp.shape(leaf)))
                if isinstance(leaf, (jax.Array, np.ndarray))
                else leaf
            ),
            self.params,
        )
        return layout.put(rest, moved)

    def report(self) -> Report:
        """What `fit` measured about this Σ. Printing it says what may be wrong."""
        if self.summary is None:
            raise ValueError(
                "This posterior was put together by hand, so there is no report: `dv.fit` makes one."
            )
        return self.summary

    def save(self, path: str | Path) -> None:
        """Write Σ and the uncertain parameters as safetensors: numbers and a description, no code."""
        layout = self.sigma.layout
        tensors, description = pack(self.sigma)
        for name, leaf in zip(layout.names, layout.take(self.params), strict=True):
            tensors[f"params/{name}"] = np.asarray(leaf)
        header = {
            "format": FORMAT,
            "sigma": json.dumps(description),
            "report": json.dumps(None if self.summary is None else self.summary.as_dict()),
        }
        save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, str(path), metadata=header)


def load(path: str | Path, params: PyTree) -> Posterior:
    """Read what `Posterior.save` wrote. `params` gives the pytree that the saved parameters are put into."""
    with safe_open(str(path), framework="numpy") as file:
        header = file.metadata() or {}
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{path} is no posterior saved by this library: its format is {header.get('format')!r}."
            )
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    sigma = unpack(tensors, json.loads(header["sigma"]))
    sigma.layout.check(params, f"{path}")
    saved = [jnp.asarray(tensors[f"params/{name}"]) for name in sigma.layout.names]
    report = json.loads(header["report"])
    summary = None if report is None else Report(**{**report, "warnings": tuple(report["warnings"])})
    return Posterior(sigma.layout.put(params, saved), sigma, summary)
