"""Decoding of HDF4 chunks: values, and errors for chunks of another size or an unsupported coder."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf4.coding import MOST_DECODED, Coding, DecodingRecipe, parse_coding

RUNS, BITS, DEFLATE, SZIP = 1, 2, 4, 5


def test_errors_name_unsupported_coders() -> None:
    assert parse_coding(struct.pack(">HHH", 0, DEFLATE, 6)).codecs == [{"id": "zlib", "level": 6}]
    for coder, name in ((3, "skipping Huffman"), (7, "JPEG"), (12, "IMCOMP"), (99, "number 99")):
        with pytest.raises(ManifestError, match=name):
            parse_coding(struct.pack(">HHII", 0, coder, 1, 1))
    with pytest.raises(ValueError, match="cut short"):
        parse_coding(struct.pack(">HH", 0, DEFLATE))


def test_run_lengths_are_decoded_up_to_the_chunk_end() -> None:
    recipe = DecodingRecipe(Coding(RUNS, ()), 7, 1)
    assert recipe.make(b"\x81a\x02bcd") == b"aaaabcd"
    assert recipe.make(b"\xffa") == b"a" * 7
    for data in (b"", b"\x81", b"\x81a", b"\x81a\x02bc"):
        with pytest.raises(ValueError, match="cut short"):
            recipe.make(data)


@pytest.mark.parametrize(("is_signed", "fill", "expected"), [(1, 0, [-1, 1, -4, 3]), (0, 0, [28, 4, 16, 12])])
def test_nbit_values_are_unpacked(is_signed: int, fill: int, expected: list[int]) -> None:
    bits = "111001100011"  # four numbers of three bits
    raw = int(bits.ljust(16, "0"), 2).to_bytes(2, "big")
    first = 2 if is_signed else 4
    recipe = DecodingRecipe(Coding(BITS, (22, is_signed, fill, first, 3)), 8, 2)
    assert np.frombuffer(recipe.make(raw), ">i2").tolist() == expected
    with pytest.raises(ValueError, match="NBIT has 1 bytes"):
        recipe.make(raw[:1])
    with pytest.raises(ValueError, match="NBIT stores"):
        DecodingRecipe(Coding(BITS, (22, 0, 0, 40, 3)), 8, 2).make(raw)


def test_szip_is_decoded_by_imagecodecs() -> None:
    imagecodecs = pytest.importorskip("imagecodecs")
    values = np.arange(64, dtype="<i2")
    options = {"options_mask": 4 | 8, "pixels_per_block": 8, "bits_per_pixel": 16, "pixels_per_scanline": 64}
    try:
        packed = imagecodecs.szip_encode(values.tobytes(), **options)
    except imagecodecs.DelayedImportError:
        pytest.skip("this imagecodecs has no szip")
    old = Coding(SZIP, (64, 64, 12, 16, 8))
    assert DecodingRecipe(old, 128, 2).make(packed) == values.tobytes()
    new = Coding(SZIP, (64, 64, 12 | 0x10000, 16, 8))
    preamble = len(packed).to_bytes(4, "big")
    assert DecodingRecipe(new, 128, 2).make(b"\0" + preamble + packed) == values.tobytes()
    assert DecodingRecipe(new, 128, 2).make(b"\1\0\0\0\x80" + values.tobytes()) == values.tobytes()
    for data in (b"", b"\0" + preamble + packed[:-3]):
        with pytest.raises(ValueError, match="cut short"):
            DecodingRecipe(new, 128, 2).make(data)


def test_large_chunk_of_runs_is_refused() -> None:
    with pytest.raises(ManifestError, match=f"take {MOST_DECODED + 1} bytes when decoded"):
        Coding(RUNS, ()).make_recipe(MOST_DECODED + 1, 1)
    assert Coding(DEFLATE, (6,)).make_recipe(MOST_DECODED + 1, 1) is None
