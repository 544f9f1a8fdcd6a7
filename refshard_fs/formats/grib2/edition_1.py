"""Parse messages of GRIB edition 1 to the `Field` and `Grid` of edition 2. No I/O here.

A message has sections 0 (8 bytes, with its length), 1 (product), 2 (grid), 3 (bitmap) and 4 (data). Sections 1 to 4
begin with their own length, of three octets.
"""

from __future__ import annotations

import datetime
from typing import Final

from refshard_fs.core.model import Load, Raw, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.grib2.messages import (
    HARMONICS,
    NO_SURFACE,
    SECTION,
    SPECTRAL,
    UNITS,
    Field,
    Grib,
    Grid,
    Parameter,
    Surface,
    UnshownPart,
    count_coefficients,
    count_points,
    parse_integer,
    parse_signed,
    parse_truncation,
)

LEAST: Final = 47  # the least bytes of a message, which has sections 0, 1 and 4
PRODUCT: Final = 60  # octets of section 1 that are parsed: local definitions may be longer
ECMWF: Final = 98  # the number of the centre
# ECMWF's local definitions with the number of a member, a cluster or a component at octet 50, in one octet or two
_MEMBERS: Final = {
    **dict.fromkeys([1, 2, 5, 7, 10, 13, 14, *range(17, 20), *range(25, 33), 36, 37, 39, 40, 49, 50, 218, 244, 245], 1),
    **dict.fromkeys([12, 15, 16, 23], 2),
}
_WAVES: Final = 13  # ECMWF's local definition of wave spectra, with direction and frequency
# Kinds of level (code table 3) that have two values of one octet; all other kinds have one value of two octets.
_LAYERS: Final = frozenset([101, 104, 106, 108, 110, 112, 114, 116, 120, 121, 128, 141])
# Scale factors by kind of level, which has ``scaled / 10**factor``: -2 for hPa, -3 for kPa, 9 for 1e-9.
_FACTORS: Final = {100: -2, 101: -3, 117: 9}
# Time range indicators (code table 5) of values at one time, of averages over fields at P1 after their reference times,
# and of values from P1 to P2. P1 and P2 are octets of section 1.
_INSTANTS: Final = frozenset([0, 1, 10])
_BEGINNINGS: Final = frozenset([113, 123, 124])
_RANGES: Final = frozenset([2, 3, 4, 5, 118, 119, 120, 128])
_UNITS: Final = {**UNITS, 13: 900, 14: 1800, 254: 1}  # units of time in seconds; some numbers differ from edition 2
# Templates of edition 2, by kind of grid (code table 6).
_TEMPLATES: Final = {0: 0, 1: 10, 3: 30, 4: 40, 5: 20, 10: 1, 14: 41, 50: 50, 90: 90}
_REFUSED_GRIDS: Final = {60: "rotated", 70: "stretched", 80: "stretched and rotated"}


