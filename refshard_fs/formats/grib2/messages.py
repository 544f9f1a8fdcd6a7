"""Locate the messages of a GRIB file, and parse the sections of edition 2. No I/O here.

A message states its length, which locates the next one. A sidecar (wgrib2's ``.idx``, ECMWF's ``.index``) lists
the offsets of all messages. Opening a file reads the first bytes of each message, its window, and no data.
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
from refshard_fs.core.model import Inline, Load, Parsed, Raw, Span, Steps
from refshard_fs.errors import ManifestError

Octets = bytes | memoryview
MAGIC: Final = b"GRIB"
SIGN: Final = 8  # bytes that identify a message: the magic number, and its edition at the end
WINDOW: Final = 1 << 10  # bytes that are read of a message: the sections before the data mostly have less than 300
HEADER: Final = 300  # bytes that are read again if they cross the end of a window
AT_ONCE: Final = 1024  # the most messages that are located in one round, if their lengths can be foreseen
PADDING: Final = 120  # bytes before an indexed message that are skipped without a read
GAP: Final = 1 << 22  # bytes between messages that are searched for the next one,
BLOCK: Final = 1 << 20  # most bytes that are read at a time in this search
# A truncated magic number at the end of the file. It follows another message, or the control character at the end of a
# bulletin's header: otherwise it would match the last letter of a text.
_CUT_SIGN: Final = re.compile(rb"(?:\A|(?<=[^ -~]))(?:G|GR|GRI|GRIB.{0,3})\Z", re.DOTALL)
FILLING: Final = bytes(range(127))  # ASCII text and zeros lie between messages
MOST: Final = 1 << 18  # messages in a file
FIELDS: Final = 1 << 10  # fields in a message
NEXT: Final = {0: (1,), 1: (2, 3), 2: (3,), 3: (4,), 4: (5,), 5: (6,), 6: (7,), 7: (2, 3, 4)}  # the order of sections
_LOCAL: Final = 9  # bytes of section 2 that are parsed: in ECMWF's local definitions, the class is at octet 8
END: Final = b"7777"  # the end of a message
SECTION: Final = 1 << 22  # bytes of a section that is read when the file is opened: grids may list points


class Product(NamedTuple):
    """The octets of the parts of section 4 in a template of products, counted from 1; 0: it lacks the part."""

    unit: int = 18  # unit of time; the forecast time follows
    surface: int = 23  # the first surface; the second one follows
    member: int = 0
    end: int = 0  # end of the time range
    kind: tuple[str, int] = ("", 0)  # a number that distinguishes variables, by its key in eccodes
    axes: tuple[tuple[str, int, int], ...] = ()  # names, octets and sizes of further coordinates; see `_parse_axis`


_DERIVED: Final = "derivedForecast"
_CHEMICAL: Final = ("constituent", 12, 2)
_AEROSOL: Final = (_CHEMICAL, ("size", 15, 10))
_OPTICAL: Final = (*_AEROSOL, ("wavelength", 26, 10))
_WAVES: Final = (("directionNumber", 12, 2), ("frequencyNumber", 16, 2))  # cfgrib's names
_PERIOD: Final = (("wave_period", 13, 10),)
RELATION: Final = "typeOfRelationToReferenceDataset"  # anomalies, for instance


def _parse_satellite(octet: int) -> tuple[tuple[str, int, int], ...]:
    """Return the axes of a field whose first spectral band is described at ``octet``."""
    return (("satellite", octet + 2, 2), ("instrument", octet + 4, 2), ("wavenumber", octet + 6, 5))


TEMPLATES: Final = {  # templates of supported products (section 4)
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
    31: Product(unit=0, surface=0, kind=("NB", 14), axes=_parse_satellite(15)),
    32: Product(surface=0, kind=("NB", 23), axes=_parse_satellite(24)),
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
MISSING: Final = -0x7FFFFFFF  # a signed number of four octets whose bits are all set
PACKINGS: Final = (0, 2, 3, 4, 40, 41, 42, 51, 61, 200)  # templates of data (section 5) that are decoded
SPECTRAL: Final = 0x80  # a flag of section 4 in edition 1: its values are coefficients of spherical harmonics
BY_COLUMNS, TO_AND_FRO = 0x20, 0x10  # scanning flags of a grid
UNITS: Final = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1}  # units of time in seconds


def parse_integer(data: Octets, octet: int, size: int = 1) -> int:
    """Return the unsigned number at an ``octet``, which the specification counts from 1."""
    if octet + size - 1 > len(data):
        raise ValueError(f"a section of {len(data)} bytes has no octet {octet + size - 1}")
    return int.from_bytes(data[octet - 1 : octet - 1 + size])


def parse_signed(data: Octets, octet: int, size: int) -> int:
    """Return the number at an ``octet``; its first bit is the sign."""
    found, sign = parse_integer(data, octet, size), 1 << 8 * size - 1
    return found if found < sign else sign - found


def count_points(rows: Sequence[int], parallels: int, west: int, east: int, degree: int) -> int:
    """Return the number of points of a reduced Gaussian grid between two meridians, in parts of a ``degree``.

    ``rows`` are the numbers of points on whole circles of latitude. A row of an area has its points in the area.
    """
    circle = 360 * degree
    east += -((east - west) // circle) * circle if east < west else 0
    widest = max(rows, default=1) or 1
    missing = circle - (east - west)  # eccodes takes a grid from pole to pole for whole if it lacks a point more
    if (missing - 2) * widest <= circle * (2 if len(rows) == 2 * parallels else 1):
        return sum(rows)
    return sum(max(east * count // circle + -west * count // circle + 1, 0) for count in rows)


class Surface(NamedTuple):
    """A level: its kind (code table 4.5; 255: none), and its value, in the kind's unit."""

    kind: int
    factor: int
    scaled: int

    def value(self, unit: int = 0) -> float:
        """Return the value, in a ``unit`` that is a power of ten; 0 if it is missing."""
        is_known = self.scaled != MISSING and -30 <= self.factor <= 30
        return self.scaled / 10.0 ** (self.factor + unit) if is_known else 0.0


