"""A survey of a source has every chunk at the place that a look-up finds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.columns import WHOLE
from refshard_fs.core.model import Inline, Packed, Span
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.tools.survey import INLINE, Survey, survey
from tests.support.tool_sources import SOURCES, make_metadata


def list_keys(found: Survey) -> set[str]:
    chunks = {extents.make_key(i) for extents in found.arrays.values() for i in range(len(extents))}
    return chunks | set(found.rest.names) | found.documents.keys()


@pytest.mark.parametrize("name", SOURCES)
def test_survey_has_each_key_once_with_its_place(shared_data: Path, name: str) -> None:
    fs = RefShardFileSystem(str(shared_data / name))
    found = survey(fs)
    assert list_keys(found) == {key for key in fs.find("") if key != ".zmetadata" or key in found.documents}
    assert found.keys == len(list_keys(found))
    for path, extents in found.arrays.items():
        assert (np.diff(extents.chunks.numbers.astype(np.int64)) > 0).all(), path
        for i in range(len(extents)):
            key = extents.make_key(i)
            assert not is_metadata(key)
            at = (int(extents.chunks.targets[i]), int(extents.chunks.starts[i]), int(extents.chunks.stops[i]))
            match fs.source.wait(fs.source.find, key):
                case Inline(data):
                    assert at == (INLINE, 0, len(data))
                case Span(url, start, stop) | Packed(Span(url, start, stop)):
                    assert found.urls[at[0]] == url
                    assert at[1] == start
                    assert at[2] == (stop if stop is not None else fs.info(key)["size"]) or at[2] == WHOLE


def test_survey_counts_inline_chunks_and_stray_keys() -> None:
    refs = {
        "a/.zarray": json.dumps(make_metadata([6], [2])),
        "a/0": ["memory://x", 0, 2],
        "a/2": "cd",
        "a/9": "?",
        "b": "rest",
    }
    found = survey(RefShardFileSystem(refs))
    array = found.arrays["a"]
    a = array.chunks
    assert (a.numbers.tolist(), a.targets.tolist(), a.starts.tolist(), a.stops.tolist()) == (
        [0, 2],
        [0, -1],
        [0, 0],
        [2, 2],
    )
    assert (array.possible, array.stray, sorted(found.rest.names)) == (3, 1, ["a/9", "b"])
    assert (found.inline_keys, found.inline_bytes) == (4, len(refs["a/.zarray"]) + 7)


def test_one_array_is_surveyed_alone() -> None:
    refs = {f"{p}/.zarray": json.dumps(make_metadata([4], [2])) for p in ("a", "a/b", "ab")}
    refs |= {f"{p}/0": "xx" for p in ("a", "a/b", "ab")}
    found = survey(RefShardFileSystem(refs), "a/b")
    assert list(found.arrays) == ["a/b"]
    assert len(found.arrays["a/b"]) == 1
    with pytest.raises(FileNotFoundError, match="'c'"):
        survey(RefShardFileSystem(refs), "c")


def test_reference_to_a_whole_target_has_unknown_size() -> None:
    refs = {"a/.zarray": json.dumps(make_metadata([4], [2])), "a/0": ["memory://x"]}
    extents = survey(RefShardFileSystem(refs)).arrays["a"]
    assert extents.unsized_count == 1
    assert extents.sizes.tolist() == [0]


def test_uncommitted_writes_are_surveyed(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    path.write_text(
        json.dumps({"a/.zarray": json.dumps(make_metadata([6], [2])), "a/0": ["memory://x", 0, 2], "a/1": "bb"})
    )
    fs = RefShardFileSystem(str(path), mode="a")
    fs.pipe_file("a/2", b"cc")
    fs.rm_file("a/1")
    found = survey(fs)
    assert [found.arrays["a"].make_key(i) for i in range(2)] == ["a/0", "a/2"]
    fs.discard()
    assert [survey(fs).arrays["a"].make_key(i) for i in range(2)] == ["a/0", "a/1"]


def make_nested_set(tmp_path: Path) -> str:
    zarr = pytest.importorskip("zarr", minversion="3")
    codecs = zarr.codecs
    inner = codecs.ShardingCodec(chunk_shape=(1, 1), codecs=[codecs.BytesCodec()])
    outer = codecs.ShardingCodec(chunk_shape=(2, 2), codecs=[inner])
    group = zarr.create_group(str(tmp_path / "nested"))
    array = group.create_array(
        "deep", shape=(9, 7), dtype="u1", chunks=(4, 4), serializer=outer, compressors=None, fill_value=0
    )
    array[2:7, 1:5] = 1
    flat = group.create_array("flat", shape=(9, 7), dtype="u1", chunks=(2, 2), shards=(4, 4), fill_value=0)
    flat[2:7, 1:5] = 1
    (tmp_path / "nested" / "flat" / "notes.txt").write_text("not a chunk")
    (tmp_path / "nested" / "flat" / "more").mkdir()
    (tmp_path / "nested" / "flat" / "more" / "x").write_text("not a chunk either")
    return str(tmp_path / "nested")


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_nested_shards_and_keys_beside_them_are_surveyed(tmp_path: Path) -> None:
    fs = RefShardFileSystem(make_nested_set(tmp_path))
    found = survey(fs)
    assert list_keys(found) == set(fs.find(""))
    assert {path: len(extents) for path, extents in found.arrays.items()} == {"deep": 20, "flat": 9}
    assert sorted(found.rest.names) == ["flat/more/x", "flat/notes.txt"]
    for extents in found.arrays.values():
        for i in range(len(extents)):
            match fs.source.wait(fs.source.find, extents.make_key(i)):
                case Span(url, start, stop):
                    assert found.urls[int(extents.chunks.targets[i])] == url
                    assert (int(extents.chunks.starts[i]), int(extents.chunks.stops[i])) == (start, stop)
                case other:
                    raise AssertionError(f"{other} is not a span")


def test_survey_of_a_million_inner_chunks_takes_few_requests(tmp_path: Path) -> None:
    side, shard = 1024, 256
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [side, side],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard, shard]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [1, 1],
                    "codecs": [{"name": "bytes"}],
                    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                },
            }
        ],
    }
    count = shard * shard
    pairs = np.stack((np.arange(count), np.ones(count, int)), axis=1).astype("<u8")
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    for i in range(side // shard):
        (tmp_path / "c" / str(i)).mkdir(parents=True)
        for j in range(side // shard):
            (tmp_path / "c" / str(i) / str(j)).write_bytes(bytes(count) + pairs.tobytes())
    fs = RefShardFileSystem(str(tmp_path))
    extents = survey(fs).arrays[""]
    assert len(extents) == extents.possible == side * side
    assert fs.stats()["requests"] < 40
    assert (extents.chunks.stops - extents.chunks.starts == 1).all()
