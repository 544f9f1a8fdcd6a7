"""Locate the messages of a GRIB file, and parse the sections of edition 2. No I/O here.

A message states its length, which locates the next message. A sidecar is a file beside a GRIB file that lists the
offsets of its messages (``.idx`` of wgrib2, ``.index`` of ECMWF). Opening a file reads a window of each message,
its first bytes, and no values; only small files are read whole.
"""

from __future__ import annotations

import datetime
import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, cycle, islice
from typing import Final, NamedTuple

import msgspec

from refshard_fs.core.chain import EVEN, FIRST_BLOCK, LAST_BLOCK, UNEVEN, foresee
from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Inline, Load, ParsedIndex, Raw, Span, Steps
from refshard_fs.errors import ManifestError

Octets = bytes | memoryview
MAGIC: Final = b"GRIB"
SIGN: Final = 8  # bytes that identify a message: it begins with the magic number, and octet 8 is its edition
WINDOW: Final = 1 << 10  # bytes of a message that are read: the sections before the data usually have less than 300
HEADER: Final = 300  # if fewer bytes of a message are in memory, its window is read
AT_ONCE: Final = 1024  # the most messages that are located in one round, if their lengths repeat
PADDING: Final = 120  # bytes: if a sidecar lists a message within this distance, bytes before it are not searched
GAP: Final = 1 << 22  # bytes after a message that are searched for the next one
BLOCK: Final = 1 << 20  # the most bytes that are read at a time in this search
# The first bytes of a message, at the end of a file that is cut short. They follow another message, or the control
# character at the end of a bulletin's header; after other bytes, they may be the last letters of a text.
_CUT_SIGN: Final = re.compile(rb"(?:\A|(?<=[^ -~]))(?:G|GR|GRI|GRIB.{0,3})\Z", re.DOTALL)
FILLING: Final = bytes(range(127))  # zeros and ASCII text may lie between messages
MOST: Final = 1 << 18  # messages in a file
FIELDS: Final = 1 << 10  # fields in a message
# The numbers of the sections that may follow each section.
NEXT: Final = {0: (1,), 1: (2, 3), 2: (3,), 3: (4,), 4: (5,), 5: (6,), 6: (7,), 7: (2, 3, 4)}
_LOCAL: Final = 9  # bytes of section 2 that are parsed: in ECMWF's local definitions, the class is at octet 8
END: Final = b"7777"  # the end of a message
SECTION: Final = 1 << 22  # the most bytes of a section that is read when the file is opened: grids may list points


class Product(NamedTuple):
    """The octets in section 4, counted from 1, at which parts of a template of products begin; 0 for an absent part."""

    unit: int = 18  # the unit of time, and after it the forecast time
    surface: int = 23  # the first surface, and after it the second one
    member: int = 0
    end: int = 0  # the end of the time range
    kind: tuple[str, int] = ("", 0)  # a number that distinguishes variables, with its key in eccodes
    axes: tuple[tuple[str, int, int], ...] = ()  # name, octet and size of further coordinates; see `_parse_axis`


_DERIVED: Final = "derivedForecast"
_CHEMICAL: Final = ("constituent", 12, 2)
_AEROSOL: Final = (_CHEMICAL, ("size", 15, 10))
_OPTICAL: Final = (*_AEROSOL, ("wavelength", 26, 10))
_WAVES: Final = (("directionNumber", 12, 2), ("frequencyNumber", 16, 2))  # cfgrib's names
_PERIOD: Final = (("wave_period", 13, 10),)
RELATION: Final = "typeOfRelationToReferenceDataset"  # a key of eccodes; its numbers tell anomalies from values


def _list_satellite_axes(octet: int) -> tuple[tuple[str, int, int], ...]:
    """Return the axes of a satellite field, whose first spectral band is described from ``octet`` on."""
    return (("satellite", octet + 2, 2), ("instrument", octet + 4, 2), ("wavenumber", octet + 6, 5))


