"""Inner chunks are read and listed in several kinds of sources: references, inline bytes, archive members."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from refshard_fs import DamagedIndex, ReferenceNotReachable
from refshard_fs.core.keyspace import KeySpace, find_chunk
from refshard_fs.core.model import Entry, Inline, Listed, Load, Names, Packed, Span, Stat, Steps
from refshard_fs.sharding.view import ShardView
from refshard_fs.tools.survey import survey
from tests.support.shard_writers import (
    ZLIB,
    make_indexed_shard,
    make_prototype_shards,
    open_array,
    open_source,
    split_chunks,
    write_prototype,
)
from tests.support.sharded_views import CHUNKS, DATA, SHARDS, count_reads, list_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_prototype(tmp_path / "a", DATA, CHUNKS, SHARDS)
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "a" / ".zattrs").write_text('{"units":   "K"}\n')
    return tmp_path


def test_shards_in_one_file_are_read(folder: Path) -> None:
    blob = b"\x55" * 13
    refs: dict[str, Any] = {
        ".zgroup": (folder / ".zgroup").read_text(),
        "a/.zarray": (folder / "a/.zarray").read_text(),
    }
    for name in list_shards(folder):
        content = (folder / "a" / name).read_bytes()
        refs[f"a/{name}"] = [f"file://{folder}/blob", len(blob), len(content)]
        blob += content + b"\xaa" * 11
    (folder / "blob").write_bytes(blob)
    assert np.array_equal(open_array(refs, "a")[...], DATA)
    fs = open_source(refs)
    assert fs.references["a/1.0"] == refs["a/1.0"]  # the references are shown unchanged
    assert (
        fs.find("a") == open_source(folder).find("a")[:1] + open_source(folder).find("a")[2:]
    )  # the set has no .zattrs


def test_inline_shards_are_read(folder: Path) -> None:
    refs = {"a/.zarray": (folder / "a/.zarray").read_text()}
    for name in list_shards(folder):
        refs[f"a/{name}"] = "base64:" + base64.b64encode((folder / "a" / name).read_bytes()).decode()
    assert np.array_equal(open_array(refs, "a")[...], DATA)


def test_shards_of_unknown_size_are_read(folder: Path) -> None:
    refs: dict[str, Any] = {"a/.zarray": (folder / "a/.zarray").read_text()}
    refs |= {f"a/{name}": [f"file://{folder}/a/{name}"] for name in list_shards(folder)}
    assert np.array_equal(open_array(refs, "a")[...], DATA)


def test_set_without_shards_has_no_shard_view() -> None:
    refs = {"a/.zarray": json.dumps({"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|i1"}), "a/0": "shards"}
    assert not isinstance(open_source(refs).source.open(), ShardView)


def test_unreachable_shard_is_not_a_missing_chunk(folder: Path) -> None:
    refs: dict[str, Any] = {"a/.zarray": (folder / "a/.zarray").read_text()}
    refs |= {f"a/{name}": [f"file://{folder}/gone/{name}"] for name in list_shards(folder)}
    fs = open_source(refs)
    with pytest.raises(ReferenceNotReachable, match=r"a/6\.0"):
        fs.cat_file("a/6.0")
    with pytest.raises(ReferenceNotReachable):
        open_array(refs, "a")[...]


def test_missing_shard_means_missing_chunks(folder: Path) -> None:
    (folder / "a/1.0").unlink()
    fs = open_source(folder)
    for key in ("a/2.0", "a/3.1"):
        assert not fs.exists(key)
        with pytest.raises(FileNotFoundError):
            fs.cat_file(key)
    assert fs.exists("a/4.0")
    expected = DATA.copy()
    expected[6:12] = 0
    assert np.array_equal(open_array(folder, "a")[...], expected)


class Reversed(msgspec.Struct, frozen=True):
    """A decoder of bytes that are stored in reverse order."""

    def make(self, raw: bytes) -> bytes:
        return raw[::-1]


class Held(KeySpace):
    """A key space in memory that counts look-ups and listings."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        return self.entries.get(key)

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        yield from ()
        stem = prefix + "/" if prefix else ""
        names = {k[len(stem) :].partition("/")[0]: "/" in k[len(stem) :] for k in self.entries if k.startswith(stem)}
        return [Listed(n, None, d) for n, d in sorted(names.items())] or None


