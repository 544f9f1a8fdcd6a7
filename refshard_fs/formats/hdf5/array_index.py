"""Chunk indexes that are arrays: fixed ones, and extensible ones of datasets that can grow along one dimension. No I/O.

An array's elements tell of chunks by their position (see `chunk_index.to_positions`). Long arrays are cut into pages;
those that nobody has written to are not to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.model import Load, Steps
from refshard_fs.formats.hdf5.chunk_index import (
    NOWHERE,
    Found,
    Place,
    UInt64s,
    elements,
    joined,
    to_numbers,
    to_positions,
    within,
)
from refshard_fs.formats.hdf5.file import Fields, Sizes, verified

_MOST_BITS: Final = 40  # of the numbers of an array's elements, or of a page's


class Elements(NamedTuple):
    """A run of an array's elements: address, size and filter mask of a chunk each."""

    addresses: UInt64s
    sizes: UInt64s
    masks: npt.NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        return 20 * len(self.addresses) + 256


def parse_elements(
    data: bytes, signature: bytes, skipped: int, count: int, width: int, address: int, stored: int, has_filters: bool
) -> Elements:
    """Return ``count`` elements of ``width`` bytes each, between a header of ``skipped`` bytes and a checksum."""
    rows = np.frombuffer(_block(data, signature, skipped), np.uint8, count * width).reshape(count, width)
    return Elements(*elements(rows, address, stored, has_filters))


def _block(data: bytes, signature: bytes, skipped: int) -> bytes:
    """Return a block without its header and its checksum."""
    if not data.startswith(signature):
        raise ValueError(f"{data[:4]!r} where the signature {signature!r} is due")
    return verified(data, "a block of a chunk index")[skipped:]


class _Run(NamedTuple):
    """Elements of an array from position ``first`` on, those wanted of them (None: all), and how they are read."""

    first: int
    wanted: UInt64s | None
    load: Load


class _ArrayIndex:
    """What both kinds of arrays have in common."""

    def __init__(self, place: Place, address: int) -> None:
        self._place = place
        self._address = address

    def find(self, numbers: UInt64s | None) -> Steps[Found]:
        """Return those of the chunks ``numbers`` (ascending, each once) that were written; None: all of them."""
        wanted = None if numbers is None else np.sort(to_positions(numbers, self._place))
        found = yield from self._find(wanted)
        return within(joined(found), self._place.room)

    def _find(self, wanted: UInt64s | None) -> Steps[list[Found]]:
        raise NotImplementedError

    def _read(self, runs: Sequence[_Run]) -> Steps[list[Found]]:
        if not runs:
            return []
        blocks: Sequence[Elements] = yield tuple(run.load for run in runs)
        return [self._found(run.first, run.wanted, block) for run, block in zip(runs, blocks, strict=True)]

    def _found(self, first: int, wanted: UInt64s | None, block: Elements) -> Found:
        positions = np.uint64(first) + np.arange(len(block.addresses), dtype=np.uint64)
        keep = block.addresses != NOWHERE
        if wanted is not None:
            keep &= np.isin(positions, wanted)
        numbers, are_in = to_numbers(positions[keep], self._place)
        return Found(numbers[are_in], *(column[keep][are_in] for column in block))

    def _elements_at(self, address: int, signature: bytes, skipped: int, count: int, width: int) -> Load:
        place = self._place
        how = signature, skipped, count, width, place.sizes.address, place.stored, place.has_filters
        return place.load(address, skipped + count * width + 4, "a block of a chunk index", parse_elements, *how)

    def _check(self, client: int, width: int, bits: int) -> None:
        address = self._place.sizes.address
        if client != int(self._place.has_filters) or bits > _MOST_BITS:
            raise ValueError(f"its chunk index is of client {client}, pages of 2**{bits} elements")
        if width != address and not (client and 0 < width - address - 4 <= 8):
            raise ValueError(f"its chunk index has elements of {width} bytes")


def _some(wanted: UInt64s | None, first: int, count: int) -> UInt64s | None:
    """Return those of ``wanted`` among ``count`` positions from ``first`` on; None if all are wanted."""
    if wanted is None:
        return None
    begin, end = np.searchsorted(wanted, np.array([first, first + count], np.uint64)).tolist()
    return wanted[begin:end]


def _is_wanted(wanted: UInt64s | None) -> bool:
    return wanted is None or len(wanted) > 0