TEMPLATES: Final = {  # supported templates of products (section 4)
    0: Product(),
    1: Product(member=36),
    2: Product(kind=(_DERIVED, 35)),
    5: Product(kind=("probabilityType", 37), axes=(("threshold", 38, 10),)),
    6: Product(axes=(("percentile", 35, 1),)),
    8: Product(end=35),
    9: Product(end=48, kind=("probabilityType", 37), axes=(("threshold", 38, 10),)),
    10: Product(end=36, axes=(("percentile", 35, 1),)),
    11: Product(member=36, end=38),
    12: Product(end=37, kind=(_DERIVED, 35)),
    15: Product(kind=("statisticalProcess", 35)),
    31: Product(unit=0, surface=0, kind=("NB", 14), axes=_list_satellite_axes(15)),
    32: Product(surface=0, kind=("NB", 23), axes=_list_satellite_axes(24)),
    40: Product(20, 25, axes=(_CHEMICAL,)),
    41: Product(20, 25, member=38, axes=(_CHEMICAL,)),
    42: Product(20, 25, end=37, axes=(_CHEMICAL,)),
    43: Product(20, 25, member=38, end=40, axes=(_CHEMICAL,)),
    44: Product(31, 36, axes=_AEROSOL),
    45: Product(31, 36, member=49, axes=_AEROSOL),
    46: Product(31, 36, end=48, axes=_AEROSOL),
    47: Product(31, 36, member=49, end=51, axes=_AEROSOL),
    48: Product(42, 47, axes=_OPTICAL),
    49: Product(42, 47, member=60, axes=_OPTICAL),
    60: Product(member=36),
    61: Product(member=36, end=45),
    70: Product(23, 28),
    71: Product(23, 28, member=41),
    72: Product(23, 28, end=40),
    73: Product(23, 28, member=41, end=43),
    99: Product(26, 0, axes=_WAVES),
    100: Product(26, 0, member=32, axes=_WAVES),
    103: Product(29, 34, axes=_PERIOD),
    104: Product(29, 34, member=47, axes=_PERIOD),
    107: Product(end=35, kind=(_DERIVED, 59), axes=((RELATION, 62, 1),)),
}
MISSING: Final = -0x7FFFFFFF  # a missing number: four octets whose bits are all set
PACKINGS: Final = (0, 2, 3, 4, 40, 41, 42, 51, 61, 200)  # supported templates of data (section 5)
SPECTRAL: Final = 0x80  # a flag of section 4 in edition 1: values are coefficients of spherical harmonics
BY_COLUMNS, TO_AND_FRO = 0x20, 0x10  # scanning flags: points run along columns; every second line runs backwards
UNITS: Final = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1}  # units of time in seconds


def parse_integer(data: Octets, octet: int, size: int = 1) -> int:
    """Return the unsigned number of ``size`` octets at ``octet``, counted from 1; ValueError if they are missing."""
    if octet + size - 1 > len(data):
        raise ValueError(f"a section has {len(data)} bytes: expected at least {octet + size - 1}")
    return int.from_bytes(data[octet - 1 : octet - 1 + size])


def parse_signed(data: Octets, octet: int, size: int) -> int:
    """Return the signed number of ``size`` octets at ``octet``, counted from 1. The first bit is the sign."""
    number, sign = parse_integer(data, octet, size), 1 << 8 * size - 1
    return number if number < sign else sign - number


def parse_truncation(data: Octets, octets: Sequence[int], size: int = 1) -> int:
    """Return the truncation of spherical harmonics, whose numbers J, K and M lie at ``octets``.

    Raises ValueError if the numbers differ: the truncation is not triangular.
    """
    numbers = [parse_integer(data, octet, size) for octet in octets]
    if len(set(numbers)) > 1:
        raise ValueError(f"its spectral truncation has J, K and M {numbers}: expected equal numbers (a triangular one)")
    return numbers[0]


def count_coefficients(truncation: int) -> int:
    """Return the number of real and imaginary parts of a triangular truncation."""
    return (truncation + 1) * (truncation + 2)


