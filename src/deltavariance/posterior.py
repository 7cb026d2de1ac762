"""Parameters with their Σ: the object that answers questions, and that can be saved."""

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from deltavariance.covariance import Covariance
from deltavariance.covariance.storage import pack, unpack
from deltavariance.parameters import Layout
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
        """Write Σ as safetensors, with a description in JSON and a fingerprint of the parameters: numbers, no code.

        The parameters themselves are not written: they are the model's, and have a file of their own.
        """
        tensors, description = pack(self.sigma)
        summary = self.summary
        header = {
            "format": FORMAT,
            "version": version("deltavariance"),
            "structure": type(self.sigma).__name__ if summary is None else summary.structure,
            "num_data": json.dumps(None if summary is None else summary.num_data),
            "damping": json.dumps(None if summary is None else summary.damping),
            "fingerprint": fingerprint(self.sigma.layout, self.params),
            "sigma": json.dumps(description),
            "report": json.dumps(None if summary is None else summary.as_dict()),
        }
        contiguous = {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in tensors.items()}
        save_file(contiguous, str(path), metadata=header)


def load(path: str | Path, params: PyTree) -> Posterior:
    """Read what `Posterior.save` wrote, for the parameters that it was saved with: others are an error.

    Nothing is unpickled; a file that is cut short or is no posterior is an error.
    """
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} cannot be read: it is damaged, cut short, or no safetensors file ({error})."
        ) from error
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} is no posterior that this version can read: its format is {header.get('format')!r}, and {FORMAT!r}"
            " was expected."
        )
    sigma = unpack(tensors, json.loads(header["sigma"]))
    sigma.layout.check(params, f"{path}")
    if header["fingerprint"] != fingerprint(sigma.layout, params):
        raise ValueError(
            f"{path} was saved with other parameters: names and shapes agree, and the values differ. A covariance"
            " belongs to the parameters that it was fitted at: load those, or fit again."
        )
    report = json.loads(header["report"])
    summary = None if report is None else Report(**{**report, "warnings": tuple(report["warnings"])})
    return Posterior(params, sigma, summary)


def fingerprint(layout: Layout, params: PyTree) -> str:
    """A SHA-256 of the uncertain parameters: their names, shapes, types and values."""
    digest = hashlib.sha256()
    for name, leaf in zip(layout.names, layout.take(params), strict=True):
        values = np.asarray(leaf)
        digest.update(f"{name} {values.shape} {values.dtype};".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
