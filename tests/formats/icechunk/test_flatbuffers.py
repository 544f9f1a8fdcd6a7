"""FlatBuffers made by hand: fields are located by the vtable, and offsets that lead out of the buffer are refused."""

from __future__ import annotations

import numpy as np
import pytest

from refshard_fs.formats.icechunk.flatbuffers import Tables, gather_integers, parse_flex


def u16(*numbers: int) -> bytes:
    return np.array(numbers, "<u2").tobytes()


def u32(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


# The offset of the root table; a vtable of three fields, of which the second is absent; the table with a number and the
# offset of a text; and the text.
VTABLE = u16(10, 12, 4, 0, 8)
BUFFER = u32(16) + VTABLE + u16(0) + u32(12, 7, 4) + u32(3) + b"abc"


def test_fields_are_located_by_the_vtable() -> None:
    root = Tables.read_root(BUFFER)
    assert root.read_numbers(0, "<u4").tolist() == [7]
    assert root.read_numbers(1, "<u4").tolist() == root.read_numbers(9, "<u4").tolist() == [0]
    assert root.read_texts(2) == ["abc"]
    assert len(root.read_tables(1)[0].at) == len(root.read_vectors_of_tables(1)[0].at) == 0


def test_columns_have_the_fields_of_each_table() -> None:
    tables = Tables(BUFFER, np.array([16, 16]))
    assert tables.read_numbers(0, "<u4").tolist() == [7, 7]
    assert tables.read_numbers(1, "<u4").tolist() == [0, 0]
    assert tables.read_vectors(2) == ([0, 1], [b"abc", b"abc"])
    assert tables.read_bytes(2) == [b"abc", b"abc"]
    assert tables.read_bytes(1) == [b"", b""]
    assert tables.read_structs(0, 4).tolist() == [[7, 0, 0, 0]] * 2
    with pytest.raises(ValueError, match="expected an id"):
        tables.read_structs(1, 4)


@pytest.mark.parametrize("length", range(4, len(BUFFER)))
def test_truncated_buffer_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="cut short or damaged"):
        Tables.read_root(BUFFER[:length]).read_texts(2)


def test_many_vectors_of_the_same_bytes_are_refused() -> None:
    assert Tables(BUFFER, np.array([16] * 4)).locate_elements(2, 1)[1].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    with pytest.raises(ValueError, match="to the same bytes"):
        Tables(BUFFER, np.array([16] * 60)).locate_elements(2, 1)


def test_numbers_outside_of_the_buffer_are_refused() -> None:
    assert gather_integers(b"\1\0\2\0", np.array([0, 2]), "<u2").tolist() == [1, 2]
    for place in (-1, 3):
        with pytest.raises(ValueError, match="beyond its end"):
            gather_integers(b"\1\0\2\0", np.array([place]), "<u2")


KEYS = b"k\0" + b"\2vw\0" + bytes([6])  # a key, a text, and the offset of the key
MAP = KEYS + bytes([1, 1, 1]) + bytes([7]) + bytes([5 << 2])  # keys, their width, size; the value's offset and type


def test_flex_map_becomes_a_dict() -> None:
    assert parse_flex(MAP + bytes([2, 9 << 2, 1])) == {"k": "vw"}
    assert parse_flex(b"\2ab\0" + bytes([3, 5 << 2, 1])) == "ab"
    assert parse_flex(bytes([7, 1 << 2, 1])) is None


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (bytes([0, 5 << 2, 3]), "beyond its end"),
        (b"", "beyond its end"),
        (bytes([9, 5 << 2, 1]), "beyond its end"),
        (MAP[:-2] + bytes([0, 9 << 2, 2, 9 << 2, 1]), "contain themselves|the same bytes"),
        (MAP[:6] + bytes([200]) + MAP[7:] + bytes([2, 9 << 2, 1]), "beyond its end|the same bytes"),
    ],
)
def test_damaged_flex_buffer_is_refused(damaged: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_flex(damaged)
