"""Formats refuse the same invalid keys; the work of a read is bounded by existing data, not by claimed sizes."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refshard_fs
from refshard_fs import ManifestError, RefShardError, RefShardFileSystem
from refshard_fs.core.keys import MOST_STEPS, check_key, is_key
from refshard_fs.core.selection import select_chunk_numbers
from refshard_fs.tools.info import make_tree, summarise
from refshard_fs.tools.plane import fold_grid
from tests.servers.http import RangeServer

pytestmark = [pytest.mark.case(id="P21"), pytest.mark.case(id="P26")]

DEEP = "/".join(["d"] * (MOST_STEPS + 1))
WRONG = ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\\b", DEEP, "x" * 5000]


def zarray(shape: list[int], chunks: list[int], **more: Any) -> dict[str, Any]:
    meta = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "order": "C", "fill_value": 0}
    return {**meta, "filters": None, "compressor": None, **more}


def zarr3(shape: list[int], chunks: list[int]) -> dict[str, Any]:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    encoding = {"name": "default", "configuration": {"separator": "/"}}
    meta = {"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "chunk_grid": grid}
    return {**meta, "chunk_key_encoding": encoding, "fill_value": 0, "codecs": [{"name": "bytes"}]}


@pytest.mark.parametrize("key", WRONG)
def test_invalid_keys_are_refused(key: str) -> None:
    assert not is_key(key)
    with pytest.raises(ValueError, match="it is not a valid key"):
        check_key(key)


@pytest.mark.parametrize(
    "key", ["a", ".zgroup", "a/.zarray", "a/0.0", "..a", "a..", "a/...", "ü/ /é", "/".join("d" * 100)]
)
def test_valid_keys_are_accepted(key: str) -> None:
    assert check_key(key) == key


@given(st.text(alphabet="ab./\\\0", max_size=20))
def test_valid_keys_have_plain_segments(key: str) -> None:
    if is_key(key):
        assert os.path.normpath(key) == key
        assert not key.startswith("/")
        assert not {"", ".", ".."}.intersection(key.split("/"))


@pytest.mark.parametrize("key", ["a/../b", ".", "a\0b", DEEP, "x" * 5000])
@pytest.mark.parametrize("many", [0, 1000])
def test_json_sets_refuse_invalid_keys(key: str, many: int) -> None:
    """Keys are parsed one by one, or in blocks if there are many."""
    refs = {f"k{i}": ["u", i, 1] for i in range(many)} | {key: ["u", 0, 1]}
    for fo in (refs, json.dumps({"version": 1, "refs": refs}).encode()):
        with pytest.raises(ManifestError, match="it is not a valid key"):
            RefShardFileSystem(fo).find("")


@pytest.mark.parametrize("name", ["a//b", "b/", "/", "/a", "..", DEEP])
@pytest.mark.parametrize("version", [2, 3])
def test_invalid_key_in_consolidated_metadata_is_an_error(name: str, version: int, http_server: RangeServer) -> None:
    if version == 2:
        http_server.put("/s/.zgroup", b'{"zarr_format": 2}')
        document = {"zarr_consolidated_format": 1, "metadata": {f"{name}/.zarray": zarray([1], [1])}}
        http_server.put("/s/.zmetadata", json.dumps(document).encode())
    else:
        inline = {"kind": "inline", "must_understand": False, "metadata": {name: zarr3([1], [1])}}
        document = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": inline}
        http_server.put("/s/zarr.json", json.dumps(document).encode())
    fs = RefShardFileSystem(http_server.url + "/s", retries=0)
    for look in (lambda: fs.find(""), lambda: make_tree(fs)):
        with pytest.raises(RefShardError, match="it is not a valid key"):
            look()


def test_parquet_sets_refuse_invalid_keys(tmp_path: Path) -> None:
    for key in (f"{DEEP}/.zgroup", "a//.zgroup"):
        (tmp_path / ".zmetadata").write_text(json.dumps({"metadata": {key: {"zarr_format": 2}}, "record_size": 4}))
        with pytest.raises(ManifestError, match="is not a key"):
            RefShardFileSystem(str(tmp_path)).find("")


def test_members_with_invalid_keys_are_not_shown() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in (".zgroup", DEEP, "x" * 5000, "a/b"):
            archive.writestr(name, "{}")
    assert RefShardFileSystem(out.getvalue(), format="zip").find("") == [".zgroup", "a/b"]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_circular_links_are_not_followed(tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    (store / "g").mkdir(parents=True)
    other.mkdir()
    for folder in (store, store / "g", other):
        (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    for link, to in (
        (store / "a", "."),
        (store / "g/up", ".."),
        (store / "top", "/"),
        (store / "o", other),
        (other / "s", store),
    ):
        link.symlink_to(to)
    assert RefShardFileSystem(str(store)).find("") == ["g/zarr.json", "o/zarr.json", "zarr.json"]


ENDLESS = {
    "long": ([10**18], [1], "0"),
    "square": ([2**31, 2**31], [1, 1], "0.0"),
    "many dimensions": ([1] * 70, [1] * 70, ".".join(["0"] * 70)),
    "none": ([0, 10**18], [1, 1], None),
    "31 dimensions": ([4] * 31, [1] * 31, ".".join(["0"] * 31)),
}


@pytest.mark.parametrize("name", list(ENDLESS))
@pytest.mark.parametrize("separator", [".", "/", "v3"])
def test_huge_arrays_are_listed_summarised_and_checked(name: str, separator: str) -> None:
    shape, chunks, key = ENDLESS[name]
    refs: dict[str, Any] = {
        "zarr.json": '{"zarr_format": 3, "node_type": "group"}',
        "a/zarr.json": zarr3(shape, chunks),
    }
    if separator != "v3":
        refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": zarray(shape, chunks, dimension_separator=separator)}
    if key is not None:
        refs["a/" + (key.replace(".", separator) if separator != "v3" else "c/" + key.replace(".", "/"))] = "x"
    fs = RefShardFileSystem({k: json.dumps(v) if isinstance(v, dict) else v for k, v in refs.items()})
    assert len(fs.find("")) == len(refs)
    assert len(summarise(fs).arrays) == 1
    assert len(fs._repr_html_()) < 10_000
    refshard_fs.check(fs)
    looks = [lambda: fs.prefetch("a", (slice(0, 2),)), lambda: len(fs.visualize("a")._repr_html_())]
    for look in looks:
        try:
            look()
        except RefShardError as e:  # its text has the number of chunks
            assert any(character.isdigit() for character in str(e))


@pytest.mark.parametrize("selection", [np.s_[:], np.s_[0:2], np.s_[::2], np.s_[::-1], np.s_[5:, 3]])
def test_error_for_large_selection_states_its_chunks(selection: Any) -> None:
    with pytest.raises(ManifestError, match=r"has \d{8,} chunks"):
        select_chunk_numbers(selection, (2**40, 2**40), (1, 1))


def test_folded_grid_has_one_place_for_each_chunk() -> None:
    for size in (1, 71, 73, 100, 4031, 4033, 5000, 123_457):
        plane = fold_grid((size,), np.zeros(0, np.uint64), None)
        assert plane.room.sum() == size
        assert plane.room.min() >= 0
    assert fold_grid((10**15,), np.zeros(0, np.uint64), None).room.sum() == 10**15


def test_templates_expand_to_a_bounded_size() -> None:
    document = {
        "version": 1,
        "templates": {"t": "y" * 5000},
        "refs": {f"k{i}": ["{{t}}" * 10 + str(i)] for i in range(6000)},
    }
    with pytest.raises(ManifestError, match="expand to .* expected at most"):
        RefShardFileSystem(json.dumps(document).encode()).find("")


def test_gen_key_count_is_bounded() -> None:
    entry = {"key": "a/{{i}}", "url": "u", "offset": "{{i}}", "length": "5", "dimensions": {"i": {"stop": 9_999_999}}}
    with pytest.raises(ManifestError, match="9999999 keys"):
        RefShardFileSystem(json.dumps({"version": 1, "gen": [entry], "refs": {}}).encode()).find("")
