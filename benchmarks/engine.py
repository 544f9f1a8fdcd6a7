"""Read chunks over HTTP with fsspec's reference filesystem, this filesystem, an ideal client, and zarr in memory.

    python -m benchmarks.engine [--quick] [--links 10ms ...] [--patterns whole ...] [--only ours ...]

512 uncompressed chunks of 100 kB lie in one file on a loopback server in another process, which delays each request
and, for one link, limits the bandwidth of each connection. All contenders take turns. The table has medians of
milliseconds, the requests, and the bytes that the server sent, as multiples of the bytes of the chunks. Contenders are:

- *reference*: zarr over fsspec's reference filesystem;
- *ours*: zarr over this filesystem; *prefetch*: the same, with `prefetch` of each selection before its read;
- *xarray*: ``engine="refshard"``;
- *virtualizarr*, *icechunk*, if they are installed: zarr over the stores of these packages;
- names with ``/128``: with ``async.concurrency`` 128 in zarr's configuration;
- *ideal*: an aiohttp client that knows all ranges beforehand (blocks of 1 MB, with as many connections as this
  filesystem may have) and decodes nothing;
- *dict*: zarr reading the same chunks from memory.

*CPU* is that of the contender's process, in all threads. The goals of *ours* are at most 1.25 times *ideal*, and for
some patterns a ratio to *reference* (`GOALS`). *random5* reads 5 % of the chunks at random, *rows5* reads 5 % of the
rows of an array with four rows in a chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
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

from benchmarks import peers
from benchmarks.record import Case, record_case
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
MB = 1_000_000
REPEATS, QUICK = 5, 2


class Link(NamedTuple):
    """The delay of each request in seconds, and bytes a second of one connection, and of all connections together."""

    latency: float
    bandwidth: float | None
    line: float | None = None


LINKS = {
    "0ms": Link(0.0, None),
    "10ms": Link(0.010, None),
    "50ms": Link(0.050, None),
    "20ms+60MB/s": Link(0.020, 60e6),
}
GOALS = {  # the time of "reference" divided by ours, at least
    "0ms": {"whole": 2.4, "random5": 1.5, "strided": 1.3},
    "10ms": {"whole": 8.5, "random5": 5.0, "strided": 5.5},
    "50ms": {"whole": 22.0, "random5": 7.0, "strided": 8.5},
    "20ms+60MB/s": {"whole": 11.5, "random5": 6.3, "strided": 7.5},
}
NEAR = 1.25  # our time divided by that of "ideal", at most


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


class Server:
    """The loopback server in a new process; with the URL ``origin``, it passes requests on to that server."""

    def __init__(self, folder: str, origin: str | None = None) -> None:
        command = [sys.executable, "-m", "benchmarks.server", "--dir", folder]
        command += ["--origin", origin] if origin else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    @classmethod
    def attach(cls, url: str) -> Server:
        """Return a client of the server at ``url``, which another process started and will close."""
        found = cls.__new__(cls)
        found.url = url
        return found

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path) as answer:  # noqa: S310  # loopback
            body: bytes = answer.read()
        return body

    def set_pace(self, link: Link) -> None:
        self.get(f"/__set__?latency={link.latency}&bandwidth={link.bandwidth or ''}&line={link.line or ''}")

    def read_counts(self) -> tuple[int, int]:
        """Return the number of requests, and of sent bytes, since the last ``/__clear__``."""
        log = json.loads(self.get("/__log__"))
        return len(log), sum(r["sent"] for r in log)

    def read_cpu(self) -> float:
        """Return the seconds of CPU that the server has taken."""
        return float(json.loads(self.get("/__cpu__")))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()  # type: ignore[union-attr]  # it is a pipe


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
OURS = ("ours", "prefetch", "xarray", "ours/128", "cat ours")
# Contenders that are measured with one pattern only.
ONLY = {"cat reference": "whole", "cat ours": "whole", "reference/128": "random5", "ours/128": "random5"}


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description="Chunks over HTTP.")
    parser.add_argument("--quick", action="store_true", help="two rounds, four patterns, one link")
    parser.add_argument("--links", nargs="*", default=None, choices=list(LINKS))
    parser.add_argument("--patterns", nargs="*", default=None)
    parser.add_argument("--only", nargs="*", default=None, help="contenders")
    parser.add_argument("--repeats", type=int, default=None)
    options = parser.parse_args(arguments)
    repeats = options.repeats or (QUICK if options.quick else REPEATS)
    known = make_patterns()
    names = options.patterns or (["whole", "strided", "random5", "rows5"] if options.quick else list(known))
    with serve_scene() as on:
        print("median ms, requests, bytes / needed, per contender\n")
        for link in options.links or (["10ms"] if options.quick else LINKS):
            on.server.set_pace(LINKS[link])
            for name in names:
                _measure(on, link, name, known[name], repeats, options.only)


def _measure(on: Scene, link: str, name: str, pattern: Pattern, repeats: int, only: list[str] | None) -> None:
    chosen = [c for c in CONTENDERS if (only is None or c in only) and ONLY.get(c, name) == name]
    times: dict[str, list[float]] = {c: [] for c in chosen}
    cpus: dict[str, list[float]] = {c: [] for c in chosen}
    seen: dict[str, tuple[int, int]] = {}
    totals = set()
    for _ in range(repeats):
        for contender in chosen:
            gc.collect()  # close the connections of the last contender before the next one is timed
            time.sleep(0.05)
            on.server.get("/__clear__")
            began = time.process_time()
            took, total = CONTENDERS[contender](pattern, on)
            cpus[contender].append(time.process_time() - began)
            times[contender].append(took)
            seen[contender] = on.server.read_counts()
            totals.add(total)
    assert len(totals) == 1, f"contenders read different bytes: {totals}"
    needed = len(pattern.numbers) * CHUNK
    median = {c: statistics.median(t) * 1e3 for c, t in times.items()}
    cpu = {c: statistics.median(t) * 1e3 for c, t in cpus.items()}
    goal, met = _check_goals(median, GOALS.get(link, {}).get(name))
    record_case(
        Case(
            "engine",
            f"{link}, {name}",
            "s",
            {c: t / 1e3 for c, t in median.items()},
            OURS,
            "reference",
            {c: requests for c, (requests, _) in seen.items()},
            {c: sent / needed for c, (_, sent) in seen.items()},
            goal,
            met,
            latency=LINKS[link].latency,
        )
    )
    print(f"{link}, {name} ({len(pattern.numbers)} chunks)")
    for contender in chosen:
        requests, sent = seen[contender]
        line = f"  {contender:14}{median[contender]:9.1f} ms {cpu[contender]:7.1f} ms CPU"
        line += f" {requests:5} requests {sent / needed:6.2f} x bytes"
        base = "cat reference" if contender.startswith("cat") else "reference"
        if base in median and contender not in (base, "dict"):
            line += f"   {median[base] / median[contender]:6.1f} x faster"
        if contender in OURS and "ideal" in median:
            line += f"   {median[contender] / median['ideal']:6.2f} x ideal"
        if contender == "ours" and goal:
            line += f"   goal {goal}: {'met' if met else 'missed'}"
        print(line)
    print(flush=True)


def _check_goals(median: dict[str, float], faster: float | None) -> tuple[str, bool | None]:
    """Return the goals of "ours" as text, and whether it meets all; "" and None if no other contender was measured."""
    goals: dict[str, bool] = {}
    if faster is not None and {"ours", "reference"} <= median.keys():
        goals[f"≥ {faster:g}×"] = median["reference"] >= faster * median["ours"]
    if {"ours", "ideal"} <= median.keys():
        goals[f"≤ {NEAR:g} × ideal"] = median["ours"] <= NEAR * median["ideal"]
    return ", ".join(goals), all(goals.values()) if goals else None


if __name__ == "__main__":
    main()