NO_SURFACE: Final = Surface(255, 0, MISSING)


class Parameter(NamedTuple):
    """The numbers that identify the parameter and the level of a field."""

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
    kind: int = 0  # the number at the template's `Product.kind`
    axes: tuple[tuple[int, ...], ...] = ()  # along the template's `Product.axes`
    project: int = 0  # ECMWF's class of a field of chemistry, on which its name depends
    edition: int = 2  # 1: table and number are `category` and `number`, `statistic` is the time range indicator


class Field(msgspec.Struct, frozen=True):
    """One grid of values: the places of its sections in the file, and their content."""

    grid_at: tuple[int, int]  # offset and size of section 3, and of sections 5, 6 and 7
    parts: tuple[tuple[int, int], ...]  # in edition 1: of section 2, and of sections 3, if there is one, and 4
    parameter: Parameter
    time: int  # seconds since 1970, of the reference time
    step: int  # seconds from the reference time to the time, or the end of the time range, of the values
    member: int
    grid: bytes  # section 3; in edition 1 section 2
    count: int  # number of grid points
    decimal: int = 0  # in edition 1, the decimal scale factor: section 1 has it


class Grid(NamedTuple):
    """A grid, parsed from its section: the number of its template in edition 2, and the points along its sides.

    ``scanned`` is the octet of the scanning ``flags``; 0: the grid is a list of points.
    """

    template: int
    across: int
    down: int
    scanned: int
    flags: int
    parallels: int  # latitudes of a Gaussian grid between a pole and the equator
    corners: tuple[float, ...]  # north, west, south and east, in degrees; empty if its section does not have them


# Templates of grids (section 3) by number: the octet of the scanning flags. Others are shown as a list of points.
_SCANNED: Final = {
    0: 72, 1: 72, 10: 60, 12: 60, 13: 60, 20: 65, 23: 65, 30: 65, 31: 65, 33: 65, 40: 72, 41: 72, 90: 64, 140: 64,
}  # fmt: skip


