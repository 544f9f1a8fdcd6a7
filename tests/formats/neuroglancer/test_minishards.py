"""The shard and minishard of a chunk, and the indexes of shards."""

from __future__ import annotations

import gzip
import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs.formats.neuroglancer.minishards import MinishardIndex, ShardIndex, Sharding, hash_murmur3
from refshard_fs.sharding.packing import MortonCode
from tests.servers.http import RangeServer
from tests.support.neuroglancer_info import SAMPLES
from tests.support.shard_writers import open_array, open_source
from tests.support.volumes import KEY, make_pattern, write_volume


@pytest.mark.parametrize(
    ("hash_name", "bits", "index", "data"),
    [
        ("identity", (0, 0, 0), "raw", "raw"),
        ("identity", (2, 3, 2), "gzip", "gzip"),
        ("murmurhash3_x86_128", (1, 2, 5), "raw", "gzip"),
        ("murmurhash3_x86_128", (0, 6, 3), "gzip", "raw"),
    ],
)
@pytest.mark.parametrize(
    ("shape", "chunk", "offset", "dtype"),
    [
        ((20, 33, 17, 1), (8, 8, 8), (0, 0, 0), "uint8"),
        ((16, 16, 16, 2), (8, 8, 4), (100, -7, 3), "uint32"),
        ((5, 40, 3, 1), (16, 8, 8), (1, 2, 3), "float32"),
    ],
)
def test_volumes_of_several_shardings_are_read(
    hash_name: str, bits: tuple[int, int, int], index: str, data: str, shape: Any, chunk: Any, offset: Any, dtype: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    values = make_pattern(shape, dtype)
    if shape[0] > chunk[0]:
        values[: chunk[0]] = 0  # a chunk of zeros is not stored
    names = ("preshift_bits", "minishard_bits", "shard_bits")
    encodings = {"hash": hash_name, "minishard_index_encoding": index, "data_encoding": data}
    write_volume(tmp_path, values, chunk, {**dict(zip(names, bits, strict=True)), **encodings}, offset)
    assert np.array_equal(open_array(str(tmp_path), KEY)[...], values)
    fs = open_source(str(tmp_path))
    counts = [-(-size // step) for size, step in zip(shape, chunk, strict=False)]
    keys = [f"{KEY}/{i}.{j}.{k}.0" for i, j, k in itertools.product(*map(range, counts))]
    stored = [key for key in keys if fs.exists(key)]
    assert [name for name in fs.find(KEY) if "/.z" not in name] == sorted(stored)
    assert len(stored) == len(keys) - (counts[1] * counts[2] if shape[0] > chunk[0] else 0)
    assert all(fs.info(key)["size"] == len(fs.cat_file(key)) for key in stored)


def test_morton_codes_skip_unneeded_bits() -> None:
    code = MortonCode((3, 1, 5))  # bits: x0 z0 x1 z1 z2
    assert [code.encode(c) for c in [(0, 0, 0), (1, 0, 0), (0, 0, 1), (2, 0, 0), (0, 0, 2), (0, 0, 4), (2, 0, 4)]] == [
        0, 1, 2, 4, 8, 16, 20,
    ]  # fmt: skip
    cells = list(itertools.product(range(3), range(1), range(5)))
    codes = [code.encode(cell) for cell in cells]
    assert len(set(codes)) == len(cells)
    assert code.decode(np.array(codes, np.uint64), 3).tolist() == [list(cell) for cell in cells]
    with pytest.raises(ValueError, match="at most 64 bits"):
        MortonCode((2**22, 2**22, 2**22))


def test_murmur_hash_equals_the_reference() -> None:
    vectors = {0: 0x4772B084E028AE41, 1: 0xE8BD67D616D4CE9A, 0x0123456789ABCDEF: 0x708036264C109D93}
    assert {number: hash_murmur3(number) for number in vectors} == vectors


def test_length_of_shard_names_follows_from_shard_bits() -> None:
    sharding = Sharding(0, "identity", 1, 9)
    assert sharding.find_shard(0b1_0000_0010_1) == (0x102, 1)
    assert sharding.name_shard(0x102) == "102"
    assert sharding.parse_shard_name("00a.shard") == 10
    for name in ("a.shard", "200.shard", "00A.shard", "00a.index", "00a", ".shard"):
        assert sharding.parse_shard_name(name) is None
    assert Sharding(0, "identity", 0, 0).name_shard(0) == "0"


def test_impossible_indexes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected an end of at least the start"):
        ShardIndex().decode(struct.pack("<4Q", 0, 5, 9, 5))
    raw = MinishardIndex("raw", 2)
    good = struct.pack("<6Q", 7, 3, 100, 0, 10, 20)
    assert [raw.decode(good).locate(i) for i in (7, 10, 8)] == [(100, 10), (110, 20), None]
    for bad in (
        good[:-1],
        good + bytes(24),
        struct.pack("<6Q", 7, 0, 100, 0, 10, 20),  # one chunk twice
        struct.pack("<6Q", 7, 3, 100, 2**63, 10, 20),
        struct.pack("<6Q", 7, 3, 2**62, 2**62, 2**62, 2**62),
        struct.pack("<6Q", 7, 3, 2**63 - 1, 2**63 - 1, 0, 9),  # the second chunk begins at 2**64 - 2
    ):
        with pytest.raises(ValueError, match="minishard"):
            raw.decode(bad)
    packed = MinishardIndex("gzip", 2)
    assert packed.decode(gzip.compress(good)).locate(7) == (100, 10)
    for stream in (gzip.compress(bytes(10_000_000)), gzip.compress(good)[:-9], b"plain"):
        with pytest.raises(ValueError, match="compressed bytes"):
            packed.decode(stream)


def test_chunks_of_a_shard_share_indexes_and_requests(http_server: RangeServer) -> None:
    for path in (SAMPLES / "identity").rglob("*"):
        if path.is_file():
            http_server.put(f"/v/{path.relative_to(SAMPLES / 'identity')}", path.read_bytes())
    fs = open_source(f"{http_server.url}/v")
    keys = [f"{KEY}/{i}.{j}.{k}.0" for i, j, k in itertools.product(range(3), range(3), range(2))]
    local = open_source(str(SAMPLES / "identity"))
    fs.cat_file(".zattrs")
    http_server.clear()
    assert fs.cat(keys) == {key: local.cat_file(key) for key in keys}
    shards = len(list((SAMPLES / "identity" / KEY).iterdir()))
    full = [request for request in http_server.requests() if request.method == "GET"]
    edges = sum(2 in (int(coord) for coord in key.split("/")[1].split(".")[:2]) or key.endswith("1.0") for key in keys)
    assert len([request for request in full if request.start == 0]) == shards
    assert len(full) <= shards * (1 + 4 + 1) + edges
    http_server.clear()
    fs.cat_file(keys[0])
    assert len(http_server.requests()) == 1
