"""Code for fsspec's ``reference`` filesystem works with ours: each test runs with both."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.reference import ReferenceFileSystem, ReferenceNotReachable

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer

DATA = b"other test data"
ZARRAY = {"shape": [3], "chunks": [1], "dtype": "<i8", "order": "C", "filters": None, "compressor": None}
ZARRAY |= {"zarr_format": 2, "fill_value": 0}


@pytest.fixture(params=[ReferenceFileSystem, RefShardFileSystem], ids=["reference", "refshard"])
def make(request: pytest.FixtureRequest) -> type[Any]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pipe("/b", DATA)
    yield fs
    fs.store.clear()


def test_values_of_several_kinds_are_read(make: type[Any], memory: Any) -> None:
    refs = {
        "a": b"data",
        "b": ("memory://b", 0, 5),
        "c": ("memory://b",),
        "d": b"base64:aGVsbG8=",
        "e": {"key": "value"},
    }
    for document in (refs, {"version": 1, "refs": refs}):
        fs = make(document, remote_protocol="memory")
        assert fs.cat("a") == b"data"
        assert fs.cat(["b", "c"]) == {"b": DATA[:5], "c": DATA}
        assert fs.cat("e") == b'{"key":"value"}'
        with fs.open("d", "rt") as f:
            assert f.read(2) == "he"


def test_listings_and_sizes_equal_those_of_reference(make: type[Any], memory: Any) -> None:
    fs = make({"a": b"data", "b": ("memory://b", 0, 5), "c/d": ("memory://b", 1, 6), "e": ("memory://b",)}, fs=memory)
    assert sorted(fs.ls("", detail=False)) == ["a", "b", "c", "e"]
    assert {"name": "c", "type": "directory", "size": 0} in fs.ls("", detail=True)
    assert fs.find("") == ["a", "b", "c/d", "e"]
    assert fs.find("", withdirs=True)[-4:] == ["b", "c", "c/d", "e"]
    assert fs.find("c", detail=True) == {"c/d": {"name": "c/d", "size": 6, "type": "file"}}
    assert [fs.size(key) for key in ("a", "b", "c/d")] == [4, 5, 6]
    assert fs.info("e")["size"] == len(DATA)


@pytest.mark.parametrize(("start", "end"), [(None, None), (1, None), (-5, None), (1, -3), (2, 400)])
def test_parts_of_keys_equal_slices(make: type[Any], memory: Any, start: int | None, end: int | None) -> None:
    fs = make({"c": ["memory://b"], "d": ["memory://b", 4, 6]})
    assert fs.cat_file("c", start=start, end=end) == DATA[start:end]
    assert fs.cat_file("d", start=start, end=end) == DATA[4:10][start:end]


@pytest.mark.parametrize("unknown", ["memory://unknown", "//unknown"])
def test_missing_keys_and_unreachable_targets_differ(make: type[Any], memory: Any, unknown: str) -> None:
    fs = make({"c": ["memory://b"], "d": [unknown, 4, 6]})
    mapper = fs.get_mapper("")
    for missing in ("notafile", ["notone", "nottwo"]):
        with pytest.raises(FileNotFoundError):
            fs.cat(missing)
    with pytest.raises(KeyError):
        mapper["notakey"]
    with pytest.raises(KeyError):
        mapper.getitems(["notone", "nottwo"])
    for read in (lambda: fs.cat("d"), lambda: mapper["d"], lambda: mapper.getitems(["c", "d"])):
        with pytest.raises(ReferenceNotReachable) as error:
            read()
        assert error.value.__cause__ is not None
        assert "unknown" in str(error.value)
    assert isinstance(fs.cat("d", on_error="return"), ReferenceNotReachable)
    assert isinstance(fs.cat("notone", on_error="return"), FileNotFoundError)
    assert fs.cat("notone", on_error="omit") == {}
    assert fs.cat("c", on_error="omit") == DATA
    found = fs.cat(["notone", "c", "d"], on_error="return")
    assert isinstance(found["notone"], FileNotFoundError)
    assert found["c"] == DATA
    assert isinstance(found["d"], ReferenceNotReachable)


def test_mappers_raise_for_unreadable_keys_unlike_reference(make: type[Any], memory: Any) -> None:
    mapper = make({"c": ["memory://b"], "d": ["memory://unknown", 4, 6]}).get_mapper("")
    if make is ReferenceFileSystem:
        assert list(mapper.getitems(["c", "d"], on_error="omit")) == ["c"]
        assert isinstance(mapper.getitems(["c", "d"], on_error="return")["d"], ReferenceNotReachable)
    else:  # zarr would fill it with the fill value
        for on_error in ("omit", "return"):
            with pytest.raises(ReferenceNotReachable):
                mapper.getitems(["c", "d"], on_error=on_error)


def test_references_without_a_url_use_target(make: type[Any], http_server: RangeServer) -> None:
    url = http_server.put("real", DATA)
    fs = make({"a": b"data", "b": (None, 0, 5)}, target_protocol="http", target=url, remote_protocol="http")
    assert fs.cat("a") == b"data"
    assert fs.cat("b") == DATA[:5]


def test_get_copies_files_and_directories(make: type[Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    refs = {"a": b"data", "b": (str(tmp_path / "file"), 0, 5), "c/d": (str(tmp_path / "file"), 1, 6)}
    fs = make(refs, fs=LocalFileSystem())
    fs.get("a", str(tmp_path / "a"))
    fs.get("b", str(tmp_path / "b"))
    fs.get("c", str(tmp_path / "c"), recursive=True)
    assert [(tmp_path / name).read_bytes() for name in ("a", "b", "c/d")] == [b"data", b"01234", b"123456"]


def test_target_options_open_the_document(make: type[Any], memory: Any) -> None:
    with fsspec.open("memory://refs.json.gz", "wt", compression="gzip") as f:
        json.dump({"a": ["memory://b"]}, f)
    assert make("memory://refs.json.gz", target_options={"compression": "gzip"}).cat("a") == DATA


def test_cached_document_is_read_from_the_cache(make: type[Any], memory: Any, tmp_path: Path) -> None:
    memory.pipe("ref.json", b'{"a": ["b"]}')
    options = {"cache_storage": str(tmp_path), "same_names": True}
    for _ in range(2):
        fs = make("simplecache::memory://ref.json", fs=memory, target_options=options, skip_instance_cache=True)
        assert fs.cat("a") == DATA
        memory.pipe("ref.json", b"")
    assert (tmp_path / "ref.json").exists()


@pytest.mark.parametrize("instances", [True, False])
def test_fs_takes_filesystems_by_protocol(make: type[Any], memory: Any, tmp_path: Path, instances: bool) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    refs = {"a": b"data", "b": (f"file://{tmp_path}/file", 0, 5), "c/e": ["memory://b"]}
    given = {"file": LocalFileSystem(), "memory": memory} if instances else {"file": {}, "memory": {}}
    fs = make(refs, fs=given)
    assert fs.cat("c/e") == DATA
    assert fs.cat(["c/e", "a", "b"]) == {"a": b"data", "b": b"01234", "c/e": DATA}


def test_filesystems_of_targets_are_shown_by_protocol(make: type[Any], memory: Any) -> None:
    assert None in make({}).fss
    fs = make({}, remote_protocol="memory")
    assert fs.fss[None].protocol == fs.fss["memory"].protocol == "memory"
    assert make({}, fs=memory).fss[None] in (memory, make({}, fs=memory).fss["memory"])  # it may be wrapped
    fs = make({}, fs={"memory": memory})
    assert fs.fss["memory"] is memory
    assert fs.fss[None].protocol == ("file", "local")
    assert make({}, fs={None: memory}).fss[None] is memory
    for refs in ({"key": ["memory://a"]}, {"key": ["memory://a"], "blah": ["path"]}):
        fss = make(refs).fss
        assert fss[None].protocol == fss["memory"].protocol == "memory"


def test_references_behave_like_a_dict(make: type[Any]) -> None:
    refs = make({"a": "text", "r": ["url", 0, 5], "w": ["url"], "o": {"key": "value"}}).references
    expected = {"a": "text", "r": ["url", 0, 5], "w": ["url"], "o": '{"key": "value"}'}
    if json.loads(refs["o"]) == {"key": "value"}:  # the spaces depend on the JSON library of fsspec
        expected["o"] = refs["o"]
    assert isinstance(refs, dict)
    assert refs == expected == refs.copy() == dict(refs) == {**refs} == refs | {}
    assert expected == refs
    assert (refs != expected) is False
    assert ({"b": 1} | refs)["a"] == "text"
    assert json.loads(json.dumps(refs)) == expected
    assert json.loads(json.dumps(refs, indent=1, sort_keys=True)) == expected
    assert list(reversed(list(refs))) == list(reversed(refs))
    assert (len(refs), bool(refs), "a" in refs, "x" in refs, refs.get("x")) == (4, True, True, False, None)
    assert type(refs.copy()) is dict
    for copied in (copy.copy(refs), copy.deepcopy(refs), pickle.loads(pickle.dumps(refs))):
        assert type(copied) is dict
        assert copied == expected


def test_references_of_a_source_in_memory_can_be_changed(make: type[Any], memory: Any) -> None:
    fs = make({"a": "text", "b": "other", "c": "third"}, remote_protocol="memory")
    refs = fs.references
    refs["new"] = ["memory://b", 1, 3]
    refs.update({"more": "inline"}, kw=b"bytes")
    refs |= {"ored": "x"}
    assert refs.pop("a") == "text"
    assert refs.pop("a", None) is None
    assert refs.setdefault("b", "not this") == "other"
    del refs["c"]
    with pytest.raises(KeyError):
        del refs["c"]
    assert set(fs.references) == {"b", "new", "more", "kw", "ored"}
    assert fs.cat("new") == DATA[1:4]
    assert fs.cat("kw") == b"bytes"
    assert not fs.exists("a")
    fs.references.clear()
    assert fs.references == {}
    assert not fs.references
    assert json.dumps(fs.references) == "{}"


def test_empty_set_has_no_references(make: type[Any]) -> None:
    assert make({"version": 1}).references == {}
    assert json.dumps(make({}).references) == "{}"


def test_references_of_one_filesystem_open_another(make: type[Any], memory: Any) -> None:
    first = make({"a": ["memory://b", 0, 5], "t": "text"})
    assert make(first.references).cat(["a", "t"]) == {"a": DATA[:5], "t": b"text"}


def test_templates_and_generated_references_are_expanded(make: type[Any]) -> None:
    pytest.importorskip("jinja2")
    generated = {"key": "gen_key{{i}}", "url": "http://{{u}}_{{i}}"}
    document = {
        "version": 1,
        "templates": {"u": "server.domain/path", "f": "{{c}}"},
        "gen": [
            {**generated, "offset": "{{(i + 1) * 1000}}", "length": "1000", "dimensions": {"i": {"stop": 2}}},
            {**generated, "dimensions": {"i": {"start": 5, "stop": 7}}},
        ],
        "refs": {
            "key2": ["http://{{u}}", 10000, 100],
            "key3": ["http://{{f(c='text')}}", 10000, 100],
            "key4": ["http://target_url"],
        },
    }
    fs = make(document, target_protocol="http", simple_templates=False)
    assert fs.references == {
        "key2": ["http://server.domain/path", 10000, 100],
        "key3": ["http://text", 10000, 100],
        "key4": ["http://target_url"],
        "gen_key0": ["http://server.domain/path_0", 1000, 1000],
        "gen_key1": ["http://server.domain/path_1", 2000, 1000],
        "gen_key5": ["http://server.domain/path_5"],
        "gen_key6": ["http://server.domain/path_6"],
    }


def test_templates_are_overridden(make: type[Any]) -> None:
    document = {"version": 1, "templates": {"u": "server.domain/path"}, "refs": {"key2": ["http://{{u}}", 10000, 100]}}
    fs = make(document, template_overrides={"u": "not.org/p"})
    assert fs.references["key2"] == ["http://not.org/p", 10000, 100]


@pytest.mark.parametrize("part", ["offset", "length"])
def test_range_without_offset_or_length_is_a_value_error(make: type[Any], part: str) -> None:
    pytest.importorskip("jinja2")
    gen = [{"key": "k{{i}}", "url": "http://{{u}}", part: "1000", "dimensions": {"i": {"stop": 2}}}]
    with pytest.raises(ValueError, match="offset"):
        make({"version": 1, "templates": {"u": "h/p"}, "gen": gen}, simple_templates=False)


@pytest.mark.parametrize("expression", ["{{1 // 0}}", "{{i % 0}}"])
def test_division_by_zero_is_a_zero_division_error(make: type[Any], expression: str) -> None:
    pytest.importorskip("jinja2")
    gen = [{"key": "k{{i}}", "url": "http://h", "offset": expression, "length": "1", "dimensions": {"i": {"stop": 2}}}]
    for simple in (False,) if make is ReferenceFileSystem else (True, False):
        with pytest.raises(ZeroDivisionError):
            make({"version": 1, "gen": gen}, simple_templates=simple)


def test_source_in_memory_is_written_to_and_saved(make: type[Any], memory: Any, tmp_path: Path) -> None:
    fs = make({"a": b"data", "b": ("memory://b", 0, 5), "c/d": ("memory://b", 1, 6)}, fs=memory)
    fs.rm("a")
    assert not fs.exists("a")
    fs.pipe("aa", b"bin data")
    fs.pipe({"text": "as text", "n/x": b"\xff"})
    fs.pipe_file("range", ["memory://b", 2, 3])
    (tmp_path / "one").write_bytes(b"1")
    fs.put_file(str(tmp_path / "one"), "put")
    expected = {"aa": b"bin data", "text": b"as text", "n/x": b"\xff", "range": DATA[2:5], "put": b"1", "b": DATA[:5]}
    assert {key: fs.cat(key) for key in expected} == expected
    assert set(fs.find("")) == {*expected, "c/d"}
    fs.save_json("memory://refs.json")
    again = make("memory://refs.json", remote_protocol="memory")
    assert not again.exists("a")
    assert {key: again.cat(key) for key in expected} == expected


def test_directories_are_put_and_copied_back(make: type[Any], tmp_path: Path) -> None:
    (tmp_path / "d1").mkdir()
    (tmp_path / "d1/a").write_bytes(b"1")
    (tmp_path / "d1/b").write_bytes(b"2")
    fs = make({}, remote_protocol="file")
    fs.put(str(tmp_path / "d1"), "out", recursive=True)
    fs.get("out", str(tmp_path / "d2"), recursive=True)
    assert [(tmp_path / "d2" / name).read_bytes() for name in "ab"] == [b"1", b"2"]


def test_directory_with_only_metadata_is_a_set(make: type[Any], memory: Any) -> None:
    document = {"metadata": {".zgroup": {"zarr_format": 2}}, "record_size": 10}
    memory.pipe("/set/.zmetadata", json.dumps(document).encode())
    fs = make("memory://set", remote_protocol="memory")
    assert json.loads(fs.cat(".zgroup")) == {"zarr_format": 2}
    assert ".zgroup" in fs.find("")


@pytest.mark.filterwarnings("ignore:.*fastparquet:Warning")
@pytest.mark.parametrize("root", ["/", "/set/"])
def test_parquet_sets_of_other_writers_are_read(make: type[Any], memory: Any, root: str) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("fastparquet", reason="fsspec's own reader of parquet sets needs it")
    for number in range(2):
        columns = {
            "path": [None, "memory://b", "memory://b"],
            "offset": [0, 0, 4 - number],
            "size": [0, 0, 4],
            "raw": [b"raw%d" % number, None, None],
        }
        memory.pipe(f"{root}stuff/refs.{number}.parq", pandas.DataFrame(columns).to_parquet())
    metadata = {".zgroup": {"zarr_format": 2}, "stuff/.zarray": {**ZARRAY, "shape": [6]}}
    document = {"metadata": metadata, "zarr_consolidated_format": 1, "record_size": 3}
    memory.pipe(f"{root}.zmetadata", json.dumps(document).encode())
    fs = make(f"memory://{root}", remote_protocol="memory", skip_instance_cache=True)
    assert {".zmetadata", ".zgroup", "stuff/2", "stuff/4"} <= set(fs.find(""))
    expected = [b"raw0", DATA, DATA[4:8], b"raw1", DATA, DATA[3:7]]
    assert [fs.cat(f"stuff/{i}") for i in range(6)] == expected


@pytest.mark.filterwarnings("ignore:.*fastparquet:Warning")
def test_lazy_mapper_set_is_read_before_and_after_flush(make: type[Any], memory: Any) -> None:
    pytest.importorskip("fastparquet")
    lazy = fsspec.implementations.reference.LazyReferenceMapper.create("memory://made.parq", fs=memory, record_size=2)
    lazy[".zgroup"] = b'{"zarr_format": 2}'
    lazy["a/.zarray"] = json.dumps(ZARRAY).encode()
    lazy["a/1"] = ["memory://b", 0, 5]
    before = make(lazy, remote_protocol="memory")
    assert before.cat("a/1") == DATA[:5]
    assert json.loads(before.cat("a/.zarray"))["shape"] == [3]
    lazy.flush()
    after = make("memory://made.parq", remote_protocol="memory")
    assert after.cat("a/1") == DATA[:5]
    assert after.references["a/1"] == ["memory://b", 0, 5]


@pytest.mark.filterwarnings("ignore:.*fastparquet:Warning")
def test_lazy_mapper_set_takes_writes(make: type[Any], memory: Any) -> None:
    pytest.importorskip("fastparquet")
    lazy = fsspec.implementations.reference.LazyReferenceMapper.create("memory://made.parq", fs=memory, record_size=2)
    lazy[".zgroup"] = b'{"zarr_format": 2}'
    fs = make(lazy, remote_protocol="memory")
    assert fs.references is lazy
    fs.pipe_file("a/.zarray", json.dumps(ZARRAY).encode())
    fs.references["a/1"] = ["memory://b", 0, 5]
    fs.pipe_file("a/2", b"inline")
    fs.pipe_file("a/0", b"gone")
    fs.rm("a/0")
    lazy.flush()
    after = make("memory://made.parq", remote_protocol="memory")
    assert after.cat(["a/1", "a/2"]) == {"a/1": DATA[:5], "a/2": b"inline"}
    assert make is ReferenceFileSystem or not after.exists("a/0")  # fsspec shows some empty rows as keys
