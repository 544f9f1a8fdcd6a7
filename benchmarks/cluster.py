"""Dask's `LocalCluster` reads a few of many references: this filesystem, and fsspec's reference filesystem.

    python -m benchmarks.cluster [--quick]

Two processes of two threads read 2000 chunks of 4 KB of a set of a million references, given by its path and as a dict.
Each reading has a cluster of its own. Times are of opening and computing; memory is what the workers' peaks have grown
by, together. *memory* is the same computation over chunks that the workers hold: what dask, xarray and zarr cost by
themselves, which nobody can undercut.
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
from pathlib import Path
from typing import Any

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

COUNT, QUICK = 1_000_000, 200_000
READ, SIZE = 2000, 4096  # chunks, bytes of one


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
    (folder / "held" / "few").mkdir(parents=True)
    for key, value in refs.items():
        if key.startswith(("few/", ".zgroup")):
            held = value.encode() if isinstance(value, str) else payload[value[1] : value[1] + value[2]]
            (folder / "held" / key).write_bytes(held)
    path = folder / "refs.json"
    path.write_text(json.dumps(refs))
    return str(path), refs


def reference(fo: Any) -> Any:
    """Open by fsspec's reference filesystem."""
    options = {"fo": fo, "remote_protocol": "file", "skip_instance_cache": True}
    return _opened(fsspec.filesystem("reference", asynchronous=True, **options))


def ours(fo: Any) -> Any:
    """Open by this filesystem."""
    return _opened(RefShardFileSystem(fo, asynchronous=True, skip_instance_cache=True))


def memory(folder: str) -> Any:
    """Open what is held in memory."""
    return _read(held_store(folder))


def _opened(fs: Any) -> Any:
    # Not by a path of the filesystem: xarray hashes all options of that with dask, a million entries of a dict too.
    return _read(FsspecStore(fs, read_only=True, path=""))


def _read(store: Any) -> Any:
    return xr.open_zarr(store, consolidated=False, chunks={}, mask_and_scale=False)


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def run(open_: Any, fo: Any) -> tuple[float, int, int]:
    """Return seconds, bytes that the workers' peaks grew by, and a sum over what was read."""
    with (
        dask.config.set({"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "60s"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        for module in ("xarray", "zarr", "refshard_fs.fs"):
            client.run(__import__, module)
        before = sum(client.run(_peak).values())
        began = time.perf_counter()
        total = int((open_(fo).few.data & 255).sum().compute())
        took = time.perf_counter() - began
        return took, sum(client.run(_peak).values()) - before, total


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description="Reading with dask.")
    parser.add_argument("--quick", action="store_true", help="fewer references, one round")
    options = parser.parse_args()
    count, rounds = (QUICK, 1) if options.quick else (COUNT, 3)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # an index cache of its own
        path, refs = write(Path(folder), count)
        for held, fo in (("path", path), ("dict", refs)):
            found: dict[str, list[tuple[float, int, int]]] = {}
            for _ in range(rounds):
                for name, open_, of in (
                    ("reference", reference, fo),
                    ("ours", ours, fo),
                    ("memory", memory, f"{folder}/held"),
                ):
                    found.setdefault(name, []).append(run(open_, of))
            assert len({total for runs in found.values() for _, _, total in runs}) == 1
            median = {name: statistics.median(run[0] for run in runs) for name, runs in found.items()}
            grown = {name: statistics.median(run[1] for run in runs) for name, runs in found.items()}
            case = f"{count} references by {held}, {READ} chunks"
            keep(Case("cluster", case, "s", median, ("ours",), "reference", size=count))
            keep(Case("cluster", f"{case}: memory of workers", "B", grown, ("ours",), "reference", size=count))
            print(case)
            for name, seconds in median.items():
                print(
                    f"  {name:10}{seconds:8.2f} s {grown[name] / 1e6:9.1f} MB"
                    f"   {median['reference'] / seconds:5.1f} x faster, "
                    f"{grown['reference'] / max(grown[name], 1):5.1f} x less memory",
                    flush=True,
                )


if __name__ == "__main__":
    main()
