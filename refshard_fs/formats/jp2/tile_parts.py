"""Locate the tile parts of a code stream: by tables in its main header (TLM), or by their own headers (SOT). No I/O.

The header of a tile part has the length of the part, so the parts form a chain. A long chain is followed from several
places at once: the file is searched there for the marker of a header, which does not occur in coded data. Only parts
that the chain from the first part reaches are used, so other bytes that look like a header do no harm.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Span, Steps
from refshard_fs.formats.jp2.codestream import EOC, SOT

VERSION: Final = 1  # the version of the bytes that `TilePartScan.pack` writes to the index cache
SOT_SIZE: Final = 12  # bytes of the segment SOT, with which a tile part begins
LEAST: Final = SOT_SIZE + 2  # the least bytes of a tile part
MOST_PARTS: Final = 1 << 19  # the most tile parts in a code stream
NEAR: Final = 1 << 17  # bytes: if tiles have fewer on average, their headers lie close together
AROUND: Final = 1 << 20  # bytes that are read at each header if headers lie close together: they often include the next
FEW: Final = 16  # tiles: with more, the chain of tile parts is followed from several places
SEARCHED: Final = 1 << 16  # bytes in which a header is searched first; each further search takes twice as many

_SOT: Final = struct.Struct(">HHHIBB")
_MARK: Final = struct.pack(">HH", SOT, 10)  # each header begins with this marker and length
_END: Final = EOC.to_bytes(2)


class TilePart(NamedTuple):
    """The header of a tile part: its tile, its size in bytes, and its number among the ``total`` parts of the tile.

    ``size`` is 0 if the part reaches the end of the code stream; ``total`` is 0 if the header does not state it.
    """

    tile: int
    size: int
    number: int
    total: int

    @classmethod
    def parse(cls, data: bytes) -> TilePart:
        """Parse a header; ValueError if ``data`` begins with other bytes, or is too short."""
        if not data.startswith(_MARK) or len(data) < SOT_SIZE:
            raise ValueError(f"expected the header of a tile part (SOT), found {data[:SOT_SIZE]!r}")
        _, _, tile, size, number, total = _SOT.unpack_from(data)
        if size and size < LEAST:
            raise ValueError(f"a tile part has {size} bytes: expected at least {LEAST}")
        return cls(tile, size, number, total)

    def encode(self) -> bytes:
        """Return the bytes of the header."""
        return _SOT.pack(SOT, 10, *self)


class TileParts(NamedTuple):
    """All tile parts in columns, sorted by tile: their tiles, and their positions and sizes in bytes."""

    tiles: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]

    @classmethod
    def from_columns(cls, tiles: Any, starts: Any, sizes: Any) -> TileParts:
        """Sort columns of tile parts by tile; the parts of a tile keep their order."""
        columns = [np.asarray(column, "<u8") for column in (tiles, starts, sizes)]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self)

    def select_tile(self, tile: int) -> list[tuple[int, int]]:
        """Return position and size of each part of a tile."""
        first, last = np.searchsorted(self.tiles, [tile, tile + 1])
        return list(zip(self.starts[first:last].tolist(), self.sizes[first:last].tolist(), strict=True))


class TilePartScan(msgspec.Struct, frozen=True):
    """Find the parts of ``tiles`` tiles in bytes ``first`` to ``stop`` of a file of ``size`` bytes.

    The result is cached as an index. ``head`` has the first bytes of the file.
    """

    head: bytes
    size: int
    first: int
    stop: int
    tiles: int

    def scan(self, source: Span) -> Steps[TileParts]:
        """Find the tile parts in ``source``, the whole file."""
        return (yield from self.find(FileBytes(source.url, source.resolve_end(self.size), self.size, self.head)))

    def find(self, file: FileBytes) -> Steps[TileParts]:
        """Find the tile parts in an opened file."""
        return (yield from find_tile_parts(file, self.first, self.stop, self.tiles))

    def decode(self, data: bytes) -> TileParts:
        raise ValueError("tile parts are found by a scan of the file, not decoded from bytes")

    def make_identity(self) -> bytes:
        return repr((VERSION, self.first, self.stop, self.tiles)).encode()

    def pack(self, value: TileParts) -> list[bytes | memoryview]:
        return [column.tobytes() for column in value]

    def unpack(self, data: memoryview) -> TileParts:
        if len(data) % 24:
            raise ValueError(f"expected three columns of 8 bytes for each tile part, found {len(data)} bytes")
        return TileParts(*np.frombuffer(data, "<u8").reshape(3, -1))


def parse_lengths(segments: Sequence[bytes], first: int, stop: int, tiles: int) -> TileParts | None:
    """Parse the segments TLM; None if they are absent, or do not describe the bytes from ``first`` to ``stop``."""
    numbers: list[npt.NDArray[np.uint64]] = []
    sizes: list[npt.NDArray[np.uint64]] = []
    for segment in sorted(segments, key=lambda segment: segment[4:5]):
        form = segment[5] if len(segment) > 5 else 0x30
        kind = {0: "", 0x10: "u1", 0x20: ">u2"}.get(form & 0x30)
        fields = [("tile", kind)] if kind else []
        entry = np.dtype([*fields, ("size", ">u4" if form & 0x40 else ">u2")])
        if kind is None or len(segment[6:]) % entry.itemsize:
            return None
        rows = np.frombuffer(segment, entry, offset=6)
        sizes.append(rows["size"].astype("u8"))
        # Without numbers of tiles, each tile has one part, in the order of tiles.
        numbers.append(rows["tile"].astype("u8") if kind else np.arange(len(rows), dtype="u8") + sum(map(len, numbers)))
    if not sizes:
        return None
    all_sizes, all_numbers = np.concatenate(sizes), np.concatenate(numbers)
    ends = first + np.cumsum(all_sizes)
    is_whole = len(ends) > 0 and stop - int(ends[-1]) in (0, len(_END)) and bool((all_sizes >= LEAST).all())
    if not is_whole or len(all_sizes) > MOST_PARTS or bool((all_numbers >= tiles).any()):
        return None
    return TileParts.from_columns(all_numbers, ends - all_sizes, all_sizes)


def find_tile_parts(file: FileBytes, first: int, stop: int, tiles: int) -> Steps[TileParts]:
    """Find all tile parts in bytes ``first`` to ``stop`` of a file by their headers; ValueError if one is damaged."""
    mean = (stop - first) // tiles
    places = [first]
    if mean > NEAR and tiles > FEW:
        places += yield from _find_headers(file, first, stop, tiles)
    known: dict[int, TilePart | ValueError | None] = {}  # by position
    while places:
        if len(known) + len(places) > MOST_PARTS:
            raise ValueError(f"expected at most {MOST_PARTS} tile parts, found more")
        ranges = [(at, min(SOT_SIZE, stop - at)) for at in places]
        heads = yield from file.load(ranges, AROUND if mean <= NEAR else 0)
        following: dict[int, None] = {}
        for at, head in zip(places, heads, strict=True):
            known[at] = part = _parse_part(head, at, stop, tiles)
            if isinstance(part, TilePart):
                following[at + part.size] = None
        places = [at for at in following if at not in known and at + LEAST <= stop]
    parts: list[TilePart] = []
    starts: list[int] = []
    at = first
    while at in known:
        part = known[at]
        if isinstance(part, ValueError):
            raise part
        if part is None:
            break
        parts.append(part)
        starts.append(at)
        at += part.size
    if at not in known and stop - at not in (0, len(_END)):  # otherwise no request is needed
        (rest,) = yield from file.load([(at, stop - at)])
        if not rest.startswith(_END):
            raise ValueError(
                f"its tile parts are damaged: after the last one, at byte {at}, expected the end of the code stream "
                f"({_END.hex()}), found {rest[:8].hex()}"
            )
    return TileParts.from_columns([part.tile for part in parts], starts, [part.size for part in parts])


def _parse_part(head: bytes, at: int, stop: int, tiles: int) -> TilePart | ValueError | None:
    """Parse the header of a tile part at byte ``at``; None at the end of the code stream, ValueError for other bytes.

    The error is returned, because ``at`` may be a place that only looks like a header.
    """
    if head.startswith(_END):
        return None
    try:
        part = TilePart.parse(head)
    except ValueError as e:
        return ValueError(f"its tile parts are damaged: at byte {at}, {e}")
    part = part._replace(size=part.size or stop - at)
    if part.tile >= tiles or at + part.size > stop:
        return ValueError(
            f"its tile part at byte {at} belongs to tile {part.tile} and ends at byte {at + part.size}: expected a "
            f"tile below {tiles}, and an end up to byte {stop}, the end of the code stream. It is damaged or cut short"
        )
    return part


def _find_headers(file: FileBytes, first: int, stop: int, tiles: int) -> Steps[list[int]]:
    """Return positions of bytes that look like headers of tile parts.

    The searches begin at √tiles evenly spaced places: so the chains of tile parts are few, and each is short.
    """
    count = math.isqrt(tiles)
    step, most = (stop - first) // count, 2 * (stop - first) // tiles
    # Start of a search → number of bytes that were searched from there on.
    searched = {first + number * step: 0 for number in range(1, count)}
    headers: dict[int, None] = {}
    window = SEARCHED
    while searched:
        places = [(at + done, min(window + len(_MARK), stop - at - done)) for at, done in searched.items()]
        blocks = yield from file.load(places)
        following = {}
        for (at, done), block in zip(searched.items(), blocks, strict=True):
            position = block.find(_MARK)
            if position >= 0:
                headers[at + done + position] = None
            elif done + window < most and at + done + window < stop:
                following[at] = done + window
        searched, window = following, 2 * window
    return list(headers)
