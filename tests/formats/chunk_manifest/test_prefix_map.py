"""Prefixes in the manifests of arrays and of whole sources, and a hierarchy with arrays of every kind over HTTP."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from refshard_fs import ManifestError, NotListable, ReferenceNotReachable, TargetChanged, TargetNotAllowed
from tests.servers.http import RangeServer
from tests.support.chunk_manifests import make_metadata, needs_zarr_3, open_source

GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def declare(manifest: Any) -> Any:
    return [{"name": "chunk-manifest-json", "configuration": {"manifest": manifest}}]


@pytest.fixture
def mapped(tmp_path: Path) -> Path:
    """An array of 3 x 3 chunks: rows 0 and 1 have a prefix each, row 2 has two, and two chunks have entries."""
    for j in range(3):
        write(tmp_path / f"one/c/0/{j}", b"a%d" % j)
        write(tmp_path / f"one/c/1/{j}", b"no")
        write(tmp_path / f"two/part.{j}", b"b%d" % j)
    write(tmp_path / "rest/2.1", b"r1")
    write(tmp_path / "rest/2.2", b"r2")
    manifest = {
        "prefix": {
            "0.": {"path": "../one/c/0/"},
            "1.": {"path": "../two/part."},
            "": {"path": "../rest/"},
            "2.0.": {"path": "../two/part.0"},
        },
        "0.1": {"data": "XX"},
        "1.2": {},
    }
    write(tmp_path / "x/zarr.json", make_metadata((6, 6), (2, 2), manifest))
    return tmp_path


def test_entry_wins_over_prefixes_and_longest_prefix_wins(mapped: Path) -> None:
    fs = open_source(str(mapped / "x"))
    found = {f"{i}/{j}": fs.cat_file(f"c/{i}/{j}") for i in range(3) for j in range(3) if (i, j) != (1, 2)}
    assert found == {
        "0/0": b"a0", "0/1": b"XX", "0/2": b"a2", "1/0": b"b0", "1/1": b"b1", "2/0": b"b0", "2/1": b"r1", "2/2": b"r2",
    }  # fmt: skip
    with pytest.raises(FileNotFoundError):
        fs.cat_file("c/1/2")
    assert fs.info("c/1/2")["empty"]
    assert not fs.exists("c/3/0")


def test_listings_show_chunks_of_all_prefixes(mapped: Path) -> None:
    fs = open_source(str(mapped / "x"))
    assert fs.find("c") == ["c/0/0", "c/0/1", "c/0/2", "c/1/0", "c/1/1", "c/2/0", "c/2/1", "c/2/2"]
    assert fs.ls("c", detail=False) == ["c/0", "c/1", "c/2"]
    assert [e["size"] for e in fs.ls("c/0")] == [2, 2, 2]
    assert fs.isdir("c/2")
    assert not fs.isdir("c/3")


def test_missing_object_of_a_prefix_is_a_missing_chunk(mapped: Path) -> None:
    (mapped / "two/part.1").unlink()
    fs = open_source(str(mapped / "x"))
    with pytest.raises(FileNotFoundError):
        fs.cat_file("c/1/1")
    assert fs.find("c/1") == ["c/1/0"]


def test_prefix_map_with_slashes_lists_chunks_in_directories(tmp_path: Path) -> None:
    for i in range(2):
        for j in range(3):
            write(tmp_path / f"far/c/{i}/{j}", b"%d%d" % (i, j))
    write(tmp_path / "far/c/0/x", b"stray")
    manifest = {"prefix": {"": {"path": f"file://{tmp_path}/far/c/", "separator": "/"}}}
    write(tmp_path / "x/zarr.json", make_metadata((4, 6), (2, 2), manifest))
    fs = open_source(str(tmp_path / "x"))
    assert fs.cat_file("c/1/2") == b"12"
    assert fs.find("c") == [f"c/{i}/{j}" for i in range(2) for j in range(3)]
    assert fs.ls("c", detail=False) == ["c/0", "c/1"]


def test_unlistable_prefix_is_read_by_key(http_server: RangeServer) -> None:
    http_server.put("/far/0", b"ab")
    manifest = {"prefix": {"": {"path": f"{http_server.url}/far/"}}}
    fs = open_source({"x/zarr.json": json.dumps(make_metadata((4,), (2,), manifest))})
    assert fs.cat_file("x/c/0") == b"ab"
    with pytest.raises(FileNotFoundError):
        fs.cat_file("x/c/1")
    with pytest.raises(NotListable, match="/far/"):
        fs.ls("x/c")


def write_stores(folder: Path) -> None:
    for name in ("a", "b"):
        write(folder / f"{name}.zarr/zarr.json", GROUP)
        write(folder / f"{name}.zarr/x/zarr.json", make_metadata((4,), (2,), None))
        write(folder / f"{name}.zarr/x/c/0", name.encode() * 2)


def test_prefix_map_shows_several_stores_as_one_group(tmp_path: Path) -> None:
    write_stores(tmp_path)
    manifest = {
        "prefix": {"a/": {"path": "../a.zarr/"}, "deep/b/": {"path": f"file://{tmp_path}/b.zarr"}},
        "a/x/c/1": {"data": "zz"},
        "deep/note": {"path": "../a.zarr/x/c/0", "offset": 1},
        "a/x/c/0": {},
    }
    root = GROUP | {"attributes": {"t": 1}, "storage_transformers": declare(manifest)}
    write(tmp_path / "s.zarr/zarr.json", root)
    write(tmp_path / "s.zarr/own/zarr.json", make_metadata((4,), (2,), None))
    write(tmp_path / "s.zarr/own/c/0", b"oo")
    write(tmp_path / "s.zarr/a/hidden", b"")
    fs = open_source(str(tmp_path / "s.zarr"))
    assert json.loads(fs.cat_file("zarr.json")) == GROUP | {"attributes": {"t": 1}}
    assert fs.cat_file("deep/b/x/c/0") == b"bb"
    assert fs.cat_file("own/c/0") == b"oo"
    assert fs.cat_file("a/x/c/1") == b"zz"
    assert fs.cat_file("deep/note") == b"a"
    assert fs.info("a/x/c/0")["empty"]
    for absent in ("a/x/c/0", "a/hidden", "b/x/c/0", "deep/b/y"):
        with pytest.raises(FileNotFoundError):
            fs.cat_file(absent)
    assert fs.find("") == [
        "a/x/c/1", "a/x/zarr.json", "a/zarr.json", "deep/b/x/c/0", "deep/b/x/zarr.json", "deep/b/zarr.json",
        "deep/note", "own/c/0", "own/zarr.json", "zarr.json",
    ]  # fmt: skip
    assert fs.ls("", detail=False) == ["a", "deep", "own", "zarr.json"]
    assert fs.isdir("deep")
    assert fs.isdir("deep/b/x")
    assert not fs.isdir("deep/c")


def test_longest_matching_prefix_of_a_key_applies(tmp_path: Path) -> None:
    write_stores(tmp_path)
    manifest = {"prefix": {"": {"path": "../a.zarr"}, "x/": {"path": "../b.zarr/x/"}}}
    write(tmp_path / "s/zarr.json", GROUP | {"storage_transformers": declare(manifest)})
    fs = open_source(str(tmp_path / "s"))
    assert fs.cat_file("x/c/0") == b"bb"
    assert json.loads(fs.cat_file("zarr.json")) == GROUP
    assert fs.find("") == ["x/c/0", "x/zarr.json", "zarr.json"]


def test_prefix_map_may_be_a_file(tmp_path: Path) -> None:
    write_stores(tmp_path)
    write(tmp_path / "s/zarr.json", GROUP | {"storage_transformers": declare("maps/all.json")})
    write(tmp_path / "s/maps/all.json", {"prefix": {"a/": {"path": "../../a.zarr/"}}})
    assert open_source(str(tmp_path / "s")).cat_file("a/x/c/0") == b"aa"


def test_prefix_map_is_opened_as_a_source(tmp_path: Path) -> None:
    write_stores(tmp_path)
    document = declare({"prefix": {"a/": {"path": "a.zarr/"}, "b/": {"path": "b.zarr/"}}})[0]
    write(tmp_path / "all.json", document)
    fs = open_source(str(tmp_path / "all.json"))
    assert fs.ls("", detail=False) == ["a", "b", "zarr.json"]
    assert fs.cat_file("b/x/c/0") == b"bb"
    assert json.loads(fs.cat_file("zarr.json")) == GROUP
    held = open_source(json.dumps(document).encode(), base_url=str(tmp_path))
    assert held.cat_file("a/x/c/0") == b"aa"
    root = declare({"prefix": {"": {"path": "a.zarr/"}}})[0]
    write(tmp_path / "root.json", root)
    assert open_source(str(tmp_path / "root.json")).find("") == ["x/c/0", "x/zarr.json", "zarr.json"]


def test_arrays_of_a_mapped_store_may_have_manifests(tmp_path: Path) -> None:
    write(tmp_path / "far/x/zarr.json", make_metadata((4,), (2,)))
    write(tmp_path / "far/x/manifest.json", {"0": {"path": "../raw", "offset": 1, "length": 2}})
    write(tmp_path / "far/raw", b"0123")
    write(tmp_path / "all.json", declare({"prefix": {"a/": {"path": "far"}}})[0])
    assert open_source(str(tmp_path / "all.json")).cat_file("a/x/c/0") == b"12"


def test_reference_set_may_map_its_keys() -> None:
    refs = {
        "zarr.json": json.dumps(GROUP | {"storage_transformers": declare({"prefix": {"new/": {"path": "old/"}}})}),
        "old/x/zarr.json": json.dumps(make_metadata((4,), (2,), None)),
        "old/x/c/0": "ab",
    }
    fs = open_source(refs)
    assert fs.cat_file("new/x/c/0") == b"ab"
    assert fs.find("new") == ["new/x/c/0", "new/x/zarr.json"]


@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ({"prefix": {"a": {"path": "x"}}}, "'a'"),
        ({"prefix": {"../a/": {"path": "x"}}}, r"'\.\./a/'"),
        ({"prefix": {"a/": {"path": ""}}}, "'a/'"),
        ({"prefix": {"a/": {"path": "x", "separator": "/"}}}, "'a/'"),
        ({"/a": {"path": "x"}}, "'/a'"),
        ({"a/../b": {"path": "x"}}, r"a/\.\./b"),
        ({"a": {"path": "x", "offset": -1}}, "'a'"),
        ({"a": {"length": 1}}, "'a'"),
    ],
)
def test_invalid_prefix_maps_are_refused(tmp_path: Path, manifest: Any, name: str) -> None:
    write(tmp_path / "zarr.json", GROUP | {"storage_transformers": declare(manifest)})
    with pytest.raises(ManifestError, match=name):
        open_source(str(tmp_path)).cat_file("zarr.json")


def test_missing_target_of_a_mapped_key_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "zarr.json", GROUP | {"storage_transformers": declare({"a": {"path": "gone"}})})
    with pytest.raises(ReferenceNotReachable):
        open_source(str(tmp_path)).cat_file("a")


def test_mapped_keys_are_checked_against_ranges_and_versions(tmp_path: Path) -> None:
    write(tmp_path / "raw", b"0123")
    keys = {
        "there": {"path": "data", "offset": 1, "length": 2},
        "changed": {"path": "data", "length": 2, "last_modified": "1990-01-01T00:00:00Z"},
        "short": {"path": "data", "length": 9},
        "text": {"path": "note", "length": 9},
        "gone": {"path": "nothing"},
    }
    refs = {
        "zarr.json": json.dumps(GROUP | {"storage_transformers": declare(keys)}),
        "data": [f"file://{tmp_path}/raw", 0, 4],
        "note": "four",
    }
    fs = open_source(refs)
    assert fs.cat_file("there") == b"12"
    with pytest.raises(TargetChanged):
        fs.cat_file("changed")
    for key, why in (
        ("short", "expected a range"),
        ("text", "expected a range"),
        ("gone", "expected it in the source"),
    ):
        with pytest.raises(ReferenceNotReachable, match=why) as refused:
            fs.cat_file(key)
        assert "not known" not in str(refused.value)


@pytest.mark.parametrize("where", ["array", "prefix", "map", "mount"])
def test_remote_manifests_cannot_reach_local_files(http_server: RangeServer, tmp_path: Path, where: str) -> None:
    write(tmp_path / "secret/0", b"ab")
    url = f"file://{tmp_path}/secret/"
    manifest = {"array": {"0": {"path": url + "0"}}, "prefix": {"prefix": {"": {"path": url}}}}.get(where)
    http_server.put("/s/x/zarr.json", json.dumps(make_metadata((4,), (2,), manifest)).encode())
    keys = {"map": {"key": {"path": url + "0"}}, "mount": {"prefix": {"m/": {"path": url}}}}.get(where, {})
    http_server.put("/s/zarr.json", json.dumps(GROUP | {"storage_transformers": declare(keys)}).encode())
    key = {"map": "key", "mount": "m/0"}.get(where, "x/c/0")
    with pytest.raises(TargetNotAllowed, match="allow="):
        open_source(f"{http_server.url}/s").cat_file(key)
    assert open_source(f"{http_server.url}/s", allow=[url, http_server.url]).cat_file(key) == b"ab"


@needs_zarr_3
def test_xarray_reads_plain_sharded_and_manifest_arrays_by_http(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    data = np.arange(16 * 16, dtype="<i4").reshape(16, 16)
    names = ("plain", "sharded", "manifest", "manifest_of_shards", "mapped")
    root = zarr.open_group(tmp_path / "s.zarr", mode="w", zarr_format=3)
    for i, name in enumerate(names):
        shards = (8, 8) if "shard" in name else None
        array = root.create_array(
            name, shape=data.shape, dtype=data.dtype, chunks=(4, 4), shards=shards, dimension_names=("y", "x")
        )
        array[...] = data * (i + 1)
    blob = b"\xaa" * 5
    for name in names[2:4]:
        manifest = {}
        for chunk in sorted((tmp_path / "s.zarr" / name / "c").rglob("*")):
            if chunk.is_file():
                content = chunk.read_bytes()
                key = ".".join(chunk.relative_to(tmp_path / "s.zarr" / name / "c").parts)
                manifest[key] = {"path": "../../far/blob", "offset": len(blob), "length": len(content)}
                blob += content + b"\xaa"
                chunk.unlink()
        write(tmp_path / "s.zarr" / name / "manifest.json", manifest)
    write(tmp_path / "far/blob", blob)
    (tmp_path / "s.zarr/mapped/c").rename(tmp_path / "far/mapped")
    manifests: dict[str, Any] = dict.fromkeys(names[2:4], "./manifest.json")
    manifests["mapped"] = {"prefix": {"": {"path": "../../far/mapped/", "separator": "/"}}}
    for name, manifest in manifests.items():
        path = tmp_path / "s.zarr" / name / "zarr.json"
        write(path, json.loads(path.read_bytes()) | {"storage_transformers": declare(manifest)})
    members = {name: json.loads((tmp_path / "s.zarr" / name / "zarr.json").read_bytes()) for name in names}
    inline = {"kind": "inline", "must_understand": False, "metadata": members}
    write(tmp_path / "s.zarr/zarr.json", GROUP | {"consolidated_metadata": inline})
    with RangeServer(directory=tmp_path) as server, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata", UserWarning)
        fs = open_source(f"{server.url}/s.zarr", asynchronous=True)
        store = zarr.storage.FsspecStore(fs, path="")
        with xr.open_zarr(store, consolidated=True) as found:
            assert set(found.data_vars) == set(names)
            for i, name in enumerate(names):
                assert np.array_equal(found[name].values, data * (i + 1)), name
        assert not any("/mapped/c" in r.path or "/manifest/c" in r.path for r in server.requests())
