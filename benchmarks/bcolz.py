"""One column of a bcolz table, read whole: bcolz itself, and zarr and dask through this package.

    python -m benchmarks.bcolz [--quick] [--rows 100_000_000] [--directory DIR]

bcolz-zipline (Python 3.11 and 3.12) writes a ctable of one int64 column, a random walk in 1 MiB chunks, and reads it by
its own ``carray[:]`` and ``carray.sum()``. zarr reads the same files as an array, and dask sums the array in parallel,
with one chunk or eight chunks (8 MiB) in a task. All readers take turns over a warm page cache, and must return the
same sum. The table shows medians of wall seconds, and of seconds of CPU, which a busy machine disturbs less. For
*first*, no header is in memory: each chunk's header is read before the chunk. For *again*, the headers are in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bcolz
import dask.array
import numpy as np
import zarr

from benchmarks.record import Case, record_case
from refshard_fs import RefShardFileSystem

ROWS, QUICK_ROWS = 100_000_000, 4_000_000
REPEATS = 3
PIECE = 1_000_000  # rows written at a time
TASK = 8  # chunks in a task of dask


def write_table(folder: Path, rows: int) -> int:
    """Write the table and return the sum of its column."""
    random = np.random.default_rng(0)
    column = bcolz.carray(np.empty(0, "<i8"), expectedlen=rows)
    table = bcolz.ctable([column], names=["x"], rootdir=str(folder), mode="w", expectedlen=rows)
    total = 0
    for start in range(0, rows, PIECE):
        steps = random.integers(-100, 101, min(PIECE, rows - start))
        values = np.cumsum(steps) + start
        total += int(values.sum())
        table.append([values])
    table.flush()
    return total


def open_array(folder: Path, *, forget: bool) -> Any:
    """Open the column with zarr; with ``forget``, drop the headers of its chunks from memory."""
    fs = RefShardFileSystem(fo=str(folder), skip_instance_cache=True)
    if forget:
        fs.invalidate_cache()
    return zarr.open_group(fs.get_mapper(""), mode="r")["x"]


def compute_sum(array: Any, chunks: int) -> int:
    """Sum ``array`` with dask, with this number of chunks in a task."""
    return int(dask.array.from_zarr(array, chunks=(chunks * array.chunks[0],)).sum().compute())


def main() -> None:
    """Write the table, read it with each reader, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--directory", default=None, help="where the table is written, and removed again")
    given = parser.parse_args()
    rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        folder = Path(directory) / "table"
        total = write_table(folder, rows)
        carray = bcolz.open(str(folder), mode="r")["x"]
        stored = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        size = rows * 8
        print(f"{rows:,} int64 in {carray.nchunks + 1} chunks, {size / 1e6:.0f} MB, {stored / 1e6:.0f} MB stored")
        contenders: dict[str, Callable[[], int]] = {
            "bcolz carray[:]": lambda: int(carray[:].sum()),
            "zarr [:], first": lambda: int(open_array(folder, forget=True)[:].sum()),
            "zarr [:], again": lambda: int(open_array(folder, forget=False)[:].sum()),
            "bcolz carray.sum()": lambda: int(carray.sum()),
            "dask sum, first": lambda: compute_sum(open_array(folder, forget=True), 1),
            "dask sum, again": lambda: compute_sum(open_array(folder, forget=False), 1),
            "dask sum of 8 MiB, first": lambda: compute_sum(open_array(folder, forget=True), TASK),
            "dask sum of 8 MiB, again": lambda: compute_sum(open_array(folder, forget=False), TASK),
        }
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        worked: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(1 if given.quick else REPEATS):
            for name, read in contenders.items():
                began, used = time.perf_counter(), time.process_time()
                found = read()
                taken[name].append(time.perf_counter() - began)
                worked[name].append(time.process_time() - used)
                assert found == total, f"{name}: expected the sum {total}, got {found}"
        median = {name: statistics.median(times) for name, times in taken.items()}
        for baseline, mine in (("bcolz carray[:]", "zarr [:]"), ("bcolz carray.sum()", "dask sum")):
            values = {name: spent for name, spent in median.items() if name == baseline or name.startswith(mine)}
            ours = tuple(name for name in values if name != baseline)
            record_case(Case("bcolz", f"{mine} of {rows:,} int64", "s", values, ours, baseline))
        for name, times in taken.items():
            seconds = statistics.median(times)
            cpu = statistics.median(worked[name])
            print(f"{name:25} {seconds:8.2f} s {size / seconds / 1e6:8.0f} MB/s {cpu:8.2f} s of CPU")


if __name__ == "__main__":
    main()
