"""The cache: equal inputs give the stored result, and failures leave what was there."""

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaweather.cache import Cache, CacheFullError, atomic_write, content_hash

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@dataclass(frozen=True)
class Setting:
    rate: float
    layers: tuple[int, ...]


def typed(value: object) -> object:
    """A value with its types, for an equality that tells 1, 1.0 and True apart."""
    if isinstance(value, list):
        return ("list", tuple(typed(v) for v in value))
    if isinstance(value, dict):
        return ("dict", frozenset((k, typed(v)) for k, v in value.items()))
    return (type(value), repr(value))


@given(values, values)
def test_the_hash_is_equal_for_equal_content_only(a: object, b: object) -> None:
    assert (content_hash(a) == content_hash(b)) == (typed(a) == typed(b))


def test_what_the_hash_tells_apart() -> None:
    different = [
        1,
        1.0,
        True,
        "1",
        b"1",
        None,
        [1],
        [[1]],
        (1, 2),
        {"a": 1},
        np.array([1]),
        np.array([1.0]),
        np.array([[1]]),
        np.float32(1),
        Setting(1.0, (1,)),
        Setting(1.0, (1, 2)),
        np.zeros(0),
        np.zeros((0, 2)),
    ]
    assert len({content_hash(v) for v in different}) == len(different)
    assert content_hash("ab", "c") != content_hash("a", "bc")
    assert content_hash(np.arange(6).reshape(2, 3)) == content_hash(
        np.asfortranarray(np.arange(6).reshape(2, 3))
    )
    assert content_hash(jnp.arange(3.0)) == content_hash(np.arange(3, dtype=np.float32))
    with pytest.raises(TypeError, match="has no content that can be hashed"):
        content_hash(lambda: None)
    with pytest.raises(TypeError, match="An array of object"):
        content_hash(np.array([object()]))


def test_the_hash_is_the_same_in_another_process() -> None:
    program = (
        "from deltaweather.cache import content_hash; "
        "print(content_hash({'b': [1, 2.5], 'a': 'x', 'c': {'y': None}}))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert runs == {content_hash({"a": "x", "b": [1, 2.5], "c": {"y": None}})}


def test_a_stage_is_computed_once_for_the_same_inputs(tmp_path: Path) -> None:
    calls = []

    def compute() -> np.ndarray:
        calls.append(1)
        return np.arange(len(calls))

    cache = Cache(tmp_path)
    first = cache.stage("train", compute, {"seed": 0, "rate": 1e-3})
    again = Cache(tmp_path).stage("train", compute, {"rate": 1e-3, "seed": 0})
    np.testing.assert_array_equal(first, again)
    assert len(calls) == 1
    cache.stage("train", compute, {"seed": 1, "rate": 1e-3})
    cache.stage("test", compute, {"seed": 0, "rate": 1e-3})
    assert len(calls) == 3
    note = cache.path("train", {"seed": 0, "rate": 1e-3}).with_suffix(".json").read_text()
    assert '"rate": 0.001' in note


def test_a_damaged_entry_is_computed_anew(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.stage("train", lambda: 1, 0)
    path = cache.path("train", 0)
    path.write_bytes(path.read_bytes()[:-2])
    assert cache.stage("train", lambda: 2, 0) == 2
    assert cache.stage("train", lambda: 3, 0) == 2


def test_a_stage_that_fails_leaves_nothing_and_can_be_run_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fails() -> int:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cache.stage("train", fails, 0)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert cache.stage("train", lambda: 5, 0) == 5


def test_own_formats(tmp_path: Path) -> None:
    def save(path: Path, value: np.ndarray) -> None:
        with open(path, "wb") as file:
            np.save(file, value)

    cache = Cache(tmp_path)
    for _ in range(2):
        out = cache.stage("maps", lambda: np.arange(4.0), 1, save=save, load=np.load, suffix=".npy")
        np.testing.assert_array_equal(out, np.arange(4.0))
    assert cache.path("maps", 1, ".npy").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_what_was_there(tmp_path: Path, number: int) -> None:
    path = tmp_path / "result.bin"
    path.write_bytes(b"earlier")

    def fill() -> None:
        with atomic_write(path) as temporary:
            temporary.write_bytes(b"half of the new on")
            raise OSError(number, os.strerror(number))

    with pytest.raises(
        CacheFullError, match=r"disk is full: .*result.bin could not be written. Earlier results are kept"
    ):
        fill()
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_a_truly_full_disk(tmp_path: Path) -> None:
    # /dev/full is a device on which every write meets a full disk
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    cache = Cache(tmp_path)

    def save(path: Path, value: bytes) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(value)

    with pytest.raises(CacheFullError):
        cache.stage("train", lambda: b"x" * 100, 0, save=save)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_other_errors_pass_through(tmp_path: Path) -> None:
    def refuse() -> None:
        with atomic_write(tmp_path / "result.bin"):
            raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        refuse()
    with pytest.raises(ValueError, match="plain word"):
        Cache(tmp_path).path("a/b", 0)


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "result.bin"
    path.write_bytes(b"old")
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"n")
        assert path.read_bytes() == b"old"
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
