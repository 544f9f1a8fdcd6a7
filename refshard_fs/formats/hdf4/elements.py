"""The data elements of an HDF4 file: read their descriptors, and locate their bytes. No I/O here.

The names come from the specification (HDF 4.1 and later). A data descriptor gives the tag (the kind), the reference
number, the offset and the length of an element. At this offset lies the element itself, or, if the element is special,
a header that says how the element is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import ZeroPaddingRecipe, make_entry_of_parts
from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Entry, SizedRecipe, Steps
from refshard_fs.errors import ManifestError


class Tag:
    """The tags of elements: numbers that say what an element is."""

    NULL, LINKED, COMPRESSED, CHUNK = 1, 20, 40, 61
    NUMBER_TYPE, VDATA, VDATA_VALUES, VGROUP = 106, 1962, 1963, 1965
    DIMENSIONS, DATA, SCALES, LIMITS, DATA_GROUP, CALIBRATION = 701, 702, 703, 707, 720, 731
    OLD_DATA_GROUP = 700  # in version 3.1
    IMAGE_DIMENSIONS, PALETTE, IMAGE, COMPRESSED_IMAGE, IMAGE_GROUP = 300, 301, 302, 303, 306


SMALL_FILE: Final = 4 << 20  # bytes: a file of at most this size is read whole when it is opened
# Bytes that are read from the start of a block of descriptors; up to MOST_WINDOW if blocks lie near each other. Each
# block points to the next one: a block that these bytes do not contain takes another round of requests.
WINDOW: Final = 64 << 10
MOST_WINDOW: Final = 2 << 20
NEAR: Final = 256 << 10  # bytes: blocks of descriptors at most this far apart lie near each other
MOST_BYTES: Final = 16 << 20  # the most bytes of an element that is metadata or a table of chunks
TOGETHER: Final = 1 << 28  # the most bytes of all these elements together
MOST_PARTS: Final = 1 << 18  # the most blocks of a linked element

_SPECIAL: Final = 0x4000  # the flag of a special element in its tag
_EXTENDED: Final = 0x8000  # users define the tags from this number on
_DESCRIPTOR: Final = np.dtype([("tag", ">u2"), ("ref", ">u2"), ("offset", ">i4"), ("length", ">i4")])
# Kinds of special elements, by the code at the beginning of the header.
_KINDS: Final = {1: "linked", 2: "external", 3: "compressed", 4: "linked", 5: "chunked", 6: "buffered", 7: "compressed"}

Key = tuple[int, int]  # tag and reference number
ElementPart = tuple[int, int]  # offset and size


class Descriptor(NamedTuple):
    """The place of an element in the file, or of a special element's header: offset and length in bytes."""

    offset: int
    length: int
    is_special: bool


NOWHERE: Final = Descriptor(0, 0, False)


