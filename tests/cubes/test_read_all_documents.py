"""Read all metadata of a source in few rounds of requests."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from refshard_fs import RefShardError, RefShardFileSystem
from tests.support.arrays_in_memory import make_array, make_references

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")


@pytest.mark.parametrize(
    "damaged",
    ["{}", "[]", '{"zarr_format": 2, "shape": "x", "chunks": 5}', '{"zarr_format": 2, "shape": [-1], "chunks": [0]}'],
)
def test_damaged_metadata_is_shown_or_a_refshard_error(damaged: str) -> None:
    refs = make_references(a=make_array([3], ["x"]), bad=make_array([3], ["x"]), x=make_array([3], ["x"])) | {
        "bad/.zarray": damaged
    }
    words: list[dict[str, Any]] = [{"drop": "a"}, {"keep": "bad", "isel": {"x": slice(4, 6)}}, {"rename": {"bad": "b"}}]
    for each in words:
        with contextlib.suppress(RefShardError):
            RefShardFileSystem(refs).select(**each).find("")
