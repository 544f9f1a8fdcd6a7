"""The clients that `engine` compares: each reads the same chunks in the same ways."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import fsspec
import numpy as np
import xarray as xr
import zarr
from zarr.storage import FsspecStore, MemoryStore

from benchmarks.engine import peers
from benchmarks.links import MB, Link, Server
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.memory import Budget
from refshard_fs.reading.plan import Limits, coalesce
from refshard_fs.xarray_backend import RefShardBackend

warnings.filterwarnings("ignore", module="zarr")

CHUNK = 100_000
WIDTH = CHUNK // 8  # elements
CHUNKS = 512
ROWS, COLUMNS = 64, 8  # of the chunk grid of "grid"
STEPS = 4  # rows in a chunk of "steps"

LINKS = {
    "0ms": Link(0.0, None),
    "10ms": Link(0.010, None),
    "50ms": Link(0.050, None),
    "20ms+60MB/s": Link(0.020, 60e6),
}


class Pattern(NamedTuple):
    """One way to read: an array, selections that are read one after the other, and the numbers of their chunks."""

    array: str
    selections: list[Any]
    numbers: list[int]
    firsts: Sequence[int] = ()  # offsets of the bytes that are summed up; default: the first byte of each chunk


def make_patterns() -> dict[str, Pattern]:
    """Return the measured ways to read, by name."""
    chosen = sorted(random.Random(5).sample(range(CHUNKS), CHUNKS // 20))
    slabs = [slice(i, i + 32) for i in range(CHUNKS - 32, -1, -32)]
    rows = sorted(random.Random(5).sample(range(CHUNKS * STEPS), CHUNKS * STEPS // 20))
    column = 3
    box = [r * COLUMNS + c for r in range(8, 40) for c in range(2, 6)]
    return {
        "whole": Pattern("line", [slice(None)], list(range(CHUNKS))),
        "strided": Pattern("line", [slice(None, None, 4)], list(range(0, CHUNKS, 4))),
        "reversed": Pattern("line", slabs, list(range(CHUNKS))),
        "column": Pattern("grid", [(slice(None), slice(column, column + 1))], list(range(column, CHUNKS, COLUMNS))),
        "box": Pattern("grid", [(slice(8, 40), slice(2, 6))], box),
        "half": Pattern("line", [slice(0, CHUNKS // 2)], list(range(CHUNKS // 2))),
        "random5": Pattern("line", [np.array(chosen)], chosen),
        "rows5": Pattern(
            "steps", [np.array(rows)], sorted({row // STEPS for row in rows}), [row * CHUNK // STEPS for row in rows]
        ),
        "fortran": Pattern("fortran", [slice(None)], list(range(CHUNKS))),
    }


def make_references(url: str) -> dict[str, Any]:
    """Return a reference set of four arrays over one file."""

    def make_metadata(shape: list[int], chunks: list[int]) -> str:
        meta = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<u8", "order": "C", "fill_value": 0}
        return json.dumps({**meta, "filters": None, "compressor": None})

    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
    refs["line/.zarray"] = make_metadata([CHUNKS, WIDTH], [1, WIDTH])
    refs["steps/.zarray"] = make_metadata([CHUNKS * STEPS, WIDTH // STEPS], [STEPS, WIDTH // STEPS])
    for name, dimensions in {"line": 2, "steps": 2, "grid": 3, "fortran": 3}.items():
        refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": [f"{name}{i}" for i in range(dimensions)]})
    refs["grid/.zarray"] = refs["fortran/.zarray"] = make_metadata([ROWS, COLUMNS, WIDTH], [1, 1, WIDTH])
    for i in range(CHUNKS):
        row, column = divmod(i, COLUMNS)
        refs[f"line/{i}.0"] = refs[f"steps/{i}.0"] = refs[f"grid/{row}.{column}.0"] = [url, i * CHUNK, CHUNK]
        refs[f"fortran/{row}.{column}.0"] = [url, (column * ROWS + row) * CHUNK, CHUNK]
    return refs


class Scene(NamedTuple):
    """The server and the data that every contender reads: references, and the same chunks in memory."""

    server: Server
    url: str
    refs: dict[str, Any]
    data: dict[str, bytes]


Contender = Callable[[Pattern, Scene], tuple[float, int]]


@contextmanager
def serve_scene() -> Iterator[Scene]:
    """Serve one file until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        payload = np.random.default_rng(0).integers(0, 255, CHUNKS * CHUNK, np.uint8).tobytes()
        Path(folder, "data.bin").write_bytes(payload)
        server = Server(folder)
        try:
            url = f"{server.url}/data.bin"
            refs = make_references(url)
            data = {
                key: value.encode() if isinstance(value, str) else payload[value[1] : value[1] + value[2]]
                for key, value in refs.items()
            }
            yield Scene(server, url, refs, data)
        finally:
            server.close()


def _sum(values: np.ndarray[Any, Any]) -> int:
    """Return the sum of the first byte of each chunk."""
    return int((values[..., 0] & 255).sum())