HARMONICS: Final = 50  # of spherical harmonics, with triangular truncation: real and imaginary parts of coefficients


def describe_grid(grid: bytes) -> Grid:
    """Parse section 3."""
    template = parse_integer(grid, 13, 2)
    scanned = _SCANNED.get(template, 0)
    corners: tuple[float, ...] = ()
    if template == HARMONICS and len({parse_integer(grid, octet, 4) for octet in (15, 19, 23)}) > 1:
        raise ValueError("its spectral truncation is not triangular")
    if template == HARMONICS and (parse_integer(grid, 15, 4) + 1) * (parse_integer(grid, 15, 4) + 2) != parse_integer(
        grid, 7, 4
    ):
        raise ValueError(
            f"its truncation {parse_integer(grid, 15, 4)} does not have {parse_integer(grid, 7, 4)} coefficients"
        )
    if template == 0:
        basic, parts = parse_integer(grid, 39, 4), parse_integer(grid, 43, 4)
        unit = basic / parts if basic and parts not in (0, 0xFFFFFFFF) else 1e-6
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


class Unshown(NamedTuple):
    """A field that is not shown: the byte at which its message begins, and the reason."""

    at: int
    reason: str


def parse_field(sections: dict[int, bytes], parts: dict[int, tuple[int, int]], discipline: int) -> Field:
    """Parse the sections of a field; ValueError if they are invalid or the field is not supported."""
    one, grid, product = sections[1], sections[3], sections[4]
    template, packing = parse_integer(product, 8, 2), parse_integer(sections[5], 10, 2)
    if packing not in PACKINGS:
        raise ValueError(f"values packed by template {packing} are not shown")
    if template not in TEMPLATES:
        raise ValueError(f"fields of product template {template} are not shown")
    layout = TEMPLATES[template]
    surface_at, long_time = layout.surface, 4
    coordinates = 4 * parse_integer(product, 6, 2)  # bytes of coordinates of levels, which follow the template
    if template == 44 and len(product) - coordinates == 45:  # an older form, with a forecast time of two octets
        surface_at, long_time = 34, 2
    time = _parse_time(one, 13)
    unit = parse_integer(product, layout.unit) if layout.unit else 1
    if unit not in UNITS:
        raise ValueError(f"its unit of time is number {unit}: only those of fixed length are known")
    step = parse_signed(product, layout.unit + 1, long_time) * UNITS[unit] if layout.unit else 0
    statistic, length = 255, 0
    if layout.end:
        statistic = parse_integer(product, layout.end + 12)
        end = _parse_time(product, layout.end) - time
        length, step = (end - step) // 3600, end
    surfaces = (NO_SURFACE, NO_SURFACE)
    if surface_at:
        surfaces = _parse_surface(product, surface_at), _parse_surface(product, surface_at + 6)
    kind = (discipline, parse_integer(product, 10), parse_integer(product, 11))
    tables = (parse_integer(one, 10), parse_integer(one, 11))
    parameter = Parameter(
        *kind, parse_integer(one, 6, 2), tables, template, parse_integer(one, 20), statistic, length, surfaces,
        parse_integer(product, layout.kind[1]) if layout.kind[1] else 0,
        tuple(_parse_axis(product, octet, size) for _, octet, size in layout.axes),
        int.from_bytes(sections.get(2, b"")[7:9]) if _CHEMICAL in layout.axes else 0,
    )  # fmt: skip
    member = parse_integer(product, layout.member) if layout.member else 0
    return Field(
        parts[3], (parts[5], parts[6], parts[7]), parameter, time, step, member, grid, parse_integer(grid, 7, 4)
    )


def _parse_axis(product: bytes, octet: int, size: int) -> tuple[int, ...]:
    """Return a number of 1 or 2 octets, or the scale factors and scaled values of one limit (5 octets) or two (10)."""
    if size < 5:
        return (parse_integer(product, octet, size),)
    limits = [_parse_surface(product, at - 1)[1:] for at in range(octet, octet + size, 5)]
    return tuple(number for limit in limits for number in limit)