def parse_fields(grib: Grib, at: int, length: int) -> Steps[list[Field | UnshownPart]]:
    """Return the field of a message of ``length`` bytes at byte ``at``, or the reason why it is not shown.

    Raises ManifestError if the sections are damaged.
    """
    window = grib.windows_at[at]
    end = length - 4

    def make_error(reason: str) -> ManifestError:
        return grib.make_message_error(at, f"{reason}: it is damaged")

    def read(begin: int, size: int) -> Steps[bytes]:
        """Return bytes of the message."""
        if begin + size > end:
            raise make_error(f"has a section at byte {at + begin}: expected its end before byte {at + end}")
        if begin + size <= len(window):
            return window[begin : begin + size]
        data: bytes = yield Load(grib.part(at + begin, size), Raw())
        return data

    def read_size(number: int, begin: int, least: int) -> Steps[int]:
        """Return the length of a section, which must have at least ``least`` bytes."""
        size = parse_integer((yield from read(begin, 3)), 1, 3)
        if size < least or begin + size > end or (number == 2 and size > SECTION):
            most = min(end - begin, SECTION if number == 2 else end)
            found = f"has a section {number} of {size} bytes at byte {at + begin}"
            raise make_error(f"{found}, expected {least} to {most}")
        return size

    size_1 = yield from read_size(1, 8, 28)
    product = yield from read(8, min(size_1, PRODUCT))
    begin, flags = 8 + size_1, parse_integer(product, 8)
    grid, grid_at = b"", (at, 0)
    if flags & 0x80:
        size = yield from read_size(2, begin, 28)
        grid, grid_at = (yield from read(begin, size)), (at + begin, size)
        begin += size
    parts: list[tuple[int, int]] = []
    predefined = 0
    if flags & 0x40:
        size = yield from read_size(3, begin, 6)
        predefined = parse_integer((yield from read(begin, 6)), 5, 2)
        parts.append((at + begin, size))
        begin += size
    header = yield from read(begin, 11)
    size = parse_integer(header, 1, 3)
    if window[4] & 0x80 and size < 120:  # see `parse_length`
        size = end - begin
    if size < 11 or begin + size > end:
        raise make_error(f"has a section 4 of {size} bytes at byte {at + begin}, expected 11 to {end - begin}")
    parts.append((at + begin, size))
    fields: list[Field | UnshownPart] = []
    if begin + size + LEAST <= end:  # the length of the message may be too large, and include the next message
        reason = f"expected the end of the message after section 4, found {end - begin - size} more bytes"
        fields.append(UnshownPart(at + begin + size, reason))
    try:
        fields.append(_parse_field(product, grid, grid_at, predefined, tuple(parts), parse_integer(header, 4)))
    except (ValueError, OverflowError) as e:
        fields.append(UnshownPart(at, str(e)))
    return fields


def _parse_field(
    product: bytes, grid: bytes, grid_at: tuple[int, int], predefined: int,
    parts: tuple[tuple[int, int], ...], packing: int,
) -> Field:  # fmt: skip
    """Parse the sections of a field; ValueError if they are invalid or the field is not supported."""
    if not grid:
        raise ValueError(
            f"its grid is grid {parse_integer(product, 7)} of its centre: expected a description in section 2"
        )
    kind = parse_integer(grid, 6)
    if kind in _REFUSED_GRIDS:
        raise ValueError(f"its harmonics are {_REFUSED_GRIDS[kind]} (grid {kind}): expected plain harmonics (grid 50)")
    if (kind == HARMONICS) != bool(packing & SPECTRAL):
        found = f"its grid is of kind {kind}, and its values have the flags {packing:#x}"
        raise ValueError(f"{found}: expected harmonics in both (kind {HARMONICS}, flag {SPECTRAL:#x}), or in neither")
    if kind not in _TEMPLATES:
        raise ValueError(f"its grid is of kind {kind}: expected one of {', '.join(map(str, sorted(_TEMPLATES)))}")
    if packing & 0x50 == 0x10:
        raise ValueError("its values are matrices: expected a number for each point")
    if predefined:
        raise ValueError(f"its bitmap is number {predefined} of its centre: expected a bitmap in the file")
    century, year = parse_integer(product, 25), parse_integer(product, 13)
    month, day, hour, minute = (parse_integer(product, octet) for octet in range(14, 18))
    time = datetime.datetime(100 * (century - 1) + year, month, day, hour, minute, tzinfo=datetime.UTC)
    unit, indicator = parse_integer(product, 18), parse_integer(product, 21)
    if unit not in _UNITS:
        raise ValueError(f"its unit of time is number {unit}: expected a unit of fixed length, one of {sorted(_UNITS)}")
    first, last = parse_integer(product, 19), parse_integer(product, 20)
    if indicator == 10:
        step = parse_integer(product, 19, 2)
    elif indicator in _INSTANTS | _BEGINNINGS:
        step = first
    elif indicator in _RANGES:
        step = last
    else:
        known = ", ".join(map(str, sorted(_INSTANTS | _BEGINNINGS | _RANGES)))
        raise ValueError(f"its time range indicator is {indicator}: expected one of {known}")
    level, centre = parse_integer(product, 10), parse_integer(product, 5)
    is_layer, factor = level in _LAYERS, _FACTORS.get(level, 0)
    surfaces = (
        Surface(level, factor, parse_integer(product, 11, 1 if is_layer else 2)),
        Surface(level, factor, parse_integer(product, 12)) if is_layer else NO_SURFACE,
    )
    local = parse_integer(product, 41) if ECMWF in (centre, parse_integer(product, 26)) and len(product) >= 50 else 0
    member = parse_integer(product, 50, _MEMBERS[local]) if local in _MEMBERS else 0
    is_wave = local == _WAVES
    template = 100 if is_wave else int(local in _MEMBERS)  # the template of edition 2 with the same dimensions
    parameter = Parameter(
        0, parse_integer(product, 4), parse_integer(product, 9), centre, (0, 0), template, 0,
        255 if indicator in _INSTANTS else indicator, 0, surfaces,
        axes=((parse_integer(product, 52),), (parse_integer(product, 53),)) if is_wave else (), edition=1,
    )  # fmt: skip
    return Field(
        grid_at, parts, parameter, int(time.timestamp()), step * _UNITS[unit],
        member, _drop_levels(grid), _count_points(grid), parse_signed(product, 27, 2),
    )  # fmt: skip


