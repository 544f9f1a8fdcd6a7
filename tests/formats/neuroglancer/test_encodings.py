"""Encoded chunks have the values that tensorstore reads; damaged chunks are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs.formats.neuroglancer.encodings import DecodingRecipe
from tests.support.damage import check_beside
from tests.support.shard_writers import open_array
from tests.support.volumes import KEY, make_pattern, write_volume

GZIP = {"preshift_bits": 1, "hash": "identity", "minishard_bits": 1, "shard_bits": 1, "data_encoding": "gzip"}
CASES = [
    ("jpeg", "uint8", 1),
    ("jpeg", "uint8", 3),
    ("png", "uint8", 2),
    ("png", "uint8", 3),
    ("png", "uint16", 1),
    ("compressed_segmentation", "uint32", 1),
    ("compressed_segmentation", "uint64", 2),
]


def make_labels(dtype: str, channels: int) -> Any:
    """Make a volume whose blocks have 1 to about 20 labels."""
    x, y, z, c = np.indices((20, 13, 9, channels))
    return (x // 3 + y // 3 * 7 + z // 5 * 50 + c * 9 + 1).astype(dtype) * (1 << 40 if dtype == "uint64" else 1)


@pytest.mark.parametrize("sharding", [None, GZIP], ids=["files", "shards"])
@pytest.mark.parametrize(("encoding", "dtype", "channels"), CASES)
def test_encoded_chunks_match_tensorstore(
    encoding: str, dtype: str, channels: int, sharding: dict[str, Any] | None, tmp_path: Path
) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    pytest.importorskip("imagecodecs")
    write_volume(tmp_path, make_labels(dtype, channels), (8, 8, 4), sharding, (3, 0, -2), encoding)
    kvstore = {"driver": "file", "path": f"{tmp_path}/"}
    expected = tensorstore.open({"driver": "neuroglancer_precomputed", "kvstore": kvstore}).result().read().result()
    actual = open_array(str(tmp_path), KEY)
    assert np.array_equal(actual[...], expected)
    assert np.array_equal(actual[17:, 8:, 3:5], expected[17:, 8:, 3:5])


def make_recipe(encoding: str, dtype: str, block: tuple[int, int, int] = (1, 1, 1)) -> DecodingRecipe:
    return DecodingRecipe((2, 1, 1, 1), (3, 2, 1, 1), np.dtype(dtype).str, encoding, block, is_gzip=False)


@pytest.mark.parametrize(
    ("encoding", "data", "reason"),
    [
        ("jpeg", b"\xff\xd8\xff\xc0\0\x0b\x08\xff\xff\xff\xff\1", "pixels, channels, bits. .4294836225"),
        ("jpeg", b"\xff\xd8\xff\xc0\0\x0b\x08\0\1\0\2\1" + bytes(9), "expected the marker FFD9 at its end"),
        ("jpeg", b"\xff\xd8" + bytes(20), "a JPEG image with a frame"),
        ("png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\1\0\0\0\1\0\0\x08\0\0\0\0", "pixels, channels, bits. .4294967296"),
        ("png", b"GIF8", "expected a PNG"),
        ("compressed_segmentation", b"", "has 0 bytes: expected at least 4"),
        ("compressed_segmentation", bytes(7), "has 7 bytes: expected a multiple of 4"),
        ("compressed_segmentation", np.array([1, 0, 0], "<u4").tobytes(), "cut short"),
        ("compressed_segmentation", np.array([1, 1 << 24 | 9, 9, 0, 0], "<u4").tobytes(), "beyond its end"),
        ("compressed_segmentation", np.array([1, 3 << 24, 0, 0, 0], "<u4").tobytes(), "numbers of 3 bits"),
    ],
)
def test_damaged_chunks_are_errors(encoding: str, data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_recipe(encoding, "uint32" if encoding[0] == "c" else "uint8").make(data)


def test_blocks_much_larger_than_a_chunk_are_refused() -> None:
    with pytest.raises(ValueError, match="voxels: expected at most"):
        make_recipe("compressed_segmentation", "uint64", (1 << 11, 1 << 11, 1)).make(bytes(64))


@pytest.mark.parametrize("encoding", ["raw", "png", "compressed_segmentation"])
def test_damaged_chunks_give_no_values_of_their_own(tmp_path: Path, encoding: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    values = make_pattern((8, 8, 8, 1), "uint32" if encoding == "compressed_segmentation" else "uint8")
    write_volume(tmp_path, values, (8, 8, 8), encoding=encoding)

    def read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
        kvstore = {"driver": "file", "path": f"{path}/"}
        store = tensorstore.open({"driver": "neuroglancer_precomputed", "kvstore": kvstore}).result()
        return {KEY: store.read().result()}

    check_beside(tmp_path, read, seed=1, times=30, file=f"{KEY}/0-8_0-8_0-8")
