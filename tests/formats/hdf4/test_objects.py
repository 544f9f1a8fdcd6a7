"""Parsing of Vgroups, Vdatas and number types of HDF4."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from refshard_fs.formats.hdf4.objects import Field, decode_value, parse_number_type, parse_vdata, parse_vgroup


def encode_text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


GROUP = struct.pack(">H4H", 2, 720, 1962, 5, 6) + encode_text(b"name") + encode_text(b"Var0.0") + bytes(9)
TABLE = (
    struct.pack(">HiHH4H", 0, 3, 4, 1, 24, 4, 0, 1)
    + encode_text(b"Values")
    + encode_text(b"name")
    + encode_text(b"Attr0.0")
    + bytes(9)
)


def test_vgroups_and_vdatas_are_parsed() -> None:
    assert parse_vgroup(GROUP) == ("name", "Var0.0", ((720, 5), (1962, 6)))
    assert parse_vdata(TABLE) == ("name", "Attr0.0", 3, 4, (Field("Values", np.dtype(">i4"), 1),), True)


@pytest.mark.parametrize("length", range(0, 20, 3))
def test_truncated_objects_are_errors(length: int) -> None:
    for parse, data in ((parse_vgroup, GROUP), (parse_vdata, TABLE)):
        with pytest.raises(ValueError, match="cut short"):
            parse(data[:length])


def test_number_type_has_its_byte_order_or_is_refused() -> None:
    assert parse_number_type(bytes([1, 22, 16, 1])) == np.dtype(">i2")
    assert parse_number_type(bytes([1, 22, 16, 4])) == np.dtype("<i2")
    for data in (bytes([1, 99, 16, 1]), bytes([1, 22, 16, 2]), b"\1\x16"):
        with pytest.raises(ValueError, match="number type"):
            parse_number_type(data)


def test_values_of_attributes_are_texts_or_numbers() -> None:
    assert decode_value(Field("", np.dtype("S1"), 4), b"ab\0\0") == "ab"
    assert decode_value(Field("", np.dtype("S1"), 4), b"a\0b\0") == "a\0b"  # as in pyhdf
    assert decode_value(Field("", np.dtype("S1"), 4), b"caf\xe9") == "café"
    assert decode_value(Field("", np.dtype(">i2"), 1), b"\0\1") == 1
    assert decode_value(Field("", np.dtype(">i2"), 2), b"\0\1\0\2") == [1, 2]