def _drop_levels(grid: bytes) -> bytes:
    """Return section 2 without the coordinates of hybrid levels, in which fields with the same grid may differ."""
    at, values = parse_integer(grid, 5), parse_integer(grid, 4)
    if values and at <= 28:
        raise ValueError(f"its levels begin at octet {at} of section 2: expected them after octet 28")
    if at == 255 or not values:
        return grid
    return b"\0\0\0\0" + bytes([at]) + grid[5 : at - 1] + grid[at - 1 + 4 * values :]


def _count_points(grid: bytes) -> int:
    """Return the number of points of the grid in section 2; ValueError if the section contradicts itself."""
    across, down = parse_integer(grid, 7, 2), parse_integer(grid, 9, 2)
    if parse_integer(grid, 6) == HARMONICS:
        return count_coefficients(parse_truncation(grid, (7, 9, 11), 2))
    if across != 0xFFFF:
        return across * down
    at = parse_integer(grid, 5) + 4 * parse_integer(grid, 4)  # the octet at which the numbers of points in rows begin
    if parse_integer(grid, 5) == 255 or down == 0xFFFF:
        raise ValueError(
            "its grid: expected a number of points for all rows, or a number of rows and a list with the number of "
            "points in each row, found neither"
        )
    rows = [parse_integer(grid, at + 2 * row, 2) for row in range(down)]
    if parse_integer(grid, 6) not in (4, 14):
        return sum(rows)
    west, east = (parse_signed(grid, octet, 3) for octet in (14, 21))
    return count_points(rows, parse_integer(grid, 26, 2), west, east, 1000)


def describe_grid(grid: bytes) -> Grid:
    """Parse the grid in section 2."""
    kind = parse_integer(grid, 6)
    if kind == HARMONICS:
        return Grid(HARMONICS, 0, 0, 0, 0, 0, ())
    has_corners = kind in (0, 4, 10, 14)
    return Grid(
        template=_TEMPLATES[kind],
        across=parse_integer(grid, 7, 2),
        down=parse_integer(grid, 9, 2),
        scanned=28,
        flags=parse_integer(grid, 28),
        parallels=parse_integer(grid, 26, 2) if kind in (4, 14) else 0,
        corners=tuple(parse_signed(grid, octet, 3) / 1000 for octet in (11, 14, 18, 21)) if has_corners else (),
    )
