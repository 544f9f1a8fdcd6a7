"""Packed references are unpacked unchanged, and damaged bytes raise an error before blosc decompresses them."""

from __future__ import annotations

import json
import random
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

from refshard_fs.core.columns import Row
from refshard_fs.formats.kerchunk_json.source import parse, parse_document
from refshard_fs.references import binary as pickled
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import References
from refshard_fs.references.values import decode

ARRAY = {"zarr_format": 2, "shape": [64], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
ARRAY |= {"order": "C", "filters": None}
REFS = {"a/.zarray": json.dumps(ARRAY), "t": "text", **{f"a/{i}": ["s3://b/k", i, 10] for i in range(64)}}


def test_references_survive_pickling() -> None:
    refs = parse(json.dumps(REFS).encode(), "refs", {})
    again = pickled.unpack_compressed(pickled.pack_compressed(refs))
    assert dict(References(again)) == dict(References(refs))


def decode_or_keep(value: Value) -> bytes | str:
    try:
        return decode(value)
    except UnicodeEncodeError:
        return str(value)


@pytest.mark.parametrize(
    "document",
    [
        {"\ud800": "x", "k": b"bytes"},
        {"k": "\ud800", "r": ["s3://b/\ud800", 1, 2]},
        {"k": {"attribute": "\ud800"}},
        {"\ud800/.zarray": json.dumps(ARRAY), "\ud800/3": ["s3://b/k", 3, 10]},
    ],
)
def test_lone_surrogates_survive_pickling(document: dict[str, Any]) -> None:
    refs = parse_document(document, "refs", {})
    again = pickled.unpack_compressed(pickled.pack_compressed(refs))
    assert sorted(again) == sorted(refs)
    for key in refs:
        found, value = again.get_value(key), refs.get_value(key)
        assert found is not None
        assert value is not None
        assert found == value if isinstance(value, Row) else decode_or_keep(found) == decode_or_keep(value)


def test_flipped_bit_of_a_column_is_an_error() -> None:
    """blosc would end the process for some of these damaged bytes."""
    (part,) = pickled.compress_bytes(random.Random(1).randbytes(300) + bytes(3000))
    assert pickled.decompress_bytes([part])[300:] == bytes(3000)
    for bit in range(len(part) * 8):
        damaged = bytearray(part)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            pickled.decompress_bytes([bytes(damaged)])
    with pytest.raises(ValueError, match="checksum"):
        pickled.decompress_bytes([b""])


def test_part_of_a_column_without_a_header_is_an_error() -> None:
    short = b"\0\0"
    with pytest.raises(ValueError, match="header"):
        pickled.decompress_bytes([zlib.crc32(short).to_bytes(4, "little") + short])


@pytest.mark.parametrize("size", [0, 1, 7, 8, 20])
def test_columns_in_several_parts_are_joined(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "BLOCK", 8)  # bytes, so that each part has few values
    data = bytes(range(size))
    parts = pickled.compress_bytes(data)
    assert len(parts) == -(-size // 8)
    assert pickled.decompress_bytes(parts) == data
    refs = parse(json.dumps(REFS).encode(), "refs", {})
    assert dict(References(pickled.unpack_compressed(pickled.pack_compressed(refs)))) == dict(References(refs))


def test_unpacking_copies_no_column() -> None:
    """Each worker of a cluster unpacks the references, so that a copy would cost memory in all workers."""
    column = np.arange(1 << 20, dtype=np.uint64)
    parts = pickled._pack_column(column, is_steps=False)
    pickled._unpack_column(parts[:0], column.dtype, is_steps=False)  # import blosc before the measurement
    tracemalloc.start()
    try:
        again = pickled._unpack_column(parts, column.dtype, is_steps=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(again, column)
    assert again.flags.writeable
    assert peak < 1.1 * column.nbytes
