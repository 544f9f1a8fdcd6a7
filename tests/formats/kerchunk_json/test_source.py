"""JSON reference sets of versions 0 and 1: values of every kind are read, and errors name the file and the key."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.reference import ReferenceFileSystem
from numcodecs.zstd import Zstd

from refshard_fs import DivisionByZero, ManifestError, RefShardFileSystem
from refshard_fs.formats.kerchunk_json.source import parse_document
from refshard_fs.references.reference_set import References
from tests.support.json_values import TARGET, make_version_1


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "target.bin"
    path.write_bytes(TARGET)
    return str(path)


def test_templates_gen_and_overrides_expand(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"f_{i}").write_bytes(bytes([i]) * 3000)
    document = make_version_1(
        {"plain": ["{{u}}/f_0", 0, 2], "spaced": ["{{ u }}/f_1", 0, 2], "call": ["{{f(i=2)}}", 0, 2]},
        templates={"u": str(tmp_path / "nowhere"), "f": "{{u}}/f_{{i}}"},
        gen=[
            {
                "key": "g/{{i}}.{{j}}",
                "url": "{{u}}/f_{{i}}",
                "offset": "{{j * 1000}}",
                "length": "10",
                "dimensions": {"i": {"stop": 3}, "j": [0, 2]},
            },
            {"key": "w{{i}}", "url": "{{f(i=i)}}", "dimensions": {"i": {"start": 1, "stop": 2}}},
        ],
    )
    fs = RefShardFileSystem(fo=document, template_overrides={"u": str(tmp_path)})
    assert fs.cat(["plain", "spaced", "call"]) == {"plain": b"\0\0", "spaced": b"\1\1", "call": b"\2\2"}
    assert fs.ls("g", detail=False) == [f"g/{i}.{j}" for i in range(3) for j in (0, 2)]
    assert fs.cat_file("g/2.2") == b"\2" * 10
    assert fs.cat_file("w1") == b"\1" * 3000


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, Zstd().encode])
def test_compression_is_recognised_by_the_first_bytes(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    path.write_bytes(bytes(pack(json.dumps(make_version_1({"k": "data"})).encode())))
    assert RefShardFileSystem(fo=path).cat_file("k") == b"data"


@pytest.mark.parametrize("make", [bytes, bytearray, io.BytesIO])
def test_bytes_and_binary_files_are_sources(make: Any) -> None:
    fs = RefShardFileSystem(fo=make(json.dumps(make_version_1({"a/b": "data"})).encode()))
    assert fs.find("") == ["a/b"]
    assert fs.cat_file("a/b") == b"data"


def test_text_file_object_is_refused() -> None:
    with pytest.raises(TypeError, match="binary mode"):
        RefShardFileSystem(fo=io.StringIO("{}"))


def test_nan_and_infinity_in_metadata_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    path.write_text('{"x/.zattrs": {"a": NaN, "b": -Infinity}, ".zgroup": {"zarr_format": 2}}')
    text = RefShardFileSystem(fo=path).cat_file("x/.zattrs").decode()
    assert json.loads(text)["b"] == float("-inf")
    assert "NaN" in text


def test_literal_brace_in_a_url_is_not_a_template(tmp_path: Path) -> None:
    (tmp_path / "a{b}.bin").write_bytes(b"brace")
    fs = RefShardFileSystem(fo=make_version_1({"k": [str(tmp_path / "a{b}.bin")]}, templates={"b": "no"}))
    assert fs.cat_file("k") == b"brace"


def test_mapping_of_the_caller_is_copied() -> None:
    refs: dict[str, Any] = {"k": "old", "d": {"a": 1}}
    before = json.dumps(refs)
    fs = RefShardFileSystem(fo=refs)
    fs.cat_file("k")
    assert json.dumps(refs) == before
    refs["k"] = "new"
    assert fs.cat_file("k") == b"old"
    assert RefShardFileSystem(fo=refs).cat_file("k") == b"new"


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        ("not json", "fits no known format"),
        ('{"version": 1, "refs": {"a": "b"', "not JSON"),
        ('{"version": 2, "refs": {}}', "version 2"),
        ('{"version": true, "refs": {}}', "version True"),
        ('{"refs": {"a": "b"}}', '"version": 1'),
        ('{"version": 1, "a/0": ["u", 0, 1]}', "outside of"),
        ('{"version": 1, "refs": []}', "refs"),
        ('{"version": 1, "refs": {"a/0": ["u", 0]}}', "a/0.*expected a reference"),
        ('{"version": 1, "refs": {"a/0": []}}', "a/0.*expected a reference"),
        ('{"version": 1, "refs": {"a/0": ["u", -1, 5]}}', "a/0.*offset is -1"),
        ('{"version": 1, "refs": {"a/0": ["u", 1.5, 5]}}', "a/0.*offset is 1.5"),
        ('{"version": 1, "refs": {"a/0": ["u", 1, "5"]}}', "a/0.*length is '5'"),
        ('{"version": 1, "refs": {"a/0": ["u", true, 5]}}', "a/0.*offset is True"),
        ('{"version": 1, "refs": {"a/0": [7, 1, 5]}}', "a/0.*URL is 7"),
        ('{"version": 1, "refs": {"a/0": 7}}', "a/0.*expected text, an object"),
        ('{"version": 1, "refs": {"../x": "y"}}', "../x"),
        ('{"version": 1, "refs": {"a": ["{{nope}}", 0, 1]}}', "'a'.*nope"),
    ],
)
def test_errors_of_invalid_sets_name_the_file_and_the_reason(document: str, parts: str, tmp_path: Path) -> None:
    path = tmp_path / "bad-refs.json"
    path.write_text(document)
    with pytest.raises(ManifestError, match=r"bad-refs\.json") as caught:
        RefShardFileSystem(fo=path).ls("")
    for part in parts.split(".*"):
        assert part in str(caught.value)


@pytest.mark.parametrize("odd", ["", "text", ["s3://b/w"], [None, 1, 2], ("s3://b/t", 1, 2), b"raw", {"a": 1}])
def test_value_is_read_alike_in_a_large_and_a_small_set(odd: Any) -> None:
    """A large set is parsed as columns, a set of one member as an object."""
    many: dict[str, Any] = {f"a/{i}": ["s3://b/k", i, 10] for i in range(200)}
    alone, among = (
        References(parse_document({"odd": odd}, "refs", {})),
        parse_document({**many, "odd": odd}, "refs", {}),
    )
    assert dict(References(among)) == {**many, **alone}


@pytest.mark.parametrize("odd", [[], [b"s3://b/k", 1, 2], [1, 2, 3], ["s3://b/k", 1], None, 5])
def test_invalid_value_has_the_same_error_in_a_large_set(odd: Any) -> None:
    many: dict[str, Any] = {f"a/{i}": ["s3://b/k", i, 10] for i in range(200)}
    with pytest.raises(ManifestError) as alone:
        parse_document({"odd": odd}, "refs", {})
    for others in (many, {**many, "empty": ""}):
        with pytest.raises(ManifestError) as among:
            parse_document({**others, "odd": odd}, "refs", {})
        assert str(among.value) == str(alone.value)
        assert "odd" in str(among.value)


@pytest.mark.parametrize("others", [0, 200])
@pytest.mark.parametrize("kind", [np.int32, np.uint64])
def test_numpy_integers_are_accepted_as_offsets_and_lengths(kind: Any, others: int, target: str) -> None:
    refs: dict[str, Any] = {f"a/{i}": [target, kind(i % 5), kind(2)] for i in range(others)}
    fs = RefShardFileSystem(fo=refs | {"k": [target, kind(2), kind(3)]})
    assert fs.cat_file("k") == TARGET[2:5]
    with pytest.raises(ManifestError, match="offset"):
        RefShardFileSystem(fo={"k": [target, np.int64(-1), 3]}).cat_file("k")


def test_damaged_compression_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "refs.json.gz"
    path.write_bytes(gzip.compress(b"{}" * 1000)[:-12])
    with pytest.raises(ManifestError, match="damaged"):
        RefShardFileSystem(fo=path).ls("")


def test_references_equal_the_expanded_document(tmp_path: Path) -> None:
    zarray = json.dumps({"zarr_format": 2, "shape": [4], "chunks": [1], "dtype": "|u1"})
    refs = {
        "a/.zarray": zarray,
        ".zattrs": {"x": 1},
        "b": "base64:AAA=",
        "c": ["{{u}}.bin"],
        **{f"a/{i}": ["{{u}}.bin", i, 1] for i in (3, 0, 1)},
    }
    fs = RefShardFileSystem(fo=make_version_1(refs, templates={"u": "http://h/x"}))
    expanded = {k: [v[0].replace("{{u}}", "http://h/x"), *v[1:]] if isinstance(v, list) else v for k, v in refs.items()}
    assert fs.references == expanded | {".zattrs": '{"x":1}'}
    assert len(fs.references) == len(refs)
    assert "a/2" not in fs.references
    fs.save_json(str(tmp_path / "out.json"))
    saved = json.loads((tmp_path / "out.json").read_text())["refs"]
    assert {k: v for k, v in saved.items() if k != ".zattrs"} == {k: v for k, v in expanded.items() if k != ".zattrs"}
    again = RefShardFileSystem(fo=tmp_path / "out.json")
    assert again.find("") == fs.find("")
    assert again.cat_file(".zattrs") == fs.cat_file(".zattrs") == b'{"x":1}'


@pytest.mark.parametrize("where", ["file", "dict"])
def test_relative_urls_start_from_the_manifest_or_base_url(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "set" / "x.bin").write_bytes(b"beside")
    (tmp_path / "data" / "x.bin").write_bytes(b"base")
    (tmp_path / "x.bin").write_bytes(b"working")
    refs = {"k": ["x.bin"]}
    (tmp_path / "set" / "refs.json").write_text(json.dumps(refs))
    monkeypatch.chdir(tmp_path)
    fo: Any = "set/refs.json" if where == "file" else refs
    assert RefShardFileSystem(fo=fo).cat_file("k") == (b"beside" if where == "file" else b"working")
    fs = RefShardFileSystem(fo=fo, base_url=str(tmp_path / "data"))
    assert fs.cat_file("k") == b"base"
    opened = RefShardFileSystem(fo=fo)
    monkeypatch.chdir("/")
    if where == "file":
        assert opened.cat_file("k") == b"beside"


@pytest.mark.parametrize("version", [0, 1])
def test_objects_are_encoded_as_fsspec_encodes_them(tmp_path: Path, version: int) -> None:
    pytest.importorskip("ujson")
    objects = {".zgroup": {"zarr_format": 2}, ".zattrs": {"units": "m/s", "é": [1e-7, 0.1, None, True], "n": {"a": {}}}}
    document = {"version": 1, "refs": objects} if version else objects
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(document))
    theirs = ReferenceFileSystem(str(path), remote_protocol="file", skip_instance_cache=True)
    for fo in (str(path), document):
        ours = RefShardFileSystem(fo)
        assert ours.cat(list(objects)) == theirs.cat(list(objects))
        assert {key: ours.info(key)["size"] for key in objects} == {key: len(theirs.cat(key)) for key in objects}


GEN = {"key": "a/{{ 1 // i }}", "url": "x", "dimensions": {"i": [0, 1]}}


@pytest.mark.parametrize("refs", [{"refs": {"a/0": ["{{ 1 // 0 }}x", 0, 1]}}, {"refs": {}, "gen": [GEN]}])
def test_division_by_zero_has_its_own_error_class(tmp_path: Path, refs: dict[str, Any]) -> None:
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "templates": {}, **refs}))
    with pytest.raises(DivisionByZero, match=r"refs\.json.*division by zero") as raised:
        RefShardFileSystem(str(tmp_path / "refs.json")).ls("")
    assert isinstance(raised.value, ZeroDivisionError)
