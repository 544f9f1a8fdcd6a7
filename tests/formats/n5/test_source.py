"""N5 hierarchies have the values that tensorstore wrote; damaged headers of chunks are errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardError, RefShardFileSystem
from refshard_fs.formats.n5 import source
from refshard_fs.formats.n5.source import BlockRecipe
from tests.servers.http import RangeServer
from tests.support.damage import check_beside

TYPES = [f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)] + ["float32", "float64"]
COMPRESSIONS: list[dict[str, Any]] = [
    {"type": "raw"},
    {"type": "gzip"},
    {"type": "gzip", "useZlib": True},
    {"type": "bzip2"},
    {"type": "xz"},
    {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
]


def write_dataset(root: Path, path: str, kind: str, compression: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Write a dataset with tensorstore. Return its values in zarr's order of dimensions."""
    tensorstore = pytest.importorskip("tensorstore")
    metadata = {"dimensions": [7, 5, 3], "blockSize": [3, 2, 2], "dataType": kind, "compression": compression}
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": str(root / path)}, "metadata": metadata}
    values = np.arange(1, 106).reshape(7, 5, 3).astype(kind)
    tensorstore.open(spec, create=True).result().write(values).result()
    (root / "attributes.json").write_text(json.dumps({"n5": "2.5.0", "units": ["nm"]}))
    return values.T


