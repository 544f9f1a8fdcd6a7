"""FlatBuffers made by hand: fields are found by the vtable, and offsets that lead out are refused."""

from __future__ import annotations

import numpy as np
import pytest

from refshard_fs.formats.icechunk.flatbuffers import Buffer, Flex, Tables, gather


def u16(*numbers: int) -> bytes:
    return np.array(numbers, "<u2").tobytes()


def u32(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


# The root's offset; a vtable of three fields, the second absent; the table: a number, and the offset of a text.
VTABLE = u16(10, 12, 4, 0, 8)
BUFFER = u32(16) + VTABLE + u16(0) + u32(12, 7, 4) + u32(3) + b"abc"


def test_fields_are_found_by_the_vtable() -> None:
    root = Buffer(BUFFER).root
    assert root.number(0, 4) == 7
    assert root.number(1, 4) == root.number(9, 4) == 0
    assert root.text(2) == "abc"
    assert root.table(1) is None


def test_columns_have_the_fields_of_each_table() -> None:
    tables = Tables(BUFFER, np.array([16, 16]))
    assert tables.numbers(0, "<u4").tolist() == [7, 7]
    assert tables.numbers(1, "<u4").tolist() == [0, 0]
    assert tables.pieces(2) == ([0, 1], [b"abc", b"abc"])


@pytest.mark.parametrize("length", range(4, len(BUFFER)))
def test_buffer_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="cut short or damaged"):
        Buffer(BUFFER[:length]).root.text(2)


def test_bytes_that_are_read_again_and_again_are_refused() -> None:
    buffer = Buffer(BUFFER)
    buffer.spend(buffer.left - 3)
    assert buffer.root.text(2) == "abc"
    with pytest.raises(ValueError, match="lead to the same bytes"):
        buffer.root.text(2)


def test_numbers_outside_of_the_buffer_are_refused() -> None:
    assert gather(b"\1\0\2\0", np.array([0, 2]), "<u2").tolist() == [1, 2]
    for place in (-1, 3):
        with pytest.raises(ValueError, match="leads out of it"):
            gather(b"\1\0\2\0", np.array([place]), "<u2")


def test_flex_value_that_is_not_a_map_has_no_members() -> None:
    text = Flex.of(b"\2ab\0" + b"\3" + bytes([5 << 2, 1]))
    assert text.text == "ab"
    assert text.members() == {}
    with pytest.raises(ValueError, match="a FlexBuffer has"):
        Flex.of(b"\0\0\3")
