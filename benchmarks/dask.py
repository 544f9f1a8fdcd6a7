"""Dask's `LocalCluster` reads a few of many references: this filesystem, and fsspec's reference filesystem.

    python -m benchmarks.dask [--quick]

Two processes of two threads read 2000 chunks of 4 KB of a set of a million references, given by its path and as a dict:
a chunk a task, which nobody would do with chunks so small, for it is dask's scheduling that takes the time; and 20
chunks a task, a multiple of what is stored, as dask's documentation has it. Each reading has a cluster of its own, in
which some chunks from memory have been read before, so that no import is in the figures but of what a filesystem alone
needs. Times are of opening and computing; CPU is that of client, scheduler and workers; memory is what the workers'
peaks have grown by, together.

*memory* is the same computation over chunks that the workers hold, in a set whose metadata is the same: what dask,
xarray and zarr cost by themselves, which nobody can undercut. *ours, first* has nobody open the set before: it is in no
index cache. For the others the medians are of a set that this machine has opened.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import dask
import distributed
import fsspec
import xarray as xr
from zarr.storage import FsspecStore

from benchmarks.held import held_store
from benchmarks.record import Case, keep
from refshard_fs.fs import RefShardFileSystem

warnings.simplefilter("ignore")
logging.getLogger("distributed").setLevel(logging.ERROR)

COUNT, QUICK = 1_000_000, 100_000
READ, SIZE = 2000, 4096  # chunks, bytes of one
SHAPES = (1, 20)  # chunks of a task
WARM = 64  # chunks that are read before
GOAL = 4.0  # times faster than the baseline
LEAST = 5.0  # times less memory
FIRST = "ours, first"
IMPORTED = ("xarray", "zarr", "dask.array", "fsspec.implementations.reference", "refshard_fs.fs")

# By name, how to open, and what.
Contenders = dict[str, tuple[Callable[[Any, int], Any], Any]]


def write(folder: Path, count: int) -> tuple[str, dict[str, Any]]:
    """Write data and a set of ``count`` references; return its path and the set itself."""
    data = folder / "data.bin"
    payload = os.urandom(READ * SIZE)
    data.write_bytes(payload)
    width = SIZE // 8

    def array(rows: int, name: str) -> dict[str, str]:
        meta = {"zarr_format": 2, "shape": [rows, width], "chunks": [1, width], "dtype": "<u8", "order": "C"}
        meta |= {"filters": None, "compressor": None, "fill_value": 0}
        attributes = {"_ARRAY_DIMENSIONS": [f"{name}_rows", "columns"]}
        return {f"{name}/.zarray": json.dumps(meta), f"{name}/.zattrs": json.dumps(attributes)}

    refs: dict[str, Any] = {".zgroup": '{"zarr_format":2}', **array(READ, "few"), **array(count - READ, "many")}
    url = f"file://{data}"
    refs |= {f"few/{i}.0": [url, i * SIZE, SIZE] for i in range(READ)}
    refs |= {f"many/{i}.0": [url, i % READ * SIZE, SIZE] for i in range(count - READ)}
    for name in ("few", "many"):
        (folder / "held" / name).mkdir(parents=True)
    for key, value in refs.items():
        if key.startswith(("few/", ".zgroup", "many/.")):
            held = value.encode() if isinstance(value, str) else payload[value[1] : value[1] + value[2]]
            (folder / "held" / key).write_bytes(held)
    path = folder / "refs.json"
    path.write_text(json.dumps(refs))
    return str(path), refs


def reference(fo: Any, each: int) -> Any:
    """Open by fsspec's reference filesystem, ``each`` chunks a task."""
    options = {"fo": fo, "remote_protocol": "file", "skip_instance_cache": True}
    return _opened(fsspec.filesystem("reference", asynchronous=True, **options), each)


def ours(fo: Any, each: int) -> Any:
    """Open by this filesystem, which remembers nothing of the readings before."""
    fs = RefShardFileSystem(fo, asynchronous=True, skip_instance_cache=True)
    fs.invalidate_cache()
    return _opened(fs, each)


def memory(folder: str, each: int) -> Any:
    """Open what is held in memory."""
    return _read(held_store(folder), each)


