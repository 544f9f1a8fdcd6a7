"""Coordinates that are read and stored in a set."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from tests.support.joined_sets import make_array, make_day_set, read

zarr = pytest.importorskip("zarr")


@pytest.mark.parametrize("version", [2, 3])
def test_coordinate_larger_than_memory_is_joined_by_reference(version: int) -> None:
    one = make_array("x", np.arange(2, dtype="<f8"), (2,), ["x"], version=version, inline=True)
    key = "x/.zarray" if version == 2 else "x/zarr.json"
    long = {**one, key: json.dumps({**json.loads(one[key]), "shape": [10**13]})}
    joined = refshard_fs.concat([long, one], "x")
    chunk = f"x/{10**13 // 2}" if version == 2 else f"x/c/{10**13 // 2}"
    assert RefShardFileSystem(joined).cat_file(chunk) == np.arange(2, dtype="<f8").tobytes()


def test_error_names_coordinate_with_oversized_chunk() -> None:
    one = {
        "x/.zarray": json.dumps({"zarr_format": 2, "shape": [2], "chunks": [10**13], "dtype": "<f8", "order": "C",
                                 "fill_value": 0, "filters": None, "compressor": None}),
        "x/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
    }  # fmt: skip
    with pytest.raises(ManifestError, match=r"'x' along 'x', not a multiple of its chunks"):
        refshard_fs.concat([one, one], "x")


def test_compressed_coordinates_are_read_and_joined() -> None:
    numcodecs = pytest.importorskip("numcodecs")
    zlib = numcodecs.Zlib(1)
    parts = [make_day_set(0, 2), make_day_set(2, 2), make_day_set(4, 2)]
    for start, part in zip((0, 2, 4), parts, strict=True):
        data = zlib.encode(np.arange(start, start + 2, dtype="<i4").tobytes())
        MemoryFileSystem().pipe_file(f"/made/zlib{start}", data)
        part["time/0"] = data if start else ["memory://made/zlib0", 0, len(data)]
        part["time/.zarray"] = json.dumps(json.loads(part["time/.zarray"]) | {"compressor": zlib.get_config()})
    both = refshard_fs.concat(parts, dim="time")
    np.testing.assert_array_equal(read(both)["time"], np.arange(6))
    assert json.loads(json.dumps(both.references["time/.zarray"]))["compressor"] is None
