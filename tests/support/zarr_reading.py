"""Read a filesystem by the installed version of zarr, 2 or 3."""

from __future__ import annotations

import ast
import hashlib
import warnings
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr")
ZARR_2 = zarr.__version__.startswith("2.")
STRUCT_OF_ARRAYS = "[('a', '<i4'), ('b', '<f8', (2,))]"
FORMATS = [2] if ZARR_2 else [2, 3]  # versions of the metadata that zarr reads


def open_group(fs: Any) -> Any:
    if ZARR_2:
        return zarr.open(fs.get_mapper(""), mode="r")
    from zarr.storage import FsspecStore

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have a Zarr V3 specification.*")
        return zarr.open_group(FsspecStore.from_mapper(fs.get_mapper(""), read_only=True), mode="r")


def read_values(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array[...])


def check(got: np.ndarray[Any, Any], expected: dict[str, Any], zarr_format: int) -> None:
    """Assert that values have the dtype, and their bytes the digest, that their writer recorded."""
    text = expected.get("dtype", "|u1")
    dtype = np.dtype(ast.literal_eval(text) if text.startswith("[") else text)
    if not ZARR_2 and text == STRUCT_OF_ARRAYS:  # zarr 3 cannot open such a struct
        assert got.dtype == np.dtype([("a", "<i4"), ("b.0", "<f8"), ("b.1", "<f8")])
    elif zarr_format == 2:
        assert got.dtype == dtype
    else:  # zarr v3 has no byte orders in memory
        assert got.dtype == dtype.newbyteorder("=")
        got = got.astype(dtype)
    assert hashlib.sha256(np.ascontiguousarray(got).tobytes()).hexdigest() == expected["sha256"]
