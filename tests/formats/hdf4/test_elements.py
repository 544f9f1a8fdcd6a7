"""Descriptors and linked blocks of HDF4: damage is an error."""

from __future__ import annotations

import struct

import pytest

from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Inline
from refshard_fs.errors import DamagedIndex
from refshard_fs.formats.hdf4.elements import Elements, Tag, read_descriptors
from tests.support.shards_in_memory import Files

KEY = (1963, 1)


def make_elements(*parts: tuple[int, int, bytes], next_block: int = 0) -> Elements:
    """Make the elements of a file from (tag, reference number, bytes).

    ``next_block`` is the address of the next block of descriptors.
    """
    start = 10 + 12 * len(parts)
    rows, body = b"", b""
    for tag, ref, data in parts:
        rows += struct.pack(">HHii", tag, ref, start + len(body), len(data))
        body += data
    whole = b"\x0e\x03\x13\x01" + struct.pack(">HI", len(parts), next_block) + rows + body
    files = Files({})
    return files.run(read_descriptors(FileBytes("x", Inline(whole), len(whole), whole)))


def make_linked(length: int, *refs: int, block_size: int = 4) -> tuple[tuple[int, int, bytes], ...]:
    """Make a linked element of ``length`` bytes in the blocks ``refs``, and its table of blocks."""
    header = struct.pack(">HiiiH", 1, length, block_size, len(refs), 9)
    return (KEY[0] | 0x4000, 1, header), (Tag.LINKED, 9, struct.pack(f">{len(refs) + 1}H", 0, *refs))


def test_linked_blocks_are_joined() -> None:
    elements = make_elements(
        *make_linked(9, 2, 3, 4), (Tag.LINKED, 2, b"ab"), (Tag.LINKED, 3, b"cdef"), (Tag.LINKED, 4, b"ghij")
    )
    assert Files({}).run(elements.read_contents(KEY)) == b"abcdefghi"
    assert len(Files({}).run(elements.find_parts(KEY))) == 1  # parts that touch are joined
    separate = make_elements(*make_linked(8, 2, 3), (Tag.LINKED, 3, b"cdef"), (Tag.LINKED, 2, b"abcd"))
    assert Files({}).run(separate.read_contents(KEY)) == b"abcdcdef"
    assert len(Files({}).run(separate.find_parts(KEY))) == 2


def test_first_linked_block_may_be_empty() -> None:
    elements = make_elements(*make_linked(4, 2, 3), (Tag.LINKED, 2, b""), (Tag.LINKED, 3, b"abcd"))
    assert Files({}).run(elements.read_contents(KEY)) == b"abcd"


@pytest.mark.parametrize("refs", [(2,), (2, 5), (2, 0)])
def test_missing_block_is_an_error(refs: tuple[int, ...]) -> None:
    elements = make_elements(*make_linked(8, *refs), (Tag.LINKED, 2, b"abcd"))
    with pytest.raises(DamagedIndex, match="linked element"):
        Files({}).run(elements.read_contents(KEY))


def test_circular_descriptors_are_an_error() -> None:
    with pytest.raises(DamagedIndex, match="blocks of descriptors have .* expected at most"):
        make_elements((1963, 1, b"a"), next_block=4)


def test_element_beyond_the_file_end_is_an_error() -> None:
    whole = b"\x0e\x03\x13\x01" + struct.pack(">HI", 1, 0) + struct.pack(">HHii", 1963, 1, 30, 50)
    elements = Files({}).run(read_descriptors(FileBytes("x", Inline(whole), len(whole), whole)))
    with pytest.raises(DamagedIndex, match="cut short"):
        Files({}).run(elements.read_contents(KEY))


def test_overlapping_elements_are_an_error() -> None:
    whole = b"\x0e\x03\x13\x01" + struct.pack(">HI", 2000, 0)
    whole += b"".join(struct.pack(">HHii", 1963, ref, 0, 24_000) for ref in range(2000))
    elements = Files({}).run(read_descriptors(FileBytes("x", Inline(whole), len(whole), whole)))
    with pytest.raises(DamagedIndex, match="metadata have .* bytes: expected at most"):
        Files({}).run(elements.load(elements.descriptors))