def count_points(rows: Sequence[int], parallels: int, west: int, east: int, degree: int) -> int:
    """Return the number of points of a reduced Gaussian grid between the meridians ``west`` and ``east``.

    ``west`` and ``east`` are integers in units of a degree divided by ``degree``. ``rows`` holds, for each circle of
    latitude, the number of points on the whole circle.
    """
    circle = 360 * degree
    east += -((east - west) // circle) * circle if east < west else 0
    widest = max(rows, default=1) or 1
    # Like eccodes, treat a grid as whole circles if it lacks one point, or two if it reaches from pole to pole.
    missing = circle - (east - west)
    if (missing - 2) * widest <= circle * (2 if len(rows) == 2 * parallels else 1):
        return sum(rows)
    return sum(max(east * count // circle + -west * count // circle + 1, 0) for count in rows)


class Surface(NamedTuple):
    """A level: its kind (code table 4.5; 255 means no level), and its value as ``scaled / 10**factor``."""

    kind: int
    factor: int
    scaled: int

    def compute_value(self, unit: int = 0) -> float:
        """Return the value in units of 10**``unit`` SI units; 0 if it is missing."""
        is_known = self.scaled != MISSING and -30 <= self.factor <= 30
        return self.scaled / 10.0 ** (self.factor + unit) if is_known else 0.0


NO_SURFACE: Final = Surface(255, 0, MISSING)


class Parameter(NamedTuple):
    """The numbers that identify the parameter and the level of a field, by the code tables of GRIB."""

    discipline: int
    category: int
    number: int
    centre: int
    tables: tuple[int, int]  # versions of the tables, WMO's and the centre's own
    template: int
    status: int  # production status (code table 1.3): S2S and TIGGE have their own names
    statistic: int  # the statistic over a time range (code table 4.10); 255: no time range
    length: int  # the length of the time range, in hours
    surfaces: tuple[Surface, Surface]
    kind: int = 0  # the number at `Product.kind` of the template
    axes: tuple[tuple[int, ...], ...] = ()  # for each axis in `Product.axes`: the numbers at its octets
    project: int = 0  # ECMWF's class of a field of chemistry, on which the name depends
    edition: int = 2  # in edition 1, ``category`` is the table, and ``statistic`` the time range indicator


class Field(msgspec.Struct, frozen=True):
    """One grid of values: the places of its sections in the file, and their content."""

    # Offset and size of the section with the grid (3; in edition 1: 2), and of the sections with the values (5, 6 and
    # 7; in edition 1: 3, if the message has it, and 4).
    grid_at: tuple[int, int]
    parts: tuple[tuple[int, int], ...]
    parameter: Parameter
    time: int  # the reference time, in seconds since 1970
    step: int  # seconds from the reference time to the time of the values, or to the end of their time range
    member: int
    grid: bytes  # section 3; in edition 1, section 2
    count: int  # number of grid points
    decimal: int = 0  # in edition 1, the decimal scale factor in section 1


class Grid(NamedTuple):
    """A grid: the number of its template in edition 2, and the number of points along its sides.

    ``scanned`` is the octet of the scanning ``flags`` in its section; 0 if the grid is shown as a list of points.
    """

    template: int
    across: int  # points in a row
    down: int  # points in a column
    scanned: int
    flags: int
    parallels: int  # latitudes of a Gaussian grid between a pole and the equator
    corners: tuple[float, ...]  # north, west, south and east, in degrees; empty if the section lacks them


# The octet of the scanning flags, by template of grids (section 3). Grids of other templates are shown as lists.
_SCANNED: Final = {
    0: 72, 1: 72, 10: 60, 12: 60, 13: 60, 20: 65, 23: 65, 30: 65, 31: 65, 33: 65, 40: 72, 41: 72, 90: 64, 140: 64,
}  # fmt: skip


HARMONICS: Final = 50  # the template of spherical harmonics: values are real and imaginary parts of coefficients


def parse_unit(grid: bytes) -> float:
    """Return the unit of the corners in section 3, in degrees: a basic angle, divided by a number, as in eccodes."""
    basic, parts = parse_integer(grid, 39, 4), parse_integer(grid, 43, 4)
    return (basic or 1) / (parts if parts not in (0, 0xFFFFFFFF) else 1_000_000)


def describe_grid(grid: bytes) -> Grid:
    """Parse the grid in section 3; ValueError for a truncation of harmonics that is not supported."""
    template = parse_integer(grid, 13, 2)
    scanned = _SCANNED.get(template, 0)
    corners: tuple[float, ...] = ()
    if template == HARMONICS:
        truncation, count = parse_truncation(grid, (15, 19, 23), 4), parse_integer(grid, 7, 4)
        if (expected := count_coefficients(truncation)) != count:
            raise ValueError(f"its truncation {truncation} has {count} coefficients: expected {expected}")
    if template == 0:
        unit = parse_unit(grid)
        corners = tuple(parse_signed(grid, octet, 4) * unit for octet in (47, 51, 56, 60))
    return Grid(
        template=template,
        across=parse_integer(grid, 31, 4) if scanned else 0,
        down=parse_integer(grid, 35, 4) if scanned else 0,
        scanned=scanned,
        flags=parse_integer(grid, scanned) if scanned else 0,
        parallels=parse_integer(grid, 68, 4) if template in range(40, 44) else 0,
        corners=corners,
    )


class UnshownPart(NamedTuple):
    """The byte at which a message, a field or bytes between messages begin, and the reason why they are not shown."""

    at: int
    reason: str


def parse_field(sections: dict[int, bytes], parts: dict[int, tuple[int, int]], discipline: int) -> Field:
    """Parse the ``sections`` of a field; ValueError if they are invalid, or the field is not supported.

    ``parts`` are offset and size of the sections in the file.
    """
    identification, grid, product = sections[1], sections[3], sections[4]
    template, packing = parse_integer(product, 8, 2), parse_integer(sections[5], 10, 2)
    if packing not in PACKINGS:
        raise ValueError(f"its values are packed by template {packing}: expected one of {PACKINGS}")
    if template not in TEMPLATES:
        raise ValueError(f"its product has template {template}: expected one of {', '.join(map(str, TEMPLATES))}")
    layout = TEMPLATES[template]
    surface_at, time_octets = layout.surface, 4
    coordinates = 4 * parse_integer(product, 6, 2)  # bytes of coordinates of levels, which follow the template
    if template == 44 and len(product) - coordinates == 45:  # an older form, with a forecast time of two octets
        surface_at, time_octets = 34, 2
    time = _parse_time(identification, 13)
    unit = parse_integer(product, layout.unit) if layout.unit else 1
    if unit not in UNITS:
        raise ValueError(f"its unit of time is number {unit}: expected a unit of fixed length, one of {sorted(UNITS)}")
    step = parse_signed(product, layout.unit + 1, time_octets) * UNITS[unit] if layout.unit else 0
    statistic, length = 255, 0
    if layout.end:
        statistic = parse_integer(product, layout.end + 12)
        end = _parse_time(product, layout.end) - time
        length, step = (end - step) // 3600, end
    surfaces = (NO_SURFACE, NO_SURFACE)
    if surface_at:
        surfaces = _parse_surface(product, surface_at), _parse_surface(product, surface_at + 6)
    kind = (discipline, parse_integer(product, 10), parse_integer(product, 11))
    tables = (parse_integer(identification, 10), parse_integer(identification, 11))
    parameter = Parameter(
        *kind, parse_integer(identification, 6, 2), tables, template, parse_integer(identification, 20), statistic,
        length, surfaces, parse_integer(product, layout.kind[1]) if layout.kind[1] else 0,
        tuple(_parse_axis(product, octet, size) for _, octet, size in layout.axes),
        int.from_bytes(sections.get(2, b"")[7:9]) if _CHEMICAL in layout.axes else 0,
    )  # fmt: skip
    member = parse_integer(product, layout.member) if layout.member else 0
    return Field(
        parts[3], (parts[5], parts[6], parts[7]), parameter, time, step, member, grid, parse_integer(grid, 7, 4)
    )


def _parse_axis(product: bytes, octet: int, size: int) -> tuple[int, ...]:
    """Return a number of 1 or 2 octets, or the scale factor and scaled value of one limit (5 octets) or of two (10)."""
    if size < 5:
        return (parse_integer(product, octet, size),)
    limits = [_parse_surface(product, at - 1)[1:] for at in range(octet, octet + size, 5)]
    return tuple(number for limit in limits for number in limit)


def _parse_surface(product: bytes, octet: int) -> Surface:
    return Surface(
        parse_integer(product, octet), parse_signed(product, octet + 1, 1), parse_signed(product, octet + 2, 4)
    )


def _parse_time(data: bytes, octet: int) -> int:
    """Return the time at an ``octet``, in seconds since 1970."""
    year = parse_integer(data, octet, 2)
    month, day, hour, minute, second = (parse_integer(data, octet + offset) for offset in range(2, 7))
    return int(datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.UTC).timestamp())


def parse_sidecar(data: bytes) -> tuple[int, ...]:
    """Return the offsets of messages in a sidecar, sorted; ValueError if a line has no offset."""
    offsets = set()
    for line in data.decode("utf-8", "replace").splitlines():
        try:  # a JSON object in each line, or fields between colons, where the second is the offset
            value = json.loads(line)["_offset"] if line.startswith("{") else line.split(":", 2)[1]
            offsets.add(int(value))
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError):
            if line.strip():
                raise ValueError(f"expected the offset of a message in each line, found {line[:80]!r}") from None
    if len(offsets) > MOST:
        raise ValueError(f"it lists {len(offsets)} messages: expected at most {MOST}")
    return tuple(sorted(offsets))


def find_message(data: bytes, start: int = 0) -> int:
    """Return the position of the first message in ``data`` from ``start`` on; -1 if there is none.

    A message begins with ``GRIB``, and octet 8 is its edition. Any bytes may lie between messages: headers of
    bulletins, line ends, zeros up to a multiple of 120 bytes.
    """
    at = data.find(MAGIC, start)
    while at >= 0 and data[at + 7 : at + 8] not in (b"\1", b"\2"):
        at = data.find(MAGIC, at + 1)
    return at


def parse_length(head: bytes, section_4: int = MISSING) -> int:
    """Return the length of a message, from its first bytes, at least 16.

    The length of a message of edition 1 with more than 8 MB depends on the length that its section 4 states:
    ``section_4``, if the first bytes do not contain it.
    """
    if head[7] == 2:
        return parse_integer(head, 9, 8)
    length = parse_integer(head, 5, 3)
    if not length & 0x800000:
        return length
    if section_4 == MISSING and 0 < (at := find_section_4(head)) <= len(head) - 3:
        section_4 = parse_integer(head, at + 1, 3)
    if not 0 <= section_4 < 120:
        return length
    # ECMWF states lengths of more than 23 bits in units of 120 bytes; the length in section 4 is the surplus.
    return (length & 0x7FFFFF) * 120 - section_4 + 4


def find_section_4(head: bytes) -> int:
    """Return the offset of section 4 in a message of edition 1; -1 if its first bytes, ``head``, are too few."""
    at, flags = 8, head[15]
    for exists in (True, flags & 0x80, flags & 0x40):  # sections 1, 2 and 3
        if exists:
            if at + 3 > len(head):
                return -1
            at += parse_integer(head, at + 1, 3)
    return at


class Windows(NamedTuple):
    """The windows of messages, their first bytes, by the offset of each message."""

    data: dict[int, bytes]

    @property
    def nbytes(self) -> int:
        return sum(len(window) for window in self.data.values()) + 128 * len(self.data)


def cut_windows(data: bytes, is_last: bool) -> Windows:
    """Return the windows of the messages in ``data``, a block of a file that begins with a message.

    A window that crosses the end of the block is left out, unless the block is the last one of the file.
    """
    windows: dict[int, bytes] = {}
    at = 0
    while 0 <= (begin := find_message(data, at)) <= len(data) - 16 and len(windows) <= MOST:
        length = parse_length(data[begin : begin + WINDOW])
        if length < 16 or (not is_last and begin + min(length, WINDOW) > len(data)):
            break
        for place in {at, begin}:  # other bytes may lie between messages, so the next message is expected at ``at``
            windows[place] = data[place : begin + min(length, WINDOW)]
        at = begin + length
    return Windows(windows)


class Grib(FileBytes):
    """A GRIB file whose messages are located, and the window of each message that was read.

    ``unshown`` lists damaged messages, and bytes between messages that are not padding.
    """

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes) -> None:
        super().__init__(url, source, size, head)
        self.windows_at: dict[int, bytes] = {}  # windows by offset
        self.unshown: list[UnshownPart] = []

    def find_messages(self, indexed: Sequence[int] = ()) -> Steps[list[tuple[int, int]]]:
        """Return offset and length of each message.

        The windows at the ``indexed`` offsets, which come from a sidecar, are read in one round. Raises ManifestError
        if no message begins at one of these offsets, or if the file is cut short.
        """
        yield from self.read_windows(indexed)
        messages: list[tuple[int, int]] = []
        begins: set[int] = set()
        block, run = FIRST_BLOCK, 1
        # ``due`` is the expected offset of the next message. ``foreseen`` is the expected offset of the message after
        # the last window of a joint read. ``pitches`` are the distances between expected offsets.
        due, foreseen = 0, 0
        pitches: list[int] = []
        while due < self.size:
            place = bisect_left(indexed, due)
            begin = indexed[place] if place < len(indexed) and indexed[place] - due <= PADDING else None
            if begin is None:
                period = foresee(pitches) if due not in self.windows_at else []
                likely = period or pitches[-1:]
                if due not in self.windows_at and 0 < sum(likely) <= len(likely) * (EVEN if period else UNEVEN):
                    yield from self._read_block(due, block)
                    block = min(block * 2, LAST_BLOCK)
                if due not in self.windows_at:
                    run = 1 if 0 < foreseen != due else run
                    places = list(islice(accumulate(cycle(period), initial=due), run + 1))
                    yield from self.read_windows([at for at in places[:run] if at < self.size])
                    foreseen, run = places[-1] if period else 0, min(run * 2, AT_ONCE)
                begin = yield from self._search_message(due)
            if begin is None:
                break
            length = yield from self._read_length(begin)
            begins.add(begin)
            messages.append((begin, length))
            if len(begins) > MOST:
                raise ManifestError(f"{self.url}: it has {len(begins)} messages or more: expected at most {MOST}")
            pitches.append(begin + length - due)
            due = begin + length
        if not begins:
            raise ManifestError(f"{self.url}: expected a GRIB message in its first {GAP} bytes, found none")
        if lost := [at for at in indexed if at not in begins]:
            raise ManifestError(
                f"{self.url}: expected a message at byte {lost[0]}, as in its sidecar, found none: does the sidecar "
                "belong to another file?"
            )
        return messages

    def read_windows(self, offsets: Sequence[int]) -> Steps[None]:
        """Read the windows at ``offsets`` that are not in memory; ManifestError if an offset is not in the file."""
        missing = [at for at in dict.fromkeys(offsets) if at not in self.windows_at]
        wrong = next((at for at in missing if not 0 <= at < self.size), None)
        if wrong is not None:
            raise ManifestError(
                f"{self.url}: its sidecar has a message at byte {wrong}: expected 0 to {self.size - 1}. Does the "
                "sidecar belong to another file?"
            )
        windows = yield from self.load([(at, min(WINDOW, self.size - at)) for at in missing])
        self.windows_at.update(zip(missing, windows, strict=True))

    def _read_block(self, start: int, size: int) -> Steps[None]:
        """Read a block of the file from byte ``start`` on, and keep the windows of its messages.

        The engine keeps its bytes, too: the next reads are probably of its fields.
        """
        size = min(size, self.size - start)
        block = self.part(start, size)
        block = msgspec.structs.replace(block, mixed=True) if isinstance(block, Span) else block
        windows: Windows = yield Load(block, ParsedIndex(cut_windows, (start + size == self.size,)))
        self.windows_at.update((start + at, data) for at, data in windows.data.items())

    def _search_message(self, due: int) -> Steps[int | None]:
        """Return the offset of the first message at or after ``due``; None if no message begins within `GAP` bytes.

        Bytes before this message that are not padding are added to ``unshown``. Raises ManifestError if the file ends
        within a message.
        """
        start, data = due, self.windows_at[due]
        while (at := find_message(data)) < 0 and start + len(data) < self.size:
            if start + len(data) - due > GAP:
                self.unshown.append(
                    UnshownPart(due, f"expected a message in the next {GAP} bytes, found none: the rest is not read")
                )
                return None
            start += len(data) - (SIGN - 1)  # the bytes that identify a message may cross the end
            size = min(4 * len(data), BLOCK, self.size - start)
            data = yield Load(self.part(start, size), Raw())
        if (at, data, start) == (-1, MAGIC[:1], due):
            # Subsets that Herbie downloads end with this byte, because its ranges are one byte too long. A file that is
            # cut short may end with it, too, so the byte is reported.
            reason = "the file ends with the first byte of a message: the fields before it are whole"
            self.unshown.append(UnshownPart(due, reason))
            return None
        if at < 0 and (cut := _CUT_SIGN.search(data)):
            begin, left = start + cut.start(), len(data) - cut.start()
            found = f"expected a whole message at byte {begin}, found its first {left} bytes"
            raise ManifestError(f"{self.url}: {found}: the file is cut short")
        begin = start + at
        gap = self.windows_at[due][: begin - due] if at >= 0 else self.windows_at[due]
        if gap.translate(None, FILLING) or END in gap:
            self.unshown.append(UnshownPart(due, "expected a message at this byte, found other bytes"))
        if at < 0:
            return None
        if begin not in self.windows_at:
            window = data[at : at + WINDOW]
            if len(window) < min(HEADER, self.size - begin):
                yield from self.read_windows([begin])
            else:
                self.windows_at[begin] = window
        return begin

    def make_message_error(self, at: int, reason: str) -> ManifestError:
        """Make an error about the message at byte ``at``."""
        return ManifestError(f"{self.url}: the message at byte {at} {reason}")

    def _read_length(self, at: int) -> Steps[int]:
        """Return the length of the message at byte ``at``, whose window was read; ManifestError if it is cut short."""
        data = self.windows_at[at]
        if len(data) < 16:
            raise self.make_message_error(at, f"has {len(data)} bytes: expected at least 16. The file is cut short")
        if find_message(data[:SIGN]):
            raise ManifestError(f"{self.url}: expected a message at byte {at}, found {data[:8]!r}")
        length = parse_length(data)
        if data[7] == 1 and data[4] & 0x80 and len(data) - 3 < (place := find_section_4(data)) <= self.size - at - 3:
            length = parse_length(data, parse_integer((yield Load(self.part(at + place, 3), Raw())), 1, 3))
        if not 12 <= length <= self.size - at:
            expected = f"expected 12 to {self.size - at}, the rest of the file. The file is cut short, or damaged"
            raise self.make_message_error(at, f"states {length} bytes: {expected}")
        return length

    def read_fields(self, at: int, length: int) -> Steps[list[Field | UnshownPart]]:
        """Return the fields of the message of ``length`` bytes at byte ``at``, or the reasons why they are not shown.

        Raises ManifestError if the sections do not fit the message.
        """
        window, begin = self.windows_at[at], at
        position, end = at + 16, at + length - 4
        sections: dict[int, bytes] = {}
        parts: dict[int, tuple[int, int]] = {}
        fields: list[Field | UnshownPart] = []
        before = 0  # the number of the previous section
        while position < end:
            if position + 6 > begin + len(window):
                begin, window = position, (yield Load(self.part(position, min(WINDOW, at + length - position)), Raw()))
            size, number = parse_integer(window, position - begin + 1, 4), parse_integer(window, position - begin + 5)
            if size < 5 or not 1 <= number <= 7 or position + size > end:
                found = f"has a section {number} of {size} bytes at byte {position}"
                expected = f"expected a section 1 to 7 of 5 to {end - position} bytes"
                raise self.make_message_error(at, f"{found}: {expected}")
            if number not in NEXT[before]:
                found = f"has a section {number} at byte {position}, after section {before}"
                expected = " or ".join(map(str, NEXT[before]))
                raise self.make_message_error(at, f"{found}: expected section {expected}")
            before = number
            if number in (1, 3, 4, 5):
                if size > SECTION:
                    found = f"has a section {number} of {size} bytes at byte {position}"
                    raise self.make_message_error(at, f"{found}: expected at most {SECTION} bytes")
                if position + size > begin + len(window):
                    begin, window = position, (yield Load(self.part(position, size), Raw()))
                sections[number] = window[position - begin : position - begin + size]
            if number == 2:
                sections[2] = window[position - begin :][: min(size, _LOCAL)]
            repeats_bitmap = number == 6 and 6 in parts and window[position - begin + 5] == 254
            if not repeats_bitmap:
                parts[number] = (position, size)
            position += size
            if number == 7:
                fields.append(self._parse_field(at, sections, parts))
                if len(fields) > FIELDS:
                    raise self.make_message_error(at, f"has {len(fields)} fields or more: expected at most {FIELDS}")
        if before != 7:
            raise self.make_message_error(at, f"ends after section {before}: expected section 7")
        return fields

    def _parse_field(
        self, at: int, sections: dict[int, bytes], parts: dict[int, tuple[int, int]]
    ) -> Field | UnshownPart:
        """Return the field of these sections, or the reason why it is not shown."""
        try:
            return parse_field(sections, parts, self.windows_at[at][6])
        except (ValueError, OverflowError) as e:
            return UnshownPart(at, str(e))