def _parse_surface(product: bytes, octet: int) -> Surface:
    return Surface(
        parse_integer(product, octet), parse_signed(product, octet + 1, 1), parse_signed(product, octet + 2, 4)
    )


def _parse_time(data: bytes, octet: int) -> int:
    year, month, day, hour, minute, second = (
        parse_integer(data, octet, 2),
        *(parse_integer(data, octet + n) for n in range(2, 7)),
    )
    return int(datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.UTC).timestamp())


def parse_sidecar(data: bytes) -> tuple[int, ...]:
    """Return the offsets of messages in a sidecar, in order."""
    found = set()
    for line in data.decode("utf-8", "replace").splitlines():
        try:  # a JSON object in each line, or fields between colons, where the second is the offset
            value = json.loads(line)["_offset"] if line.startswith("{") else line.split(":", 2)[1]
            found.add(int(value))
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError):
            if line.strip():
                raise ValueError(f"its line {line[:80]!r} has no offset of a message") from None
    if len(found) > MOST:
        raise ValueError(f"it lists {len(found)} messages: expected at most {MOST}")
    return tuple(sorted(found))


def find_message(data: bytes, start: int = 0) -> int:
    """Return the position of the first message in ``data`` from ``start`` on, or -1.

    A message begins with ``GRIB`` and has its edition in octet 8. Messages may have anything between them: headers of
    bulletins, line ends, zeros up to a multiple of 120 bytes.
    """
    at = data.find(MAGIC, start)
    while at >= 0 and data[at + 7 : at + 8] not in (b"\1", b"\2"):
        at = data.find(MAGIC, at + 1)
    return at


