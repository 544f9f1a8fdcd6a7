"""The filesystem behaves as users of fsspec expect: paths, ranges, listings, files, copies."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.callbacks import Callback
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs import ReferenceNotReachable, RefShardFileSystem, SourceNotReachable
from refshard_fs.source import recognition as catalog
from refshard_fs.source import source
from tests.support.fs_references import DATA, make_refs
from tests.support.shard_codecs import make_sharding, make_version_3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("target") / "x.bin"
    path.write_bytes(DATA)
    return str(path)


@pytest.fixture(scope="module")
def fs(target: str) -> RefShardFileSystem:
    return RefShardFileSystem(fo=make_refs(target))


def list_names(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["name"]: row["type"] for row in rows}


bound = st.none() | st.integers(-210, 210)


@given(start=bound, end=bound, key=st.sampled_from(["a/0.2", "g/readme", "whole", "ab/1/1"]))
def test_ranges_are_slices(fs: RefShardFileSystem, start: int | None, end: int | None, key: str) -> None:
    whole = fs.cat_file(key)
    assert fs.cat_file(key, start, end) == whole[start:end]
    assert fs.cat_ranges([key], [start], [end]) == [whole[start:end]]


def test_ranges_of_a_whole_remote_target_are_slices(http_server: Any) -> None:
    fs = RefShardFileSystem(fo={"k": [http_server.put("/x.bin", DATA)]})
    for start, end in [(None, None), (5, 10), (5, None), (-5, None), (-9, -4), (None, -190), (190, 900), (900, 901)]:
        assert fs.cat_file("k", start, end) == DATA[start:end], (start, end)
    assert fs.info("k")["size"] == len(DATA)


def test_listings_have_files_and_directories_of_both_separators(fs: RefShardFileSystem) -> None:
    assert list_names(fs.ls("", detail=True)) == {
        ".zgroup": "file", "a": "directory", "ab": "directory", "g": "directory", "whole": "file"
    }  # fmt: skip
    assert fs.ls("a", detail=False) == ["a/.zarray", "a/0.0", "a/0.2", "a/1.1"]
    assert fs.ls("ab", detail=False) == ["ab/.zarray", "ab/0", "ab/1"]
    assert fs.ls("ab/0", detail=False) == ["ab/0/0", "ab/0/2"]
    assert fs.ls("g/v3", detail=False) == ["g/v3/c", "g/v3/zarr.json"]
    assert fs.ls("g/v3/c", detail=False) == ["g/v3/c/0", "g/v3/c/1"]
    assert fs.ls("g/v3/c/1", detail=True) == [{"name": "g/v3/c/1/1", "size": 21, "type": "file"}]
    assert fs.ls("g/dot", detail=False) == ["g/dot/c.0.0", "g/dot/c.0.2", "g/dot/c.1.1", "g/dot/zarr.json"]
    assert fs.ls("a/0.2", detail=False) == ["a/0.2"]


@pytest.mark.parametrize(
    "path", ["nope", "a/9.9", "a/0.1", "ab/0/9", "ab/2", "g/v3/c/5", "a/0.0/x", "g/v3/d", "a/00.0"]
)
def test_missing_key_is_file_not_found(fs: RefShardFileSystem, path: str) -> None:
    assert not fs.exists(path)
    for call in (fs.ls, fs.info, fs.cat_file, fs.open):
        with pytest.raises(FileNotFoundError):
            call(path)
    assert fs.find(path) == []


@pytest.mark.parametrize("path", ["a/0.2", "/a/0.2", "a/0.2/", "//a//0.2", "refshard://a/0.2", "refshard:///a/0.2"])
def test_slashes_and_protocol_do_not_matter(fs: RefShardFileSystem, path: str) -> None:
    assert fs.cat_file(path) == DATA[:22]
    assert fs.isfile(path)
    assert not fs.isdir(path)
    assert fs.info(path)["name"] == "a/0.2"


def test_directory_excludes_keys_that_only_begin_like_it(fs: RefShardFileSystem) -> None:
    assert fs.find("a") == ["a/.zarray", "a/0.0", "a/0.2", "a/1.1"]
    assert fs.glob("a*/.zarray") == ["a/.zarray", "ab/.zarray"]
    assert fs.isdir("ab/0")
    assert not fs.isdir("ab/0/0")
    assert fs.find("ab/0") == ["ab/0/0", "ab/0/2"]


def test_find_takes_maxdepth_withdirs_and_detail(fs: RefShardFileSystem) -> None:
    assert fs.find("", maxdepth=1) == [".zgroup", "whole"]
    assert fs.find("", maxdepth=1, withdirs=True) == [".zgroup", "a", "ab", "g", "whole"]
    assert fs.find("g", maxdepth=2, withdirs=True) == [
        "g", "g/dot", "g/dot/c.0.0", "g/dot/c.0.2", "g/dot/c.1.1", "g/dot/zarr.json", "g/readme",
        "g/v3", "g/v3/c", "g/v3/zarr.json",
    ]  # fmt: skip
    found = fs.find("g", detail=True)
    assert found["g/v3/c/0/2"] == {"name": "g/v3/c/0/2", "size": 22, "type": "file"}
    assert sorted(found) == sorted(k for k in make_refs("") if k.startswith("g/"))
    assert fs.find("whole") == ["whole"]
    with pytest.raises(ValueError, match="maxdepth"):
        fs.find("", maxdepth=0)


def test_walk_glob_and_du_list_keys_and_sizes(fs: RefShardFileSystem) -> None:
    walked = {path: (sorted(dirs), sorted(files)) for path, dirs, files in fs.walk("ab")}
    assert walked == {
        "ab": (["0", "1"], [".zarray"]), "ab/0": ([], ["0", "2"]), "ab/1": ([], ["1"])
    }  # fmt: skip
    assert fs.glob("g/**/1.1") == []
    assert fs.glob("g/*/c.*.1") == ["g/dot/c.1.1"]
    assert fs.glob("ab/*/[02]") == ["ab/0/0", "ab/0/2"]
    assert fs.du("ab/0") == 20 + 22
    assert fs.du("", total=True) == sum(len(fs.cat_file(k)) for k in make_refs(""))
    assert fs.du("whole", total=False) == {"whole": 200}


def test_du_uses_the_sizes_of_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RefShardFileSystem({"a/0": ["memory://b", 0, 5], "a/1": "inline"})
    monkeypatch.setattr(fs, "_info", None)
    assert fs.du("") == 11


def test_open_files_read_seek_and_refuse_writes(fs: RefShardFileSystem) -> None:
    with fs.open("whole", "rb") as f:
        assert f.size == 200
        assert f.read(3) == DATA[:3]
        f.seek(-4, 2)
        assert f.read() == DATA[-4:]
    with fs.open("g/readme", "rt") as f:
        assert f.read() == "inline text"
    with fs.open("a/0.2", cache_type="readahead", block_size=8) as f:
        assert f.read() == DATA[:22]
    assert fs.head("whole", 5) == DATA[:5]
    assert fs.tail("whole", 5) == DATA[-5:]
    assert fs.read_block("whole", 10, 5) == DATA[10:15]
    with pytest.raises(PermissionError, match="mode=.a."):
        RefShardFileSystem({"a": "b"}, mode="r").open("new", "wb")


def test_get_copies_files_and_trees(fs: RefShardFileSystem, tmp_path: Path) -> None:
    fs.get("whole", str(tmp_path / "one"))
    assert (tmp_path / "one").read_bytes() == DATA
    fs.get("g", str(tmp_path / "tree"), recursive=True)
    written = {str(p.relative_to(tmp_path / "tree")) for p in (tmp_path / "tree").rglob("*") if p.is_file()}
    assert written == {k[2:] for k in make_refs("") if k.startswith("g/")}
    assert (tmp_path / "tree/v3/c/0/2").read_bytes() == DATA[:22]
    fs.get_file("g/readme", str(tmp_path / "deep" / "er" / "readme"))
    assert (tmp_path / "deep/er/readme").read_text() == "inline text"


def test_cat_takes_lists_globs_and_trees(fs: RefShardFileSystem) -> None:
    assert fs.cat("a/0.2") == DATA[:22]
    assert fs.cat(["a/0.2", "g/readme"]) == {"a/0.2": DATA[:22], "g/readme": b"inline text"}
    assert set(fs.cat("a/*.1")) == {"a/1.1"}
    assert set(fs.cat("g/v3", recursive=True)) == {k for k in make_refs("") if k.startswith("g/v3/")}
    with pytest.raises(FileNotFoundError):
        fs.cat(["a/0.2", "a/0.1"])
    assert fs.cat(["a/0.2", "a/0.1"], on_error="omit") == {"a/0.2": DATA[:22]}
    got = fs.cat(["a/0.2", "a/0.1"], on_error="return")
    assert isinstance(got["a/0.1"], FileNotFoundError)


def test_key_that_looks_like_a_pattern_is_a_key() -> None:
    """Keys with `[`, `]`, `*` or `?` (a variable `T [K]`) used to be expanded as patterns: they were missing from
    `cat`, `getitems` and `dict(fs.get_mapper(""))`, or had the value of another key that matched.
    """
    fs = RefShardFileSystem(fo={"T [K]/0": "of T [K]", "T K/0": "a", "T K/1": "b", "a*": "star", "ab": "c"})
    assert fs.cat("T [K]/0") == b"of T [K]"
    assert fs.cat(["T [K]/0", "a*"]) == {"T [K]/0": b"of T [K]", "a*": b"star"}
    assert fs.cat("T [K]", recursive=True) == {"T [K]/0": b"of T [K]"}
    assert isinstance(fs.cat(["T [K]/1"], on_error="return")["T [K]/1"], FileNotFoundError)
    mapper = pickle.loads(pickle.dumps(fs.get_mapper("")))
    assert dict(mapper) == {key: fs.cat_file(key) for key in fs.find("")}
    assert mapper.getitems(["T [K]/0", "T [K]/1"], on_error="omit") == {"T [K]/0": b"of T [K]"}
    with pytest.raises(KeyError):
        mapper["T [K]/1"]
    assert mapper.get("T [K]/1") is None


def test_cat_with_omit_raises_failed_reads(tmp_path: Path) -> None:
    fs = RefShardFileSystem(fo={"k": [str(tmp_path / "gone.bin"), 0, 5]})
    with pytest.raises(ReferenceNotReachable, match=r"gone\.bin"):
        fs.cat(["k"], on_error="omit")
    assert isinstance(fs.cat_ranges(["k"], [0], [1])[0], ReferenceNotReachable)


@pytest.mark.parametrize("reference", [["{t}", 150, 100], ["{t}", 500, 1], ["{t}.gone"], ["{t}.gone", 0, 1]])
def test_unreadable_key_error_has_the_reason(target: str, reference: list[Any]) -> None:
    url = reference[0].replace("{t}", target)
    fs = RefShardFileSystem(fo={"some/key": [url, *reference[1:]]})
    for call in (fs.cat_file, fs.cat, lambda k: fs.cat_ranges([k], 0, None, on_error="raise")):
        with pytest.raises(ReferenceNotReachable, match="some/key") as caught:
            call("some/key")
        assert caught.value.__cause__ is not None
        assert not isinstance(caught.value, OSError)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.key, str(again)) == ("some/key", str(caught.value))
        assert url in str(again)


def test_memory_zip_chain_and_data_urls_are_targets(tmp_path: Path) -> None:
    import zipfile

    MemoryFileSystem.store.clear()
    MemoryFileSystem().pipe("/box/x.bin", DATA)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr("in/x.bin", DATA)
    fs = RefShardFileSystem(
        fo={
            "m": ["memory://box/x.bin", 3, 4],
            "z": [f"zip://in/x.bin::file://{tmp_path}/a.zip", 5, 6],
            "d": ["data:;base64,aGVsbG8=", 1, 3],
        }
    )
    assert fs.cat(["m", "z", "d"]) == {"m": DATA[3:7], "z": DATA[5:11], "d": b"ell"}


def test_manifest_is_read_from_http_memory_and_archives(tmp_path: Path, http_server: Any) -> None:
    import zipfile

    document = json.dumps({"k": ["x.bin", 2, 3]}).encode()
    url = http_server.put("/set/refs.json", document)
    http_server.put("/set/x.bin", DATA)
    assert RefShardFileSystem(fo=url).cat_file("k") == DATA[2:5]
    MemoryFileSystem.store.clear()
    MemoryFileSystem().pipe("/set/refs.json", document)
    MemoryFileSystem().pipe("/set/x.bin", DATA)
    assert RefShardFileSystem(fo="memory://set/refs.json").cat_file("k") == DATA[2:5]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr("set/refs.json", document)
        z.writestr("set/x.bin", DATA)
    assert RefShardFileSystem(fo=f"zip://set/refs.json::{tmp_path}/a.zip").cat_file("k") == DATA[2:5]


def test_source_may_be_a_path_or_a_file_of_another_filesystem() -> None:
    store = fsspec.filesystem("memory")
    store.pipe({"/up/x.bin": b"0123456789", "/up/refs.json": b'{"k": ["x.bin", 2, 3]}'})
    assert RefShardFileSystem(fsspec.open("memory://up/refs.json")).cat_file("k") == b"234"
    upath = pytest.importorskip("upath")
    assert RefShardFileSystem(upath.UPath("memory://up/refs.json")).cat_file("k") == b"234"


def test_cache_filesystem_for_targets_is_used(tmp_path: Path, http_server: Any) -> None:
    url = http_server.put("/x.bin", b"0123456789")
    cache = fsspec.filesystem(
        "simplecache", target_protocol="http", cache_storage=str(tmp_path), skip_instance_cache=True
    )
    assert RefShardFileSystem({"k": [url, 2, 3]}, fs=cache).cat_file("k") == b"234"
    assert list(tmp_path.iterdir())


@pytest.mark.evidence(id="T28")
def test_synchronous_directory_filesystem_opens_targets(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"0123456789")
    given = DirFileSystem(str(tmp_path), LocalFileSystem())
    assert RefShardFileSystem({"k": ["x.bin", 2, 3]}, fs=given).cat_file("k") == b"234"
    assert RefShardFileSystem({"k": [f"dir://x.bin::file://{tmp_path}", 2, 3]}).cat_file("k") == b"234"


def test_options_for_s3_apply_to_s3a() -> None:
    fs = RefShardFileSystem({"k": ["s3a://bucket/x", 0, 1]}, remote_protocol="s3", remote_options={"anon": True})
    assert fs.fss["s3a"].storage_options == fs.fss["s3"].storage_options == {"anon": True}


def test_missing_source_is_not_a_missing_key(tmp_path: Path, http_server: Any) -> None:
    for fo in (tmp_path / "none.json", f"{http_server.url}/none.json"):
        fs = RefShardFileSystem(fo=fo)
        for call in (fs.ls, fs.cat_file, fs.info, fs.exists):
            with pytest.raises(SourceNotReachable, match=r"none\.json") as caught:
                call("a/0")
            assert not isinstance(caught.value, OSError)


def test_constructor_makes_no_request(http_server: Any) -> None:
    RefShardFileSystem(fo=http_server.put("/refs.json", b"{}"))
    assert http_server.requests() == []


def test_misspelt_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="no argument remote_protcol=: did you mean remote_protocol="):
        RefShardFileSystem(fo={"k": "v"}, remote_protcol="s3")
    with pytest.raises(TypeError, match="save has no argument overwrit=: did you mean overwrite="):
        RefShardFileSystem(fo={"k": "v"}).save("memory://misspelt.json", overwrit=True)
    with pytest.raises(TypeError, match=r"save has no argument storage_options=: pass each option as a keyword"):
        RefShardFileSystem(fo={"k": "v"}).save("memory://misspelt.json", storage_options={"key": "k"})


@pytest.mark.parametrize("count", [1, 300, 3000])
def test_few_and_many_keys_outside_arrays_are_read(tmp_path: Path, count: int) -> None:
    (tmp_path / "data").write_bytes(bytes(range(256)) * 16)
    refs = {f"k/{i}": [str(tmp_path / "data"), i, 1 + i % 7] for i in range(count)}
    fs = RefShardFileSystem(refs, skip_instance_cache=True)
    for i in range(0, count, 7):
        assert fs.cat_file(f"k/{i}") == (bytes(range(256)) * 16)[i : i + 1 + i % 7]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_invalidation_during_opening_reopens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    source = tmp_path / "refs.json"
    source.write_text('{"k": "old"}')
    fs = RefShardFileSystem(str(source), asynchronous=asynchronous)
    opens: Any = catalog.open_source
    opened = []

    def open_and_invalidate(*arguments: Any) -> Any:
        keyspace = yield from opens(*arguments)
        opened.append(keyspace)
        if len(opened) == 1:
            source.write_text('{"k": "what is new"}')
            fs.invalidate_cache()
        return keyspace

    monkeypatch.setattr(catalog, "open_source", open_and_invalidate)
    assert (asyncio.run(fs._cat_file("k")) if asynchronous else fs.cat_file("k")) == b"what is new"
    assert len(opened) == 2


def test_download_that_fails_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STREAM_PART", 10)
    (tmp_path / "x").write_bytes(DATA)
    fs = RefShardFileSystem({"k": [str(tmp_path / "x"), 0, 200]})
    fs.get_file("k", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == DATA

    class Meanwhile(Callback):
        def relative_update(self, inc: int = 1) -> None:
            (tmp_path / "x").write_bytes(DATA * 2)

    with pytest.raises(ReferenceNotReachable):
        fs.get_file("k", str(tmp_path / "out"), callback=Meanwhile())
    assert not (tmp_path / "out").exists()


def test_missing_shard_does_not_hide_its_directory(tmp_path: Path) -> None:
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}})
    array = json.dumps(make_version_3((4,), (4,), [make_sharding([2])]))
    refs = {"zarr.json": group, "a/zarr.json": array, "a/c/0": [str(tmp_path / "gone")]}
    fs = RefShardFileSystem(refs, skip_instance_cache=True)
    for listing in (lambda: fs.find(""), lambda: fs.find("a"), lambda: fs.ls("a/c")):
        with pytest.raises(ReferenceNotReachable, match="gone"):
            listing()
