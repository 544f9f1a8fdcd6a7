"""If a set in an object store is replaced, readers find the old set, the new set, or an error."""

from __future__ import annotations

import json
import uuid
from typing import Any

import fsspec
import pytest

from refshard_fs import RefShardFileSystem, TargetChanged
from refshard_fs.errors import ConflictError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.stores.objects import Objects
from tests.support.parquet_sets import make_v2_array

pytest.importorskip("pyarrow.parquet")
FORMATS = pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])


def make_source(value: str, arrays: str, count: int = 5) -> RefShardFileSystem:
    keys: dict[str, Any] = {".zgroup": {"zarr_format": 2}} | {
        f"{a}/.zarray": make_v2_array([count], [1]) for a in arrays
    }
    return RefShardFileSystem(keys | {f"{array}/{i}": f"{array}{value}" for array in arrays for i in range(count)})


def save(fs: RefShardFileSystem, url: str, format: Any) -> None:
    fs.save(url, format, record_size=2, overwrite=True)


def read_chunks(url: str) -> dict[str, bytes]:
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    return {key: data for key, data in fs.cat(fs.find("")).items() if key[-1].isdigit()}


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/set"


@FORMATS
def test_error_at_each_put_leaves_the_old_or_the_new_set(
    url: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(make_source("old", "ab"), url, format)
    old = read_chunks(url)
    save(make_source("new", "bc"), url, format)
    new = read_chunks(url)
    assert old != new
    put, count, seen = Objects.put, 0, []

    def fail(self: Objects, *given: Any, **options: Any) -> Any:
        nonlocal count
        count -= 1
        if count < 0:
            raise OSError("the connection is lost")
        return put(self, *given, **options)

    monkeypatch.setattr(Objects, "put", fail)
    for last in range(20):
        count = 1000
        save(make_source("old", "ab"), url, format)
        count = last
        try:
            save(make_source("new", "bc"), url, format)
        except OSError:
            seen.append(read_chunks(url))
            assert seen[-1] in (old, new)
    assert old in seen
    assert new in seen


@FORMATS
def test_save_during_another_save_is_a_conflict(url: str, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(make_source("old", "a"), url, format)
    put_all = Objects.put_all

    def put_beside(self: Objects, files: Any) -> None:
        monkeypatch.setattr(Objects, "put_all", put_all)
        save(make_source("other", "a"), url, format)
        put_all(self, files)

    monkeypatch.setattr(Objects, "put_all", put_beside)
    with pytest.raises(ConflictError, match="another writer wrote it"):
        save(make_source("new", "a"), url, format)
    assert set(read_chunks(url).values()) == {b"aother"}


@pytest.mark.parametrize("is_local", [True, False])
def test_readers_get_an_error_after_their_set_was_replaced(url: str, tmp_path: Any, *, is_local: bool) -> None:
    url = str(tmp_path / "set") if is_local else url
    save(make_source("old", "a"), url, "parquet")
    reader = RefShardFileSystem(url, skip_instance_cache=True)
    assert reader.cat_file("a/0") == b"aold"
    save(make_source("new", "a"), url, "parquet")
    with pytest.raises(TargetChanged, match="since it was opened"):
        reader.cat_file("a/4")
    reader.invalidate_cache()
    assert reader.cat_file("a/4") == b"anew"


def test_document_lacks_record_size_until_the_set_is_whole(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other packages cannot open a set without it."""
    save(make_source("old", "a"), url, "parquet")
    store = fsspec.filesystem("memory")
    seen = []

    def look(self: Objects, names: Any) -> None:
        seen.append(json.loads(store.cat_file(f"{url}/{PARQUET}")))
        assert set(read_chunks(url).values()) == {b"anew"}
        copy_all(self, names)

    copy_all = Objects.copy_all
    monkeypatch.setattr(Objects, "copy_all", look)
    save(make_source("new", "a"), url, "parquet")
    assert ["record_size" in document for document in seen] == [False]
    document = json.loads(store.cat_file(f"{url}/{PARQUET}"))
    assert document["record_size"] == 2
    assert "partitions" not in document["refshard"]
    names = sorted(path.rpartition("/")[2] for path in store.find(url))
    assert names == [PARQUET, "refs.0.parq", "refs.1.parq", "refs.2.parq"]


def test_commit_completes_an_interrupted_save(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(make_source("old", "ab"), url, "parquet")
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "copy_all", lambda *given: (_ for _ in ()).throw(OSError("lost")))
        with pytest.raises(OSError, match="lost") as caught:
            save(make_source("new", "a"), url, "parquet")
    assert "has the new set, whole" in caught.value.__notes__[0]
    with monkeypatch.context() as patch:
        patch.setattr("refshard_fs.sinks.parquet_commit.ABANDONED", -1)
        fs = RefShardFileSystem(url, mode="a", skip_instance_cache=True)
        fs.pipe_file("a/0", b"more")
        fs.commit()
    document = json.loads(fsspec.filesystem("memory").cat_file(f"{url}/{PARQUET}"))
    assert document["record_size"] == 2
    assert "partitions" not in document["refshard"]
    assert read_chunks(url) == {"a/0": b"more"} | {f"a/{i}": b"anew" for i in range(1, 5)}