def run(steps: Steps[Any], files: dict[str, bytes]) -> tuple[Any, list[Load]]:
    """Run ``steps``, with answers from ``files``; return their result, and the loads that they needed."""
    asked: list[Load] = []

    def read(span: Span) -> bytes:
        data = files[span.url]
        return data[span.start :] if span.stop is None else data[span.start : span.stop]

    def meet(need: Any) -> Any:
        match need:
            case tuple():
                return tuple(map(meet, need))
            case Load(Inline(data), index):
                return index.decode(data)
            case Load(Span() as span, index):
                asked.append(need)
                return index.decode(read(span))
            case Load(Packed(source) as packed, index):
                asked.append(need)
                return index.decode(packed.finish([read(source)]))
            case Stat() | Names():
                raise AssertionError(f"{need} is not needed")

    answer = None
    try:
        while True:
            answer = meet(steps.send(answer))
    except StopIteration as stop:
        return stop.value, asked


def held(make: Any) -> tuple[ShardView, dict[str, bytes], dict[str, bytes]]:
    """Return a view of the test array; ``make(url, bytes)`` makes the entries of its shards."""
    meta = {"zarr_format": 2, "shape": [20, 3], "chunks": [3, 2], "dtype": "<i4", "shards": [2, 2], "fill_value": 0}
    chunks = {k: v.tobytes() for k, v in split_chunks(DATA, CHUNKS, 0).items()}
    files, entries = {}, {"a/.zarray": Inline(json.dumps(meta).encode())}
    for shard, content in make_prototype_shards(chunks, SHARDS).items():
        name = "a/" + ".".join(map(str, shard))
        entries[name], files[name] = make(name, content)
    return ShardView(Held(entries)), files, {"a/" + ".".join(map(str, k)): v for k, v in chunks.items()}


