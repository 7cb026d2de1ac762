"""How an epistemic variance becomes the distribution of an error: `s = α + β ν`, in one of the families."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from deltavariance.metrics.cases import Cases, brief, known
from deltavariance.metrics.families import Family, Gaussian, as_family


class NoiseModel(eqx.Module):
    """Errors with mean zero and variance `s = α a(z) + β ν(z)`, α and β at least zero, one pair a quantity.

    `a` is 1 unless the user has an own aleatoric variance for each case, given as `aleatoric`. For Laplace
    errors `s = 2b²`, as in the paper. Made by `dv.tune.noise`; it can be written by hand as well.

    >>> model = NoiseModel(Gaussian(), alpha=0.5, beta=2.0)
    >>> float(model.total(1.0))
    2.5
    """

    family: Family
    alpha: Float[Array, "..."]
    beta: Float[Array, "..."]

    def __init__(self, family: Family, alpha: ArrayLike, beta: ArrayLike) -> None:
        self.family = family
        self.alpha = jnp.asarray(alpha, jnp.result_type(alpha, float))
        self.beta = jnp.asarray(beta, jnp.result_type(beta, float))
        if not isinstance(self.family, Family):
            raise TypeError(
                f"The family of a noise model is {self.family!r}; give one of the distributions of"
                " `dv.metrics`: Gaussian(), Laplace() or Student(df)."
            )
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if known(value) and bool(jnp.any(value < 0)):
                raise ValueError(f"`{name}` = {value} is below zero, which would make a variance negative.")

    def total(self, variance: Cases, aleatoric: Cases | None = None) -> Float[Array, "..."]:
        """The variance of the error itself, `α a + β ν`."""
        base = self.alpha if aleatoric is None else self.alpha * jnp.asarray(aleatoric)
        return base + self.beta * jnp.asarray(variance)

    def log_density(
        self,
        errors: Cases,
        variance: Cases,
        aleatoric: Cases | None = None,
    ) -> Float[Array, "..."]:
        """`log p(e)` of every case and quantity."""
        return self.family.log_density(jnp.asarray(errors), self.total(variance, aleatoric))

    def interval(
        self,
        prediction: Cases,
        variance: Cases,
        level: float = 0.9,
        aleatoric: Cases | None = None,
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """The central interval that holds the target with probability `level`, if the model is right."""
        if not 0 < level < 1:
            raise ValueError(
                f"`level` is {level}; the probability inside an interval lies between 0 and 1, as in 0.9."
            )
        half = self.family.quantile(0.5 + level / 2, self.total(variance, aleatoric))
        centre = jnp.asarray(prediction)
        return centre - half, centre + half

    def __repr__(self) -> str:
        return f"NoiseModel({self.family!r}, alpha={brief(self.alpha)}, beta={brief(self.beta)})"


def as_noise(noise: "NoiseModel | Family | str | None") -> NoiseModel:
    """The noise model meant: None and a family alone stand for `s = ν`, nothing fitted; None is Gaussian."""
    if isinstance(noise, NoiseModel):
        return noise
    family = Gaussian() if noise is None else as_family(noise)
    if family is None:
        raise ValueError(
            "Student errors need their degrees of freedom here: give `dv.metrics.Student(df=4)`."
        )
    return NoiseModel(family, alpha=0.0, beta=1.0)
