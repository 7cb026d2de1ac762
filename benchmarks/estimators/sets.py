"""Six data sets, each with its kind of output, and two quantities: the prediction, and one made of two of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import deltavariance as dv

WIDTH = 24


@dataclass(frozen=True)
class Part:
    """One split: what the models are trained on, and cases `z` with targets for each quantity, validation first."""

    x: np.ndarray
    y: np.ndarray
    held_x: np.ndarray
    held_y: np.ndarray
    validation: int


@dataclass(frozen=True)
class Set:
    """A data set. `kind` says how outputs become a likelihood; `parts` are splits whose tests do not overlap."""

    name: str
    title: str
    kind: str
    outputs: int
    parts: Callable[[], Iterator[Part]]


def network(outputs: int, inputs: int) -> Callable[[Any], Any]:
    """Initial parameters of a network of two hidden layers."""

    def start(key: Any) -> Any:
        sizes = [inputs, WIDTH, WIDTH, outputs]
        keys = jax.random.split(key, 3)
        return {
            name: {
                "w": jax.random.normal(k, (fan, out)) / fan**0.5,
                "b": jnp.zeros(out),
            }
            for name, k, fan, out in zip(
                ("first", "second", "last"), keys, sizes[:-1], sizes[1:], strict=True
            )
        }

    return start


def predict(params: Any, x: Any) -> Any:
    h = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
    h = jnp.tanh(h @ params["second"]["w"] + params["second"]["b"])
    return h @ params["last"]["w"] + params["last"]["b"]


def likelihood(kind: str, part: Part) -> Any:
    """The log-density of one example. The Gaussian's noise is a linear regression's, as good a guess as any."""
    if kind == "gaussian":
        design = np.concatenate([part.x, np.ones((len(part.x), 1))], axis=1)
        residuals = part.y - design @ np.linalg.lstsq(design, part.y)[0]
        return dv.gaussian_log_likelihood(lambda p, x: predict(p, x)[0], scale=float(residuals.std()))
    if kind == "bernoulli":
        return dv.bernoulli_log_likelihood(lambda p, x: predict(p, x)[0])
    return dv.categorical_log_likelihood(predict)


# The quantities, one case each. A pair is two neighbouring cases of the held-out data.
def value(p: Any, z: Any) -> Any:
    return predict(p, z)[0]


def product(p: Any, z: Any) -> Any:
    return predict(p, z[0])[0] * predict(p, z[1])[0]


def probability(p: Any, z: Any) -> Any:
    return jax.nn.sigmoid(predict(p, z)[0])


def at_least_one(p: Any, z: Any) -> Any:
    return 1 - (1 - probability(p, z[0])) * (1 - probability(p, z[1]))


def confidence(p: Any, z: Any) -> Any:
    x, label = z
    return jax.nn.softmax(predict(p, x))[label]


def same_class(p: Any, z: Any) -> Any:
    return jnp.sum(jax.nn.softmax(predict(p, z[0])) * jax.nn.softmax(predict(p, z[1])))


Asked = tuple[str, Callable[[Any, Any], Any], Any, Any]


def quantities(kind: str, part: Part, params: Any) -> list[Asked]:
    """Name, u, cases and targets: u = f, and u ≠ f."""
    x, y = jnp.asarray(part.held_x), jnp.asarray(part.held_y)
    # Pairs never join validation and test.
    order = np.arange(len(y))
    cut = part.validation
    other = np.concatenate([np.roll(order[:cut], -1), np.roll(order[cut:], -1)])
    pairs = (x, x[other])
    if kind == "gaussian":
        return [("u = f", value, x, y), ("u = f(z₁) f(z₂)", product, pairs, y * y[other])]
    if kind == "bernoulli":
        either = jnp.maximum(y, y[other])
        return [("u = p(z)", probability, x, y), ("u = P(z₁ or z₂)", at_least_one, pairs, either)]
    guess = jnp.argmax(jax.vmap(lambda row: predict(params, row))(x), axis=1)
    right = (guess == y).astype(jnp.float32)
    same = (y == y[other]).astype(jnp.float32)
    return [("u = p(guess)", confidence, (x, guess), right), ("u = P(same class)", same_class, pairs, same)]


def folds(x: Any, y: Any, count: int, seed: int = 0) -> Iterator[Part]:
    """Each fold is held out once, one half of it for validation and the other for the test, and then the other way."""
    x, y = np.asarray(x, np.float32), np.asarray(y)
    order = np.random.default_rng(seed).permutation(len(y))
    for fold in range(count):
        held = order[fold::count]
        rest = np.setdiff1d(order, held)
        mean, scale = x[rest].mean(axis=0), x[rest].std(axis=0) + 1e-6
        scaled = ((x - mean) / scale).astype(np.float32)
        half = len(held) // 2
        for first, second in ((held[:half], held[half:]), (held[half:], held[:half])):
            both = np.concatenate([first, second])
            yield Part(scaled[rest], y[rest], scaled[both], y[both], len(first))


def _standard(y: Any) -> np.ndarray:
    y = np.asarray(y, np.float32)
    return (y - y.mean()) / y.std()


def diabetes() -> Iterator[Part]:
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    return folds(data.data, _standard(data.target), 4)


def breast_cancer() -> Iterator[Part]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    return folds(data.data, data.target.astype(np.float32), 4)


def digits() -> Iterator[Part]:
    from sklearn.datasets import load_digits

    data = load_digits()
    keep = np.random.default_rng(1).permutation(len(data.target))[:1200]
    return folds(data.data[keep], data.target[keep], 2)


def visits() -> Iterator[Part]:
    """Visits to a doctor, a count with a long tail, by a Gaussian model of its logarithm."""
    import statsmodels.api as sm

    data = sm.datasets.randhie.load_pandas().data.sample(4000, random_state=0)
    return folds(data.drop(columns="mdvis"), _standard(np.log1p(data["mdvis"])), 2)


def _simulated(
    signal: Callable[[Any], Any], noise: Callable[[Any, Any], Any], n: int = 800
) -> Iterator[Part]:
    """Fresh data; held-out targets are the true signal, so that errors are the model's alone."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((n, 4)).astype(np.float32)
    held = rng.standard_normal((4000, 4)).astype(np.float32)
    y = signal(x) + noise(rng, x)
    yield Part(x, y.astype(np.float32), held, signal(held).astype(np.float32), 1000)


