"""Read random keys of one set, compare every byte, and measure memory and file descriptors of the process."""

from __future__ import annotations

import gc
import json
import os
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from refshard_fs import ReferenceNotReachable, RefShardFileSystem
from refshard_fs.targets import connections

__all__ = ["IDLE", "Sample", "content", "read", "write_set"]

IDLE: Final = 0.1  # seconds after which idle connections are closed, so that open descriptors are leaks
STEP: Final = 8  # bytes from the beginning of a range to the beginning of the next one: ranges overlap
LONGEST: Final = 200  # bytes of a range
NEAR: Final = 4096  # keys that are read together lie within this number of keys
FAR: Final = 1 << 12  # bytes of a gap over which requests are not merged


class Sample(NamedTuple):
    """Numbers of right reads and of errors in a process, and its memory in bytes and open descriptors afterwards."""

    pid: int
    right: int
    errors: int
    memory: int
    files: int


@cache
def content(keys: int) -> bytes:
    """Return the bytes that all references point into."""
    return random.Random(0).randbytes(STEP * keys + LONGEST)


def _span(number: int) -> tuple[int, int]:
    return STEP * number, 1 + number * 7919 % LONGEST


def write_set(path: Path, url: str, keys: int) -> None:
    """Write a reference set of ``keys`` chunks of one array, ranges of ``url``."""
    array = {"zarr_format": 2, "shape": [keys], "chunks": [1], "dtype": "|u1", "compressor": None, "filters": None}
    head = {".zgroup": {"zarr_format": 2}, "a/.zarray": {**array, "fill_value": 0, "order": "C"}}
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1])
        for number in range(keys):
            file.write(f',"a/{number}":["{url}",{_span(number)[0]},{_span(number)[1]}]')
        file.write("}")


def open_set(path: str) -> RefShardFileSystem:
    """Open a new filesystem for each call of `read`, like a dask task that unpickles one."""
    return RefShardFileSystem(path, index_cache=os.path.dirname(path), retries=3, timeout=30, max_gap=FAR, readahead=0)


def read(path: str, keys: int, seed: int, count: int) -> Sample:
    """Read ``count`` random keys by `cat_file`, `cat`, `open` and others; AssertionError if a byte is wrong."""
    connections.KEEPALIVE = IDLE
    fs = open_set(path)
    data = content(keys)
    pick = random.Random(seed)
    right = errors = 0
    while right + errors < count:
        first = pick.randrange(max(1, keys - NEAR))
        numbers = [pick.randrange(first, min(first + NEAR, keys)) for _ in range(pick.choice((1, 1, 100)))]
        wanted = [data[start : start + size] for start, size in map(_span, numbers)]
        names = [f"a/{number}" for number in numbers]
        found: Sequence[Any]
        match pick.randrange(4):
            case 0:
                found = fs.cat_ranges(names, [0] * len(names), [None] * len(names), on_error="return")
            case 1:
                begin, end = pick.randrange(0, 20), pick.randrange(20, LONGEST)
                wanted = [piece[begin:end] for piece in wanted]
                found = fs.cat_ranges(names, [begin] * len(names), [end] * len(names), on_error="return")
            case 2:
                both = fs.cat(names, on_error="return") if len(names) > 1 else {names[0]: _read_key(fs, names[0])}
                found = [both[name] for name in names]
            case _:
                found, wanted, numbers = [_read_file(fs, names[0])], wanted[:1], numbers[:1]
        for number, one, other in zip(numbers, found, wanted, strict=True):
            if isinstance(one, ReferenceNotReachable):
                errors += 1
                continue
            assert one == other, f"a/{number} is {one!r:.200}, not {other!r:.200}"
            right += 1
    return Sample(os.getpid(), right, errors, *_measure_process())


def _read_key(fs: RefShardFileSystem, name: str) -> Any:
    try:
        return fs.cat_file(name)
    except ReferenceNotReachable as e:
        return e


def _read_file(fs: RefShardFileSystem, name: str) -> Any:
    try:
        with fs.open(name) as file:
            first: bytes = file.read(7)
            rest: bytes = file.read()
            return first + rest
    except ReferenceNotReachable as e:
        return e


def _measure_process() -> tuple[int, int]:
    """Return the process's bytes of memory and number of open descriptors, after a collection of garbage.

    fsspec's instances are cycles: a collection closes their connections.
    """
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))
