"""Where the tile parts of a code stream lie: by its tables (TLM), or from the header of each (SOT). No I/O here.

Each tile part has its length in its header, so they are a chain. If it is long, it is entered at several places at
once: the markers of headers do not occur in coded data. All chains must meet, so a place that only looks like a header
does no harm.
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

VERSION: Final = 1  # version of the entries in the index cache
SOT_SIZE: Final = 12  # bytes of the header of a tile part, up to its other segments
LEAST: Final = SOT_SIZE + 2  # bytes of a tile part
MOST_PARTS: Final = 1 << 19
NEAR: Final = 1 << 17  # bytes: tile parts of this size on average are read together, as their headers lie close
AROUND: Final = 1 << 20  # bytes that are then read at a time
FEW: Final = 16  # tiles, up to which a chain is followed from its start only
SEARCHED: Final = 1 << 16  # bytes in which a header is searched at first; then twice as many

_SOT: Final = struct.Struct(">HHHIBB")
_MARK: Final = struct.pack(">HH", SOT, 10)  # the marker and length of every header


class Part(NamedTuple):
    """The header of a tile part; ``size`` is 0 if it reaches the end, ``total`` (parts of its tile) 0 if unknown."""

    tile: int
    size: int
    number: int
    total: int

    @classmethod
    def parse(cls, data: bytes) -> Part:
        """Parse a header; ValueError if it is another marker, or too short."""
        if not data.startswith(_MARK) or len(data) < SOT_SIZE:
            raise ValueError(f"expected the header of a tile part (SOT), found {data[:SOT_SIZE]!r}")
        _, _, tile, size, number, total = _SOT.unpack_from(data)
        if size and size < LEAST:
            raise ValueError(f"a tile part has {size} bytes: expected at least {LEAST}")
        return cls(tile, size, number, total)

    def encode(self) -> bytes:
        """Return the header."""
        return _SOT.pack(SOT, 10, *self)


class TileParts(NamedTuple):
    """The tile of each tile part, its position and its size, by tile."""

    tiles: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, tiles: Any, starts: Any, sizes: Any) -> TileParts:
        """Return the parts in the order of tiles."""
        columns = [np.asarray(column, "<u8") for column in (tiles, starts, sizes)]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self)

    def of_tile(self, tile: int) -> list[tuple[int, int]]:
        """Return position and size of the parts of a tile."""
        first, last = np.searchsorted(self.tiles, [tile, tile + 1])
        return list(zip(self.starts[first:last].tolist(), self.sizes[first:last].tolist(), strict=True))


class TilePartScan(msgspec.Struct, frozen=True):
    """An index: the tile parts in [first, stop) of a file of ``size`` bytes that begins with ``head``."""

    head: bytes
    size: int
    first: int
    stop: int
    tiles: int

    def scan(self, source: Span) -> Steps[TileParts]:
        """Find the tile parts."""
        return (yield from self.find(FileBytes(source.url, source.resolve_end(self.size), self.size, self.head)))

    def find(self, file: FileBytes) -> Steps[TileParts]:
        """Find the tile parts of an open file."""
        return (yield from find_tile_parts(file, self.first, self.stop, self.tiles))

    def decode(self, data: bytes) -> TileParts:
        raise ValueError("tile parts are found by a scan")

    def identity(self) -> bytes:
        return repr((VERSION, self.first, self.stop, self.tiles)).encode()

    def pack(self, value: TileParts) -> list[bytes | memoryview]:
        return [column.tobytes() for column in value]

    def unpack(self, data: memoryview) -> TileParts:
        if len(data) % 24:
            raise ValueError("expected three columns of tile parts")
        return TileParts(*np.frombuffer(data, "<u8").reshape(3, -1))


def parse_lengths(segments: Sequence[bytes], first: int, stop: int, tiles: int) -> TileParts | None:
    """Parse the segments TLM; None if they are absent, or do not describe the bytes in [first, stop)."""
    numbers: list[npt.NDArray[np.uint64]] = []
    sizes: list[npt.NDArray[np.uint64]] = []
    for segment in sorted(segments, key=lambda segment: segment[4:5]):
        form = segment[5] if len(segment) > 5 else 0x30
        kind = {0: "", 0x10: "u1", 0x20: ">u2"}.get(form & 0x30)
        fields = [("tile", kind)] if kind else []
        entry = np.dtype([*fields, ("size", ">u4" if form & 0x40 else ">u2")])
        if kind is None or len(segment[6:]) % entry.itemsize:
            return None
        found = np.frombuffer(segment, entry, offset=6)
        sizes.append(found["size"].astype("u8"))
        numbers.append(
            found["tile"].astype("u8") if kind else np.arange(len(found), dtype="u8") + sum(map(len, numbers))
        )
    if not sizes:
        return None
    every, of_tile = np.concatenate(sizes), np.concatenate(numbers)
    ends = first + np.cumsum(every)
    is_whole = len(ends) > 0 and stop - LEAST < int(ends[-1]) <= stop and bool((every >= LEAST).all())
    if not is_whole or len(every) > MOST_PARTS or bool((of_tile >= tiles).any()):
        return None
    return TileParts.of(of_tile, ends - every, every)


def find_tile_parts(file: FileBytes, first: int, stop: int, tiles: int) -> Steps[TileParts]:
    """Find all tile parts in [first, stop) of a file by their headers; ValueError if the chain of them is damaged."""
    mean = (stop - first) // tiles
    places = [first]
    if mean > NEAR and tiles > FEW:
        places += yield from _find_headers(file, first, stop, tiles)
    known: dict[int, Part | ValueError | None] = {}
    while places:
        if len(known) + len(places) > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS} tile parts")
        ranges = [(at, min(SOT_SIZE, stop - at)) for at in places]
        heads = yield from file.load(ranges, AROUND if mean <= NEAR else 0)
        following: dict[int, None] = {}
        for at, head in zip(places, heads, strict=True):
            known[at] = part = _parse(head, at, stop, tiles)
            if isinstance(part, Part):
                following[at + part.size] = None
        places = [at for at in following if at not in known and at + LEAST <= stop]
    found: list[Part] = []
    starts: list[int] = []
    at = first
    while at in known:
        part = known[at]
        if isinstance(part, ValueError):
            raise part
        if part is None:
            break
        found.append(part)
        starts.append(at)
        at += part.size
    return TileParts.of([part.tile for part in found], starts, [part.size for part in found])


def _parse(head: bytes, at: int, stop: int, tiles: int) -> Part | ValueError | None:
    """Parse the header of the tile part at ``at``; None at the end of the code stream, an error at anything else."""
    if head.startswith(EOC.to_bytes(2)):
        return None
    try:
        part = Part.parse(head)
    except ValueError as e:
        return ValueError(f"its tile parts are damaged: at byte {at}, {e}")
    part = part._replace(size=part.size or stop - at)
    if part.tile >= tiles or at + part.size > stop:
        return ValueError(
            f"its tile part at byte {at} belongs to tile {part.tile} of {tiles} and ends at byte {at + part.size} of "
            f"{stop}: it is damaged or cut short"
        )
    return part


def _find_headers(file: FileBytes, first: int, stop: int, tiles: int) -> Steps[list[int]]:
    """Return positions of bytes that look like headers of tile parts, at most one for each √tiles of them."""
    count = math.isqrt(tiles)
    step, most = (stop - first) // count, 2 * (stop - first) // tiles
    seeking = {first + number * step: 0 for number in range(1, count)}  # bytes that were searched, by place
    found: dict[int, None] = {}
    window = SEARCHED
    while seeking:
        places = [(at + done, min(window + len(_MARK), stop - at - done)) for at, done in seeking.items()]
        pieces = yield from file.load(places)
        following = {}
        for (at, done), piece in zip(seeking.items(), pieces, strict=True):
            where = piece.find(_MARK)
            if where >= 0:
                found[at + done + where] = None
            elif done + window < most and at + done + window < stop:
                following[at] = done + window
        seeking, window = following, 2 * window
    return list(found)