def _opened(fs: Any, each: int) -> Any:
    # Not by a path of the filesystem: xarray hashes all options of that with dask, a million entries of a dict too.
    return _read(FsspecStore(fs, read_only=True, path=""), each)


def _read(store: Any, each: int) -> Any:
    return xr.open_zarr(store, consolidated=False, chunks={"few_rows": each}, mask_and_scale=False)


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class Run(NamedTuple):
    """Seconds of opening, of all, and of all processes' CPU; bytes that peaks grew by; a sum over what was read."""

    opening: float
    seconds: float
    cpu: float
    grown: int
    total: int


def run(open_: Callable[[Any, int], Any], fo: Any, each: int, held: str) -> Run:
    """Open and compute in a cluster that has read some chunks from memory."""
    with (
        dask.config.set({"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "60s"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        for module in IMPORTED:
            client.run(__import__, module)
        _sum(memory(held, 1).few.data[:WARM]).compute()
        before, cpu = sum(client.run(_peak).values()), _cpu(client)
        began = time.perf_counter()
        data = open_(fo, each).few.data
        opened = time.perf_counter()
        total = int(_sum(data).compute())
        ended = time.perf_counter()
        cpu = _cpu(client) - cpu
        return Run(opened - began, ended - began, cpu, sum(client.run(_peak).values()) - before, total)


def _cpu(client: distributed.Client) -> float:
    """Return the CPU seconds of client and scheduler, which are one process, and workers."""
    return time.process_time() + sum(client.run(time.process_time).values())


def _sum(data: Any) -> Any:
    return (data & 255).sum()


def compare(what: str, contenders: Contenders, each: int, held: str, rounds: int, count: int) -> None:
    """Measure ``contenders`` in turns; print and keep the medians."""
    found: dict[str, list[Run]] = {}
    for _ in range(rounds):
        for name, (open_, fo) in contenders.items():
            if name == FIRST:
                with tempfile.TemporaryDirectory() as empty, patch.dict(os.environ, XDG_CACHE_HOME=empty):
                    found.setdefault(name, []).append(run(open_, fo, each, held))
            else:
                found.setdefault(name, []).append(run(open_, fo, each, held))
    assert len({one.total for runs in found.values() for one in runs}) == 1
    took = {name: statistics.median(one.seconds for one in runs) for name, runs in found.items()}
    opening = {name: statistics.median(one.opening for one in runs) for name, runs in found.items()}
    cpu = {name: statistics.median(one.cpu for one in runs) for name, runs in found.items()}
    grown = {name: float(statistics.median(one.grown for one in runs)) for name, runs in found.items()}
    mine = tuple(name for name in found if name.startswith("ours"))
    for case, unit, values, goal in (
        (what, "s", took, GOAL),
        (f"{what}: memory of workers", "B", grown, LEAST),
    ):
        met = values["reference"] >= goal * values["ours"]
        keep(Case("dask", case, unit, values, mine, "reference", goal=f"≥ {goal:g}×", met=met, size=count))
    print(what)
    for name, seconds in took.items():
        print(
            f"  {name:12}{seconds:8.2f} s (opening {opening[name]:5.2f}, CPU {cpu[name]:5.2f})"
            f"{grown[name] / 1e6:9.1f} MB"
            f"   {took['reference'] / seconds:5.1f} x faster, "
            f"{grown['reference'] / max(grown[name], 1):5.1f} x less memory"
            + (f"   goals {GOAL:g} and {LEAST:g}" if name == "ours" else ""),
            flush=True,
        )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dask", description="Reading with dask.")
    parser.add_argument("--quick", action="store_true", help="fewer references, one round, 20 chunks a task")
    options = parser.parse_args()
    count, rounds = (QUICK, 1) if options.quick else (COUNT, 3)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # an index cache of its own
        path, refs = write(Path(folder), count)
        held = f"{folder}/held"
        for kind, fo in (("path", path), ("dict", refs)):
            contenders: Contenders = {"reference": (reference, fo), "ours": (ours, fo), "memory": (memory, held)}
            if kind == "path":
                contenders[FIRST] = (ours, fo)
            for each in SHAPES[-1:] if options.quick else SHAPES:
                what = f"{count} references by {kind}, {READ} chunks" + (f", {each} a task" if each > 1 else "")
                compare(what, contenders, each, held, rounds, count)


if __name__ == "__main__":
    main()
