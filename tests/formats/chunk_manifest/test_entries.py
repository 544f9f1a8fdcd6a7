"""Entries of every kind in chunk manifests are read, and errors name the invalid entry."""

from __future__ import annotations

import hashlib
import json
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import ManifestError, ReferenceNotReachable, TargetChanged
from refshard_fs.core.checksums import crc32c
from refshard_fs.formats.chunk_manifest.manifest import parse
from tests.servers.http import RangeServer
from tests.support.chunk_manifests import GRID, encode_manifest, make_metadata, open_source, write


def test_coordinates_outside_of_the_grid_are_ignored() -> None:
    found = parse(encode_manifest({"4.0": {"path": "x"}, "0.3": {}, "3.2": {"path": "z"}}), GRID, "m")
    assert len(found) == 1
    assert [found.is_empty(n) for n in range(12)] == [False] * 12


@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ({"0/0": {"path": "x"}}, "'0/0'"),
        ({"0.0": {"path": "x"}, "c/0/0": {"path": "x"}}, "'c/0/0'"),
        ({"00.0": {"path": "x"}}, "'00.0'"),
        ({"-1.0": {"path": "x"}}, "'-1.0'"),
        ({"0.0\n0.1": {"path": "x"}}, "0.0"),
        ({"0.0.0": {"path": "x"}}, "'0.0.0'"),
        ({"": {"path": "x"}}, "''"),
        ({"0.0": ["x", 1, 2]}, "'0.0'"),
        ({"0.0": {"path": 5}}, "'0.0'"),
        ({"0.0": {"path": ""}}, "'0.0'"),
        ({"0.0": {"path": "x", "offset": -1, "length": 1}}, "'0.0'"),
        ({"0.0": {"path": "x", "offset": 1.5}}, "'0.0'"),
        ({"0.0": {"path": "x", "offset": 2**63 - 1, "length": 1}}, "'0.0'"),
        ({"0.0": {"offset": 1, "length": 1}}, "'0.0'"),
        ({"0.0": {"etag": "x"}}, "'0.0'"),
        ({"0.0": {"path": "x", "data": "y"}}, "'0.0'"),
        ({"0.0": {"data": "x", "offset": 1}}, "'0.0'"),
        ({"0.0": {"data": "base64:!"}}, "'0.0'"),
        ({"prefix": {"0": {"path": "x"}}}, "'0'"),
        ({"prefix": {"0.0.0.": {"path": "x"}}}, "'0.0.0.'"),
        ({"prefix": {"0.": {"path": "x", "offset": 1}}}, "offset"),
        ({"prefix": {"0.": {"path": "x", "separator": "-"}}}, "'-'"),
        ({"prefix": {"0.": {}}}, "path"),
        ({"prefix": [1]}, "prefix"),
        ([], "list"),
        ("x", "str"),
    ],
)
def test_errors_name_the_invalid_entry(manifest: Any, name: str) -> None:
    with pytest.raises(ManifestError, match=r"^m") as caught:
        parse(encode_manifest(manifest), GRID, "m")
    assert name in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b'{"0.0": {"path": "x"}', b"\xff", b"[" * 100_000, b'{"0.0": {}} x'])
def test_invalid_json_is_an_error(data: bytes) -> None:
    with pytest.raises(ManifestError, match=r"^m"):
        parse(data, GRID, "m")


