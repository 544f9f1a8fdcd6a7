"""References as one JSON document, in the version and the compression that it needs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.parquet_sets import DATA, make_files, make_v2_array, store

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "x.bin"
    path.write_bytes(DATA)
    return str(path)


def test_json_has_version_0_if_a_url_looks_like_a_template(tmp_path: Path) -> None:
    for url, version in (("/x/u", 1), ("/x/{{u}}", 0)):
        written = make_files({"a/.zarray": make_v2_array([3], [1])}, 3, {"a/refs.0.parq": [None, [url, 1, 2], None]})
        fs = RefShardFileSystem(store(tmp_path / "a.parq", written))
        assert fs.references["a/1"] == [url, 1, 2]
        fs.save(str(tmp_path / "b.json"))
        document = json.loads((tmp_path / "b.json").read_text())
        assert document.get("version", 0) == version
        assert document.get("refs", document)["a/1"] == [url, 1, 2]
    assert sorted(os.listdir(tmp_path)) == ["a.parq", "b.json"]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *((f"refs.json{ending}", "kerchunk-json") for ending in ("", ".gz", ".bz2", ".xz", ".zst")),
        ("refs.zarr", "zarr-hierarchy"),
        ("refs.parquet", "kerchunk-parquet"),
        ("refs", "kerchunk-parquet"),
    ],
)
def test_saved_file_has_the_format_of_its_suffix(tmp_path: Path, target: str, name: str, format: str) -> None:
    fs = RefShardFileSystem({"a/.zarray": make_v2_array([2], [1]), "a/0": [target, 0, 1], "a/1": [target, 1, 2]})
    fs.save(str(tmp_path / name))
    again = RefShardFileSystem(str(tmp_path / name))
    assert again.resolve("a/1")[1:] == (1, 3)
    assert again.source.open().format == format
    if name.startswith("refs.json."):
        assert (tmp_path / name).read_bytes()[:1] != b"{"