MAKERS = {
    "sized span": lambda name, data: (Span(name, 3, 3 + len(data)), b"..." + data + b".."),
    "whole file": lambda name, data: (Span(name), data),
    "tail of a file": lambda name, data: (Span(name, 3), b"..." + data),
    "inline": lambda name, data: (Inline(data), b""),
    "made, of known size": lambda name, data: (Packed(Span(name), Reversed(), len(data)), data[::-1]),
    "made, of unknown size": lambda name, data: (Packed(Span(name), Reversed()), data[::-1]),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_shard_may_be_a_span_inline_or_packed(kind: str) -> None:
    view, files, chunks = held(MAKERS[kind])
    for key, expected in chunks.items():
        entry, _ = run(view.lookup(key), files)
        assert entry.size == len(expected)
        match entry:
            case Span(url, start, stop):
                assert files[url][start:stop] == expected
            case Inline(data):
                assert data == expected
            case Packed(source):
                assert entry.finish([files[source.url]]) == expected


@pytest.mark.parametrize("kind", MAKERS)
def test_batch_lookup_equals_single_lookups(kind: str) -> None:
    view, files, chunks = held(MAKERS[kind])
    present = list(chunks)
    keys = [*present, "a/.zarray", "a/0.1", *reversed(present), "a/9.9", "a/x", "nothing", ".zgroup"]
    for _ in range(2):  # first without, then with known metadata
        found: list[Any] = [...] * len(keys)
        for places, steps in view.make_lookups(keys):
            entries, asked = run(steps, files)
            assert len({need.entry for need in asked if need.entry != Span("a/.zarray")}) <= 1
            for at, entry in zip(places, entries, strict=True):
                assert found[at] is ...
                found[at] = entry
        assert found == [run(view.lookup(key), files)[0] for key in keys]
    assert len(view.make_lookups(present)) == len({shard_of(key) for key in present})


def shard_of(key: str) -> tuple[int, ...]:
    return tuple(int(c) // n for c, n in zip(key[2:].split("."), SHARDS, strict=True))


def test_listings_agree_with_lookups() -> None:
    view, files, chunks = held(MAKERS["sized span"])
    listed, _ = run(view.children("a"), files)
    shown, _ = run(view.lookup("a/.zarray"), files)
    assert {f"a/{n.name}": n.size for n in listed} == {"a/.zarray": shown.size} | {k: len(v) for k, v in chunks.items()}


def test_chunk_of_an_optional_shard_is_not_optional() -> None:
    view, files, chunks = held(lambda name, data: (Span(name, optional=True), data))
    for key in chunks:
        entry, (need,) = run(view.lookup(key), files)
        assert need.entry.optional
        assert not entry.optional


def test_lookups_in_one_shard_have_the_same_needs() -> None:
    view, files, _ = held(MAKERS["whole file"])
    _, asked = run(view.lookup("a/6.1"), files)
    assert [(n.entry.url, n.entry.start, n.entry.stop) for n in asked] == [("a/3.0", -64, None)]
    _, again = run(view.lookup("a/6.0"), files)
    assert again == asked  # the engine keeps the answers to equal needs


def test_grid_of_inner_chunks_is_known_after_metadata_are_read() -> None:
    view, files, chunks = held(MAKERS["whole file"])
    assert find_chunk(view.grids, "a/0.0") is None  # the metadata are not read yet
    run(view.lookup("a/.zarray"), files)
    numbers = [find_chunk(view.grids, key) for key in chunks]
    assert all(at is not None and at.array == "a" for at in numbers)
    assert set(view.grids) == {"a"}


@pytest.mark.parametrize(
    "key", ["a/7.0", "a/0.2", "a/00.0", "a/0", "a/0.0.0", "a/-1.0", "a/0.0/x", "a/x", "b/0.0", "0.0"]
)
def test_keys_outside_the_grid_do_not_exist(key: str) -> None:
    view, files, _ = held(MAKERS["whole file"])
    run(view.lookup("a/.zarray"), files)
    assert run(view.lookup(key), files)[0] is None


def test_array_at_the_root_is_found_by_its_chunks() -> None:
    view, files, chunks = held(MAKERS["sized span"])
    base = Held({k.removeprefix("a/"): v for k, v in view.base.entries.items()})
    for key in chunks:
        assert run(ShardView(base).lookup(key.removeprefix("a/")), files)[0] is not None


def test_shard_outside_its_array_does_not_stop_a_survey(folder: Path) -> None:
    shutil.copy(folder / "a/1.0", folder / "a/99999999999999999999.0")
    assert len(survey(open_source(folder)).arrays["a"]) == len(open_source(folder).ls("a")) - len(
        [".zarray", ".zattrs"]
    )


def test_keys_beside_shards_are_unchanged(folder: Path) -> None:
    (folder / "notes.txt").write_bytes(b"\x00\xff")
    fs = open_source(folder)
    for key in (".zgroup", "a/.zattrs", "notes.txt"):
        assert fs.cat_file(key) == (folder / key).read_bytes()
        assert fs.info(key)["size"] == (folder / key).stat().st_size


def test_listing_chunks_reads_each_index_once(folder: Path) -> None:
    fs = open_source(folder)
    fs.cat_file("a/.zarray")
    assert count_reads(fs, lambda: fs.ls("a")) == 4
    assert count_reads(fs, lambda: fs.ls("a")) == 0


def test_directories_list_inner_chunks(tmp_path: Path) -> None:
    write_prototype(tmp_path, DATA, CHUNKS, SHARDS, separator="/")
    fs = open_source(tmp_path)
    present = {"/".join(map(str, coords)) for coords in split_chunks(DATA, CHUNKS, 0)}
    assert set(fs.find("")) == present | {".zarray"}
    assert fs.isdir("6")
    assert fs.isfile("6/0")
    assert not fs.exists("7")
    assert not fs.exists("6/0/0")
    assert [r["name"] for r in fs.ls("6")] == ["6/0", "6/1"]
    with pytest.raises(FileNotFoundError):
        fs.ls("7")


def test_group_named_c_is_not_a_chunk_directory(tmp_path: Path) -> None:
    write_prototype(tmp_path / "c/0", DATA, CHUNKS, SHARDS, separator="/")
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "c/.zgroup").write_text('{"zarr_format": 2}')
    fs = open_source(tmp_path)
    assert [r["name"] for r in fs.ls("c")] == ["c/.zgroup", "c/0"]
    assert fs.exists("c/0/6/1")
    assert np.array_equal(open_array(tmp_path, "c/0")[...], DATA)


def test_xarray_and_dask_see_inner_chunks(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    pytest.importorskip("dask.array")
    write_prototype(tmp_path / "t", DATA, CHUNKS, SHARDS, compressor=ZLIB)
    (tmp_path / "t/.zattrs").write_text('{"_ARRAY_DIMENSIONS": ["y", "x"]}')
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / ".zattrs").write_text("{}")
    seen = xr.open_zarr(open_source(tmp_path).get_mapper(""), chunks={}, consolidated=False, mask_and_scale=False)["t"]
    assert seen.chunks == ((3, 3, 3, 3, 3, 3, 2), (2, 1))
    assert np.array_equal(seen.compute(scheduler="threads").values, DATA)


def test_error_of_a_damaged_shard_names_shard_and_array(folder: Path) -> None:
    content = make_indexed_shard({0: b"x" * 24}, 4)
    (folder / "a/0.0").write_bytes(content[:-1])
    size = len(content) - 1
    refs: dict[str, Any] = {
        "a/.zarray": (folder / "a/.zarray").read_text(),
        "a/0.0": [f"file://{folder}/a/0.0", 0, size],
    }
    with pytest.raises(DamagedIndex, match=r"shard 'a/0\.0' of array 'a'"):
        open_source(refs).cat_file("a/0.0")