def test_entries_with_a_path_or_data_are_read(tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(b"0123456789")
    (tmp_path / "whole.bin").write_bytes(b"AB")
    manifest = {
        "0": {"path": "../raw.bin", "offset": 4, "length": 2},
        "1": {"path": f"file://{tmp_path}/whole.bin"},
        "2": {},
        "3": {"data": "xy"},
        "4": {"path": "../raw.bin", "offset": 8},
        "5": {"path": "../raw.bin", "length": 2},
        "6": {"data": {"a": [1]}},
        "7": {"path": str(tmp_path / "whole.bin")},
    }
    fs = open_source(str(write(tmp_path / "a", manifest, (20,), (2,))))
    chunks = {key: fs.cat_file(f"c/{key}") for key in "01345 67".replace(" ", "")}
    assert chunks == {
        "0": b"45", "1": b"AB", "3": b"xy", "4": b"89", "5": b"01", "6": b'{"a":[1]}', "7": b"AB",
    }  # fmt: skip
    assert fs.cat_file("c/0", 1, 2) == b"5"
    assert fs.cat_file("c/4", -1) == b"9"
    assert fs.info("c/0")["size"] == 2
    assert fs.info("c/1")["size"] == 2
    for missing in ("c/2", "c/8", "c/10", "c/x", "c/00"):
        with pytest.raises(FileNotFoundError):
            fs.cat_file(missing)
        assert not fs.exists(missing)
    assert sorted(fs.ls("c", detail=False)) == [f"c/{i}" for i in (0, 1, 3, 4, 5, 6, 7)]
    assert {e["name"]: e["size"] for e in fs.ls("c")}["c/0"] == 2
    assert sorted(fs.ls("", detail=False)) == ["c", "manifest.json", "zarr.json"]


SUMS = {
    "crc32c": lambda data: f"{crc32c(data):08x}",
    "crc32": lambda data: f"{zlib.crc32(data):08x}",
    "adler32": lambda data: f"{zlib.adler32(data):08X}",
    "md5": lambda data: hashlib.md5(data).hexdigest(),
    "sha256": lambda data: hashlib.sha256(data).hexdigest(),
    "blake2b": lambda data: hashlib.blake2b(data).hexdigest(),
}


@pytest.mark.parametrize("name", SUMS)
def test_checksums_are_checked(tmp_path: Path, name: str) -> None:
    (tmp_path / "raw").write_bytes(b"0123456789")
    right = f"{name}:{SUMS[name](b'2345')}"
    wrong = f"{name}:{SUMS[name](b'2346')}"
    manifest = {
        "0": {"path": "raw", "offset": 2, "length": 4, "checksum": right},
        "1": {"path": "raw", "offset": 2, "length": 4, "checksum": wrong},
        "2": {"data": "2345", "checksum": right},
        "3": {"data": "2345", "checksum": wrong},
        "4": {"path": "raw", "checksum": f"{name}:{SUMS[name](b'0123456789')}"},
    }
    fs = open_source(str(write(tmp_path, manifest, (10,))))
    assert fs.cat_file("c/0") == fs.cat_file("c/2") == b"2345"
    assert fs.cat_file("c/0", 1, 3) == b"34"  # the checksum is of the whole chunk
    assert fs.cat_file("c/4", -3, -1) == b"78"
    with pytest.raises(ReferenceNotReachable, match=f"c/1.*{name}"):
        fs.cat_file("c/1")
    with pytest.raises(ReferenceNotReachable, match=f"c/1.*{name}"):
        fs.cat_file("c/1", 1, 2)
    with pytest.raises(ManifestError, match=f"'c/3'.*{name}"):
        fs.cat_file("c/3")


@pytest.mark.parametrize("checksum", ["crc99:00", "md5", "md5:00", "crc32c:1", "md5:zz", "shake_128:00", ""])
def test_unknown_and_malformed_checksums_are_errors(tmp_path: Path, checksum: str) -> None:
    (tmp_path / "raw").write_bytes(b"0123456789")
    fs = open_source(str(write(tmp_path, {"0": {"path": "raw", "checksum": checksum}})))
    with pytest.raises(ManifestError, match=r"manifest\.json.*'c/0'"):
        fs.cat_file("c/0")


def test_etags_and_times_are_checked(http_server: RangeServer) -> None:
    url = http_server.put("/raw", b"0123456789", modified=1_700_000_000)
    with urllib.request.urlopen(url) as answer:
        etag = answer.headers["ETag"]
    span = {"path": url, "offset": 0, "length": 2}
    entries = {
        "0": {**span, "etag": etag},
        "1": {**span, "etag": '"other"'},
        "2": {**span, "last_modified": "2020-01-01T00:00:00Z"},
    }
    for key, entry in entries.items():
        doc = make_metadata((10,), (2,), {key: entry})
        fs = open_source({"x/zarr.json": json.dumps(doc)})
        if key == "0":
            assert fs.cat_file("x/c/0") == b"01"
        else:
            with pytest.raises(TargetChanged, match=f"x/c/{key}"):
                fs.cat_file(f"x/c/{key}")
