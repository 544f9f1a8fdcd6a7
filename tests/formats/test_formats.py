"""The examples in FORMATS.md are read as the text says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from refshard_fs import ReferenceNotReachable, TargetChanged
from tests.support.chunk_manifests import open_source

TEXT = (Path(__file__).parents[2] / "FORMATS.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```json\n(.*?)```", TEXT, re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in EXAMPLES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    contents = {
        "raw/day1.bin": b"title" + bytes(95) + b"\1\2\3\4",
        "raw/day2.bin": b"1234",
        "year1.zarr/x/c/0/0": b"y100",
        "year1.zarr/x/c/0/1": b"y101",
        "year1.zarr/x/c/1/0": b"none",
        "year2.zarr/x/part.0": b"y210",
    }
    for name, data in contents.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


def test_every_example_is_json() -> None:
    assert len(EXAMPLES) == 10
    for text in EXAMPLES.values():
        json.loads(text)


def test_chunk_manifest_example_is_read(folder: Path) -> None:
    fs = open_source(str(folder / "array.zarr/temp"))
    assert fs.cat_file("c/0/0") == b"\1\2\3\4"
    assert fs.cat_file("c/1/1") == b"\t\t\t\t"
    assert fs.info("c/1/0") == {"name": "c/1/0", "size": 0, "type": "other", "empty": True}
    assert "storage_transformers" not in json.loads(fs.cat_file("zarr.json"))
    assert fs.resolve("c/0/0") == (f"{folder}/raw/day1.bin", 100, 104)


def test_checksum_of_the_example_is_checked(folder: Path) -> None:
    assert open_source(str(folder / "array.zarr/temp")).cat_file("c/0/1") == b"1234"
    (folder / "raw/day2.bin").write_bytes(b"0000")
    with pytest.raises(ReferenceNotReachable, match="crc32c"):
        open_source(str(folder / "array.zarr/temp")).cat_file("c/0/1")


def test_pinned_set_example_is_read(folder: Path) -> None:
    fs = open_source(str(folder / "pinned.json"))
    assert fs.cat_file("one") == b"\1\2\3\4"
    (folder / "raw/day1.bin").write_bytes(b"title")
    with pytest.raises(TargetChanged, match="size is 5 bytes, not 104"):
        open_source(str(folder / "pinned.json")).cat_file("one")


def test_lazy_document_example_is_read(folder: Path) -> None:
    fs = open_source(str(folder / "years.json"))
    assert {key: fs.cat_file(key) for key in fs.find("temp") if ".z" not in key} == {
        "temp/0.0": b"\1\2\3\4",
        "temp/1.0": b"abcd",
        "temp/2.0": b"1234",
    }
    assert json.loads(fs.cat_file("temp/.zarray"))["shape"] == [3, 4]
    assert fs.cat_file("time/0") == b"\0\1\2"


def test_prefix_map_example_is_read(folder: Path) -> None:
    fs = open_source(str(folder / "mapped.zarr"))
    assert {key: fs.cat_file(key) for key in fs.find("c")} == {
        "c/0/0": b"y100",
        "c/0/1": b"y101",
        "c/1/0": b"y210",
        "c/1/1": b"abcd",
    }


def test_composite_store_example_is_read(folder: Path) -> None:
    fs = open_source(str(folder / "composite.zarr"))
    assert json.loads(fs.cat_file("zarr.json"))["attributes"] == {"title": "two stores and a file"}
    assert fs.cat_file("README") == b"title"
    assert fs.cat_file("first/temp/c/0/0") == b"wxyz"
    assert fs.cat_file("more/second/c/1/0") == b"y210"
    assert fs.ls("", detail=False) == ["README", "first", "more", "zarr.json"]


def test_composite_document_example_is_read(folder: Path) -> None:
    fs = open_source(str(folder / "composite.json"))
    assert fs.cat_file("a/c/0/0") == b"\1\2\3\4"
    assert fs.cat_file("b/c/1/1") == b"abcd"
    assert json.loads(fs.cat_file("zarr.json"))["node_type"] == "group"
