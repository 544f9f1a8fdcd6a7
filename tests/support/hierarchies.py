"""A small zarr hierarchy, and a function that opens it."""

from __future__ import annotations

import json
from typing import Any

from refshard_fs import RefShardFileSystem

ZGROUP = b'{"zarr_format": 2}'


META = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [2],
    "dtype": "<i4",
    "compressor": None,
    "filters": None,
    "fill_value": 0,
    "order": "C",
}


ZARRAY = json.dumps(META).encode()


FILES = {".zgroup": ZGROUP, "g/.zgroup": ZGROUP, "g/a/.zarray": ZARRAY, "g/a/0": b"12345678", "g/a/.zattrs": b"{}"}


def open_hierarchy(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)