def _wave(x: Any) -> Any:
    return np.sin(2 * x[:, 0]) + x[:, 1] * np.tanh(x[:, 2])


def heteroscedastic() -> Iterator[Part]:
    """Noise from 0.1 to 1.1 along one input, fitted as if it were constant."""
    return _simulated(
        _wave, lambda rng, x: (0.1 + 1 / (1 + np.exp(-3 * x[:, 0]))) * rng.standard_normal(len(x))
    )


def misspecified() -> Iterator[Part]:
    """A signal with jumps, which no tanh network of this size can follow, and Student noise taken for Gaussian."""
    return _simulated(
        lambda x: _wave(x) + np.sign(x[:, 0] * x[:, 3]), lambda rng, x: 0.4 * rng.standard_t(3, len(x))
    )


SETS = (
    Set("diabetes", "diabetes (scikit-learn)", "gaussian", 1, diabetes),
    Set("cancer", "breast cancer (scikit-learn)", "bernoulli", 1, breast_cancer),
    Set("digits", "digits (scikit-learn)", "categorical", 10, digits),
    Set("visits", "doctor visits (statsmodels)", "gaussian", 1, visits),
    Set("heteroscedastic", "simulated, heteroscedastic", "gaussian", 1, heteroscedastic),
    Set("misspecified", "simulated, misspecified", "gaussian", 1, misspecified),
)