def parse_length(head: bytes, section_4: int = MISSING) -> int:
    """Return the length of a message, from its first 16 bytes or more.

    For a message of edition 1 with more than 8 MB, ``section_4`` is the length of its section 4, if that lies after
    these bytes.
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
    # ECMWF's form of lengths above 24 bits: in units of 120 bytes; section 4 states the surplus bytes
    return (length & 0x7FFFFF) * 120 - section_4 + 4


def find_section_4(head: bytes) -> int:
    """Return the offset of section 4 in a message of edition 1; -1 if its first bytes do not determine it."""
    at, flags = 8, head[15]
    for is_there in (True, flags & 0x80, flags & 0x40):
        if is_there:
            if at + 3 > len(head):
                return -1
            at += parse_integer(head, at + 1, 3)
    return at


class Windows(NamedTuple):
    """The first bytes of messages, by the offsets of the messages."""

    data: dict[int, bytes]

    @property
    def nbytes(self) -> int:
        return sum(len(window) for window in self.data.values()) + 128 * len(self.data)


def cut_windows(data: bytes, is_last: bool) -> Windows:
    """Return the windows of the messages in a block that begins with a message, without windows that the block's end
    cuts.

    In the last block of a file, no window counts as cut.
    """
    found: dict[int, bytes] = {}
    at = 0
    while 0 <= (begin := find_message(data, at)) <= len(data) - 16 and len(found) <= MOST:
        length = parse_length(data[begin : begin + WINDOW])
        if length < 16 or (not is_last and begin + min(length, WINDOW) > len(data)):
            break
        for known in {at, begin}:  # other bytes may lie between messages
            found[known] = data[known : begin + min(length, WINDOW)]
        at = begin + length
    return Windows(found)


class Grib(FileBytes):
    """Finds the messages of a file, and reads the window of each.

    ``unshown`` lists unreadable messages, and bytes between messages.
    """

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes) -> None:
        super().__init__(url, source, size, head)
        self._begins: dict[int, bytes] = {}  # the windows, by offset
        self.unshown: list[Unshown] = []

    def find_messages(self, indexed: Sequence[int] = ()) -> Steps[list[tuple[int, int]]]:
        """Return begin and length of each message, found from one to the next.

        The windows at the ``indexed`` offsets, which come from a sidecar, are read in one round. ManifestError if no
        message begins at one of them.
        """
        yield from self.read(indexed)
        found: list[tuple[int, int]] = []
        begins: set[int] = set()
        block, run = FIRST_BLOCK, 1
        due, foreseen = 0, 0  # the expected offset of a message, and of the one after all that were located together
        pitches: list[int] = []  # the distances between expected offsets
        while due < self.size:
            place = bisect_left(indexed, due)
            begin = indexed[place] if place < len(indexed) and indexed[place] - due <= PADDING else None
            if begin is None:
                period = foresee(pitches) if due not in self._begins else []
                likely = period or pitches[-1:]
                if due not in self._begins and 0 < sum(likely) <= len(likely) * (EVEN if period else UNEVEN):
                    yield from self._read_block(due, block)
                    block = min(block * 2, LAST_BLOCK)
                if due not in self._begins:
                    run = 1 if 0 < foreseen != due else run
                    places = list(islice(accumulate(cycle(period), initial=due), run + 1))
                    yield from self.read([at for at in places[:run] if at < self.size])
                    foreseen, run = places[-1] if period else 0, min(run * 2, AT_ONCE)
                begin = yield from self._search(due)
            if begin is None:
                break
            length = yield from self._read_length(begin)
            begins.add(begin)
            found.append((begin, length))
            if len(begins) > MOST:
                raise ManifestError(f"{self.url}: it has more than {MOST} messages")
            pitches.append(begin + length - due)
            due = begin + length
        if not begins:
            raise ManifestError(f"{self.url}: expected a GRIB message in its first {GAP} bytes, found none")
        if lost := [at for at in indexed if at not in begins]:
            reason = (
                f"expected a message at byte {lost[0]}, as in its sidecar, found none: is the sidecar of another file?"
            )
            raise ManifestError(f"{self.url}: {reason}")
        return found

    def read(self, offsets: Sequence[int]) -> Steps[None]:
        """Read the windows at ``offsets``, unless they are known."""
        missing = [at for at in dict.fromkeys(offsets) if at not in self._begins]
        if missing and not 0 <= min(missing) <= max(missing) < self.size:
            reason = f"its sidecar has a message at byte {max(missing)} of {self.size}: is the sidecar of another file?"
            raise ManifestError(f"{self.url}: {reason}")
        windows = yield from self.load([(at, min(WINDOW, self.size - at)) for at in missing])
        self._begins.update(zip(missing, windows, strict=True))

    def _read_block(self, start: int, size: int) -> Steps[None]:
        """Read the windows of the messages in a block at ``start``."""
        size = min(size, self.size - start)
        windows: Windows = yield Load(self.part(start, size), Parsed(cut_windows, (start + size == self.size,)))
        self._begins.update((start + at, data) for at, data in windows.data.items())

    def _search(self, due: int) -> Steps[int | None]:
        """Return the offset of the first message at or after ``due``; None if no message begins within `GAP` bytes."""
        start, data = due, self._begins[due]
        while (at := find_message(data)) < 0 and start + len(data) < self.size:
            if start + len(data) - due > GAP:
                self.unshown.append(
                    Unshown(due, f"no message begins in the {GAP} bytes from here: the rest is not read")
                )
                return None
            start += len(data) - (SIGN - 1)  # the magic number may lie across the end
            size = min(4 * len(data), BLOCK, self.size - start)
            data = yield Load(self.part(start, size), Raw())
        if (at, data, start) == (-1, MAGIC[:1], due):
            # Subsets of a file whose ranges are one byte too long, as Herbie's, end so. This one byte can also be left
            # of a file that is cut short, so it is reported.
            reason = "the file ends with the first byte of a message: the fields before it are whole"
            self.unshown.append(Unshown(due, reason))
            return None
        if at < 0 and (cut := _CUT_SIGN.search(data)):
            begin, left = start + cut.start(), len(data) - cut.start()
            raise ManifestError(f"{self.url}: the message at byte {begin} has only {left} bytes: the file is cut short")
        begin = start + at
        gap = self._begins[due][: begin - due] if at >= 0 else self._begins[due]
        if gap.translate(None, FILLING) or END in gap:
            self.unshown.append(Unshown(due, "a message should begin here, and these bytes are of another kind"))
        if at < 0:
            return None
        if begin not in self._begins:
            window = data[at : at + WINDOW]
            if len(window) < min(HEADER, self.size - begin):
                yield from self.read([begin])
            else:
                self._begins[begin] = window
        return begin

    def read_window(self, at: int) -> bytes:
        """Return the first bytes of the message at ``at``."""
        return self._begins[at]

    def _read_length(self, at: int) -> Steps[int]:
        """Return the length of the message at ``at``, whose window is known."""
        data = self._begins[at]
        if len(data) < 16:
            raise ManifestError(
                f"{self.url}: the message at byte {at} has only {len(data)} bytes: the file is cut short"
            )
        if find_message(data[:SIGN]):
            raise ManifestError(f"{self.url}: expected a message at byte {at}, found {data[:8]!r}")
        length = parse_length(data)
        if data[7] == 1 and data[4] & 0x80 and len(data) - 3 < (place := find_section_4(data)) <= self.size - at - 3:
            length = parse_length(data, parse_integer((yield Load(self.part(at + place, 3), Raw())), 1, 3))
        if not 12 <= length <= self.size - at:
            reason = f"has {length} bytes, of {self.size - at}: the file is cut short, or damaged"
            raise ManifestError(f"{self.url}: the message at byte {at} {reason}")
        return length

    def read_fields(self, at: int, length: int) -> Steps[list[Field | Unshown]]:
        """Return the fields of a message, or the reasons why they are not shown; ManifestError if its sections do not
        fit it.
        """
        window, begin = self._begins[at], at
        position, end = at + 16, at + length - 4
        sections: dict[int, bytes] = {}
        parts: dict[int, tuple[int, int]] = {}
        found: list[Field | Unshown] = []
        before = 0  # the number of the section before
        while position < end:
            if position + 6 > begin + len(window):
                begin, window = position, (yield Load(self.part(position, min(WINDOW, at + length - position)), Raw()))
            size, number = parse_integer(window, position - begin + 1, 4), parse_integer(window, position - begin + 5)
            if size < 5 or not 1 <= number <= 7 or position + size > end:
                reason = f"has a section {number} of {size} bytes at byte {position}: it is damaged"
                raise ManifestError(f"{self.url}: the message at byte {at} {reason}")
            if number not in NEXT[before]:
                reason = f"has a section {number} at byte {position}, behind a section {before}: it is damaged"
                raise ManifestError(f"{self.url}: the message at byte {at} {reason}")
            before = number
            if number in (1, 3, 4, 5):
                if size > SECTION:
                    raise ManifestError(f"{self.url}: section {number} at byte {position} has {size} bytes")
                if position + size > begin + len(window):
                    begin, window = position, (yield Load(self.part(position, size), Raw()))
                sections[number] = window[position - begin : position - begin + size]
            if number == 2:
                sections[2] = window[position - begin :][: min(size, _LOCAL)]
            is_same = number == 6 and 6 in parts and window[position - begin + 5] == 254  # repeats the last bitmap
            if not is_same:
                parts[number] = (position, size)
            position += size
            if number == 7:
                found.append(self._read_field(at, sections, parts))
                if len(found) > FIELDS:
                    raise ManifestError(f"{self.url}: the message at byte {at} has more than {FIELDS} fields")
        if before != 7:
            raise ManifestError(f"{self.url}: the message at byte {at} ends behind a section {before}: it is damaged")
        return found

    def _read_field(self, at: int, sections: dict[int, bytes], parts: dict[int, tuple[int, int]]) -> Field | Unshown:
        try:
            return parse_field(sections, parts, self._begins[at][6])
        except (ValueError, OverflowError) as e:
            return Unshown(at, str(e))
