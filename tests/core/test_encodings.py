"""Unsafe codecs and chunks are recognised before decoding, and refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numcodecs import blosc, pickles

from refshard_fs import RefShardFileSystem, check
from refshard_fs.core.zarrmeta import ArrayMeta, array_meta, dumps, find_safety_problem
from refshard_fs.cubes.chunk_codec import decode_chunk

pytestmark = pytest.mark.case(id="P17")

V2 = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<i8", "order": "C", "fill_value": 0}
V2 |= {"filters": None, "compressor": None}
V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [2],
    "data_type": "int64",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": 0,
}
CODECS: Any = V3["codecs"]
PICKLE = {"id": "pickle", "protocol": 5}
DEADLY = {"id": "delta", "dtype": "m8[s/0]"}


def meta_of(doc: dict[str, Any]) -> ArrayMeta:
    meta = array_meta(doc, "'a'")
    assert meta is not None
    return meta


@pytest.mark.parametrize(
    ("doc", "reason"),
    [
        (V2 | {"compressor": PICKLE}, "pickles"),
        (V2 | {"filters": [{"id": "delta", "dtype": "<i8"}, PICKLE]}, "pickles"),
        (V2 | {"filters": [DEADLY]}, "can crash numpy"),
        (V2 | {"filters": [{"id": "other", "codec": {"id": "pickle"}}]}, "pickles"),
        (V3 | {"codecs": [{"name": "numcodecs.pickle", "configuration": {}}]}, "pickles"),
        (V3 | {"codecs": [{"name": "sharding_indexed", "configuration": {"codecs": [DEADLY]}}]}, "can crash numpy"),
    ],
)
def test_safety_problem_names_unsafe_codecs(doc: dict[str, Any], reason: str) -> None:
    assert reason in (find_safety_problem(meta_of(doc)) or "")
    assert decode_chunk(meta_of(doc), bytes(16)) is None


@pytest.mark.parametrize("doc", [V2, V3, V2 | {"compressor": {"id": "zlib"}, "filters": [{"id": 3}, None, "pickle"]}])
def test_ordinary_codecs_have_no_safety_problem(doc: dict[str, Any]) -> None:
    assert find_safety_problem(meta_of(doc)) is None


class MakesDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickle_codec_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zarr")
    monkeypatch.setattr(pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)  # the behaviour of older versions
    data = pickle.dumps(MakesDirectory(tmp_path / "made"))
    doc = V2 | {"filters": [PICKLE]}
    assert decode_chunk(meta_of(doc), data) is None
    fs = RefShardFileSystem({".zgroup": '{"zarr_format": 2}', "a/.zarray": dumps(doc), "a/0": data})
    assert fs.cat_file("a/0") == data
    report = check(fs, "full")
    assert [(finding.kind, finding.key) for finding in report.findings] == [("not-decoded", "a/.zarray")]
    assert "pickle" in report.findings[0].text
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("doc", [V2 | {"compressor": {"id": "blosc"}}, V3 | {"codecs": [*CODECS, {"name": "blosc"}]}])
def test_truncated_blosc_frame_is_refused(doc: dict[str, Any]) -> None:
    frame = bytes(blosc.compress(np.arange(2, dtype="<i8"), b"lz4", 5, 1))
    values = decode_chunk(meta_of(doc), frame)
    assert values is not None
    assert values.tolist() == [0, 1]
    for damaged in (frame[:-1], frame[:12] + b"\xff\xff\xff\x7f" + frame[16:], frame[:15], b""):
        with pytest.raises(ValueError, match=rf"expected \d+ bytes, found {len(damaged)}"):
            decode_chunk(meta_of(doc), damaged)


def test_full_check_finds_truncated_frames() -> None:
    pytest.importorskip("zarr")
    frame = bytes(blosc.compress(np.arange(2, dtype="<i8"), b"lz4", 5, 1))
    doc = V2 | {"shape": [4], "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}}
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": dumps(doc), "a/0": frame, "a/1": frame[:-1]}
    report = check(RefShardFileSystem(refs), "full")
    assert [(finding.kind, finding.key) for finding in report.findings] == [("undecodable", "a/1")]
    assert report.decoded == 1


@pytest.mark.parametrize("name", ["vlen-array", "vlen-bytes", "vlen-utf8", "json2", "msgpack2", "categorize"])
def test_object_codecs_are_refused_for_numbers(name: str) -> None:
    doc = V2 | {"filters": [{"id": name, "dtype": "<i8", "labels": []}]}
    assert decode_chunk(meta_of(doc), b"\xff\xff\xff\xff" + bytes(12)) is None


def test_data_type_that_crashes_numpy_is_refused() -> None:
    deadly = {"a/.zarray": dumps(V2 | {"dtype": "<M8[D/0]"}), "a/0": bytes(16)}
    with pytest.raises(ValueError, match=r"'a/\.zarray' .* a unit of time without a divisor"):
        RefShardFileSystem(deadly)
