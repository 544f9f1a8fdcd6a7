"""A set with chunks in columns gives the same answers as a set with chunks by key."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs import RefShardFileSystem
from refshard_fs.core.columns import ChunkTable
from refshard_fs.core.keys import parent
from refshard_fs.core.zarrmeta import dumps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_json.source import JsonIndex, parse_document
from refshard_fs.references import binary as compiled
from refshard_fs.references import binary as pickled
from refshard_fs.references import builder
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import References, ReferenceSet
from tests.support.key_spaces import answer

ARRAY = {"zarr_format": 2, "shape": [3, 4], "chunks": [1, 2], "dtype": "<f4", "compressor": None, "fill_value": 0}
ARRAY |= {"order": "C", "filters": None}
COUNT = 600


def many(count: int = COUNT) -> dict[str, Any]:
    refs: dict[str, Any] = {".zgroup": '{"zarr_format":2}'}
    for i in range(count):
        refs[f"g/v{i}/.zarray"] = json.dumps(ARRAY | {"fill_value": i})
        refs[f"g/v{i}/{i % 3}.1"] = [f"u{i % 7}", i, 8] if i % 5 else "base64:AAAAAAAAAAA="
    return refs


def rows(tables: Any) -> dict[str, dict[int, Any]]:
    found: dict[str, ChunkTable] = dict(tables.items())
    return {path: dict(table.iterate_rows()) for path, table in found.items() if table}


def read(document: Any, *, by_key: bool) -> ReferenceSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "MANY_DOCUMENTS", 0 if by_key else 10**9)
        patch.setattr(builder, "MANY_MEMBERS", 10**9)
        patch.setattr(builder, "SMALL", 10**9 if by_key else 0)
        data = document if isinstance(document, bytes) else dumps(document)
        refs = JsonIndex("refs.json").decode(data)
    assert not by_key or not refs.chunks
    return refs


def assert_equal_sets(one: ReferenceSet, other: ReferenceSet) -> None:
    """Assert that all methods of two sets return the same results."""
    assert dict(References(one)) == dict(References(other))
    assert len(one) == len(other)
    assert sorted(one) == sorted(other)
    directories = {path for key in one for path in (parent(key)[0], parent(parent(key)[0])[0])}
    spaces = [FlatKeySpace(refs, str, "refs.json") for refs in (one, other)]
    for path in sorted(directories | {"", "missing"}):
        listed = [answer(space.children(path)) for space in spaces]
        assert listed[0] == listed[1]
        assert len({answer(space.is_directory(path)) for space in spaces}) == 1
        assert spaces[0].grids.get(path) == spaces[1].grids.get(path)
    assert spaces[0].holds_all_metadata == spaces[1].holds_all_metadata
    assert rows(one.tables) == rows(other.tables)
    assert dict(one.side.items()) == dict(other.side.items())
    assert sorted(one.grids) == sorted(other.grids)


def test_many_small_arrays_are_equal_in_columns_and_by_key() -> None:
    document = many()
    found = JsonIndex("refs.json").decode(dumps(document))
    assert not found.chunks
    assert_equal_sets(found, read(document, by_key=False))
    assert_equal_sets(parse_document(document, "refs.json", {}), read(document, by_key=False))


keys = st.one_of(
    st.builds("{}/{}.{}".format, st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 2)),
    st.sampled_from(["a/x", "b", "a/0/1", "d/.zgroup", "b/.zattrs", "c//1.1", 'a/x"1', 'a/"/0', '"0', "a/\ud800c"]),
)
values = st.one_of(
    st.tuples(st.sampled_from(["u", "v"]), st.integers(0, 9), st.integers(0, 9)).map(list),
    st.sampled_from(["data", "base64:QUI=", "base64:", "a\n", "\\", 'é"', "\x01"]),
    st.just({"zarr_format": 2}),
)
metadata = st.tuples(
    st.sampled_from(["a/.zarray", "b/.zarray", "c/.zarray"]), st.sampled_from([json.dumps(ARRAY), ARRAY])
)


@given(st.lists(st.one_of(st.tuples(keys, values), metadata), min_size=1, max_size=30), metadata)
def test_random_sets_are_equal_by_key_and_in_columns(items: list[tuple[str, Any]], more: tuple[str, Any]) -> None:
    text = ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in [more, *items])
    data = b"{" + text.encode() + b"}"
    assert_equal_sets(read(data, by_key=True), read(data, by_key=False))


def test_binary_form_and_pickles_keep_a_set() -> None:
    refs = JsonIndex("refs.json").decode(dumps(many()))
    for again in (
        compiled.unpack(memoryview(b"".join(compiled.pack(refs)))),
        pickled.unpack_compressed(pickled.pack_compressed(refs)),
    ):
        assert again.where == "refs.json"
        assert_equal_sets(again, refs)


def test_keys_with_quotes_are_read() -> None:
    odd = {'g/v7/x"1': ["u", 1, 2], 'g/v7/"/0': ["u", 3, 4], '"c': "data", 'g/v8/"0': "data", "g/v9/q/0": ["u", 5, 6]}
    document = {**many(), **odd}
    found = JsonIndex("refs.json").decode(dumps(document))
    assert not found.chunks
    assert_equal_sets(found, read(document, by_key=False))


@pytest.mark.parametrize("from_memory", [False, True])
def test_metadata_lacks_finds_marks_of_shards(*, from_memory: bool) -> None:
    marks = (b"sharding_indexed", b'"shards"')
    for mark in (None, "sharding_indexed", "shards", "resharded"):
        document = many()
        document["g/v7/.zarray"] = json.dumps(ARRAY | ({} if mark is None else {mark: 1}))
        refs = JsonIndex("refs.json").decode(dumps(document))
        if from_memory:
            refs = compiled.unpack(memoryview(b"".join(compiled.pack(refs))))
        assert FlatKeySpace(refs, str, "refs.json").metadata_lacks(marks) == (mark in (None, "resharded"))


def test_arrays_above_the_size_limit_are_kept_as_columns() -> None:
    document: dict[str, Any] = {f"v{i}/.zarray": json.dumps(ARRAY | {"shape": [100]}) for i in range(COUNT)}
    document = {key: value.replace('"chunks": [1, 2]', '"chunks": [1]') for key, value in document.items()}
    document |= {f"v{i}/{j}": ["u", j, 1] for i in range(COUNT) for j in range(40)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "SMALL", 39)
        refs = JsonIndex("refs.json").decode(dumps(document))
    assert len(refs.chunks) == COUNT
    assert sum(map(len, refs.tables.values())) == COUNT * 40
    assert dict(References(refs)) == document


def test_later_members_replace_earlier_ones_in_columns() -> None:
    first = {"a/.zarray": json.dumps(ARRAY), "a/0.0": ["u", 1, 2], "a/0.1": "data", "a/1.0": ["u", 3, 4]}
    again = {"a/0.0": "later", "a/0.1": ["u", 5, 6]}
    padding = {f"x{i}": ["u", i, 1] for i in range(20_000)}
    text = ",".join(dumps(part).decode()[1:-1] for part in (first, padding, again, many(3000)))
    refs = JsonIndex("refs.json").decode(b"{" + text.encode() + b"}")
    assert dict(References(refs)) == first | padding | again | many(3000)


def test_damaged_metadata_raise_an_error_at_their_use() -> None:
    document = many()
    document["g/v7/.zarray"] = json.dumps(ARRAY | {"chunks": "many"})
    refs = JsonIndex("refs.json").decode(dumps(document))
    assert refs.get_value("g/v8/2.1") is not None
    with pytest.raises(ManifestError, match=r"g/v7/\.zarray.* of refs\.json"):
        refs.grids.get("g/v7")
    with pytest.raises(ManifestError, match=r"g/v7/\.zarray.* of refs\.json"):
        len(refs.tables)


def test_filesystem_reads_lists_saves_and_pickles_a_set(tmp_path: Path) -> None:
    for i in range(7):
        (tmp_path / f"u{i}").write_bytes(bytes(range(250)) * 4)
    (tmp_path / "refs.json").write_bytes(dumps(many()))
    fs = RefShardFileSystem(str(tmp_path / "refs.json"), index_cache=str(tmp_path / "cache"))
    for source in (fs, RefShardFileSystem(str(tmp_path / "refs.json"), index_cache=str(tmp_path / "cache"))):
        assert source.cat("g/v8/2.1") == bytes(range(8, 16))
        assert source.cat("g/v5/2.1") == bytes(8)
        assert sorted(source.find("g/v8")) == ["g/v8/.zarray", "g/v8/2.1"]
        assert len(source.ls("g", detail=False)) == COUNT
        assert source.info("g/v8/2.1")["size"] == 8
        with pytest.raises(FileNotFoundError):
            source.cat("g/v8/0.0")
    fs.save(str(tmp_path / "refs.parq"), format="parquet")
    again = RefShardFileSystem(str(tmp_path / "refs.parq"))
    assert again.cat("g/v8/2.1") == bytes(range(8, 16))
    held = RefShardFileSystem(many(), base_url=str(tmp_path))
    assert pickle.loads(pickle.dumps(held)).cat("g/v8/2.1") == bytes(range(8, 16))


def small_arrays() -> dict[str, Any]:
    """References of dense, sparse, empty, nested and zero-dimensional arrays, with both separators."""
    refs: dict[str, Any] = {}
    for n in range(60):
        path, separator = f"g{n % 7}/v{n}", "./"[n % 2]
        refs[f"{path}/.zarray"] = metadata_of((5, 4), separator)
        refs[f"{path}/.zattrs"] = "{}"
        for i in range(0, 20, 1 + n % 11):
            if n % 5:
                refs[f"{path}/{i // 4}{separator}{i % 4}"] = [f"u{n}", 100 * n + i, i + 1]
    refs |= {"g0/v0/in/.zarray": metadata_of((3,)), "g0/v0/in/0": ["in", 1, 2], "g0/v0/in/2": "data"}
    refs |= {"s/.zarray": metadata_of(()), "s/0": ["whole"], "s/1": ["stray", 1, 2], "g1/v1/9.9": ["stray", 3, 4]}
    return refs


def metadata_of(counts: tuple[int, ...], separator: str = ".") -> str:
    change = {"shape": counts, "chunks": [1] * len(counts), "dimension_separator": separator}
    return dumps(ARRAY | change).decode()


def test_columns_of_small_arrays_are_made_at_first_use() -> None:
    refs = small_arrays()
    refs |= {"large/.zarray": metadata_of((600,)), "large/7": ["u", 1, 2], "empty/.zarray": metadata_of((600,))}
    for found in (JsonIndex("refs.json").decode(dumps(refs)), parse_document(refs, "refs", {})):
        assert dict(References(found)) == refs
        assert found.chunks.keys() == {"large"}
        assert sorted(found.tables) == sorted(key[: -len("/.zarray")] for key in refs if key.endswith("/.zarray"))
        assert {key for key in found.side if ".z" not in key} == {"g0/v0/in/2", "s/1", "g1/v1/9.9"}
        for path, table in found.tables.items():
            assert found.grids[path] == table.grid
            assert all(
                row == found.get_value(f"{path}/{table.grid.tail(number)}") for number, row in table.iterate_rows()
            )
            again = pickle.loads(pickle.dumps(table))
            assert list(again.iterate_rows()) == list(table.iterate_rows())
            assert table.nbytes <= 28 * table.grid.size
        assert sum(map(len, found.tables.values())) + len(found.side) == len(refs) == len(found)


def test_columns_of_a_whole_array_are_not_copied_at_the_end() -> None:
    """A reference takes 20 bytes, and its number 4 bytes until the end; joined columns would take 20 more."""
    count = 200_000
    made = builder.ReferenceBuilder("refs")
    made.add_members({"a/.zarray": json.dumps({**ARRAY, "shape": [count], "chunks": [1]})})
    made.add_block(b'"a/0":["u",0,1],"a/1":["u",1,1]')
    tracemalloc.start()
    try:
        for start in range(2, count, 5_000):
            numbers = range(start, min(start + 5_000, count))
            made.add_block(",".join(f'"a/{i}":["u",{i},1]' for i in numbers).encode())
        refs = made.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(refs.chunks["a"]) == count
    assert peak < 36 * count


def test_repeated_urls_are_merged_while_blocks_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URLs of all blocks take 15 MB, and merging all of them at the end would take three times as much."""
    monkeypatch.setattr(builder, "MERGED_URLS", 8192)
    urls, blocks = [f"s3://bucket/{i:0140d}" for i in range(1000)], 100
    texts = (
        ",".join(f'"a/{1000 * block + i}":["{url}",{block},{i}]' for i, url in enumerate(urls)).encode()
        for block in range(blocks)
    )
    made = builder.ReferenceBuilder("refs.json")
    made.add_members({"a/.zarray": json.dumps(ARRAY | {"shape": [1000 * blocks], "chunks": [1]})})
    tracemalloc.start()
    try:
        assert all(map(made.add_block, texts))
        found = made.finish()
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert list(found.urls) == urls
    assert References(found)["a/73456"] == [urls[456], 73, 456]
