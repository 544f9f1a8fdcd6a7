"""One of each view that a notebook shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import refshard_fs
from refshard_fs import RefShardFileSystem

META = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0}


ARRAY = json.dumps(META | {"filters": None, "compressor": None})


def days(count: int, folder: Path) -> list[str]:
    meta = json.dumps(json.loads(ARRAY) | {"shape": [2, 3], "chunks": [1, 3]})
    for n in range(count):
        refs = {"<air>/.zarray": meta, "<air>/.zattrs": '{"_ARRAY_DIMENSIONS": ["<time>", "x"]}'}
        RefShardFileSystem({**refs, "<air>/0.0": [f"s3://b/{n}.nc", 0, 3]}).save(str(folder / f"{n}.json"))
    return [str(folder / f"{n}.json") for n in range(count)]


def views(folder: Path) -> dict[str, Any]:
    sets = days(12, folder)
    fs = RefShardFileSystem(sets[0])
    fs.ls("")
    return {
        "filesystem": fs,
        "concat": refshard_fs.concat(sets, "<time>"),
        "lazy": refshard_fs.concat(sets, "<time>", lazy=True),
        "check": refshard_fs.check(RefShardFileSystem({"<a>/.zarray": ARRAY, "<a>/7": "x"})),
        "stats": fs.stats(),
        "plan": fs.plan(["<air>/0.0", "<air>/0.0"]),
    }
