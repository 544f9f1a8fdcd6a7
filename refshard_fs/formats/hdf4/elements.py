"""The data elements of an HDF4 file: their descriptors, and the places of the bytes of special ones. No I/O here.

The names come from the specification (HDF 4.1 and later): a data descriptor (DD) has a tag, which says what an element
is, a reference number, an offset and a length. A special element has a header there, which says how its bytes are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Steps
from refshard_fs.errors import DamagedIndex, ManifestError

NULL, LINKED, COMPRESSED, CHUNK = 1, 20, 40, 61
NUMBER_TYPE, DIMENSIONS, DATA, DATA_GROUP = 106, 701, 702, 720
VDATA, VDATA_VALUES, VGROUP = 1962, 1963, 1965
IMAGE_DIMENSIONS, PALETTE, IMAGE, COMPRESSED_IMAGE, IMAGE_GROUP = 300, 301, 302, 303, 306

SMALL_FILE: Final = 4 << 20  # bytes of a file that is read whole when it is opened
# Bytes that are read for a block of descriptors, more where blocks lie near one another. Each block names the next one,
# so that a block that was not read with others takes a round of its own.
WINDOW: Final = 64 << 10
MOST_WINDOW: Final = 2 << 20
NEAR: Final = 256 << 10  # bytes from one block to the next
MOST_BYTES: Final = 16 << 20  # bytes of metadata, or of a table of chunks
TOGETHER: Final = 1 << 28  # bytes of all of these
MOST_PARTS: Final = 1 << 18  # parts of one element

_SPECIAL: Final = 0x4000
_EXTENDED: Final = 0x8000  # tags that are not HDF's own
_DESCRIPTOR: Final = np.dtype([("tag", ">u2"), ("ref", ">u2"), ("offset", ">i4"), ("length", ">i4")])
_KINDS: Final = {1: "linked", 2: "external", 3: "compressed", 4: "linked", 5: "chunked", 6: "buffered", 7: "compressed"}

Key = tuple[int, int]  # tag and reference number
Part = tuple[int, int]  # offset and size


class Descriptor(NamedTuple):
    """The place of an element, or of the header of a special element."""

    offset: int
    length: int
    is_special: bool


NOWHERE: Final = Descriptor(0, 0, False)


class Elements:
    """The elements of a file by their keys. Loaded ones are kept."""

    def __init__(self, file: FileBytes, descriptors: Mapping[Key, Descriptor]) -> None:
        self.file = file
        self.descriptors = descriptors
        self._known: dict[Key, bytes] = {}
        self._loaded = 0
        self._compressed = {
            found.offset: key for key, found in descriptors.items() if key[0] == COMPRESSED and not found.is_special
        }

    def make_error(self, reason: str) -> DamagedIndex:
        """Return the error that names the file."""
        return DamagedIndex("", self.file.url, reason)

    def load(self, keys: Iterable[Key]) -> Steps[None]:
        """Read elements, or the headers of special ones, in one round; those that do not exist are left out."""
        wanted = {key: self.descriptors[key] for key in keys if key in self.descriptors and key not in self._known}
        for key, found in wanted.items():
            if found.length > MOST_BYTES:
                raise ManifestError(
                    f"{self.file.url}: element {key} is metadata of {found.length} bytes: at most {MOST_BYTES} are read"
                )
        loaded = self._loaded + sum(found.length for found in wanted.values())
        if loaded > min(TOGETHER, max(4 * self.file.size, 1 << 20)):
            raise self.make_error(
                f"its metadata take {loaded} bytes, too many for its size: it refers to them repeatedly"
            )
        data = yield from self.file.load([(found.offset, found.length) for found in wanted.values()])
        self._known |= zip(wanted, data, strict=True)
        self._loaded = loaded

    def read_stored(self, key: Key) -> Steps[bytes]:
        """Return the bytes of an element, or the header of a special one."""
        if key not in self._known:
            if key not in self.descriptors:
                raise self.make_error(f"another element refers to the element {key}, which does not exist")
            yield from self.load([key])
        return self._known[key]

    def read_kind(self, key: Key) -> Steps[str]:
        """Return how an element is kept: plain, linked, compressed, chunked, external or buffered."""
        if not self.descriptors[key].is_special:
            return "plain"
        header = yield from self.read_stored(key)
        code = int.from_bytes(header[:2], "big")
        if code not in _KINDS:
            raise ManifestError(f"element {key} has the unknown special code {code}")
        return _KINDS[code]

    def parts(self, key: Key) -> Steps[list[Part]]:
        """Return the places of the bytes of a plain or linked element."""
        if key not in self.descriptors:
            raise self.make_error(f"another element refers to the element {key}, which does not exist")
        kind = yield from self.read_kind(key)
        if kind == "plain":
            plain = self.descriptors[key]
            return [(plain.offset, plain.length)] if plain.length else []
        if kind != "linked":
            raise ManifestError(f"element {key} is {kind}: expected a plain or a linked element")
        header = yield from self.read_stored(key)
        if len(header) < 16:
            raise self.make_error(f"the header of the linked element {key} is cut short")
        left, usual, _, table = struct.unpack_from(">iiiH", header, 2)
        parts: list[Part] = []
        tables = {0}
        size = -1  # size of a block; the first block may have another size
        while left > 0:
            if table in tables:
                raise self.make_error(f"{left} bytes of the linked element {key} have no block")
            tables.add(table)
            if len(parts) > MOST_PARTS:
                raise ManifestError(f"the linked element {key} has more than {MOST_PARTS} blocks")
            data = yield from self.read_stored((LINKED, table))
            table, *blocks = np.frombuffer(data, ">u2", len(data) // 2).tolist() or [0]
            for block in blocks:
                found = self.descriptors.get((LINKED, block), NOWHERE)
                if size < 0:
                    size = found.length
                if left <= 0 or usual <= 0:
                    break
                taken = min(size, left)
                if found.length < taken:
                    raise self.make_error(
                        f"block {block} of the linked element {key} is shorter than its {taken} bytes"
                    )
                parts += [(found.offset, taken)] if taken else []
                left, size = left - taken, usual
        return _join_parts(parts)

    def contents(self, key: Key) -> Steps[bytes]:
        """Return the bytes of a plain or linked element that is metadata."""
        if key in self.descriptors and not self.descriptors[key].is_special:
            return (yield from self.read_stored(key))
        parts = yield from self.parts(key)
        if sum(size for _, size in parts) > MOST_BYTES:
            raise ManifestError(f"element {key} is metadata of more than {MOST_BYTES} bytes")
        return b"".join((yield from self.file.load(parts)))

    def find_compressed(self, key: Key) -> Key | None:
        """Return the compressed bytes directly after the header of an element; None if there are none.

        The library writes the header of a compressed chunk and the chunk in one step: so the header need not be read.
        """
        found = self.descriptors[key]
        return self._compressed.get(found.offset + found.length)


def _join_parts(parts: list[Part]) -> list[Part]:
    """Join parts that touch."""
    joined = parts[:1]
    for (at, size), (after, more) in pairwise(parts):
        if at + size == after:
            first, length = joined[-1]
            joined[-1] = (first, length + more)
        else:
            joined.append((after, more))
    return joined


def read_descriptors(file: FileBytes) -> Steps[Elements]:
    """Return the elements of a file. Its descriptors lie in a chain of blocks."""
    found: dict[Key, Descriptor] = {}
    at, total, before = 4, 0, 0
    window = WINDOW
    if file.size <= SMALL_FILE:
        yield from file.load([(0, file.size)], file.size)
    while at:
        if file.peek(at, 6) is None:
            window = min(2 * window, MOST_WINDOW) if abs(at - before) <= NEAR else WINDOW
        [head] = yield from file.load([(at, 6)], window)
        count, after = struct.unpack(">HI", head)
        total += 6 + 12 * count
        if total > file.size:
            raise DamagedIndex(
                "", file.url, f"its blocks of descriptors have {total} bytes: it refers to them repeatedly"
            )
        [rows] = yield from file.load([(at + 6, 12 * count)], window)
        table = np.frombuffer(rows, _DESCRIPTOR)
        table = table[(table["tag"] != NULL) & (table["tag"] < _EXTENDED) & (table["offset"] >= 0)]
        for tag, ref, offset, length in table[table["length"] >= 0].tolist():
            found.setdefault((tag & ~_SPECIAL, ref), Descriptor(offset, length, bool(tag & _SPECIAL)))
        at, before = after, at
    return Elements(file, found)
