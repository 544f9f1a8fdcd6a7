"""A script of `tests.support.killed` whose jobs append a day to a set on S3.

The arguments of a job are the URL of the set, the URL of the day, and the endpoint. Its status is the number of times
by which the set grew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import s3fs  # noqa: F401  # imported before the forks, and not by each process

import refshard_fs
import refshard_fs.formats.kerchunk_parquet.partition
import refshard_fs.formats.netcdf3.source
import refshard_fs.sets.append
import refshard_fs.writing.commit  # as above
from tests.servers.s3 import SeaweedServer
from tests.support.killed import serve, wait_to_begin


def make_options(endpoint: str) -> dict[str, Any]:
    """Return the options that open the set, the days and their chunks."""
    s3: dict[str, Any] = {"key": "ak", "secret": SeaweedServer.secret, "client_kwargs": {"endpoint_url": endpoint}}
    return {"target_options": s3, "options": {"s3://": s3}}


def append(url: str, day: str, endpoint: str) -> int:
    wait_to_begin()
    return refshard_fs.append(url, day, "time", on_duplicate="skip", **make_options(endpoint))


if __name__ == "__main__":
    serve(append)
