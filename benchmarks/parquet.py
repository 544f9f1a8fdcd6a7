"""Parquet reference sets, side by side with fsspec's ReferenceFileSystem: opening, and 1000 random look-ups.

A set of a million references in partitions of 10,000 as fsspec writes it. Each measurement is in a
new process that has imported everything and read another small set; readers take turns. Run
``python -m benchmarks.parquet``; needs pyarrow, and
for fsspec's reader pandas and fastparquet.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 10_000
SIDE = 1000  # chunks along each of two dimensions
TARGET = 1 << 24
CHUNK = 64

READERS = {
    "fsspec": ("fsspec.implementations.reference", "ReferenceFileSystem", ("pandas", "fastparquet")),
    "refshard": ("refshard_fs", "RefShardFileSystem", ("pyarrow.parquet", "refshard_fs.save")),
}
GOALS = {
    "open → first chunk": 2.0,
    "1000 look-ups, cold": 3.0,
    "1000 look-ups, warm": 3.0,
    "1000 reads, cold": None,
    "1000 reads, warm": None,
}


def write(root: Path, side: int) -> None:
    """Write a set of ``side`` squared references as fsspec's writer does, and the files that they point into."""
    pandas = importlib.import_module("pandas")
    warnings.simplefilter("ignore")
    (root / "v").mkdir(parents=True)
    targets = [root / f"target{i}.bin" for i in range(4)]
    for path in targets:
        path.write_bytes(random.Random(path.name).randbytes(TARGET))
    array = {"zarr_format": 2, "shape": [side, side], "chunks": [1, 1], "dtype": "<i4", "fill_value": None}
    array |= {"compressor": None, "filters": None, "order": "C"}
    metadata = {".zgroup": {"zarr_format": 2}, "v/.zarray": array, "v/.zattrs": {}}
    (root / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": ROWS}))
    for i in range(-(-side * side // ROWS)):
        numbers = np.arange(i * ROWS, (i + 1) * ROWS)
        table = pandas.DataFrame(
            {
                "path": [str(targets[n % 4]) for n in numbers],
                "offset": numbers * 7919 * CHUNK % (TARGET - CHUNK),
                "size": np.full(ROWS, CHUNK),
                "raw": np.full(ROWS, None, dtype="O"),
            }
        )
        table["path"] = table["path"].astype("category")
        table.to_parquet(
            root / "v" / f"refs.{i}.parq",
            engine="fastparquet",
            compression="zstd",
            index=False,
            stats=False,
            object_encoding={"raw": "bytes", "path": "utf8"},
            has_nulls=["path", "raw"],
        )


def measure(reader: str, folder: str) -> dict[str, Any]:
    """Return the seconds that ``reader`` takes for each row of the table, and what it found."""
    module, name, needed = READERS[reader]
    warnings.simplefilter("ignore")
    for needs in needed:
        importlib.import_module(needs)
    cls = getattr(importlib.import_module(module), name)
    _opened(cls, f"{folder}/small", "v/0.0")  # what is done once in a process
    url = f"{folder}/large"
    rng = random.Random(1)
    keys = [f"v/{rng.randrange(SIDE)}.{rng.randrange(SIDE)}" for _ in range(1000)]
    took: dict[str, Any] = {}

    def timed(row: str, function: Any) -> Any:
        start = time.perf_counter()
        result = function()
        took[row] = time.perf_counter() - start
        return result

    fs = timed("open → first chunk", lambda: _opened(cls, url, keys[0]))
    found = timed("1000 look-ups, cold", lambda: [fs.references[key] for key in keys])
    timed("1000 look-ups, warm", lambda: [fs.references[key] for key in keys])
    fs = _opened(cls, url, keys[0])
    getattr(fs, "invalidate_cache", int)()
    data = timed("1000 reads, cold", lambda: [fs.cat_file(key) for key in keys])
    timed("1000 reads, warm", lambda: [fs.cat_file(key) for key in keys])
    took["found"] = [[str(url), int(offset), int(size)] for url, offset, size in found] + [d.hex() for d in data]
    return took


def _opened(cls: Any, url: str, key: str) -> Any:
    fs = cls(fo=url, remote_protocol="file", skip_instance_cache=True)
    fs.cat_file(key)
    return fs


def main() -> None:
    """Run all readers in turn, compare what they found, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=2, metavar=("READER", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "small"), 2)
        write(Path(folder, "large"), SIDE)
        runs: dict[str, list[dict[str, Any]]] = {reader: [] for reader in READERS}
        for _ in range(arguments.rounds):
            for reader in READERS:
                command = [sys.executable, "-m", "benchmarks.parquet", "--measure", reader, folder]
                run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  # this module itself
                runs[reader].append(json.loads(run.stdout))
    results = [run.pop("found") for some in runs.values() for run in some]
    assert all(result == results[0] for result in results), "the readers disagree"
    print(f"{'parquet, 1M references':26}{'fsspec':>12}{'refshard':>12}{'ratio':>8}{'goal':>8}")
    for row, goal in GOALS.items():
        theirs, ours = (statistics.median(run[row] for run in runs[reader]) for reader in READERS)
        wanted = "" if goal is None else f"≥ {goal:g}×"
        print(f"{row:26}{theirs * 1e3:>9.2f} ms{ours * 1e3:>9.2f} ms{theirs / ours:>7.1f}×{wanted:>8}")


if __name__ == "__main__":
    main()