def _is_set(bits: bytes, number: int) -> bool:
    """Whether a bit is set, of which the first is a byte's highest."""
    return bool(bits[number // 8] & 0x80 >> number % 8)


# ----------------------------------------------------------------------------------------------------
# Fixed arrays: of datasets that have a greatest extent.


class FixedHeader(msgspec.Struct, frozen=True):
    """The header of a fixed array of ``count`` elements."""

    client: int
    width: int
    page_bits: int
    count: int
    address: int | None

    nbytes = 512


def parse_fixed_header(data: bytes, sizes: Sizes) -> FixedHeader:
    """Return the header of a fixed array."""
    fields = Fields(verified(data, "a fixed array"), sizes)
    fields.expect(b"FAHD", 0)
    client, width, bits = fields.uint(1), fields.uint(1), fields.uint(1)
    return FixedHeader(client, width, bits, fields.length(), fields.address())


class FixedArray(_ArrayIndex):
    """A fixed array."""

    def _find(self, wanted: UInt64s | None) -> Steps[list[Found]]:
        place = self._place
        size = 8 + place.sizes.length + place.sizes.address + 4
        what = "a fixed array"
        header: FixedHeader = yield place.load(self._address, size, what, parse_fixed_header, place.sizes)
        self._check(header.client, header.width, header.page_bits)
        if header.address is None:
            return []
        if header.count * header.width > place.room:
            raise ValueError(f"a fixed array of {header.count} elements is larger than its file")
        skipped, page = 6 + place.sizes.address, 1 << header.page_bits
        if header.count <= page:
            load = self._elements_at(header.address, b"FADB", skipped, header.count, header.width)
            return (yield from self._read([_Run(0, wanted, load)]))
        pages = -(-header.count // page)
        bitmap = -(-pages // 8)
        prefix = skipped + bitmap + 4
        # Bits that tell which pages were written to.
        bits: bytes = yield place.load(header.address, prefix, what, _block, b"FADB", skipped)
        runs: list[_Run] = []
        for number in range(pages):
            first = number * page
            some = _some(wanted, first, page)
            if _is_wanted(some) and _is_set(bits, number):
                at = header.address + prefix + number * (page * header.width + 4)
                count = min(page, header.count - first)
                runs.append(_Run(first, some, self._elements_at(at, b"", 0, count, header.width)))
        return (yield from self._read(runs))


# ----------------------------------------------------------------------------------------------------
# Extensible arrays: of datasets that can grow along one dimension without limit.


class ExtensibleHeader(msgspec.Struct, frozen=True):
    """The header of an extensible array, and the arithmetic of its blocks, which become larger and larger."""

    client: int
    width: int
    bits: int
    in_index: int  # elements in the index block
    least: int  # elements of the smallest data block
    pointers: int  # the least data blocks that a secondary block has
    page_bits: int
    address: int | None
    sizes: Sizes

    nbytes = 512

    @property
    def direct(self) -> int:
        """Data blocks of which the index block tells."""
        return 2 * (self.pointers - 1)

    @property
    def skipped_blocks(self) -> int:
        """Super blocks that have no secondary block: the index block tells of their data blocks."""
        return 2 * (self.pointers.bit_length() - 1)

    @property
    def secondary(self) -> int:
        """Secondary blocks of which the index block tells."""
        return max(1 + self.bits - (self.least.bit_length() - 1) - self.skipped_blocks, 0)

    @property
    def offset_size(self) -> int:
        """Bytes of an element's number, as blocks have it."""
        return (self.bits + 7) // 8

    def blocks(self, number: int) -> tuple[int, int]:
        """Return how many data blocks the super block ``number`` has, and how many elements each of them."""
        return 1 << number // 2, (1 << (number + 1) // 2) * self.least

    def first(self, number: int) -> int:
        """Return the position of the first element of a super block."""
        return self.in_index + ((1 << number) - 1) * self.least


def parse_extensible_header(data: bytes, sizes: Sizes) -> ExtensibleHeader:
    """Return the header of an extensible array."""
    fields = Fields(verified(data, "an extensible array"), sizes)
    fields.expect(b"EAHD", 0)
    client, width, bits, in_index, least, pointers, page_bits = (fields.uint(1) for _ in range(7))
    for _ in range(6):
        fields.length()
    address = fields.address()
    powers = all(n and not n & (n - 1) for n in (least, pointers))
    if not powers or not 0 < bits <= 64 or page_bits > _MOST_BITS:
        raise ValueError(f"an extensible array of 2**{bits} elements, {least} in a block, {pointers} blocks")
    return ExtensibleHeader(client, width, bits, in_index, least, pointers, page_bits, address, sizes)


class IndexBlock(NamedTuple):
    """The index block of an extensible array: its own elements, and where data and secondary blocks lie."""

    elements: Elements
    direct: list[int | None]
    secondary: list[int | None]

    @property
    def nbytes(self) -> int:
        return self.elements.nbytes + 40 * (len(self.direct) + len(self.secondary))


def parse_index_block(data: bytes, header: ExtensibleHeader, stored: int, has_filters: bool) -> IndexBlock:
    """Return the index block of an extensible array."""
    fields = Fields(verified(data, "the index block of an extensible array"), header.sizes)
    fields.expect(b"EAIB", 0)
    fields.take(1 + header.sizes.address)
    raw = fields.take(header.in_index * header.width)
    rows = np.frombuffer(raw, np.uint8).reshape(header.in_index, header.width)
    own = Elements(*elements(rows, header.sizes.address, stored, has_filters))
    direct = [fields.address() for _ in range(header.direct)]
    return IndexBlock(own, direct, [fields.address() for _ in range(header.secondary)])


class SecondaryBlock(NamedTuple):
    """Where the data blocks of a super block lie, and which of their pages were written to."""

    blocks: list[int | None]
    pages: bytes

    @property
    def nbytes(self) -> int:
        return 40 * len(self.blocks) + len(self.pages) + 256


def parse_secondary_block(data: bytes, header: ExtensibleHeader, count: int, bitmap: int) -> SecondaryBlock:
    """Return a secondary block of ``count`` data blocks; ``bitmap`` is how many bytes tell of their pages."""
    fields = Fields(verified(data, "a secondary block of an extensible array"), header.sizes)
    fields.expect(b"EASB", 0)
    fields.take(1 + header.sizes.address + header.offset_size)
    pages = fields.take(bitmap)
    return SecondaryBlock([fields.address() for _ in range(count)], pages)


class ExtensibleArray(_ArrayIndex):
    """An extensible array."""

    def _find(self, wanted: UInt64s | None) -> Steps[list[Found]]:
        place = self._place
        address = place.sizes.address
        size = 12 + 6 * place.sizes.length + address + 4
        what = "an extensible array"
        header: ExtensibleHeader = yield place.load(self._address, size, what, parse_extensible_header, place.sizes)
        self._check(header.client, header.width, header.page_bits)
        if header.address is None:
            return []
        size = 6 + address + header.in_index * header.width + (header.direct + header.secondary) * address + 4
        how = header, place.stored, place.has_filters
        block: IndexBlock = yield place.load(header.address, size, "an index block", parse_index_block, *how)
        found = [self._found(0, _some(wanted, 0, header.in_index), block.elements)]
        runs: list[_Run] = []
        above: list[tuple[int, int]] = []  # super blocks that have a secondary block, by number, and its address
        seen = 0
        for number in range(header.skipped_blocks + header.secondary):
            blocks, count = header.blocks(number)
            if not _is_wanted(_some(wanted, header.first(number), blocks * count)):
                seen += blocks if number < header.skipped_blocks else 0
            elif number < header.skipped_blocks:
                some = block.direct[seen : seen + blocks]
                runs += self._data_blocks(header, number, some, None, wanted)
                seen += blocks
            else:
                at = block.secondary[number - header.skipped_blocks]
                if at is not None:
                    above.append((number, at))
        if above:
            loads = []
            for number, at in above:
                blocks, count = header.blocks(number)
                pages = count >> header.page_bits if count > 1 << header.page_bits else 0
                bitmap = blocks * -(-pages // 8)
                size = 6 + address + header.offset_size + bitmap + blocks * address + 4
                how_many = header, blocks, bitmap
                loads.append(place.load(at, size, "a secondary block", parse_secondary_block, *how_many))
            read: Sequence[SecondaryBlock] = yield tuple(loads)
            for (number, _), secondary in zip(above, read, strict=True):
                runs += self._data_blocks(header, number, secondary.blocks, secondary.pages, wanted)
        return found + (yield from self._read(runs))

    def _data_blocks(
        self,
        header: ExtensibleHeader,
        number: int,
        blocks: Sequence[int | None],
        bits: bytes | None,
        wanted: UInt64s | None,
    ) -> list[_Run]:
        """Return what is to be read of the data blocks of a super block; ``bits`` tell which pages were written to."""
        _, count = header.blocks(number)
        skipped, page = 6 + header.sizes.address + header.offset_size, 1 << header.page_bits
        pages = count // page if count > page else 0
        if pages and bits is None:
            raise ValueError("the index block of an extensible array tells of data blocks that have pages")
        runs: list[_Run] = []
        for place, at in enumerate(blocks):
            first = header.first(number) + place * count
            some = _some(wanted, first, count)
            if at is None or not _is_wanted(some):
                continue
            if not pages:
                runs.append(_Run(first, some, self._elements_at(at, b"EADB", skipped, count, header.width)))
                continue
            for part in range(pages):
                of_page = _some(wanted, first + part * page, page)
                if _is_wanted(of_page) and bits is not None and _is_set(bits, place * pages + part):
                    start = at + skipped + 4 + part * (page * header.width + 4)
                    load = self._elements_at(start, b"", 0, page, header.width)
                    runs.append(_Run(first + part * page, of_page, load))
        return runs
