"""Read sharded arrays over HTTP with zarr's ShardingCodec, with tensorstore, and as inner chunks with this package.

    python -m benchmarks.shards [--quick] [--latency 0.01] [--patterns random ...] [--only ours ...]

10 shards of 10×10 inner chunks of 57,600 uncompressed bytes lie on a loopback server in another process, which delays
each request. For each measurement an array is opened anew, and its metadata are read before. The contenders are:

- *codec*: zarr over fsspec's HTTP filesystem; *tensorstore*: tensorstore over its own HTTP client;
- *whole*: zarr over this filesystem with ``shards="whole"``;
- *ours*: zarr over this filesystem, which shows inner chunks; *prefetch*: the same, with `prefetch` of each selection;
- *dict*: zarr reading the inner chunks from memory;
- names with ``/128``: with ``async.concurrency`` 128 in zarr's configuration, in place of 10.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import FsspecStore, MemoryStore

from benchmarks.links import Link, Server
from benchmarks.record import Case, record_case
from refshard_fs.fs import RefShardFileSystem

warnings.filterwarnings("ignore", module="zarr")
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # fsspec leaves its sessions open

SIDE = 120  # elements of four bytes along each side of a chunk
ROWS, COLUMNS = 100, 10  # of the chunk grid
REPEATS, QUICK = 5, 2
QUICK_PATTERNS = ("random", "random, together", "narrow column", "row", "shard")

Selection = tuple[Any, Any]


class Pattern(NamedTuple):
    """Selections that are read one after the other, and the number of their chunks."""

    selections: list[Selection]
    chunks: int


def select_chunk(number: int) -> Selection:
    """Return the selection of one inner chunk."""
    row, column = divmod(number, COLUMNS)
    return slice(row * SIDE, (row + 1) * SIDE), slice(column * SIDE, (column + 1) * SIDE)


def make_patterns() -> dict[str, Pattern]:
    """Return the measured ways to read, by name."""
    everything = slice(None)
    points = [slice(at, at + 1) for at in random.Random(2).sample(range(COLUMNS * SIDE), 10)]
    scattered = [select_chunk(n) for n in random.Random(1).sample(range(ROWS * COLUMNS), 100)]
    rows, columns = np.divmod(random.Random(1).sample(range(ROWS * COLUMNS), 100), COLUMNS)
    places = (rows * SIDE + SIDE // 2, columns * SIDE + SIDE // 3)  # a point in each of these chunks
    return {
        "one chunk, twice": Pattern([select_chunk(437)] * 2, 2),
        "random": Pattern(scattered, 100),
        "random, twice": Pattern(scattered * 2, 200),
        "random, together": Pattern([places], 100),
        "narrow column": Pattern([(everything, slice(250, 260))], 100),
        "ten columns": Pattern([(everything, point) for point in points], 1000),
        "column in a shard": Pattern([(slice(0, 10 * SIDE), slice(0, SIDE))], 10),
        "ten in a shard": Pattern([(slice(0, 10 * SIDE), point) for point in points], 100),
        "row": Pattern([(slice(0, SIDE), everything)], 10),
        "shard": Pattern([(slice(20 * SIDE, 30 * SIDE), everything)], 100),
        "three shards": Pattern([(slice(20 * SIDE, 50 * SIDE), everything)], 300),
        "all": Pattern([(everything, everything)], ROWS * COLUMNS),
    }


Read = Callable[[Selection], np.ndarray[Any, Any]]


def _open_array(fs: Any, path: str = "") -> Any:
    return zarr.open_array(FsspecStore(fs, read_only=True, path=path), mode="r")


def open_codec(url: str) -> Read:
    """Return a function that reads by zarr's sharding codec over fsspec's HTTP filesystem."""
    read: Read = _open_array(fsspec.filesystem("http", asynchronous=True, skip_instance_cache=True), url).__getitem__
    return read


def open_tensorstore(url: str) -> Read:
    """Return a function that reads by tensorstore over its own HTTP client."""
    import tensorstore as ts

    array = ts.open({"driver": "zarr3", "kvstore": {"driver": "http", "base_url": url}}, context=ts.Context()).result()
    return lambda selection: array[selection].read().result()


def open_refshard(url: str) -> Read:
    """Return a function that reads inner chunks by zarr over this filesystem."""
    read: Read = _open_array(RefShardFileSystem(url, asynchronous=True, skip_instance_cache=True)).__getitem__
    return read


def open_announced(url: str) -> Read:
    """Return a function that calls `prefetch` for each selection, and reads it by zarr over this filesystem."""
    fs = RefShardFileSystem(url, asynchronous=True, skip_instance_cache=True)
    array = _open_array(fs)

    def read(selection: Selection) -> np.ndarray[Any, Any]:
        fs.prefetch("", selection, wait=False)
        found: np.ndarray[Any, Any] = array[selection]
        return found

    return read


def open_whole(url: str) -> Read:
    """Return a function that reads by zarr's sharding codec over this filesystem."""
    read: Read = _open_array(
        RefShardFileSystem(url, asynchronous=True, skip_instance_cache=True, shards="whole")
    ).__getitem__
    return read


