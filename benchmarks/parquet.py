"""Open parquet reference sets, and look up 1000 random keys, compared with fsspec's ReferenceFileSystem.

    python -m benchmarks.parquet [--quick]

The set has a million references in partitions of 10,000, as fsspec writes them. Each measurement runs in a new process
that has imported everything and read another small set. Readers take turns, and the table has medians of wall seconds.
The benchmark needs pyarrow, and for fsspec's reader pandas and fastparquet.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import tempfile
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Goal, Row, print_table, run_in_turns

ROWS = 10_000
SIDE = 1000  # chunks along each of two dimensions
TARGET = 1 << 24  # bytes of each file that references point into
CHUNK = 64  # bytes

READERS = {
    "fsspec": ("fsspec.implementations.reference", "ReferenceFileSystem", ("pandas", "fastparquet")),
    "refshard": ("refshard_fs", "RefShardFileSystem", ("pyarrow.parquet", "refshard_fs.writing.save")),
}
GOALS = {
    "open → first chunk": 2.0,
    "1000 look-ups, cold": 2.5,
    "1000 look-ups, warm": 3.0,
    "1000 reads, cold": None,
    "1000 reads, warm": None,
}


def write_set(root: Path, side: int) -> None:
    """Write a set of ``side`` × ``side`` references as fsspec's writer does, and the files that they point into."""
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
    """Return the seconds that ``reader`` takes for each row of the table, and a digest of references and bytes."""
    module, name, needed = READERS[reader]
    warnings.simplefilter("ignore")
    for needs in needed:
        importlib.import_module(needs)
    cls = getattr(importlib.import_module(module), name)
    _open_and_read(cls, f"{folder}/small", "v/0.0")  # imports, and other work that a process does once
    url = f"{folder}/large"
    rng = random.Random(1)
    keys = [f"v/{rng.randrange(SIDE)}.{rng.randrange(SIDE)}" for _ in range(1000)]
    took: dict[str, Any] = {}

    def time_call(row: str, function: Any) -> Any:
        start = time.perf_counter()
        result = function()
        took[row] = time.perf_counter() - start
        return result

    fs = time_call("open → first chunk", lambda: _open_and_read(cls, url, keys[0]))
    found = time_call("1000 look-ups, cold", lambda: [fs.references[key] for key in keys])
    time_call("1000 look-ups, warm", lambda: [fs.references[key] for key in keys])
    fs = _open_and_read(cls, url, keys[0])
    getattr(fs, "invalidate_cache", int)()
    data = time_call("1000 reads, cold", lambda: [fs.cat_file(key) for key in keys])
    time_call("1000 reads, warm", lambda: [fs.cat_file(key) for key in keys])
    references = [[str(url), int(offset), int(size)] for url, offset, size in found]
    took["digest"] = zlib.crc32(json.dumps(references).encode() + b"".join(data))
    return took


def _open_and_read(cls: Any, url: str, key: str) -> Any:
    fs = cls(fo=url, remote_protocol="file", skip_instance_cache=True)
    fs.cat_file(key)
    return fs


def main() -> None:
    """Write the sets, run the readers in turns, compare their digests, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(*arguments.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_set(Path(folder, "small"), 2)
        write_set(Path(folder, "large"), SIDE)
        cases = [(reader, folder) for reader in READERS]
        theirs, ours = run_in_turns("benchmarks.parquet", cases, 3 if arguments.quick else 9)
    assert theirs["digest"] == ours["digest"], "the readers disagree"
    rows = [Row(row, "s", theirs[row], ours[row], Goal(ratio=goal)) for row, goal in GOALS.items()]
    print_table("parquet", rows, *READERS)


if __name__ == "__main__":
    main()
