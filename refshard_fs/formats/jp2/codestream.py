"""Parse the main header of a JPEG 2000 code stream, and make headers of single tiles at lower resolutions. No I/O here.

Numbers and names come from ISO/IEC 15444-1, annex A. Positions are pairs (x, y) on the reference grid, on which the
distances of samples are whole numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Steps
from refshard_fs.formats.jp2 import CODE_STREAM

WINDOW: Final = 1 << 14  # bytes that are read first for a main header; each further read takes four times as many
LONGEST: Final = 1 << 25  # the most bytes of a main header; its tables of tile parts (TLM) have at most 16 MiB
LARGEST: Final = 1 << 31  # the most bytes of a decoded tile: zarr holds it in memory as an array
# A decoded tile may have SPARSE bytes, or, if that is more, RATIO bytes for each byte of the file: a code block of
# equal samples takes only about one bit of the file.
SPARSE: Final = 1 << 26
RATIO: Final = 1 << 13
BLOCK_BYTES: Final = 1 << 8  # bytes that the decoder needs for each code block or precinct
PACKET_BYTES: Final = 1 << 7  # a packet counts as so many bytes: the decoder takes 50 ns for it, even if it is empty

# Markers.
SOC, SIZ, COD, COC, TLM, PLM, POC = 0xFF4F, 0xFF51, 0xFF52, 0xFF53, 0xFF55, 0xFF57, 0xFF5F
PPM, CRG, COM, SOT, SOD, EOC = 0xFF60, 0xFF63, 0xFF64, 0xFF90, 0xFF93, 0xFFD9
_BARE: Final = range(0xFF30, 0xFF40)  # reserved markers without a segment
_UNNEEDED: Final = (TLM, PLM, CRG, COM)  # segments that decoding a tile does not need
_ORDERS: Final = ("LRCP", "RLCP", "RPCL", "PCRL", "CPRL")
_SIZ: Final = struct.Struct(">HHHIIIIIIIIH")


class Size(NamedTuple):
    """The segment SIZ: the image reaches from ``start`` to ``stop``; its tiles have the size ``tile``."""

    capabilities: int
    stop: tuple[int, int]
    start: tuple[int, int]
    tile: tuple[int, int]
    first_tile: tuple[int, int]
    components: bytes  # three bytes for each component: depth, and distances of samples along x and y

    @classmethod
    def parse(cls, data: bytes) -> Size:
        """Parse the bytes of the segment; ValueError if its numbers contradict each other."""
        _, length, capabilities, *numbers, count = _SIZ.unpack_from(data.ljust(_SIZ.size, b"\0"))
        stop, start, tile, first = zip(numbers[::2], numbers[1::2], strict=True)
        size = cls(capabilities, stop, start, tile, first, data[_SIZ.size :])
        if length != 38 + 3 * count or not count:
            expected = f"expected {38 + 3 * count} bytes, and at least 1 component"
            raise ValueError(f"its segment SIZ has {length} bytes for {count} components: {expected}")
        if 0 in size.components[1::3] or 0 in size.components[2::3]:
            raise ValueError("its segment SIZ has samples at distances of 0: expected at least 1")
        for axis in (0, 1):
            if not (first[axis] <= start[axis] < stop[axis] and start[axis] < first[axis] + tile[axis]):
                raise ValueError(
                    f"its image lies from {start} to {stop}: expected its start before its end, and in the first tile, "
                    f"at {first} of size {tile}"
                )
        if math.prod(size.tiles) > 65535:
            raise ValueError(f"it has {math.prod(size.tiles)} tiles: expected at most 65535")
        return size

    def encode(self) -> bytes:
        """Return the bytes of the segment."""
        corners = (*self.stop, *self.start, *self.tile, *self.first_tile)
        return _SIZ.pack(SIZ, 38 + 3 * self.bands, self.capabilities, *corners, self.bands) + self.components

    @property
    def bands(self) -> int:
        """The number of components."""
        return len(self.components) // 3

    @property
    def tiles(self) -> tuple[int, int]:
        """The number of tiles in a row, and in a column."""
        across, down = (
            -(-(stop - first) // tile) for stop, first, tile in zip(self.stop, self.first_tile, self.tile, strict=True)
        )
        return across, down

    @property
    def depths(self) -> bytes:
        """A byte for each component: the bits of its samples minus one, plus 128 if they are signed."""
        return self.components[::3]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds the samples of all components; ValueError if they have too many bits."""
        has_sign = any(depth & 128 for depth in self.depths)
        bits = max((depth & 127) + 1 + (has_sign and depth < 128) for depth in self.depths)
        if bits > 31:
            raise ValueError(
                f"its components have up to {bits} bits ({self.depths[:4].hex()}, as in SIZ): expected at most 31"
            )
        return np.dtype(f"<{'i' if has_sign else 'u'}{1 if bits <= 8 else 2 if bits <= 16 else 4}")

    @property
    def sampling(self) -> tuple[int, int] | None:
        """The distance of samples along x and y; None if components have different distances."""
        distances = set(zip(self.components[1::3], self.components[2::3], strict=True))
        return distances.pop() if len(distances) == 1 else None

    @property
    def has_subsampled_colours(self) -> bool:
        """Whether components are like YCbCr: two of three have a sample for each two columns, or each 2 by 2 pixels."""
        return self.components in (b"\7\1\1" + 2 * b"\7\2\1", b"\7\1\1" + 2 * b"\7\2\2")

    def compute_shape(self, level: int) -> tuple[int, int]:
        """Return the number of rows and columns at a resolution level; level 0 is the full resolution."""
        columns, rows = (
            b - a
            for a, b in zip(self._reduce_corner(self.start, level), self._reduce_corner(self.stop, level), strict=True)
        )
        return rows, columns

    def _reduce_corner(self, corner: tuple[int, int], level: int) -> tuple[int, int]:
        """Convert a corner from the reference grid to samples of a resolution level."""
        x, y = self.sampling or (1, 1)
        return -(-corner[0] // (x << level)), -(-corner[1] // (y << level))

    def choose_chunks(self, level: int) -> tuple[int, int] | None:
        """Return the rows and columns of a tile at a level; None if tiles that are not at the image's end differ."""
        extents = []
        for axis, extent in zip((1, 0), self.compute_shape(level), strict=True):
            tile, step = self.tile[axis], (self.sampling or (1, 1))[axis] << level
            if self.tiles[axis] == 1:
                extents.append(extent)
            elif self.first_tile[axis] != self.start[axis] or tile % step:
                return None
            else:
                extents.append(tile // step)
        return extents[0], extents[1]

    def select_tile(self, number: int, level: int) -> Size:
        """Return the segment SIZ of an image that consists of one tile of this image, at a level."""
        place = number % self.tiles[0], number // self.tiles[0]
        begin = [first + at * tile for first, at, tile in zip(self.first_tile, place, self.tile, strict=True)]
        start = self._reduce_corner((max(begin[0], self.start[0]), max(begin[1], self.start[1])), level)
        end = [min(at + tile, stop) for at, tile, stop in zip(begin, self.tile, self.stop, strict=True)]
        stop = self._reduce_corner((end[0], end[1]), level)
        components = b"".join(bytes([depth, 1, 1]) for depth in self.depths) if self.sampling else self.components
        size = stop[0] - start[0], stop[1] - start[1]
        return Size(self.capabilities, stop, start, size, start, components)

    def replace_depths(self, depth: int) -> Size:
        """Return the segment with ``depth`` for all components. The samples of other depths are then decoded wrong."""
        steps = zip(self.components[1::3], self.components[2::3], strict=True)
        return self._replace(components=b"".join(bytes([depth, *step]) for step in steps))


class Coding(NamedTuple):
    """A segment COD or COC: the coding of components. COC lacks ``order`` and ``layers``, which are "" and 0."""

    order: str  # of packets
    layers: int
    levels: int  # the number of lower resolutions
    block: tuple[int, int]  # binary logarithms of width and height of a code block
    precincts: tuple[int, ...]  # for each resolution from the lowest on: logarithms of height and width, 4 bits each
    at: int  # position of ``levels`` in the segment

    @classmethod
    def parse(cls, marker: int, data: bytes, bands: int) -> Coding:
        """Parse the bytes of the segment, in an image of ``bands`` components; ValueError if it is damaged."""
        at = 9 if marker == COD else 6 if bands < 257 else 7
        if len(data) < at + 5:
            raise ValueError(f"its segment {marker:X} has {len(data)} bytes: expected at least {at + 5}")
        order, layers, style = "", 0, data[at - 1]
        if marker == COD:
            style, number, layers = struct.unpack_from(">BBH", data, 4)
            if number >= len(_ORDERS) or not layers:
                raise ValueError(
                    f"its segment COD has the order {number} of packets in {layers} layers: expected an order from 0 "
                    "to 4, and at least 1 layer"
                )
            order = _ORDERS[number]
        levels, width, height = data[at : at + 3]
        sizes = tuple(data[at + 5 :]) if style & 1 else ()
        if levels > 32 or width + height > 8 or (style & 1 and len(sizes) != levels + 1):
            raise ValueError(
                f"its segment {marker:X} has {levels} levels, code blocks of 2^{width + 2} by 2^{height + 2}, and "
                f"{len(sizes)} sizes of precincts: expected at most 32 levels, blocks of at most 4096 samples, and "
                "sizes for each level and one more"
            )
        return cls(order, layers, levels, (width + 2, height + 2), sizes, at)

    @property
    def is_by_resolution(self) -> bool:
        """Whether the packets of lower resolutions come first in a tile, or this segment does not state their order."""
        return self.order in ("", "RLCP", "RPCL") or (self.order, self.layers) == ("LRCP", 1)

    def count_blocks(self, size: Size) -> tuple[int, int]:
        """Return how many code blocks and precincts a component has, and the most precincts in one resolution."""
        blocks = most = 0
        for resolution in range(self.levels + 1):
            precinct = self.precincts[resolution] if self.precincts else 0xFF
            is_split = resolution > 0  # three subbands, each half as wide and high as the resolution
            precincts, within = 1, 1
            for axis, log in ((0, precinct & 15), (1, precinct >> 4)):
                start, stop = (_divide_up(corner[axis], self.levels - resolution) for corner in (size.start, size.stop))
                precincts *= (_divide_up(stop, log) - (start >> log)) if stop > start else 0
                band = (stop - start) >> is_split
                within *= (band >> min(self.block[axis], max(log - is_split, 0))) + 1
            blocks += precincts + within * (3 if is_split else 1)
            most = max(most, precincts)
        return blocks, most


class Header(msgspec.Struct, frozen=True):
    """A main header: the segment SIZ as ``size``, and the other ``segments`` that decoding a tile needs.

    Each segment is a marker and its bytes. ``lengths`` are the bytes of the segments TLM, the tables of tile parts.
    ``first`` is the position of the first tile part in the file.
    """

    size: Size
    segments: tuple[tuple[int, bytes], ...]
    lengths: tuple[bytes, ...]
    first: int

    def list_codings(self) -> list[Coding]:
        """Return the codings of components, the default one first; ValueError unless there is one default."""
        defaults = self._parse_codings(self.segments, (COD,))
        if len(defaults) != 1:
            raise ValueError(f"its main header has {len(defaults)} segments COD: expected 1")
        return defaults + self._parse_codings(self.segments, (COC,))

    def _parse_codings(self, segments: Sequence[tuple[int, bytes]], markers: tuple[int, ...]) -> list[Coding]:
        return [Coding.parse(marker, data, self.size.bands) for marker, data in segments if marker in markers]

    def parse_codings(self, tile: int, segments: Sequence[tuple[int, bytes]], most: int) -> list[Coding]:
        """Return the codings in the ``segments`` of a tile part. For its tile, they override the main header's codings.

        Raises ValueError if decoding the tile takes more than ``most`` bytes.
        """
        codings = self._parse_codings(segments, (COD, COC))
        check_cost(self.size.select_tile(tile, 0), codings, most)
        return codings

    def find_order_problem(self) -> str:
        """Return why packets of lower resolutions do not come first in a tile; "" if they come first.

        If they come first, any decoder reads only them, when it gets the header of a smaller image.
        """
        first, *others = self.list_codings()
        if any(coding.levels != first.levels for coding in others):
            return "its components have different numbers of levels"
        if any(marker == POC for marker, _ in self.segments):
            return "its order of packets changes (POC)"
        if not first.is_by_resolution:
            return f"its packets have the order {first.order} in {first.layers} layers, not by resolution"
        return ""

    def count_levels(self, *, has_skipping_decoder: bool) -> tuple[int, str]:
        """Return how many lower resolutions can be shown, and why the others cannot; "" if all can.

        ``has_skipping_decoder``: the decoder can skip resolutions whatever the order of packets.
        """
        reason, levels = self.find_order_problem(), min(coding.levels for coding in self.list_codings())
        for level in range(1, levels + 1):
            if min(self.size.compute_shape(level)) < 1:
                return level - 1, f"resolution level {level} has no rows or columns"
            obstacle = self.find_obstacle(level)
            if obstacle and min(self.size.tile) < 1 << level:  # some tiles have no samples at this level
                return level - 1, obstacle
            reason = reason or obstacle
            if reason and not has_skipping_decoder:
                return level - 1, f"{reason}. Install imagecodecs 2026.10.10 or later to see more"
            if reason and any(start % (1 << level) for start in self.size.start):
                return level - 1, f"{reason}, and level {level} lacks its first sample, at {self.size.start}"
        return levels, ""

    def encode(self, tile: int, level: int, depth: int) -> bytes:
        """Return the main header of an image that has only this tile, at a resolution level, with one depth."""
        segments = [self.lower_resolution(marker, data, level) for marker, data in self.segments]
        return b"".join([CODE_STREAM[:2], self.size.select_tile(tile, level).replace_depths(depth).encode(), *segments])

    def find_obstacle(self, level: int = 0) -> str:
        """Return why tiles cannot be chunks at a resolution level; "" if they can."""
        if any(marker == PPM for marker, _ in self.segments):
            return "its main header has the headers of all packets (PPM)"
        if self.size.sampling is None:
            return "its components differ in sampling"
        if self.size.choose_chunks(level) is not None:
            return ""
        if not level:
            return "its first tiles are smaller than the others"
        return f"the sides of its tiles, {self.size.tile}, cannot be divided by {1 << level}"

    def lower_resolution(self, marker: int, data: bytes, level: int) -> bytes:
        """Return the bytes of a segment in the header of an image at a resolution level: only COD and COC change."""
        if not level or marker not in (COD, COC):
            return data
        coding = Coding.parse(marker, data, self.size.bands)
        stop = len(data) - (level if coding.precincts else 0)
        head = data[:2] + (stop - 2).to_bytes(2) + data[4 : coding.at]
        return head + bytes([coding.levels - level]) + data[coding.at + 1 : stop]

    def limit_cost(self, size: int) -> int:
        """Return the most bytes that decoding a tile may take in a file of ``size`` bytes.

        Raises ValueError if a tile in the middle of the image takes more.
        """
        most = min(LARGEST, max(SPARSE, RATIO * size))
        across, down = self.size.tiles
        tile = self.size.select_tile(down // 2 * across + across // 2, 0)  # tiles at edges may be smaller
        check_cost(tile, self.list_codings(), most)
        return most


def check_cost(tile: Size, codings: list[Coding], most: int) -> None:
    """Raise ValueError if samples, code blocks or packets of a tile cost more than ``most`` bytes."""
    samples = math.prod(tile.compute_shape(0)) * tile.bands * tile.dtype.itemsize
    for coding in codings:
        blocks, precincts = coding.count_blocks(tile)
        packets = PACKET_BYTES * (coding.layers + 1) * (coding.levels + 1) * precincts
        needed = max(samples, BLOCK_BYTES * blocks * tile.bands, packets * tile.bands)
        if needed > most:
            raise ValueError(
                f"decoding a tile costs as much as {needed} bytes ({tile.compute_shape(0)} rows and "
                f"columns, {blocks} code blocks in {coding.layers} layers): expected at most {most}"
            )


def split_segments(data: bytes, at: int, until: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return marker and bytes of each segment from ``at`` to the marker ``until``, and the position of ``until``.

    Raises EOFError if ``data`` ends before the marker, ValueError if other bytes lie between segments.
    """
    segments: list[tuple[int, bytes]] = []
    while True:
        marker, length = (int.from_bytes(data[first : first + 2]) for first in (at, at + 2))
        if marker == until:
            return segments, at
        if marker in _BARE:
            at += 2
            continue
        if len(data) < at + 4:
            raise EOFError
        if not SOC < marker < SOT or length < 2:
            raise ValueError(f"expected a marker segment at byte {at} of the code stream, found {data[at : at + 4]!r}")
        if len(data) < at + 2 + length:
            raise EOFError
        segments.append((marker, data[at : at + 2 + length]))
        at += 2 + length


def read_header(file: FileBytes, start: int, stop: int) -> Steps[Header]:
    """Read the main header of a code stream, in bytes ``start`` to ``stop`` of a file; ValueError if it is damaged."""
    window = WINDOW
    while True:
        (data,) = yield from file.load([(start, min(window, stop - start))])
        try:
            return parse_header(data, start)
        except EOFError:
            if window >= min(stop - start, LONGEST):
                raise ValueError(
                    f"expected the end of its main header within {len(data)} bytes, found none: it is damaged or cut "
                    "short"
                ) from None
            window *= 4


def parse_header(data: bytes, start: int) -> Header:
    """Parse the main header of a code stream at byte ``start`` of its file; EOFError if ``data`` is too short."""
    if data[:4] != CODE_STREAM:
        raise ValueError(f"its code stream begins with {data[:4]!r}: expected {CODE_STREAM!r}, the markers SOC and SIZ")
    (first, *segments), end = split_segments(data, 2, SOT)
    return Header(
        Size.parse(first[1]),
        tuple(segment for segment in segments if segment[0] not in _UNNEEDED),
        tuple(segment for marker, segment in segments if marker == TLM),
        start + end,
    )


def _divide_up(number: int, log: int) -> int:
    """Divide a number by 2**log, and round up."""
    return -(-number >> log)