def read_array(fs: RefShardFileSystem, path: str) -> np.ndarray[Any, Any]:
    """Return the values of an array, chunk by chunk."""
    doc = json.loads(fs.cat_file(f"{path}/.zarray"))
    values = np.zeros(doc["shape"], doc["dtype"])
    counts = [-(-extent // chunk_size) for extent, chunk_size in zip(doc["shape"], doc["chunks"], strict=True)]
    for coords in np.ndindex(*counts):
        chunk = np.frombuffer(fs.cat_file(f"{path}/{'.'.join(map(str, coords))}"), doc["dtype"]).reshape(doc["chunks"])
        region = values[
            tuple(
                slice(coord * chunk_size, (coord + 1) * chunk_size)
                for coord, chunk_size in zip(coords, doc["chunks"], strict=True)
            )
        ]
        region[...] = chunk[tuple(map(slice, region.shape))]
    return values


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
def test_datasets_written_by_tensorstore_have_their_values(tmp_path: Path, compression: dict[str, Any]) -> None:
    expected = {kind: write_dataset(tmp_path, f"a/{kind}", kind, compression) for kind in TYPES}
    fs = RefShardFileSystem(fo=str(tmp_path))
    for kind, values in expected.items():
        assert np.array_equal(read_array(fs, f"a/{kind}"), values)
    assert json.loads(fs.cat_file(".zattrs")) == {"units": ["nm"]}
    assert len(fs.ls("a/int8")) == 2 + 18


@pytest.mark.parametrize(
    "attributes",
    [
        {"axes": ["x", "y"], "units": ["nm", "s"], "resolution": [10, 20], "scales": [[1, 1], [2, 2]]},
        {"downsamplingFactors": [[1, 1, 1]]},
        {"pixelResolution": {"unit": "um", "dimensions": [1, 1, 1]}},
        {"multiscales": []},
    ],
    ids=lambda attributes: min(attributes),
)
def test_pyramid_in_a_hierarchy_can_be_the_source(tmp_path: Path, attributes: dict[str, Any]) -> None:
    """Pyramids of OpenOrganelle are groups far below the root, and only the root has the attribute ``n5``."""
    values = write_dataset(tmp_path, "em/raw/s0", "uint8", {"type": "gzip"})
    (tmp_path / "em/raw/attributes.json").write_text(json.dumps(attributes))
    assert np.array_equal(read_array(RefShardFileSystem(fo=str(tmp_path / "em/raw")), "s0"), values)


def test_missing_chunk_has_no_key(tmp_path: Path) -> None:
    write_dataset(tmp_path, "a", "int16", {"type": "raw"})
    (tmp_path / "a/2/0/1").unlink()
    fs = RefShardFileSystem(fo=str(tmp_path))
    with pytest.raises(FileNotFoundError):
        fs.cat_file("a/1.0.2")
    assert len(fs.ls("a")) == 2 + 17
    assert json.loads(fs.cat_file("a/.zarray"))["fill_value"] == 0


def test_chunk_over_http_takes_one_request(tmp_path: Path) -> None:
    values = write_dataset(tmp_path, "a", "int16", {"type": "gzip"})
    with RangeServer(directory=tmp_path) as server:
        fs = RefShardFileSystem(fo=f"{server.url}/a")
        fs.ls("")
        server.clear()
        chunk = np.frombuffer(fs.cat_file("data/0.0.0"), ">i2").reshape(2, 2, 3)
        assert np.array_equal(chunk, values[:2, :2, :3])
        assert len(server.requests()) == 1


@pytest.mark.parametrize("compression", ["lz4", "unknown"])
def test_error_names_the_unsupported_compression(tmp_path: Path, compression: str) -> None:
    attributes = {"dimensions": [4], "blockSize": [2], "dataType": "int8", "compression": {"type": compression}}
    (tmp_path / "attributes.json").write_text(json.dumps(attributes))
    with pytest.raises(RefShardError, match=f"attributes.json.*{compression}"):
        RefShardFileSystem(fo=str(tmp_path)).ls("")


def test_groups_below_the_deepest_level_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST_LEVELS", 1)
    dataset = {"dimensions": [4], "blockSize": [2], "dataType": "int8", "compression": {"type": "raw"}}
    documents = {"": {"n5": "2.5.0"}, "shown": dataset, "deep": {}, "deep/hidden": dataset, "empty": {}}
    for path, document in documents.items():
        (tmp_path / path).mkdir(exist_ok=True)
        (tmp_path / path / "attributes.json").write_text(json.dumps(document))
    fs = RefShardFileSystem(str(tmp_path))
    assert fs.ls("", detail=False) == [".zattrs", ".zgroup", ".zmetadata", "deep", "empty", "shown"]
    assert fs.left_whole == {"deep": "the arrays and groups in it are not shown: expected at most 1 levels of groups"}
    with pytest.raises(ManifestError, match="at most 1 levels"):
        fs.cat_file("deep/hidden/0")


def test_damaged_headers_of_n5_chunks_are_errors() -> None:
    block = BlockRecipe((2, 2), (1, 2), "|u1", "raw")
    good = b"\0\0\0\2" + b"\0\0\0\2\0\0\0\1" + b"ab"
    assert block.make(good) == b"ab\0\0"
    assert block.make(b"\0\1" + good[2:12] + b"\0\0\0\2ab") == b"ab\0\0"
    bad = [good[:length] for length in range(len(good))] + [good + b"c", b"\0\2" + good[2:], b"\0\0\0\3" + good[4:]]
    bad += [good[:7] + b"\3" + good[8:], good[:7] + b"\1" + good[8:], good[:4] + b"\xff" + good[5:]]
    for data in bad:
        with pytest.raises(ValueError, match="header|mode|dimensions|elements|decompresses"):
            block.make(data)


@pytest.mark.parametrize("compression", [*COMPRESSIONS, {"type": "zstd"}])
def test_damaged_chunks_give_no_values_of_their_own(tmp_path: Path, compression: dict[str, Any]) -> None:
    """A byte within a zstd stream once gave wrong values: the rest after the stream was ignored."""
    tensorstore = pytest.importorskip("tensorstore")
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    metadata = {"dimensions": [7, 5], "blockSize": [4, 3], "dataType": "uint16", "compression": compression}
    store = tensorstore.open({**spec, "metadata": metadata}, create=True).result()
    store.write(np.arange(35, dtype="u2").reshape(7, 5)).result()

    def read(path: Path) -> dict[str, Any]:
        return {"data": tensorstore.open(spec, open=True).result().read().result().T}

    for file in ("0/0", "1/1"):
        check_beside(tmp_path, read, seed=1, times=15, file=file)
