"""Error distributions with mean zero that are given by their variance: Gaussian, Laplace, Student.

Each knows its log-density, distribution function, quantile and CRPS, all elementwise. The variance `s` is
that of the whole distribution, so that the three can be compared and exchanged.
"""

import abc
from collections.abc import Mapping
from types import MappingProxyType

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.scipy import stats
from jax.scipy.special import betainc, betaln, gammaln, ndtri
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from deltavariance.metrics.cases import brief, known


class Family(eqx.Module):
    """A symmetric distribution of errors around zero with a given variance."""

    @abc.abstractmethod
    def log_density(self, errors: Array, variance: Array) -> Array:
        """`log p(e)`, elementwise."""

    @abc.abstractmethod
    def cdf(self, errors: Array, variance: Array) -> Array:
        """`P(E ≤ e)`, elementwise."""

    @abc.abstractmethod
    def quantile(self, level: ArrayLike, variance: Array) -> Array:
        """The e with `P(E ≤ e) = level`, elementwise."""

    @abc.abstractmethod
    def crps(self, errors: Array, variance: Array) -> Array:
        """`E|E − e| − ½ E|E − E'|` with E, E' independent draws, elementwise; lower is better."""


class Gaussian(Family):
    """`N(0, s)`."""

    def log_density(self, errors: Array, variance: Array) -> Array:
        return -0.5 * (jnp.log(2 * jnp.pi * variance) + errors**2 / variance)

    def cdf(self, errors: Array, variance: Array) -> Array:
        return stats.norm.cdf(errors / jnp.sqrt(variance))

    def quantile(self, level: ArrayLike, variance: Array) -> Array:
        return ndtri(jnp.asarray(level, variance.dtype)) * jnp.sqrt(variance)

    def crps(self, errors: Array, variance: Array) -> Array:
        scale = jnp.sqrt(variance)
        x = errors / scale
        density, below = stats.norm.pdf(x), stats.norm.cdf(x)
        return scale * (x * (2 * below - 1) + 2 * density - 1 / jnp.sqrt(jnp.pi))


class Laplace(Family):
    """Density `exp(−|e|/b) / 2b` with `2b² = s`."""

    def log_density(self, errors: Array, variance: Array) -> Array:
        return -0.5 * jnp.log(2 * variance) - jnp.abs(errors) * jnp.sqrt(2 / variance)

    def cdf(self, errors: Array, variance: Array) -> Array:
        tail = 0.5 * jnp.exp(-jnp.abs(errors) * jnp.sqrt(2 / variance))
        return jnp.where(errors < 0, tail, 1 - tail)

    def quantile(self, level: ArrayLike, variance: Array) -> Array:
        p = jnp.asarray(level, variance.dtype)
        return -jnp.sign(p - 0.5) * jnp.log1p(-2 * jnp.abs(p - 0.5)) * jnp.sqrt(variance / 2)

    def crps(self, errors: Array, variance: Array) -> Array:
        b = jnp.sqrt(variance / 2)
        size = jnp.abs(errors)
        return size + b * jnp.exp(-size / b) - 0.75 * b


class Student(Family):
    """Student's t with `df > 2` degrees of freedom, scaled to variance s: the scale is `√(s (df − 2)/df)`.

    `df` is a number, or an array `[*quantities]` with one value a quantity.
    """

    df: Float[Array, "..."]

    def __init__(self, df: ArrayLike) -> None:
        self.df = jnp.asarray(df, jnp.result_type(df, float))
        if known(self.df) and not bool(jnp.all(self.df > 2)):
            raise ValueError(
                f"Student errors with df = {self.df} have no variance. Give degrees of freedom above 2, or"
                " use Laplace errors for heavy tails."
            )

    def __repr__(self) -> str:
        return f"Student(df={brief(self.df)})"

    def _in(self, variance: Array) -> tuple[Array, Array]:
        """The degrees of freedom at the precision of the data, and the scale."""
        df = self.df.astype(variance.dtype)
        return df, jnp.sqrt(variance * (df - 2) / df)

    def log_density(self, errors: Array, variance: Array) -> Array:
        df, scale = self._in(variance)
        constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(df * jnp.pi)
        return constant - jnp.log(scale) - (df + 1) / 2 * jnp.log1p((errors / scale) ** 2 / df)

    def cdf(self, errors: Array, variance: Array) -> Array:
        df, scale = self._in(variance)
        x = errors / scale
        tail = 0.5 * betainc(df / 2, 0.5, df / (df + x**2))
        return jnp.where(x < 0, tail, 1 - tail)

    def quantile(self, level: ArrayLike, variance: Array) -> Array:
        p = jnp.asarray(level, variance.dtype)
        df, scale = self._in(variance)
        return jnp.sign(p - 0.5) * _upper_t(jnp.abs(p - 0.5), df) * scale

    def crps(self, errors: Array, variance: Array) -> Array:
        df, scale = self._in(variance)
        x = errors / scale
        unit = jnp.broadcast_to(df / (df - 2), x.shape)
        density = jnp.exp(self.log_density(x, unit))
        below = self.cdf(x, unit)
        spread = jnp.exp(betaln(0.5, df - 0.5) - 2 * betaln(0.5, df / 2))
        return scale * (
            x * (2 * below - 1) + 2 * density * (df + x**2) / (df - 1) - 2 * jnp.sqrt(df) / (df - 1) * spread
        )


def _upper_t(excess: Array, df: Array) -> Array:
    """The x ≥ 0 with `P(0 < T ≤ x) = excess`: bisection in `df/(df + x²)`, which lies between 0 and 1."""
    target = 1 - 2 * excess
    low = jnp.zeros(jnp.broadcast_shapes(excess.shape, df.shape), target.dtype)
    high = jnp.ones_like(low)

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (bracket[0] + bracket[1])
        above = betainc(df / 2, 0.5, middle) > target
        return jnp.where(above, bracket[0], middle), jnp.where(above, middle, bracket[1])

    low, high = lax.fori_loop(0, 60, halve, (low, high))
    middle = 0.5 * (low + high)
    return jnp.sqrt(df * (1 - middle) / middle)


FAMILIES: Mapping[str, Family | None] = MappingProxyType(
    {"laplace": Laplace(), "gaussian": Gaussian(), "student": None}
)
"""The names that the public functions take; a Student's degrees of freedom are fitted unless given."""


def as_family(family: "str | Family") -> Family | None:
    """The family of that name, or the family itself; None stands for a Student whose df is to be fitted."""
    if isinstance(family, Family):
        return family
    if family not in FAMILIES:
        raise ValueError(
            f"There is no error family {family!r}: the names are {', '.join(map(repr, FAMILIES))}. A Family"
            " object such as `dv.tune.Student(df=4)` is taken too."
        )
    return FAMILIES[family]
