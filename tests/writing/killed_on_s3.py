"""Processes that commit to S3, for somebody to kill them: a script, which forks one for each line it reads.

A line is JSON: URL, format, endpoint, value; of a hierarchy that is to be overwritten, the number of the state.
Each prints its number when all is written and commits when it is told to;
"done" and its status is said of it then, or "dead" if it was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pytest
import s3fs  # noqa: F401  # once, not in each process
from aiobotocore.session import AioSession

import refshard_fs.formats.kerchunk_parquet.partition
import refshard_fs.writing.commit  # as above
from refshard_fs import RefShardFileSystem
from tests.servers.models import share_models
from tests.sharding.test_packing import sharding, version_3
from tests.writing import overwriting
from tests.writing.model import array_document, group_document

WIDTH = 4  # elements of a row, which is a shard of two chunks


def opened(url: str, format: str, endpoint: str, mode: str = "a") -> RefShardFileSystem:
    """The source at ``url``, read and written through ``endpoint``."""
    s3: dict[str, Any] = {"key": "ak", "secret": "sk", "client_kwargs": {"endpoint_url": endpoint}}
    format = "zarr-hierarchy" if format == "overwritten" else format
    settings: dict[str, Any] = {} if mode == "r" else {"format": format, "record_size": 4, "inline_threshold": 16}
    options = {"target_options": s3, "options": {"s3://": s3}, "skip_instance_cache": True}
    return RefShardFileSystem(url, mode=mode, **options, **settings)


def count_of(value: str) -> int:
    """Chunks that a set has when ``value`` is written to it."""
    return len(value) % 7 + 3


def rows_of(value: str) -> int:
    """Rows that a hierarchy has when ``value``, which says it, is written to it."""
    return int(value.partition(":")[0])


def row_of(value: str, row: int) -> bytes:
    """One chunk of a row that ``value`` writes."""
    return np.full(WIDTH // 2, number_of(value) + row, "<i4").tobytes()


def number_of(value: str) -> int:
    return 1000 * int(value.partition(":")[2])


def write(fs: RefShardFileSystem, format: str, value: str, before: int = 0) -> None:
    """Write ``value``: over all there is in a set; behind the rows, ``before`` in number, of a hierarchy."""
    if format == "zarr-hierarchy":
        doc = json.loads(fs.cat_file("a/zarr.json"))
        fs.pipe_file("a/zarr.json", json.dumps({**doc, "shape": [rows_of(value), WIDTH]}).encode())
        for row in range(before, rows_of(value)):
            fs.pipe_file(f"a/c/{row}/0", row_of(value, row))
            if row % 2:  # of others a half is left out
                fs.pipe_file(f"a/c/{row}/1", row_of(value, row))
        return
    fs.rm("a/c", recursive=True)
    fs.pipe_file("a/zarr.json", array_document((count_of(value),)))
    fs.pipe({f"a/c/{i}": value.encode() for i in range(count_of(value))})


def begin(fs: RefShardFileSystem, format: str, value: str) -> None:
    """Make the source, of ``value`` if it is a set, without rows if it is a hierarchy."""
    if format == "zarr-hierarchy":
        fs.pipe_file("zarr.json", group_document())
        doc = version_3((0, WIDTH), (1, WIDTH), [sharding([1, WIDTH // 2])])
        fs.pipe_file("a/zarr.json", json.dumps(doc).encode())
    else:
        fs.pipe({"zarr.json": group_document(), "a/zarr.json": array_document((count_of(value),))})
        fs.pipe({f"a/c/{i}": value.encode() for i in range(count_of(value))})
    fs.commit()


def commit(url: str, format: str, endpoint: str, value: str) -> None:
    fs = opened(url, format, endpoint)
    if format == "overwritten":
        overwriting.write(fs, int(value))
    else:
        write(fs, format, value, json.loads(fs.cat_file("a/zarr.json"))["shape"][0])
    print(os.getpid(), flush=True)
    os.read(sys.stdin.fileno(), 100)
    fs.commit()


async def _make_a_client() -> None:
    async with AioSession().create_client("s3", region_name="us-east-1"):
        pass


def main() -> None:
    warnings.simplefilter("ignore")
    share_models(pytest.MonkeyPatch())
    asyncio.run(_make_a_client())  # so that each process finds the models
    refshard_fs.formats.kerchunk_parquet.partition.require_pyarrow()
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            status = 1
            try:
                commit(*json.loads(line))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print("dead" if os.WIFSIGNALED(status) else f"done {os.WEXITSTATUS(status)}", flush=True)


if __name__ == "__main__":
    main()
