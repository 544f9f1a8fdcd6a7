"""Make metadata of zarr version 2, and read values of arrays."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import zarr

from tests.support.chunk_manifests import open_source

pytest.importorskip("pyarrow")


def make_v2(**more: Any) -> dict[str, Any]:
    doc = {"zarr_format": 2, "shape": [4, 6], "chunks": [2, 3], "dtype": "<i2", "order": "C", "fill_value": None}
    return {**doc, "compressor": None, "filters": None, **more}


def read_values(source: Any, path: str = "x") -> Any:
    store = zarr.storage.FsspecStore(open_source(source, asynchronous=True), path="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open_group(store, mode="r")[path][...]
