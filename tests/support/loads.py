"""A document for tests of loads, and a function in place of the engine's `run`."""

from __future__ import annotations

import json
from typing import Any

from refshard_fs.core.model import Load, Pin, Span, Steps
from refshard_fs.formats.kerchunk_json.source import JsonIndex

ARRAY = {"zarr_format": 2, "shape": [5000], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}


def make_document(count: int = 5000) -> bytes:
    refs: dict[str, Any] = {"a/.zarray": json.dumps(ARRAY), "c": "text"}
    return json.dumps({**refs, **{f"a/{i}": ["s3://b/x", i, 1] for i in range(count)}}).encode()


async def run_steps(steps: Steps[Any]) -> Any:
    raise AssertionError("the index must be complete after one read")


def make_load(data: bytes, url: str = "/refs.json") -> Load:
    return Load(Span(url, pin=Pin(None, None, len(data))), JsonIndex(url))
