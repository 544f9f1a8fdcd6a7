"""Damage files at random, and compare the arrays that this package reads with those of another reader."""

from __future__ import annotations

import contextlib
import random
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from refshard_fs import RefShardError, RefShardFileSystem
from tests.support.shard_writers import IS_ZARR_2
from tests.support.zarr_reading import open_group, read_values

Arrays: TypeAlias = Mapping[str, Any]  # arrays by path; None for an array that cannot be read


def read_arrays(path: Path, names: Arrays) -> tuple[dict[str, Any], set[str]]:
    """Read the arrays ``names`` of a source, without those that raise an error.

    The second result are the names that the source does not have, although it reports nothing that is not shown.
    """
    found: dict[str, Any] = {}
    try:
        fs = RefShardFileSystem(str(path), skip_instance_cache=True, zarr_format=2)
        group = open_group(fs)
        shown = {name for name in names if fs.exists(f"{name}/.zarray")}
    except (RefShardError, ValueError) as e:
        assert str(e)
        return {}, set()
    for name in shown:
        try:
            found[name] = read_values(group[name])
        except Exception as e:  # zarr's codecs have their own errors: a note adds the key of the chunk
            if IS_ZARR_2 and isinstance(e, zlib.error):  # zarr 2 adds no note
                continue
            assert isinstance(e, (RefShardError, ValueError)) or any(name in note for note in e.__notes__)
    return found, set() if fs.left_whole else {*names} - shown


def change(data: bytes, pick: random.Random, first: int, stop: int) -> bytes:
    """Return ``data`` with one change between two positions: of bits or bytes, or with fewer or more bytes."""
    changed, at = bytearray(data), pick.randrange(first, min(stop, len(data)))
    match pick.randrange(8):
        case 0 | 1 | 2:
            changed[at] ^= 1 << pick.randrange(8)
        case 3 | 4:
            changed[at] = pick.choice((0, 1, 0x7F, 0x80, 0xFF, pick.randrange(256)))
        case 5:
            del changed[at : at + pick.choice((1, 4))]
        case 6:
            changed[at:at] = bytes([pick.randrange(256)])
        case _:
            del changed[at:]
    return bytes(changed)


def check_beside(
    source: Path,
    read: Callable[[Path], Arrays],
    seed: int,
    times: int,
    part: tuple[int, int] = (0, 1 << 30),
    file: str = "",
) -> None:
    """Damage ``file`` of a source between the two positions of ``part``, and compare with the reader ``read``.

    Each array must have its values in the undamaged source, or the values that ``read`` returns, or raise an error. An
    array that is missing without a report must be missing for ``read``, too.
    """
    pick = random.Random(seed)
    path = source / file
    data = path.read_bytes()
    whole = read(source)
    assert sorted(read_arrays(source, whole)[0]) == sorted(whole)
    for _ in range(times):
        damaged = change(data, pick, *part)
        path.write_bytes(damaged)
        found, missing = read_arrays(source, whole)
        changed = {name: values for name, values in found.items() if not is_same(values, whole[name])}
        others: Arrays = {}
        if changed or missing:
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                others = read(source)
        assert not missing & {*others}, f"the other reader has {missing & {*others}}: {damaged!r}"
        for name, values in changed.items():
            assert is_same(values, others.get(name)), f"{name} has {values}, not {others.get(name)}: {damaged!r}"
    path.write_bytes(data)


def is_same(found: Any, expected: Any) -> bool:
    """Return whether two arrays have the same shape and values; NaN equals NaN."""
    if expected is None or found.shape != expected.shape:
        return False
    if found.dtype.kind == "f" and found.dtype.itemsize == expected.dtype.itemsize:  # NaN may have any bits
        return bool(np.array_equal(found, expected, equal_nan=True))
    return bool(np.array_equal(found, expected))
