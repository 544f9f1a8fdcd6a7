"""Save references to an Icechunk repository, compared with icechunk's own calls from lists that are in memory.

    python -m benchmarks.repositories [--quick]

A million references (``--quick``: 30,000) to files of 83 chunks, without pins and with an ETag for each file, and to
objects that hold one chunk, without pins and with an ETag each. The table has seconds of processor time of all threads,
from the opened set to the commit, and the peak of memory. Each measurement runs in a new process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Row, Usage, measure_usage, print_table, run_in_turns

MODULE = "benchmarks.repositories"
COUNT, QUICK = 1_000_000, 30_000
IN_FILE = 83  # chunks
AT_ONCE = 100_000  # references in one call of icechunk
LENGTH = 4000  # bytes of a chunk
KINDS = {
    f"files of {IN_FILE} chunks": (IN_FILE, False),
    f"files of {IN_FILE} chunks, with ETags": (IN_FILE, True),
    "objects of one chunk": (1, False),
    "objects of one chunk, with ETags": (1, True),
}


def make_targets(kind: str, count: int) -> tuple[list[str], list[str] | None, int]:
    """Return the URLs of the targets, their ETags if they have any, and the number of chunks in each."""
    each, has_versions = KINDS[kind]
    numbers = range(-(-count // each))
    urls = [f"s3://bucket/store/{number // 1000}/{number % 1000}" for number in numbers]
    etags = [hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest() for number in numbers]
    return urls, etags if has_versions else None, each


def write_set(path: Path, kind: str, count: int) -> None:
    """Write a kerchunk set of the references, with pins."""
    urls, etags, each = make_targets(kind, count)
    array = {"zarr_format": 2, "shape": [len(urls), each], "chunks": [1, 1], "dtype": "<f4", "order": "C"}
    array |= {"compressor": None, "filters": None, "fill_value": 0}
    refs: dict[str, Any] = {".zgroup": '{"zarr_format":2}', "t/.zarray": json.dumps(array)}
    for row, url in enumerate(urls):
        refs |= {f"t/{row}.{column}": [url, column * LENGTH, LENGTH] for column in range(each)}
    pins = {} if etags is None else {"refshard": {"pins": {"url": urls, "etag": etags}}}
    path.write_text(json.dumps({"version": 1, "refs": refs, **pins}))


def prepare_own(kind: str, count: int, there: str) -> Callable[[], object]:
    """Return a function that makes the repository by the fastest calls of icechunk for these references."""
    import icechunk
    import numpy as np
    import zarr

    urls, etags, each = make_targets(kind, count)
    group = {"shape": (len(urls), each), "chunks": (1, 1), "dtype": "<f4", "fill_value": 0}
    indexes = [[row, column] for row in range(len(urls)) for column in range(each)] if each == 1 and etags else []

    def save() -> None:
        session = icechunk.Repository.create(icechunk.local_filesystem_storage(there)).writable_session("main")
        zarr.create_group(session.store).create_array("t", compressors=None, filters=None, **group)
        store = session.store
        if etags is None:
            step = AT_ONCE // each
            for first in range(0, len(urls), step):
                part = [url for url in urls[first : first + step] for _ in range(each)]
                offsets = np.tile(np.arange(each, dtype="u8") * LENGTH, len(part) // each)
                options = {"arr_offset": (first, 0), "validate_containers": False}
                lengths = np.full(len(part), LENGTH, "u8")
                store.set_virtual_refs_arr("t", (len(part) // each, each), part, offsets, lengths, **options)
        elif each > 1:
            offsets, lengths = np.arange(each, dtype="u8") * LENGTH, np.full(each, LENGTH, "u8")
            for row, (url, etag) in enumerate(zip(urls, etags, strict=True)):
                options = {"arr_offset": (row, 0), "checksum": etag, "validate_containers": False}
                store.set_virtual_refs_arr("t", (1, each), [url] * each, offsets, lengths, **options)
        else:
            for first in range(0, len(urls), AT_ONCE):
                part = slice(first, first + AT_ONCE)
                size = len(urls[part])
                columns = indexes[part], urls[part], [0] * size, [LENGTH] * size, etags[part]
                specs = list(map(icechunk.VirtualChunkSpec, *columns))
                store.set_virtual_refs("t", specs, validate_containers=False)
        session.commit("made")

    return save


def prepare_refshard(path: str, there: str) -> Callable[[], object]:
    """Return a function that saves the set at ``path``, which is open."""
    from refshard_fs import RefShardFileSystem

    fs = RefShardFileSystem(path, index_cache=False)
    fs.ls("")
    return lambda: fs.save(there, format="icechunk")


def run_child(contender: str, kind: str, count: str, path: str) -> dict[str, float]:
    """Make one measurement in this process: seconds of processor time, and bytes of memory at the peak."""
    import icechunk

    icechunk.set_logs_filter("error")
    with tempfile.TemporaryDirectory() as folder:
        there = f"{folder}/made.icechunk"
        save = prepare_own(kind, int(count), there) if contender == "icechunk" else prepare_refshard(path, there)
        found: list[Usage] = []
        with measure_usage(found.append):
            start = time.process_time()
            save()
            seconds = time.process_time() - start
    return {"seconds": seconds, "peak": found[0].peak}


def measure_all(folder: Path, count: int, repeats: int) -> list[Row]:
    """Make all measurements with ``count`` references, and return the rows of the table."""
    rows: list[Row] = []
    for number, kind in enumerate(KINDS):
        path = folder / f"{number}.json"
        write_set(path, kind, count)
        cases: Sequence[Sequence[str]] = [(name, kind, str(count), str(path)) for name in ("icechunk", "refshard")]
        theirs, ours = run_in_turns(MODULE, cases, repeats)
        rows.append(Row(f"save {kind}", "s", theirs["seconds"], ours["seconds"], Goal(0.67)))
        rows.append(Row("   added memory, peak", "B", theirs["peak"], ours["peak"], Goal()))
        path.unlink()
    return rows


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(run_child(*arguments.child)))
        return
    count, repeats = (QUICK, 1) if arguments.quick else (COUNT, 3)
    print(f"{count:,} references, medians of {repeats}, processor time")
    with tempfile.TemporaryDirectory() as folder:
        print_table("repositories", measure_all(Path(folder), count, repeats), "icechunk", "refshard")


if __name__ == "__main__":
    sys.exit(main())
