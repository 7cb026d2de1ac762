"""Any Σ as named arrays and a description in plain JSON, and back. No code is ever stored or run."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deltavariance.covariance.base import Covariance
from deltavariance.parameters import Layout


def pack(sigma: Covariance) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays of Σ by name, and what else is needed to put it together again."""
    tensors: dict[str, np.ndarray] = {}
    return tensors, _pack(sigma, "sigma", tensors)


def unpack(tensors: Mapping[str, np.ndarray], description: Any) -> Any:
    """The inverse of `pack`."""
    return _unpack(description, tensors)


def _pack(value: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        tensors[name] = np.asarray(value)
        return {"array": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, (tuple, list)):
        items = [_pack(item, f"{name}/{number}", tensors) for number, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, Mapping):
        return {"mapping": [[key, _pack(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    kind = type(value)
    if kind.__name__ in _storable() and dataclasses.is_dataclass(value):
        fields = {
            field.name: _pack(getattr(value, field.name), f"{name}/{field.name}", tensors)
            for field in dataclasses.fields(value)
        }
        return {"class": kind.__name__, "fields": fields}
    raise TypeError(
        f"A Σ that holds a {kind.__name__} cannot be saved ({name}). Save a Σ of a structure that stores numbers."
    )


def _unpack(description: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    ((kind, content), *rest) = description.items()
    if kind == "array":
        return jnp.asarray(tensors[content])
    if kind == "value":
        return content
    if kind in ("tuple", "list"):
        items = [_unpack(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "mapping":
        return {key: _unpack(item, tensors) for key, item in content}
    cls = _storable().get(content)
    if cls is None:
        raise ValueError(f"The file holds a {content!r}, which this version of the library does not know.")
    fields = {name: _unpack(item, tensors) for name, item in dict(rest)["fields"].items()}
    return cls(**fields)


def _storable() -> dict[str, type]:
    """The classes that may stand in a file: every Σ, its parts, and the layout."""

    def below(cls: type) -> list[type]:
        children: list[type] = cls.__subclasses__()
        return [cls, *(deeper for child in children for deeper in below(child))]

    return {cls.__name__: cls for cls in [Layout, *below(Covariance), *below(CovariancePart)]}


class CovariancePart:
    """A mixin for what a Σ holds besides numbers: dataclasses of this kind can be saved with it."""
