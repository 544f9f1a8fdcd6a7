"""Sets of references that grow in place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import ManifestError, TargetChanged
from tests.support.growing_sets import open_anew, write_part, write_target
from tests.support.joined_sets import make_day_set

pytest.importorskip("zarr")


def test_appended_pins_are_kept_or_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abcd")
    meta = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    array = {"a/.zarray": json.dumps(meta | {"filters": None, "compressor": None})}
    array["a/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["t"]}'
    new = refshard_fs.snapshot(array | {"a/0": [str(tmp_path / "x"), 2, 1], "a/1": [str(tmp_path / "x"), 3, 1]})
    open_anew(array | {"a/0": [str(tmp_path / "x"), 0, 1]}).save(str(tmp_path / "all.json"))
    refshard_fs.append(tmp_path / "all.json", new, "t")
    assert open_anew(str(tmp_path / "all.json")).cat_file("a/3") == b"d"
    (tmp_path / "x").write_bytes(b"changed")
    with pytest.raises(TargetChanged):
        open_anew(str(tmp_path / "all.json")).cat_file("a/3")
    pytest.importorskip("pyarrow")
    open_anew(array).save(str(tmp_path / "set"), "parquet")
    with pytest.raises(ManifestError, match="unpinned"):
        refshard_fs.append(tmp_path / "set", new, "t")


def test_append_keeps_relative_references(tmp_path: Path) -> None:
    meta = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    array = {"a/.zarray": json.dumps(meta | {"filters": None, "compressor": None})}
    array["a/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["t"]}'
    (tmp_path / "x").write_bytes(b"ab")
    (tmp_path / "all.json").write_text(json.dumps({"version": 1, "refs": array | {"a/0": ["x", 0, 1]}}))
    refshard_fs.append(tmp_path / "all.json", array | {"a/0": [str(tmp_path / "x"), 1, 1]}, "t")
    refs = json.loads((tmp_path / "all.json").read_text())["refs"]
    assert refs["a/0"] == ["x", 0, 1]
    assert refs["a/1"] == [str(tmp_path / "x"), 1, 1]


def test_set_with_a_partial_last_chunk_refuses_append(tmp_path: Path) -> None:
    url = write_target(tmp_path, "json", [make_day_set(0, 3)])
    with pytest.raises(ManifestError, match=r"not a multiple of its chunks.*lazy=True"):
        refshard_fs.append(url, write_part(tmp_path, make_day_set(4, 2), 9), "time")
