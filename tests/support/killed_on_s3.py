"""A script of `tests.support.killed` whose jobs commit to S3.

The arguments of a job are URL, format, endpoint and value; for the format "overwritten", the value is the number of
the hierarchy's state. A job waits after its writes, before it commits or saves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import s3fs  # noqa: F401  # imported before the forks, and not by each process

import refshard_fs.formats.kerchunk_parquet.partition
import refshard_fs.writing.commit  # as above
from refshard_fs import RefShardFileSystem
from tests.servers.s3 import SeaweedServer
from tests.support import overwriting
from tests.support.hierarchy_model import make_array_document, make_group_document
from tests.support.killed import serve, wait_to_begin
from tests.support.shard_codecs import make_sharding, make_version_3

WIDTH = 4  # elements of a row, which is a shard of two chunks


def open_source(url: str, format: str, endpoint: str, mode: str = "a") -> RefShardFileSystem:
    """Open the source at ``url`` through ``endpoint``."""
    s3: dict[str, Any] = {"key": "ak", "secret": SeaweedServer.secret, "client_kwargs": {"endpoint_url": endpoint}}
    format = "zarr-hierarchy" if format == "overwritten" else format
    settings: dict[str, Any] = {} if mode == "r" else {"format": format, "record_size": 4, "inline_threshold": 16}
    options = {"target_options": s3, "options": {"s3://": s3}, "skip_instance_cache": True}
    return RefShardFileSystem(url, mode=mode, **options, **settings)


def count_chunks(value: str) -> int:
    """Return the number of chunks of a set after ``value`` is written to it."""
    return len(value) % 7 + 3


def count_rows(value: str) -> int:
    """Return the number of rows of a hierarchy after ``value``, which contains the number, is written to it."""
    return int(value.partition(":")[0])


def make_row(value: str, row: int) -> bytes:
    """Return the bytes of a chunk of a row after ``value`` is written."""
    return np.full(WIDTH // 2, parse_number(value) + row, "<i4").tobytes()


def parse_number(value: str) -> int:
    return 1000 * int(value.partition(":")[2])


def write(fs: RefShardFileSystem, format: str, value: str, before: int = 0) -> None:
    """Write ``value``: over the whole content of a set, or after the ``before`` rows of a hierarchy."""
    if format == "zarr-hierarchy":
        doc = json.loads(fs.cat_file("a/zarr.json"))
        fs.pipe_file("a/zarr.json", json.dumps({**doc, "shape": [count_rows(value), WIDTH]}).encode())
        for row in range(before, count_rows(value)):
            fs.pipe_file(f"a/c/{row}/0", make_row(value, row))
            if row % 2:  # of the other rows, one half is left out
                fs.pipe_file(f"a/c/{row}/1", make_row(value, row))
        return
    fs.rm("a/c", recursive=True)
    fs.pipe_file("a/zarr.json", make_array_document((count_chunks(value),)))
    fs.pipe({f"a/c/{i}": value.encode() for i in range(count_chunks(value))})


def make_source(fs: RefShardFileSystem, format: str, value: str) -> None:
    """Make the source: a set with ``value``, or a hierarchy without rows."""
    if format == "zarr-hierarchy":
        fs.pipe_file("zarr.json", make_group_document())
        doc = make_version_3((0, WIDTH), (1, WIDTH), [make_sharding([1, WIDTH // 2])])
        fs.pipe_file("a/zarr.json", json.dumps(doc).encode())
    else:
        fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((count_chunks(value),))})
        fs.pipe({f"a/c/{i}": value.encode() for i in range(count_chunks(value))})
    fs.commit()


def make_saved_content(value: str) -> dict[str, bytes]:
    """Return the content of the saved set for ``value``; values differ in arrays, chunks and partitions."""
    count = count_chunks(value)
    arrays = {"a": count, f"n{count % 3}": 2 * count}
    keys = {"zarr.json": make_group_document()} | {
        f"{a}/zarr.json": make_array_document((n,)) for a, n in arrays.items()
    }
    return keys | {f"{array}/c/{i}": f"{array}{value}".encode() for array, n in arrays.items() for i in range(n)}


def save(url: str, format: str, endpoint: str, value: str) -> None:
    """Replace the set at ``url`` by that for ``value``."""
    options = open_source(url, format, endpoint, "r").storage_options["target_options"]
    fs = RefShardFileSystem(make_saved_content(value), skip_instance_cache=True)
    wait_to_begin()
    fs.save(url, format.removeprefix("saved "), record_size=4, overwrite=True, **options)


def commit_value(url: str, format: str, endpoint: str, value: str) -> int:
    if format.startswith("saved "):
        save(url, format, endpoint, value)
        return 0
    fs = open_source(url, format, endpoint)
    if format == "overwritten":
        overwriting.write(fs, int(value))
    else:
        write(fs, format, value, json.loads(fs.cat_file("a/zarr.json"))["shape"][0])
    wait_to_begin()
    fs.commit()
    return 0


if __name__ == "__main__":
    refshard_fs.formats.kerchunk_parquet.partition.require_pyarrow()
    serve(commit_value)
