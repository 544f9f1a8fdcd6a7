"""Processes that append a day to a set on S3, for somebody to kill them: a script, which forks one for each line.

A line is JSON: URL of the set, URL of the day, endpoint. Each prints its number, and appends when it is told to; "done"
and by how much the set grew is said of it then, or "dead" if it was killed.
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

import pytest
import s3fs  # noqa: F401  # once, not in each process
from aiobotocore.session import AioSession

import refshard_fs
import refshard_fs.formats.kerchunk_parquet.partition
import refshard_fs.formats.netcdf3.source
import refshard_fs.sets.append
import refshard_fs.writing.commit  # as above
from tests.servers.models import share_models


def options(endpoint: str) -> dict[str, Any]:
    """How the set, the days and their chunks are opened."""
    s3: dict[str, Any] = {"key": "ak", "secret": "sk", "client_kwargs": {"endpoint_url": endpoint}}
    return {"target_options": s3, "options": {"s3://": s3}}


def append(url: str, day: str, endpoint: str) -> int:
    print(os.getpid(), flush=True)
    os.read(sys.stdin.fileno(), 100)
    return refshard_fs.append(url, day, "time", on_duplicate="skip", **options(endpoint))


async def _make_a_client() -> None:
    async with AioSession().create_client("s3", region_name="us-east-1"):
        pass


def main() -> None:
    warnings.simplefilter("ignore")
    share_models(pytest.MonkeyPatch())
    asyncio.run(_make_a_client())  # so that each process finds the models
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            status = 100
            try:
                status = append(*json.loads(line))
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print("dead" if os.WIFSIGNALED(status) else f"done {os.WEXITSTATUS(status)}", flush=True)


if __name__ == "__main__":
    main()
