"""Make reference sets of days. The URL of a day's chunk has the number of the day."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import refshard_fs
from tests.support.set_values import read_values

UNITS = "days since 2024-01-01"


def make_days(
    first: int, count: int, chunk: int = 1, units: str = UNITS, offset: int = 0, order: str = "<"
) -> dict[str, Any]:
    """Return a reference set of ``count`` days from the day ``first`` on, with ``chunk`` days in a chunk."""

    def array(dtype: str, size: int) -> str:
        meta = {"zarr_format": 2, "shape": [count], "chunks": [size], "dtype": dtype, "order": "C"}
        return json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})

    numbers = np.arange(first, first + count)
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    refs["time/.zarray"], refs["t/.zarray"] = array(f"{order}i4", count), array("|u1", chunk)
    refs["time/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"], "units": units})
    refs["t/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"]})
    refs["time/0"] = "base64:" + _encode_base64((numbers - offset).astype(f"{order}i4").tobytes())
    for number in range(0, count, chunk):
        refs[f"t/{number // chunk}"] = [f"memory://{first + number}", 0, chunk]
    return refs


def _encode_base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def read_times(fo: Any) -> list[int]:
    return read_values(fo, "time", "<i4")


def list_targets(fo: Any) -> list[str]:
    references = refshard_fs.RefShardFileSystem(fo).references
    count = len([key for key in references if key.startswith("t/") and not key.startswith("t/.")])
    return [references[f"t/{number}"][0] for number in range(count)]


def write_refs(folder: Path, name: str, refs: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(json.dumps(refs))
    return str(path)