class Elements:
    """The elements of a file, by key. Once an element is read, its bytes stay in memory."""

    def __init__(self, file: FileBytes, descriptors: Mapping[Key, Descriptor]) -> None:
        self.file = file
        self.descriptors = descriptors
        self._data: dict[Key, bytes] = {}
        self._loaded_bytes = 0
        self._compressed = {
            descriptor.offset: key
            for key, descriptor in descriptors.items()
            if key[0] == Tag.COMPRESSED and not descriptor.is_special
        }

    def load(self, keys: Iterable[Key]) -> Steps[None]:
        """Read elements, or the headers of special elements, in one round. Ignore keys without an element."""
        descriptors = {key: self.descriptors[key] for key in keys if key in self.descriptors and key not in self._data}
        for key, descriptor in descriptors.items():
            if descriptor.length > MOST_BYTES:
                raise ManifestError(
                    f"{self.file.url}: element {key} is metadata of {descriptor.length} bytes: "
                    f"expected at most {MOST_BYTES}"
                )
        loaded = self._loaded_bytes + sum(descriptor.length for descriptor in descriptors.values())
        most = min(TOGETHER, max(4 * self.file.size, 1 << 20))  # elements may overlap, but not many times
        if loaded > most:
            raise self.file.make_error(
                f"its metadata have {loaded} bytes: expected at most {most} in a file of {self.file.size} bytes"
            )
        data = yield from self.file.load(
            [(descriptor.offset, descriptor.length) for descriptor in descriptors.values()]
        )
        self._data |= zip(descriptors, data, strict=True)
        self._loaded_bytes = loaded

    def read_stored_bytes(self, key: Key) -> Steps[bytes]:
        """Return the bytes of an element, or the header of a special element."""
        if key not in self._data:
            if key not in self.descriptors:
                raise self.file.make_error(f"expected the element {key}, to which another element refers; found none")
            yield from self.load([key])
        return self._data[key]

    def read_kind(self, key: Key) -> Steps[str]:
        """Return how an element is stored: plain, linked, compressed, chunked, external or buffered."""
        if not self.descriptors[key].is_special:
            return "plain"
        header = yield from self.read_stored_bytes(key)
        code = int.from_bytes(header[:2], "big")
        if code not in _KINDS:
            raise ManifestError(f"{self.file.url}: element {key} is stored in the unknown way {code}: expected 1 to 7")
        return _KINDS[code]

    def find_parts(self, key: Key) -> Steps[list[ElementPart]]:
        """Return the places of the bytes of a plain or linked element, in order."""
        if key not in self.descriptors:
            raise self.file.make_error(f"expected the element {key}, to which another element refers; found none")
        kind = yield from self.read_kind(key)
        if kind == "plain":
            descriptor = self.descriptors[key]
            return [(descriptor.offset, descriptor.length)] if descriptor.length else []
        if kind != "linked":
            raise ManifestError(f"{self.file.url}: element {key} is {kind}: expected a plain or a linked element")
        header = yield from self.read_stored_bytes(key)
        if len(header) < 16:
            raise self.file.make_error(
                f"the header of the linked element {key} has {len(header)} bytes: expected at least 16"
            )
        remaining, usual_size, _, table = struct.unpack_from(">iiiH", header, 2)
        parts: list[ElementPart] = []
        tables = {0}
        block_size = -1  # the first block may have another size, which its descriptor states
        while remaining > 0:
            if table in tables:
                reason = f"expected blocks for {remaining} more bytes of the linked element {key}, found none"
                raise self.file.make_error(reason)
            tables.add(table)
            if len(parts) > MOST_PARTS:
                raise ManifestError(
                    f"{self.file.url}: expected at most {MOST_PARTS} blocks in the linked element {key}, found more"
                )
            data = yield from self.read_stored_bytes((Tag.LINKED, table))
            table, *blocks = np.frombuffer(data, ">u2", len(data) // 2).tolist() or [0]
            for block in blocks:
                descriptor = self.descriptors.get((Tag.LINKED, block), NOWHERE)
                if block_size < 0:
                    block_size = descriptor.length
                if remaining <= 0 or usual_size <= 0:
                    break
                size = min(block_size, remaining)
                if descriptor.length < size:
                    raise self.file.make_error(
                        f"block {block} of the linked element {key} has {descriptor.length} bytes: expected {size}"
                    )
                parts += [(descriptor.offset, size)] if size else []
                remaining, block_size = remaining - size, usual_size
        return _join_parts(parts)

    def read_contents(self, key: Key) -> Steps[bytes]:
        """Return the bytes of a plain or linked element that is metadata.

        Raises ManifestError if the element has more than `MOST_BYTES`.
        """
        if key in self.descriptors and not self.descriptors[key].is_special:
            return (yield from self.read_stored_bytes(key))
        parts = yield from self.find_parts(key)
        size = sum(size for _, size in parts)
        if size > MOST_BYTES:
            raise ManifestError(
                f"{self.file.url}: the metadata in element {key} have {size} bytes: expected at most {MOST_BYTES}"
            )
        return b"".join((yield from self.file.load(parts)))

    def make_entry(self, parts: Sequence[ElementPart], recipe: SizedRecipe | None, what: str) -> Entry:
        """Return the entry of joined ``parts``; ``recipe`` decodes them. DamagedIndex if the file ends before them."""
        if (end := max(map(sum, parts), default=0)) > self.file.size:
            raise self.file.make_error(
                f"{what} ends at byte {end}: expected at most {self.file.size}, the size of the file"
            )
        if recipe is None and len(parts) == 1:
            return self.file.source.part(*parts[0])
        recipe = recipe or ZeroPaddingRecipe(sum(length for _, length in parts))
        return make_entry_of_parts(self.file.source, parts, recipe, recipe.size, self.file.url)

    def find_compressed(self, key: Key) -> Key | None:
        """Return the key of the compressed bytes directly after the header of an element; None if they lie elsewhere.

        The HDF4 library writes the bytes of a compressed chunk directly after the header of the chunk. So the header,
        which has the key of these bytes, need not be read.
        """
        descriptor = self.descriptors[key]
        return self._compressed.get(descriptor.offset + descriptor.length)


def _join_parts(parts: list[ElementPart]) -> list[ElementPart]:
    """Join consecutive parts that have no gap between them."""
    joined = parts[:1]
    for (offset, size), (next_offset, next_size) in pairwise(parts):
        if offset + size == next_offset:
            start, length = joined[-1]
            joined[-1] = (start, length + next_size)
        else:
            joined.append((next_offset, next_size))
    return joined


def read_descriptors(file: FileBytes) -> Steps[Elements]:
    """Read the descriptors of a file, which lie in a chain of blocks, and return the file's elements."""
    descriptors: dict[Key, Descriptor] = {}
    address, total, previous = 4, 0, 0
    window = WINDOW
    if file.size <= SMALL_FILE:
        yield from file.load([(0, file.size)], file.size)
    while address:
        if file.peek(address, 6) is None:
            window = min(2 * window, MOST_WINDOW) if abs(address - previous) <= NEAR else WINDOW
        [head] = yield from file.load([(address, 6)], window)
        count, next_address = struct.unpack(">HI", head)
        total += 6 + 12 * count
        if total > file.size:
            raise file.make_error(
                f"its blocks of descriptors have {total} bytes: expected at most {file.size}, the size of the file"
            )
        [rows] = yield from file.load([(address + 6, 12 * count)], window)
        table = np.frombuffer(rows, _DESCRIPTOR)
        table = table[(table["tag"] != Tag.NULL) & (table["tag"] < _EXTENDED) & (table["offset"] >= 0)]
        for tag, ref, offset, length in table[table["length"] >= 0].tolist():
            descriptors.setdefault((tag & ~_SPECIAL, ref), Descriptor(offset, length, bool(tag & _SPECIAL)))
        address, previous = next_address, address
    return Elements(file, descriptors)
