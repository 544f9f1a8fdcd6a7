"""Read a few of many references on dask's `LocalCluster`, with this filesystem and with fsspec's `reference`.

    python -m benchmarks.dask [--quick]

Two processes of two threads read 2000 chunks of 4 KB from a set of a million references, which is passed as a path and
as a dict. A task has one chunk, so that dask's scheduling takes most of the time, or 20 chunks, a multiple of the
stored chunks, as dask's documentation advises. Each read has a new cluster, in which some chunks were read from memory
before, so that only imports of the filesystems are in the figures. Times are those of opening and computing; CPU is
that of client, scheduler and workers; memory is the sum of the growth of all workers' peaks.

*memory* is the same computation over chunks in the workers' memory, in a set with the same metadata: the time that
dask, xarray and zarr take without a filesystem. For *ours, first*, the set was never opened before, and is not in the
index cache. For *ours*, this machine has opened the set before. ``--quick``: a hundred thousand references by
path, 20 chunks a task, once.
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

from benchmarks.preloaded import load_store
from benchmarks.record import Case, record_case
from refshard_fs.fs import RefShardFileSystem

warnings.simplefilter("ignore")
logging.getLogger("distributed").setLevel(logging.ERROR)

COUNT, QUICK = 1_000_000, 100_000
READ, SIZE = 2000, 4096  # chunks that are read, and bytes of a chunk
SHAPES = (1, 20)  # chunks of a task
WARM = 64  # chunks that are read before measuring
GOAL = 4.0  # goal: the time of the baseline divided by ours
LEAST = 5.0  # goal: the memory of the baseline divided by ours
FIRST = "ours, first"
IMPORTED = ("xarray", "zarr", "dask.array", "fsspec.implementations.reference", "refshard_fs.fs")

# For each name, the function that opens the data, and its source.
Contenders = dict[str, tuple[Callable[[Any, int], Any], Any]]


def write_set(folder: Path, count: int) -> tuple[str, dict[str, Any]]:
    """Write data and a set of ``count`` references; return its path and the set itself."""
    data = folder / "data.bin"
    payload = os.urandom(READ * SIZE)
    data.write_bytes(payload)
    width = SIZE // 8

    def make_metadata(rows: int, name: str) -> dict[str, str]:
        meta = {"zarr_format": 2, "shape": [rows, width], "chunks": [1, width], "dtype": "<u8", "order": "C"}
        meta |= {"filters": None, "compressor": None, "fill_value": 0}
        attributes = {"_ARRAY_DIMENSIONS": [f"{name}_rows", "columns"]}
        return {f"{name}/.zarray": json.dumps(meta), f"{name}/.zattrs": json.dumps(attributes)}

    refs: dict[str, Any] = {
        ".zgroup": '{"zarr_format":2}',
        **make_metadata(READ, "few"),
        **make_metadata(count - READ, "many"),
    }
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


def open_reference(fo: Any, each: int) -> Any:
    """Open ``fo`` by fsspec's reference filesystem, with ``each`` chunks a task."""
    options = {"fo": fo, "remote_protocol": "file", "skip_instance_cache": True}
    return _open_filesystem(fsspec.filesystem("reference", asynchronous=True, **options), each)


def open_refshard(fo: Any, each: int) -> Any:
    """Open ``fo`` by this filesystem, without the cache in memory of earlier reads."""
    fs = RefShardFileSystem(fo, asynchronous=True, skip_instance_cache=True)
    fs.invalidate_cache()
    return _open_filesystem(fs, each)


def open_memory(folder: str, each: int) -> Any:
    """Open the files below ``folder``, which each process keeps in memory."""
    return _open_store(load_store(folder), each)


def _open_filesystem(fs: Any, each: int) -> Any:
    # Pass a store and not a path: for a path, dask hashes all options of the filesystem, also a dict of a million keys.
    return _open_store(FsspecStore(fs, read_only=True, path=""), each)


def _open_store(store: Any, each: int) -> Any:
    return xr.open_zarr(store, consolidated=False, chunks={"few_rows": each}, mask_and_scale=False)


def _read_peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class Run(NamedTuple):
    """Seconds of opening, of opening and computing, and of CPU of all processes; growth of peaks in bytes; the sum."""

    opening: float
    seconds: float
    cpu: float
    grown: int
    total: int


def run_in_cluster(open_: Callable[[Any, int], Any], fo: Any, each: int, held: str) -> Run:
    """Open ``fo`` by ``open_``, and compute the sum, in a new cluster that has read chunks from memory before."""
    with (
        dask.config.set({"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "60s"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        for module in IMPORTED:
            client.run(__import__, module)
        _sum(open_memory(held, 1).few.data[:WARM]).compute()
        before, cpu = sum(client.run(_read_peak).values()), _read_cpu(client)
        began = time.perf_counter()
        data = open_(fo, each).few.data
        opened = time.perf_counter()
        total = int(_sum(data).compute())
        ended = time.perf_counter()
        cpu = _read_cpu(client) - cpu
        return Run(opened - began, ended - began, cpu, sum(client.run(_read_peak).values()) - before, total)


def _read_cpu(client: distributed.Client) -> float:
    """Return the seconds of CPU of all workers, and of this process, which is client and scheduler."""
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
                    found.setdefault(name, []).append(run_in_cluster(open_, fo, each, held))
            else:
                found.setdefault(name, []).append(run_in_cluster(open_, fo, each, held))
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
        record_case(Case("dask", case, unit, values, mine, "reference", goal=f"≥ {goal:g}×", met=met, size=count))
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
    parser.add_argument("--quick", action="store_true", help="fewer references by path, one round, 20 chunks a task")
    options = parser.parse_args()
    count, rounds = (QUICK, 1) if options.quick else (COUNT, 3)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # an empty index cache
        path, refs = write_set(Path(folder), count)
        held = f"{folder}/held"
        for kind, fo in (("path", path), ("dict", refs))[: 1 if options.quick else 2]:
            contenders: Contenders = {
                "reference": (open_reference, fo),
                "ours": (open_refshard, fo),
                "memory": (open_memory, held),
            }
            if kind == "path":
                contenders[FIRST] = (open_refshard, fo)
            for each in SHAPES[-1:] if options.quick else SHAPES:
                what = f"{count} references by {kind}, {READ} chunks" + (f", {each} a task" if each > 1 else "")
                compare(what, contenders, each, held, rounds, count)


if __name__ == "__main__":
    main()
