"""Make a reference set of an array with known values, and open it by zarr 2 or 3."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr")


ZARR_2 = zarr.__version__.startswith("2.")


SHAPE, CHUNKS = (8, 6), (2, 3)


VALUES = np.arange(48, dtype="<i4").reshape(SHAPE)


def make_zarray(separator: str = ".") -> str:
    meta = {
        "zarr_format": 2, "shape": SHAPE, "chunks": CHUNKS, "dtype": "<i4", "compressor": None,
        "fill_value": -1, "filters": None, "order": "C", "dimension_separator": separator,
    }  # fmt: skip
    return json.dumps(meta)


def make_reference_set(url: str, separator: str = ".") -> tuple[dict[str, Any], bytes]:
    """Return a set of a group with an array and a nested group with another, and the bytes of their target."""
    data, refs = b"", {".zgroup": '{"zarr_format": 2}', "g/.zgroup": '{"zarr_format": 2}', ".zattrs": '{"title": "x"}'}
    for array in ("a", "g/b"):
        refs[f"{array}/.zarray"] = make_zarray(separator)
        refs[f"{array}/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["y", "x"]}'
    for i in range(4):
        for j in range(2):
            chunk = VALUES[2 * i : 2 * i + 2, 3 * j : 3 * j + 3].tobytes()
            for array in ("a", "g/b"):
                refs[f"{array}/{i}{separator}{j}"] = [url, len(data), len(chunk)]  # type: ignore[assignment]
            data += chunk
    return refs, data


def open_group(fs: Any) -> Any:
    if ZARR_2:
        return zarr.open(fs.get_mapper(""), mode="r")
    from zarr.storage import FsspecStore

    return zarr.open_group(FsspecStore.from_mapper(fs.get_mapper(""), read_only=True), mode="r")
