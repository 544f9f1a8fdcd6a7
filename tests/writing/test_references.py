"""`fs.references` is a mapping of keys to references, which can be written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.reference import LazyReferenceMapper, ReferenceFileSystem

from refshard_fs import RefShardFileSystem
from tests.support.hierarchy_model import open_for_writes
from tests.support.written_references import LARGE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a set of two keys, one inline and one that is a range of a file; return its path."""
    (tmp_path / "data").write_bytes(LARGE)
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"text": "inline", "range": ["data", 10, 20]}))
    return path


def test_references_accept_kerchunks_values(path: Path) -> None:
    """kerchunk inlines values as bytes that begin with `base64:`."""
    fs = RefShardFileSystem(str(path), mode="a")
    refs = fs.references
    refs["base64"] = b"base64:aGVsbG8="
    refs["range"] = [str(path.with_name("data")), np.int64(2), np.uint32(3)]
    fs.pipe_file("raw", b"base64:")
    refs["again"] = refs["raw"]
    assert fs.cat(["base64", "range", "again"]) == {"base64": b"hello", "range": LARGE[2:5], "again": b"base64:"}
    copied = refs.copy()
    assert type(copied) is dict
    assert copied == dict(refs)
    fs.discard()
    copied = RefShardFileSystem(str(path)).references.copy()  # type: ignore[attr-defined]
    assert type(copied) is dict
    assert copied["text"] == "inline"


def test_references_show_uncommitted_writes(path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("a", b"text")
    assert dict(fs.references) == {"text": "inline", "range": ["data", 10, 20], "a": "text"}
    fs.discard()
    assert "a" not in fs.references


def test_references_are_a_writable_mapping(path: Path, tmp_path: Path) -> None:
    fs = RefShardFileSystem(str(path), mode="a")
    refs = fs.references
    refs["whole"] = ["data"]
    refs["part"] = [str(tmp_path / "data"), 5, 3]
    refs["object"] = {"a": 1}
    refs["binary"] = "base64:AAH/"
    del refs["text"]
    with pytest.raises(KeyError):
        del refs["text"]
    for value in (5, True):
        with pytest.raises(TypeError, match="'wrong'"):
            refs["wrong"] = value
    assert "text" not in refs
    assert len(refs) == 5
    assert refs["part"] == [str(tmp_path / "data"), 5, 3]
    assert fs.cat(["whole", "part"]) == {"whole": LARGE, "part": LARGE[5:8]}
    refs.flush()
    again = RefShardFileSystem(str(path))
    expected = {"whole": LARGE, "part": LARGE[5:8], "object": b'{"a":1}', "binary": b"\0\1\xff", "range": LARGE[10:30]}
    assert again.cat("", recursive=True) == expected


def test_kerchunk_combines_into_the_references_of_a_parquet_set(tmp_path: Path) -> None:
    combine = pytest.importorskip("kerchunk.combine")
    (tmp_path / "data").write_bytes(bytes(range(40)))
    sets = []
    for number in range(3):
        attributes = json.dumps({"_ARRAY_DIMENSIONS": ["time"]})
        refs = {".zgroup": '{"zarr_format":2}', "v/.zarray": version_2([10], 10).decode(), "v/.zattrs": attributes}
        refs |= {"time/.zarray": version_2([10], 10).decode(), "time/.zattrs": attributes}
        start = 10 * number
        sets.append(refs | {f"{name}/0": [str(tmp_path / "data"), start, 10] for name in ("v", "time")})
    fs = open_for_writes(tmp_path / "refs.parq", "parquet")
    combine.MultiZarrToZarr(sets, concat_dims=["time"], out=fs.references).translate()
    found = RefShardFileSystem(str(tmp_path / "refs.parq"))
    assert b"".join(found.cat_file(f"v/{i}") for i in range(3)) == bytes(range(30))
    assert json.loads(found.cat_file("v/.zarray"))["shape"] == [30]


def version_2(counts: list[int], chunk: int = 1) -> bytes:
    document = {"zarr_format": 2, "shape": counts, "chunks": [chunk] * len(counts), "dtype": "|u1", "order": "C"}
    return json.dumps({**document, "fill_value": 0, "filters": None, "compressor": None}).encode()


@pytest.mark.filterwarnings("ignore:.*fastparquet:Warning")
def test_parquet_set_is_made_and_flushed_as_by_fsspec(tmp_path: Path) -> None:
    pytest.importorskip("fastparquet", reason="fsspec's own reader of parquet sets needs it")
    path = tmp_path / "refs.parq"
    fs = open_for_writes(path, "parquet")
    fs.pipe({".zgroup": b'{"zarr_format":2}', "a/.zarray": version_2([6]), "a/.zattrs": b"{}"})
    fs.pipe({f"a/{i}": bytes([i]) * 30 for i in range(6)})
    fs.flush()
    fs.pipe({"a/1": b"inline", "a/.zarray": version_2([9]), "a/8": b"last" * 9})
    fs.rm("a/2")
    fs.flush()
    theirs = ReferenceFileSystem(str(path))
    assert isinstance(theirs.references, LazyReferenceMapper)
    expected = {f"a/{i}": bytes([i]) * 30 for i in (0, 3, 4, 5)} | {"a/1": b"inline", "a/8": b"last" * 9}
    assert {key: theirs.cat_file(key) for key in expected} == expected
    assert json.loads(theirs.cat_file("a/.zarray"))["shape"] == [9]
    with pytest.raises(FileNotFoundError):
        theirs.cat_file("a/2")
    names = {file.name for file in path.rglob("*") if file.is_file()}
    kept = {"refs.0.1.parq", "refs.1.1.parq"}
    assert names - kept == {".zmetadata", "refs.0.parq", "refs.1.parq", "refs.2.parq"}