@cache
def _load_chunks(url: str) -> dict[str, Buffer]:
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    keys = ["zarr.json", *(f"c/{row}/{column}" for row in range(ROWS) for column in range(COLUMNS))]
    return {key: default_buffer_prototype().buffer.from_bytes(data) for key, data in fs.cat(keys).items()}


def open_memory(url: str) -> Read:
    """Return a function that reads inner chunks from memory by zarr."""
    read: Read = zarr.open_array(MemoryStore(_load_chunks(url)), mode="r").__getitem__
    return read


CONTENDERS: dict[str, tuple[Callable[[str], Read], int]] = {
    "codec": (open_codec, 10),
    "tensorstore": (open_tensorstore, 10),
    "ours": (open_refshard, 10),
    "prefetch": (open_announced, 10),
    "whole": (open_whole, 10),
    "dict": (open_memory, 10),
    "codec/128": (open_codec, 128),
    "ours/128": (open_refshard, 128),
    "prefetch/128": (open_announced, 128),
    "whole/128": (open_whole, 128),
    "dict/128": (open_memory, 128),
}


def write_array(folder: str) -> None:
    """Write the sharded array."""
    array = zarr.create_array(
        str(Path(folder, "a")),
        shape=(ROWS * SIDE, COLUMNS * SIDE),
        shards=(10 * SIDE, 10 * SIDE),
        chunks=(SIDE, SIDE),
        dtype="<u4",
        compressors=None,
    )
    array[...] = np.random.default_rng(0).integers(0, 2**32, array.shape, np.uint32)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description="Sharded arrays over HTTP.")
    parser.add_argument("--quick", action="store_true", help="two rounds of a few patterns")
    parser.add_argument("--latency", type=float, default=0.01, help="seconds a request")
    parser.add_argument("--patterns", nargs="*", default=None)
    parser.add_argument("--only", nargs="*", default=None, help="contenders")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_array(folder)
        server = Server(folder)
        try:
            server.set_pace(Link(options.latency, None))
            known = make_patterns()
            names = options.patterns or (QUICK_PATTERNS if options.quick else known)
            for name, pattern in known.items():
                if name in names:
                    repeats = QUICK if options.quick else REPEATS
                    _measure(server, options.latency, name, pattern, repeats, options.only)
        finally:
            server.close()


def _measure(server: Server, latency: float, name: str, pattern: Pattern, repeats: int, only: list[str] | None) -> None:
    chosen = [c for c in CONTENDERS if only is None or c in only]
    times: dict[str, list[float]] = {c: [] for c in chosen}
    seen: dict[str, tuple[int, int]] = {}
    totals = set()
    for _ in range(repeats):
        for contender in chosen:
            gc.collect()
            make, concurrency = CONTENDERS[contender]
            with zarr.config.set({"async.concurrency": concurrency}):
                read = make(f"{server.url}/a")
                server.get("/__clear__")
                total = 0
                began = time.perf_counter()
                for selection in pattern.selections:
                    total += int(read(selection)[..., ::SIDE].sum())
                took = time.perf_counter() - began
            times[contender].append(took)
            seen[contender] = server.read_counts()
            totals.add(total)
    assert len(totals) == 1, f"contenders read different values: {totals}"
    median = {c: statistics.median(t) * 1e3 for c, t in times.items()}
    needed = pattern.chunks * SIDE**2 * 4
    record_case(
        Case(
            "shards",
            name,
            "s",
            {c: t / 1e3 for c, t in median.items()},
            tuple(c for c in chosen if c.startswith(("ours", "prefetch", "whole"))),
            "codec",
            {c: requests for c, (requests, _) in seen.items()},
            {c: sent / needed for c, (_, sent) in seen.items()},
            latency=latency,
        )
    )
    print(f"{name} ({pattern.chunks} chunks)")
    for contender in chosen:
        requests, sent = seen[contender]
        line = f"  {contender:12}{median[contender]:9.1f} ms {requests:5} requests {sent / needed:6.2f} x bytes"
        for base in ("codec/128" if contender.endswith("/128") else "codec", "tensorstore"):
            if base in median and base != contender:
                line += f"   {median[contender] / median[base]:5.2f} x {base}"
        print(line)
    print(flush=True)


if __name__ == "__main__":
    main()
