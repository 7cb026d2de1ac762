"""Any Σ as named arrays and a description in plain JSON, and back. No code is stored; only this library's own
dataclasses are ever made from a file."""

import dataclasses
import enum
import importlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core.primitives as known_primitives
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from deltavariance.covariance.base import Covariance

PACKAGE = "deltavariance."


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
    if isinstance(value, enum.Enum):
        return {"enum": _class_name(type(value), name), "member": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, (tuple, list)):
        items = [_pack(item, f"{name}/{number}", tensors) for number, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, Mapping):
        return {"mapping": [[key, _pack(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, Primitive):
        return {"primitive": value.name}
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _pack(getattr(value, field.name), f"{name}/{field.name}", tensors)
            for field in dataclasses.fields(value)
            if field.init
        }
        return {"class": _class_name(type(value), name), "fields": fields}
    raise TypeError(
        f"A Σ that holds a {type(value).__name__} cannot be saved ({name}). Save a Σ of a structure that stores"
        " numbers."
    )


def _unpack(description: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    kind, content = next(iter(description.items()))
    if kind == "array":
        return jnp.asarray(tensors[content])
    if kind == "value":
        return content
    if kind in ("tuple", "list"):
        items = [_unpack(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "mapping":
        return {key: _unpack(item, tensors) for key, item in content}
    if kind == "primitive":
        return getattr(known_primitives, f"{content}_p")
    if kind == "enum":
        return _class(content, enum.Enum)[description["member"]]  # type: ignore[index]
    fields = {name: _unpack(item, tensors) for name, item in description["fields"].items()}
    return _class(content, object)(**fields)


def _class_name(cls: type, name: str) -> str:
    if not cls.__module__.startswith(PACKAGE):
        raise TypeError(f"A Σ that holds a {cls.__qualname__} of another package cannot be saved ({name}).")
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str, base: type) -> type:
    """The class of this library that a file names; anything else in a file is refused."""
    module, _, qualname = name.partition(":")
    found = None
    if module.startswith(PACKAGE):
        try:
            found = getattr(importlib.import_module(module), qualname, None)
        except ModuleNotFoundError:
            found = None
    plain = isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, enum.Enum))
    if not plain or not issubclass(found, base):  # type: ignore[arg-type]
        raise ValueError(f"The file holds a {name!r}, which this version of the library does not know.")
    return found  # type: ignore[return-value]
