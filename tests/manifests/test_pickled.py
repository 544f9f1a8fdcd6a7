"""References in pickles: damage is told before what is damaged is decompressed."""

from __future__ import annotations

import json
import random

import pytest

from refshard_fs.manifests import pickled
from refshard_fs.manifests.kerchunk_json import parse
from refshard_fs.manifests.reference_set import References

ARRAY = {"zarr_format": 2, "shape": [64], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
ARRAY |= {"order": "C", "filters": None}
REFS = {"a/.zarray": json.dumps(ARRAY), "t": "text", **{f"a/{i}": ["s3://b/k", i, 10] for i in range(64)}}


def test_references_are_those_that_were_pickled() -> None:
    refs = parse(json.dumps(REFS).encode(), "refs", {})
    again = pickled.swell(pickled.shrink(refs))
    assert dict(References(again)) == dict(References(refs))


def test_a_flipped_bit_of_a_column_is_an_error_and_nothing_worse() -> None:
    """The decompressor ends the process over some of them."""
    (part,) = pickled.shrink_bytes(random.Random(1).randbytes(300) + bytes(3000))
    assert pickled.swell_bytes([part])[300:] == bytes(3000)
    for bit in range(len(part) * 8):
        damaged = bytearray(part)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            pickled.swell_bytes([bytes(damaged)])
    with pytest.raises(ValueError, match="checksum"):
        pickled.swell_bytes([b""])
