"""Read chunks of a local file one by one, many at once, and through zarr, with fsspec's `reference` and this package.

    python -m benchmarks.local [--quick]

Chunks of 4 KB and of 100 KB of one file are read in random order (by zarr: in order). The readers take turns, and the
table has medians of seconds for a chunk. *dict* is zarr reading the same chunks from memory. *LocalStore* is zarr
reading them from a directory with a file for each chunk, which this filesystem reads, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import zarr
from zarr.storage import FsspecStore, LocalStore, MemoryStore

from benchmarks.measure import Goal, Row, print_table
from refshard_fs.fs import RefShardFileSystem

warnings.filterwarnings("ignore", module="zarr")

# Bytes of a chunk, number of chunks, and the goals of cat_file and of reading through zarr: their time divided by ours.
CASES = ((4096, 2000, 20, 3), (100_000, 500, 6, 3))
ROUNDS, QUICK = 15, 3

Read = Callable[[], object]


def make_references(path: Path, size: int, count: int) -> dict[str, Any]:
    """Return references to ``count`` chunks of the file at ``path``."""
    meta = {"zarr_format": 2, "shape": [count, size // 8], "chunks": [1, size // 8], "dtype": "<u8", "order": "C"}
    meta |= {"filters": None, "compressor": None, "fill_value": 0}
    refs: dict[str, Any] = {".zgroup": '{"zarr_format":2}', "a/.zarray": json.dumps(meta)}
    return refs | {f"a/{i}.0": [f"file://{path}", i * size, size] for i in range(count)}


def measure_medians(reads: dict[str, Read], count: int, rounds: int) -> dict[str, float]:
    """Return the median seconds for a chunk of each reader; the readers take turns."""
    took: dict[str, list[float]] = {name: [] for name in reads}
    for _ in range(rounds):
        for name, read in reads.items():
            began = time.perf_counter()
            read()
            took[name].append((time.perf_counter() - began) / count)
    return {name: statistics.median(times[1:]) for name, times in took.items()}  # the first read opens files


def measure_chunks(folder: Path, size: int, count: int, goals: tuple[float, float], rounds: int) -> list[Row]:
    """Measure chunks of ``size`` bytes, and return the rows of the table."""
    path = folder / f"{size}.bin"
    path.write_bytes(os.urandom(size * count))
    refs = make_references(path, size, count)
    options: dict[str, Any] = {"fo": refs, "skip_instance_cache": True}
    theirs = fsspec.filesystem("reference", remote_protocol="file", **options)
    ours = RefShardFileSystem(**options)
    keys = [f"a/{i}.0" for i in range(count)]
    random.Random(size).shuffle(keys)
    assert [ours.cat_file(key) for key in keys] == [theirs.cat_file(key) for key in keys]
    found = measure_medians(
        {
            "theirs": lambda: read_one_by_one(theirs, keys),
            "ours": lambda: read_one_by_one(ours, keys),
            "theirs, many": lambda: theirs.cat(keys),
            "ours, many": lambda: ours.cat(keys),
        },
        count,
        rounds,
    )
    directory = folder / f"{size}.zarr"
    for key in ours.find(""):
        directory.joinpath(key).parent.mkdir(parents=True, exist_ok=True)
        directory.joinpath(key).write_bytes(ours.cat_file(key))
    options_of_files = {**options, "fo": f"file://{directory}"}
    stores = {
        "theirs": FsspecStore(fsspec.filesystem("reference", remote_protocol="file", asynchronous=True, **options)),
        "ours": FsspecStore(RefShardFileSystem(asynchronous=True, **options)),
        "dict": load_store(ours),
        "LocalStore": LocalStore(directory, read_only=True),
        "files": FsspecStore(RefShardFileSystem(asynchronous=True, **options_of_files)),
    }
    arrays = {name: zarr.open_array(store, path="a", mode="r") for name, store in stores.items()}
    assert np.array_equal(arrays["ours"][...], arrays["theirs"][...])
    reads: dict[str, Read] = {name: lambda array=array: array[...] for name, array in arrays.items()}  # type: ignore[misc]  # bound at once
    zarrs = measure_medians(reads, count, rounds)
    what = f"chunks of {size}:"
    return [
        Row(f"{what} cat_file", "s", found["theirs"], found["ours"], Goal(ratio=goals[0])),
        Row(f"{what} cat of all", "s", found["theirs, many"], found["ours, many"], Goal()),
        Row(f"{what} through zarr", "s", zarrs["theirs"], zarrs["ours"], Goal(ratio=goals[1])),
        Row(f"{what} zarr over a dict", "s", zarrs["theirs"], zarrs["dict"], Goal()),
        Row(f"{what} through zarr; LocalStore, of files", "s", zarrs["LocalStore"], zarrs["ours"], Goal(ratio=1)),
        Row(f"{what} both of files", "s", zarrs["LocalStore"], zarrs["files"], Goal(ratio=1)),
    ]


def read_one_by_one(fs: Any, keys: list[str]) -> None:
    """Read ``keys`` one after the other, and drop the bytes."""
    for key in keys:
        fs.cat_file(key)


def load_store(fs: RefShardFileSystem) -> MemoryStore:
    """Return a store in memory with all keys of ``fs``."""
    buffer = zarr.core.buffer.default_buffer_prototype().buffer
    return MemoryStore({key: buffer.from_bytes(fs.cat_file(key)) for key in fs.find("")}, read_only=True)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local", description="Reading local chunks.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = QUICK if parser.parse_args().quick else ROUNDS
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for size, count, *goals in CASES:
            rows += measure_chunks(Path(folder), size, count, (goals[0], goals[1]), rounds)
    print_table("local", rows, "reference", "ours")


if __name__ == "__main__":
    main()
