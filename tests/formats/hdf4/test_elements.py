"""Descriptors and linked blocks of HDF4: damage is an error, and all sizes are bounded."""

from __future__ import annotations

import struct

import pytest

from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Inline
from refshard_fs.errors import DamagedIndex
from refshard_fs.formats.hdf4.elements import LINKED, Elements, read_descriptors
from tests.support.shards_in_memory import Files

KEY = (1963, 1)


def elements_of(*found: tuple[int, int, bytes], after: int = 0) -> Elements:
    """Return the elements of a file with these, each a tag, a reference number, and bytes."""
    start = 10 + 12 * len(found)
    rows, body = b"", b""
    for tag, ref, data in found:
        rows += struct.pack(">HHii", tag, ref, start + len(body), len(data))
        body += data
    whole = b"\x0e\x03\x13\x01" + struct.pack(">HI", len(found), after) + rows + body
    files = Files({})
    return files.run(read_descriptors(FileBytes("x", Inline(whole), len(whole), whole)))


def linked(length: int, *refs: int, usual: int = 4) -> tuple[tuple[int, int, bytes], ...]:
    """Return a linked element of blocks, and its table."""
    header = struct.pack(">HiiiH", 1, length, usual, len(refs), 9)
    return (KEY[0] | 0x4000, 1, header), (LINKED, 9, struct.pack(f">{len(refs) + 1}H", 0, *refs))


def test_linked_blocks_are_joined() -> None:
    elements = elements_of(*linked(9, 2, 3, 4), (LINKED, 2, b"ab"), (LINKED, 3, b"cdef"), (LINKED, 4, b"ghij"))
    assert Files({}).run(elements.contents(KEY)) == b"abcdefghi"
    assert len(Files({}).run(elements.parts(KEY))) == 1  # they touch
    apart = elements_of(*linked(8, 2, 3), (LINKED, 3, b"cdef"), (LINKED, 2, b"abcd"))
    assert Files({}).run(apart.contents(KEY)) == b"abcdcdef"
    assert len(Files({}).run(apart.parts(KEY))) == 2


def test_first_block_may_be_empty() -> None:
    elements = elements_of(*linked(4, 2, 3), (LINKED, 2, b""), (LINKED, 3, b"abcd"))
    assert Files({}).run(elements.contents(KEY)) == b"abcd"


@pytest.mark.parametrize("refs", [(2,), (2, 5), (2, 0)])
def test_missing_block_is_an_error(refs: tuple[int, ...]) -> None:
    elements = elements_of(*linked(8, *refs), (LINKED, 2, b"abcd"))
    with pytest.raises(DamagedIndex, match="linked element"):
        Files({}).run(elements.contents(KEY))


def test_circular_descriptors_are_an_error() -> None:
    with pytest.raises(DamagedIndex, match="refers to them repeatedly"):
        elements_of((1963, 1, b"a"), after=4)


def test_element_beyond_the_end_is_an_error() -> None:
    whole = b"\x0e\x03\x13\x01" + struct.pack(">HI", 1, 0) + struct.pack(">HHii", 1963, 1, 30, 50)
    elements = Files({}).run(read_descriptors(FileBytes("x", Inline(whole), len(whole), whole)))
    with pytest.raises(DamagedIndex, match="cut short"):
        Files({}).run(elements.contents(KEY))


def test_elements_that_overlap_are_bounded() -> None:
    whole = b"\x0e\x03\x13\x01" + struct.pack(">HI", 2000, 0)
    whole += b"".join(struct.pack(">HHii", 1963, ref, 0, 24_000) for ref in range(2000))
    elements = Files({}).run(read_descriptors(FileBytes("x", Inline(whole), len(whole), whole)))
    with pytest.raises(DamagedIndex, match="refers to them repeatedly"):
        Files({}).run(elements.load(elements.descriptors))
