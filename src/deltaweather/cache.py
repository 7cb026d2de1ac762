"""Results of stages, kept by a hash of what they depend on: a killed run continues where it stopped."""

import dataclasses
import errno
import hashlib
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class CacheFullError(OSError):
    """The disk was full while a result was written; earlier results are untouched."""


def content_hash(*parts: Any) -> str:
    """A hash of values: numbers, strings, arrays (NumPy or JAX), dataclasses, and containers of these.

    Equal content gives an equal hash in every process; the order of a mapping does not matter, types and
    shapes do. What has no defined content (a function, an open file) is refused.

    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    >>> content_hash(1) == content_hash(1.0)
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part):
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    kind = type(value).__name__.encode()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | Path):
        yield kind
        yield (
            value
            if isinstance(value, bytes)
            else str(value).encode()
            if isinstance(value, Path | str)
            else repr(value).encode()
        )
    elif isinstance(value, Mapping):
        yield b"mapping"
        yield str(len(value)).encode()
        for key in sorted(value, key=lambda k: content_hash(k)):
            yield from _pieces(key)
            yield from _pieces(value[key])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        for field in dataclasses.fields(value):
            yield field.name.encode()
            yield from _pieces(getattr(value, field.name))
    elif isinstance(value, tuple | list | Sequence):
        yield b"sequence"
        yield str(len(value)).encode()
        for item in value:
            yield from _pieces(item)
    elif hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError(
                f"An array of {array.dtype} has no content that can be hashed; give numbers or strings."
            )
        yield b"array"
        yield f"{array.dtype.str}{array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()
    else:
        raise TypeError(
            f"A value of type {type(value).__name__} has no content that can be hashed. Give numbers, "
            "strings, arrays, dataclasses or containers of these; for a dataset its fingerprint."
        )


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder: it becomes `path` when the block ends well, and vanishes if not.

    A reader sees the old file or the whole new one. A full disk raises `CacheFullError`; the old file stays.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=f".partial{path.suffix}", dir=path.parent
        )
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except OSError as error:
        if disk_is_full(error, path.parent):
            raise CacheFullError(
                f"The disk is full: {path} could not be written. Earlier results are kept; free some space "
                "and run the same command again to continue."
            ) from error
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def disk_is_full(error: OSError, folder: Path) -> bool:
    """Whether an error means that no space is left; libraries such as HDF5 hide the error number."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if "No space left" in str(error) or "Disk quota" in str(error):
        return True
    try:
        return error.errno is None and shutil.disk_usage(folder).free < 2**20
    except OSError:
        return False


@dataclass(frozen=True)
class Cache:
    """A folder of finished stages.

    >>> folder = tempfile.mkdtemp()
    >>> cache = Cache(Path(folder))
    >>> cache.stage("square", lambda: 7 * 7, {"x": 7})
    49
    >>> cache.stage("square", lambda: 1 / 0, {"x": 7})  # not computed again
    49
    """

    folder: Path

    def path(self, name: str, inputs: Any, suffix: str = ".pickle") -> Path:
        """Where the result of a stage lies: `name/hash.suffix`."""
        if not name or any(c in name for c in "/\\") or name.startswith("."):
            raise ValueError(f"A stage's name is a plain word, but {name!r} was given.")
        return self.folder / name / f"{content_hash(name, inputs)[:24]}{suffix}"

    def stage(
        self,
        name: str,
        compute: Callable[[], T],
        inputs: Any,
        *,
        save: Callable[[Path, T], None] | None = None,
        load: Callable[[Path], T] | None = None,
        suffix: str = ".pickle",
    ) -> T:
        """The result for these inputs: read if it is there, else computed and written whole.

        `save` and `load` replace pickling, for arrays and models. An entry that cannot be read (a disk error,
        another version) is computed anew. Beside each result lies a small JSON file that says what it is of.
        """
        path = self.path(name, inputs, suffix)
        if path.exists():
            try:
                return (load or _unpickle)(path)
            except (
                OSError,
                EOFError,
                ValueError,
                KeyError,
                AttributeError,
                ImportError,
                pickle.UnpicklingError,
            ):
                path.unlink(missing_ok=True)
        result = compute()
        with atomic_write(path) as temporary:
            (save or _pickle)(temporary, result)
        with atomic_write(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps({"stage": name, "inputs": _shown(inputs)}, indent=1))
        return result


def _pickle(path: Path, value: Any) -> None:
    with open(path, "wb") as file:
        pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickle(path: Path) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _shown(v) for k, v in value.items()}
    if isinstance(value, str | bool | int | float | None.__class__):
        return value
    if isinstance(value, list | tuple) and len(value) < 50:
        return [_shown(v) for v in value]
    text = repr(value)
    return text if len(text) < 200 else f"{type(value).__name__} {content_hash(value)[:12]}"