def _read(store: Any, pattern: Pattern, prepare: Callable[[Any], object] = lambda _: None) -> tuple[float, int]:
    array = zarr.open_group(store, mode="r")[pattern.array]
    total = 0
    began = time.perf_counter()
    for selection in pattern.selections:
        prepare(selection)
        total += _sum(np.asarray(array.oindex[selection]))
    return time.perf_counter() - began, total


def read_reference(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read by zarr over fsspec's reference filesystem; like all contenders, return the seconds and the sum."""
    options = {"remote_protocol": "http", "remote_options": {"asynchronous": True}, "asynchronous": True}
    fs = fsspec.filesystem("reference", fo=on.refs, skip_instance_cache=True, **options)
    return _read(FsspecStore(fs, read_only=True, path=""), pattern)


def read_refshard(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read by zarr over this filesystem."""
    fs = RefShardFileSystem(on.refs, asynchronous=True, skip_instance_cache=True)
    return _read(FsspecStore(fs, read_only=True, path=""), pattern)


def read_announced(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read by zarr over this filesystem, with `prefetch` of each selection before its read."""
    fs = RefShardFileSystem(on.refs, asynchronous=True, skip_instance_cache=True)
    store = FsspecStore(fs, read_only=True, path="")
    return _read(store, pattern, lambda selection: fs.prefetch(pattern.array, selection, wait=False))


def read_xarray(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read by xarray with ``engine="refshard"``."""
    data = xr.open_dataset(
        on.refs, engine=RefShardBackend, mask_and_scale=False, storage_options={"skip_instance_cache": True}
    )[pattern.array]
    total = 0
    began = time.perf_counter()
    for selection in pattern.selections:
        chosen = selection if isinstance(selection, tuple) else (selection,)
        total += _sum(data[chosen].values)
    return time.perf_counter() - began, total


def read_memory(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read by zarr from a dict of the same chunks."""
    buffer = zarr.core.buffer.default_buffer_prototype().buffer
    return _read(MemoryStore({k: buffer.from_bytes(v) for k, v in on.data.items()}, read_only=True), pattern)


def read_virtualizarr(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read by zarr over VirtualiZarr's store."""
    return _read(peers.make_virtualizarr_store(on.refs, on.server.url), pattern)


def read_icechunk(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read by zarr over Icechunk's store."""
    return _read(peers.make_icechunk_store(on.refs, on.server.url), pattern)


def set_concurrency(contender: Contender) -> Contender:
    """Return ``contender`` with zarr's ``async.concurrency`` set to 128 chunks."""

    def read(pattern: Pattern, on: Scene) -> tuple[float, int]:
        with zarr.config.set({"async.concurrency": 128}):
            return contender(pattern, on)

    return read


def read_ideal(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read by a client that knows all ranges, and decodes nothing."""
    blocks = coalesce([(n * CHUNK, n * CHUNK + CHUNK) for n in pattern.numbers], Limits(0, MB))
    firsts = pattern.firsts or [n * CHUNK for n in pattern.numbers]

    async def run() -> tuple[float, int]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=Budget().requests)) as session:

            async def get(block: Any) -> int:
                headers = {"Range": f"bytes={block.start}-{block.stop - 1}"}
                async with session.get(on.url, headers=headers) as answer:
                    body = await answer.read()
                return sum(body[first - block.start] for first in firsts if block.start <= first < block.stop)

            began = time.perf_counter()
            total = sum(await asyncio.gather(*map(get, blocks)))
            return time.perf_counter() - began, total

    return asyncio.run(run())


def cat_reference(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read all keys by `cat` of fsspec's reference filesystem."""
    return _cat(fsspec.filesystem("reference", fo=on.refs, remote_protocol="http", skip_instance_cache=True), pattern)


def cat_ours(pattern: Pattern, on: Scene) -> tuple[float, int]:
    """Read all keys by `cat` of this filesystem."""
    return _cat(RefShardFileSystem(on.refs, skip_instance_cache=True), pattern)


def _cat(fs: Any, pattern: Pattern) -> tuple[float, int]:
    keys = [f"line/{i}.0" for i in pattern.numbers]
    began = time.perf_counter()
    out = fs.cat(keys)
    return time.perf_counter() - began, sum(v[0] for v in out.values())


CONTENDERS: dict[str, Contender] = {
    "reference": read_reference,
    **({"virtualizarr": read_virtualizarr} if find_spec("virtualizarr") and find_spec("obstore") else {}),
    **({"icechunk": read_icechunk} if find_spec("icechunk") else {}),
    "ours": read_refshard,
    "prefetch": read_announced,
    "xarray": read_xarray,
    "reference/128": set_concurrency(read_reference),
    "ours/128": set_concurrency(read_refshard),
    "ideal": read_ideal,
    "dict": read_memory,
    "cat reference": cat_reference,
    "cat ours": cat_ours,
}
