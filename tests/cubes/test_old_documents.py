"""Read documents of cubes that an earlier version wrote, and append to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem

zarr = pytest.importorskip("zarr")

NAN = float("nan")
SHOWN = {"chunks": [2, 2], "dtype": "<f8", "order": "C", "compressor": None, "filters": None, "fill_value": "NaN"}
ARRAY = {"zarr_format": 2, "shape": [2, 2], **SHOWN}
# The document that concat(..., lazy=True) wrote for three sets: two data types, a gap, and other places along x.
GAPS = {
    "refshard": "concat",
    "dim": "time",
    "axes": {"time": 0, "v": 0},
    "coordinate": "time",
    "chunks": {"v": [2, 2]},
    "join": "outer",
    "metadata": {
        "x/.zarray": {**SHOWN, "zarr_format": 2, "shape": [3], "chunks": [3]},
        "v/.zarray": {**ARRAY, "shape": [2, 3]},
        "v/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "x"]},
    },
    "unions": {"x": {"v": 1}},
    "held": {"x": "base64:AAAAAAAAAAAAAAAAAADwPwAAAAAAAABA"},
    "sets": [
        ["0.json", 2, "base64:AAAAAAEAAAA=", {"x": [[0, 2]]}],
        ["1.json", 2, "base64:AgAAAAMAAAA=", {"x": [[0, 2]]}],
        [None, 2, "base64:BAAAAAUAAAA="],
        ["2.json", 3, "base64:BgAAAAcAAAAIAAAA", {"x": [[1, 2]]}],
    ],
}
RECUT = {
    "refshard": "concat",
    "dim": "time",
    "axes": {"time": 0, "v": 0},
    "coordinate": "time",
    "chunks": {"v": [3, 2]},
    "metadata": {"v/.zarray": ARRAY, "v/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "x"]}},
    "sets": [["0.json", 2, "base64:AAAAAAEAAAA="], ["1.json", 2, "base64:AgAAAAMAAAA="]],
}
VALUES = [[1, 2], [3, 4], [3, 4], [5, 6]]


def day(day: int, values: Sequence[Sequence[float]], dtype: str, x: list[float]) -> dict[str, Any]:
    """Return the references of a set, whose times are days since ``day``."""
    arrays = {
        "time": (
            np.arange(len(values), dtype="<i4"),
            ["time"],
            {"units": f"days since 2024-01-{day:02}", "calendar": "standard"},
        ),
        "x": (np.array(x, "<f8"), ["x"], {}),
        "v": (np.array(values, dtype), ["time", "x"], {}),
    }
    refs: dict[str, Any] = {".zgroup": {"zarr_format": 2}}
    for name, (data, dims, attributes) in arrays.items():
        shape = list(data.shape)
        refs[f"{name}/.zarray"] = {**ARRAY, "shape": shape, "chunks": shape, "dtype": data.dtype.str}
        refs[f"{name}/.zarray"]["fill_value"] = "NaN" if data.dtype.kind == "f" else None
        refs[f"{name}/.zattrs"] = {"_ARRAY_DIMENSIONS": dims, **attributes}
        refs[f"{name}/{'.'.join('0' * len(shape))}"] = data.tobytes()
    return refs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the sets that the documents name, and return their folder."""
    RefShardFileSystem(day(1, VALUES[:2], "<f4", [0, 1])).save(str(tmp_path / "0.json"))
    RefShardFileSystem(day(3, VALUES[2:], "<f8", [0, 1])).save(str(tmp_path / "1.json"))
    RefShardFileSystem(day(7, [[7, 8], [9, 10], [11, 12]], "<f4", [1, 2])).save(str(tmp_path / "2.json"))
    return tmp_path


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (RECUT, VALUES),
        (
            GAPS,
            [
                *([*row, NAN] for row in VALUES),
                *[[NAN] * 3] * 2,
                *([NAN, *row] for row in ([7, 8], [9, 10], [11, 12])),
            ],
        ),
    ],
    ids=["recut", "gaps"],
)
def test_document_of_an_earlier_version_is_read(folder: Path, document: dict[str, Any], expected: Any) -> None:
    (folder / "cube.refshard").write_text(json.dumps(document))
    group = zarr.open_group(RefShardFileSystem(str(folder / "cube.refshard")).get_mapper(""), mode="r")
    np.testing.assert_array_equal(group["v"][:], expected)
    assert group["time"][:].tolist() == list(range(len(expected)))


def test_piece_is_added_to_a_document_of_an_earlier_version(folder: Path) -> None:
    url = str(folder / "cube.refshard")
    (folder / "cube.refshard").write_text(json.dumps(RECUT))
    refshard_fs.append(url, str(folder / "2.json"), dim="time", same=["x"])
    group = zarr.open_group(RefShardFileSystem(url).get_mapper(""), mode="r")
    assert group["v"][:].tolist() == [*VALUES, [7, 8], [9, 10], [11, 12]]
    assert group["time"][:].tolist() == [0, 1, 2, 3, 6, 7, 8]
