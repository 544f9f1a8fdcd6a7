"""zarr reads shards of the v2 prototype, whose bytes these tests write according to its specification."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.shard_writers import ZLIB, make_sparse, open_array, open_source, write_prototype


@pytest.mark.parametrize("separator", [None, ".", "/"])
@pytest.mark.parametrize("compressor", [None, ZLIB], ids=["raw", "zlib"])
@pytest.mark.parametrize(
    ("shape", "chunks", "shards"),
    [((20, 3), (3, 2), (2, 2)), ((100,), (7,), (4,)), ((9, 10, 11), (2, 3, 4), (3, 1, 2))],
    ids=["2d", "1d", "3d"],
)
def test_shards_of_the_prototype_are_read(
    tmp_path: Path, shape: Any, chunks: Any, shards: Any, compressor: Any, separator: str | None
) -> None:
    data = make_sparse(shape, fill=-1)
    write_prototype(tmp_path, data, chunks, shards, fill=-1, compressor=compressor, separator=separator)
    seen = open_array(tmp_path)
    assert seen.chunks == chunks
    assert np.array_equal(seen[...], data)


def test_scalar_is_a_shard_of_one_chunk(tmp_path: Path) -> None:
    write_prototype(tmp_path, np.array(5, "<i8"), (), ())
    assert open_array(tmp_path)[()] == 5
    assert open_source(tmp_path).find("") == [".zarray", "0"]


def test_metadata_has_inner_chunks_without_shards(tmp_path: Path) -> None:
    write_prototype(tmp_path, make_sparse((20, 3)), (3, 2), (2, 2))
    spelled = json.loads((tmp_path / ".zarray").read_text())
    shown = json.loads(open_source(tmp_path).cat_file(".zarray"))
    assert shown == {k: v for k, v in spelled.items() if k not in ("shards", "shard_format")}


def test_shards_whole_option_shows_the_shards(tmp_path: Path) -> None:
    write_prototype(tmp_path, make_sparse((20, 3)), (3, 2), (2, 2))
    fs = open_source(tmp_path, shards="whole")
    for name in ("0.0", "1.0", ".zarray"):
        assert fs.cat_file(name) == (tmp_path / name).read_bytes()


def test_big_endian_shards_are_read_with_the_endian_option(tmp_path: Path) -> None:
    data = make_sparse((20, 3))
    write_prototype(tmp_path, data, (3, 2), (2, 2), big_endian=True, compressor=ZLIB)
    assert np.array_equal(open_array(tmp_path, shard_options={"endian": "big"})[...], data)


def slots_with_mask(order: list[int], slot: int) -> Any:
    """Return a function that packs chunks into slots of one size: ``order[s]`` is the place of slot ``s``."""

    def pack(held: dict[int, bytes], count: int) -> bytes:
        mask, content = 0, bytearray(slot * count)
        for at, data in held.items():
            mask |= 1 << order[at]
            content[order[at] * slot : (order[at] + 1) * slot] = data
        return bytes(content) + mask.to_bytes(-(-count // 8), "big")

    return pack


# Orders of the slots of shards of 2 x 3 chunks: the place of each chunk, in C order of coordinates.
FIRST_DIMENSION_FASTEST = [0, 2, 4, 1, 3, 5]
Z_CURVE = [0, 2, 4, 1, 3, 5]
# Orders for shards of 3 x 3 chunks, where the two orders differ.
FIRST_DIMENSION_FASTEST_3 = [0, 3, 6, 1, 4, 7, 2, 5, 8]
Z_CURVE_3 = [0, 2, 6, 1, 3, 7, 4, 5, 8]


@pytest.mark.parametrize(
    ("shards", "order", "options"),
    [
        ((2, 3), FIRST_DIMENSION_FASTEST, {}),
        ((2, 3), Z_CURVE, {"slots": "morton"}),
        ((3, 3), FIRST_DIMENSION_FASTEST_3, {}),
        ((3, 3), Z_CURVE_3, {"slots": "morton"}),
    ],
)
def test_fixed_slots_and_mask_are_read(tmp_path: Path, shards: Any, order: list[int], options: dict[str, str]) -> None:
    data = make_sparse((20, 23), fill=3)
    pack = slots_with_mask(order, 3 * 2 * 4)
    write_prototype(tmp_path, data, (3, 2), shards, fill=3, shard_format="morton_order", pack=pack)
    assert np.array_equal(open_array(tmp_path, shard_options=options)[...], data)
    fs = open_source(tmp_path, shard_options=options)
    assert not fs.exists("0.0")  # the bit of this chunk is not set


def test_fixed_slots_of_compressed_chunks_stay_whole(tmp_path: Path) -> None:
    write_prototype(tmp_path, make_sparse((20, 3)), (3, 2), (2, 2), compressor=ZLIB, shard_format="morton_order")
    fs = open_source(tmp_path)
    assert fs.cat_file("1.0") == (tmp_path / "1.0").read_bytes()
    assert "compressed" in fs.source.open().reports[""]


def test_shards_of_the_v3_transformer_are_read(tmp_path: Path) -> None:
    data = make_sparse((20, 3, 5))
    write_prototype(tmp_path, data, (3, 2, 5), (2, 2, 1), separator="/")
    (tmp_path / ".zarray").unlink()
    meta = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [20, 3, 5],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 2, 5]}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "storage_transformers": [
            {
                "type": "indexed",
                "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
                "configuration": {"chunks_per_shard": [2, 2]},  # the last dimensions may be left out
            }
        ],
    }
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    fs = open_source(tmp_path)
    shown = json.loads(fs.cat_file("zarr.json"))
    assert shown == {k: v for k, v in meta.items() if k != "storage_transformers"}
    for i, j in np.ndindex(7, 2):
        chunk = np.zeros((3, 2, 5), "<i4")
        part = data[i * 3 : i * 3 + 3, j * 2 : j * 2 + 2]
        chunk[: part.shape[0], : part.shape[1]] = part
        key = f"{i}/{j}/0"
        if chunk.any():
            assert fs.cat_file(key) == chunk.tobytes()
        else:
            assert not fs.exists(key)


@pytest.mark.parametrize("name", ["pr876-readme-20x3", "pr876-zlib-1d"])
def test_arrays_of_the_prototype_are_read(shared_data: Path, name: str) -> None:
    expected = json.loads((shared_data / "expected" / "shards-v2.json").read_text())[name]
    seen = open_array(shared_data / "shards-v2" / name)[...]
    assert hashlib.sha256(np.ascontiguousarray(seen).tobytes()).hexdigest() == expected["values_sha256"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shards": [2]}, "2 positive integers"),
        ({"shards": [2, 0]}, "2 positive integers"),
        ({"shards": [2**40, 2**40]}, "expected an index of at most"),
        ({"shards": "many"}, "2 positive integers"),
        ({"shard_format": "zip"}, "'zip'"),
        ({"shard_format": "morton_order", "chunks": [2**40, 2**40]}, "fewer than 2**63 bytes"),
    ],
)
def test_array_with_contradictory_metadata_shows_whole_shards(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    write_prototype(tmp_path, make_sparse((20, 3)), (3, 2), (2, 2))
    text = json.dumps({**json.loads((tmp_path / ".zarray").read_text()), **change})
    (tmp_path / ".zarray").write_text(text)
    fs = open_source(tmp_path)
    assert fs.cat_file(".zarray").decode() == text
    assert reason in fs.source.open().reports[""]
    assert fs.cat_file("1.0") == (tmp_path / "1.0").read_bytes()
