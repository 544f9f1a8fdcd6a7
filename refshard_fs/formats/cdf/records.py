"""The records of a CDF file: descriptors of the file, of variables and of attributes, and indexes. No I/O here.

The names come from the format's internal description (CDR, GDR, VDR, ADR, AEDR, VXR, VVR, CVVR, CPR). A record begins
with its size and its type. Records of a kind form linked lists, and may lie anywhere in the file. Offsets have 8 bytes
in version 3, and 4 bytes before. All numbers are big-endian, except for values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from refshard_fs.core.model import Inline, Load, Raw, Span, Steps, run_together
from refshard_fs.errors import DamagedIndex, ManifestError

CDR, GDR, R_VDR, ADR, AGR_EDR, VXR, VVR, Z_VDR, AZ_EDR, CPR, CVVR = 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13
RLE, HUFFMAN, ADAPTIVE_HUFFMAN, GZIP = 1, 2, 3, 5  # kinds of compression

PAGE: Final = 16 << 10  # bytes that are read at a time,
AHEAD: Final = 8  # pages that are read together if the page before is in memory: lists are often consecutive
WHOLE: Final = 1 << 20  # bytes: files up to this size are read whole when they are opened
MOST_PAGES: Final = (64 << 20) // PAGE  # pages that may be read when a file is opened
KEPT: Final = 16  # pages in memory after that
MOST_DIMENSIONS: Final = 32  # the format permits 10

_RECORDS_VARY, _HAS_PAD, _IS_COMPRESSED = 1, 2, 4  # flags of a variable
_IS_ROW_MAJOR, _IS_SINGLE = 1, 2  # flags of a file
_MOST_VALUES: Final = 1 << 60  # values of a variable: its size in bytes then has 64 bits


class Head(NamedTuple):
    """The descriptors of a file (CDR and GDR): offsets of three lists, their lengths in ``counts``, and more."""

    encoding: int
    is_row_major: bool
    r_lengths: tuple[int, ...]  # lengths of the dimensions that all rVariables share
    r_variables: int
    z_variables: int
    attributes: int
    counts: tuple[int, int, int]


class Variable(NamedTuple):
    """A variable descriptor. ``lengths`` has the dimensions that vary: other dimensions are not stored."""

    name: str
    is_z: bool
    number: int
    type: int
    elements: int
    records: int
    varies: bool  # whether it has a dimension of records
    lengths: tuple[int, ...]
    sparse: int  # 1: missing records are padded; 2: they repeat the one before
    pad: bytes  # bytes of one value; empty without a pad value
    index_at: int  # the offset of its first VXR
    compression: int  # its kind; 0 if there is none

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.records, *self.lengths) if self.varies else self.lengths


class Entry(NamedTuple):
    """An entry of an attribute: the number of a variable, or of the entry, and the value."""

    number: int
    type: int
    elements: int
    strings: int
    data: bytes


class Attribute(NamedTuple):
    """An attribute and its entries: for the file or rVariables, and for zVariables."""

    name: str
    is_global: bool
    entries: list[Entry]
    z_entries: list[Entry]


class Run(NamedTuple):
    """Consecutive records ``first`` to ``last``, and the offset of the VVR, CVVR or VXR that has them."""

    first: int
    last: int
    at: int


class Records:
    """Reads the records of a file of ``version`` 2 or 3 through pages, which many of them share."""

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes, version: int) -> None:
        self.url = url
        self.source = source
        self.size = size
        self.is_old = False  # before version 2.5
        self._word = "q" if version == 3 else "i"
        self._name = 256 if version == 3 else 64
        self.header = self.layout("Oi").size
        self.is_opened = False
        self._left = 2 * size  # bytes of records that are read when the file is opened: they do not overlap
        self._pages: dict[int, bytes] = {}
        self._put(0, head if len(head) >= size else head[: len(head) // PAGE * PAGE])

    def layout(self, fields: str) -> struct.Struct:
        """Return a layout of ``fields``, in which O is an offset, or the size of a record."""
        return struct.Struct(">" + fields.replace("O", self._word))

    def damage_error(self, reason: str) -> DamagedIndex:
        return DamagedIndex("", self.url, reason)

    def finish(self) -> None:
        """End the opening of the file: from now on few pages are kept."""
        self.is_opened = True
        if len(self._pages) > KEPT:
            self._pages.clear()

    def _put(self, first: int, data: bytes) -> None:
        if self.is_opened:
            self.finish()
        for number in range(-(-len(data) // PAGE)):
            self._pages[first + number] = data[number * PAGE : (number + 1) * PAGE]
        if len(self._pages) > MOST_PAGES:
            raise self.damage_error(f"its descriptors are spread over more than {MOST_PAGES * PAGE} bytes")

    def read(self, at: int, size: int) -> Steps[bytes]:
        """Return ``size`` bytes at ``at``, and read the pages that are not in memory."""
        if at < 0 or size < 0 or at + size > self.size:
            raise self.damage_error(
                f"it is cut short or damaged: it refers to byte {at + size}, but has {self.size} bytes"
            )
        first, stop = at // PAGE, -(-(at + size) // PAGE)
        pages = [self._pages.get(number) for number in range(first, stop)]
        if None in pages:
            missing = first + pages.index(None)
            ahead = AHEAD if missing - 1 in self._pages and not self.is_opened else 1
            end = min(max(stop, missing + ahead) * PAGE, self.size)
            data: bytes = yield Load(self.source.part(missing * PAGE, end - missing * PAGE), Raw())
            self._put(missing, data)
            pages[missing - first :] = [data]
        return b"".join([page for page in pages if page])[at - first * PAGE :][:size]

    def read_headers(self, offsets: Sequence[int]) -> Steps[list[tuple[int, int]]]:
        """Return the types of the records at ``offsets``, and the sizes of the values in each: of VVRs and CVVRs."""
        layout = self.layout("OiiO")
        lengths = [min(layout.size, self.size - at) for at in offsets]  # a VVR at the end may be shorter
        for at, length in zip(offsets, lengths, strict=True):
            if at < 0 or length < self.header:
                raise self.damage_error(
                    f"it is cut short or damaged: it refers to byte {at}, but has {self.size} bytes"
                )
        found = [self._pages.get(at // PAGE, b"")[at % PAGE :][: layout.size] for at in offsets]
        missing = [number for number, length in enumerate(lengths) if len(found[number]) < length]
        if missing:
            loads = tuple(Load(self.source.part(offsets[number], lengths[number]), Raw()) for number in missing)
            for number, data in zip(missing, (yield loads), strict=True):
                found[number] = data
        headers = []
        for at, data in zip(offsets, found, strict=True):
            size, kind, _, compressed = layout.unpack(data.ljust(layout.size, b"\0"))
            length = compressed if kind == CVVR else size - self.header
            if kind in (VVR, CVVR) and (length < 0 or at + self.data_at(kind) + length > self.size):
                raise self.damage_error(f"the values at byte {at} end after the file, which has {self.size} bytes")
            headers.append((kind, length))
        return headers

    def data_at(self, kind: int) -> int:
        """Return the offset of the values in a VVR or a CVVR."""
        return self.header if kind == VVR else self.layout("OiiO").size

    def record(self, at: int, kind: int) -> Steps[bytes]:
        """Return the bytes of the record at ``at`` after its type, which is ``kind``."""
        size, found = self.layout("Oi").unpack((yield from self.read(at, self.header)))
        if found != kind or size < self.header:
            raise self.damage_error(
                f"the record at byte {at} has the type {found} and {size} bytes: expected the type {kind}"
            )
        self._left -= 0 if self.is_opened else size
        if self._left < 0:
            raise self.damage_error("its records overlap")
        return (yield from self.read(at + self.header, size - self.header))

    def read_head(self) -> Steps[Head]:
        """Read the descriptors of the file. ManifestError if it is of a kind that is not read."""
        cdr = yield from self.record(8, CDR)
        at, version, release, encoding, flags = self._unpack("Oiiii", cdr)
        if not flags & _IS_SINGLE:
            raise ManifestError(
                f"{self.url}: its variables lie in files of their own: make one file of them by cdfconvert"
            )
        self.is_old = (version, release) < (2, 5)
        gdr = yield from self.record(at, GDR)
        r_variables, z_variables, attributes, _, *counts, _, rank, z_count, _, _, _, _ = self._unpack(
            "OOOOiiiiiOiii", gdr
        )
        lengths = self._unpack(f"{self._check_rank(rank)}i", gdr, self.layout("OOOOiiiiiOiii").size)
        lists = r_variables, z_variables, attributes, (counts[0], z_count, counts[1])
        return Head(encoding, bool(flags & _IS_ROW_MAJOR), lengths, *lists)

    def read_all(self, head: Head) -> Steps[tuple[list[Variable], list[Attribute]]]:
        """Read all variables and attributes of the file, all lists at the same time."""
        variables: list[list[Variable]] = [[], []]
        attributes: list[Attribute] = []
        many: list[Steps[None]] = []
        visited: set[int] = set()  # offsets in all lists: no two lists share a record

        def variables_at(at: int, kind: int, found: list[Variable]) -> Steps[None]:
            while at > 0:
                self._enter(at, visited)
                data = yield from self.record(at, kind)
                at, variable = self._variable(data, kind, head)
                found.append(variable)
                if variable.compression:
                    many.append(compression_of(found, len(found) - 1))

        def compression_of(found: list[Variable], place: int) -> Steps[None]:
            data = yield from self.record(found[place].compression, CPR)
            found[place] = found[place]._replace(compression=self._unpack("i", data)[0])

        def attributes_at(at: int) -> Steps[None]:
            while at > 0:
                self._enter(at, visited)
                data = yield from self.record(at, ADR)
                at, first, scope, _, _, _, _, z_first, _, _, _ = self._unpack(_ADR, data)
                name = self._text(data, self.layout(_ADR).size)
                attribute = Attribute(name, scope in (1, 3), [], [])
                attributes.append(attribute)
                many.append(entries_at(first, attribute.entries, AGR_EDR))
                many.append(entries_at(z_first, attribute.z_entries, AZ_EDR))

        def entries_at(at: int, found: list[Entry], kind: int) -> Steps[None]:
            while at > 0:
                self._enter(at, visited)
                data = yield from self.record(at, kind)
                at, _, dtype, number, elements, strings, *_ = self._unpack(_AEDR, data)
                found.append(Entry(number, dtype, elements, strings, data[self.layout(_AEDR).size :]))

        many += [
            variables_at(head.r_variables, R_VDR, variables[0]),
            variables_at(head.z_variables, Z_VDR, variables[1]),
            attributes_at(head.attributes),
        ]
        yield from run_together(many)
        return variables[0] + variables[1], attributes

    def _variable(self, data: bytes, kind: int, head: Head) -> tuple[int, Variable]:
        """Return the offset of the next descriptor, and the variable; its compression is the offset of a CPR."""
        fields = _VDR.format(gap=128 if self.is_old else 0)
        following, dtype, last, index, _, flags, sparse, elements, number, compression, _ = self._unpack(fields, data)
        at = self.layout(fields).size
        name = self._text(data, at)
        at += self._name
        lengths = head.r_lengths
        if kind == Z_VDR:
            (rank,) = self._unpack("i", data, at)
            lengths = self._unpack(f"{self._check_rank(rank)}i", data, at + 4)
            at += 4 + 4 * rank
        varies = self._unpack(f"{len(lengths)}i", data, at)
        lengths = tuple(length for length, is_there in zip(lengths, varies, strict=True) if is_there)
        records = last + 1 if flags & _RECORDS_VARY else 1
        if min(lengths, default=1) < 0 or records < 0 or math.prod(lengths) * records * elements > _MOST_VALUES:
            raise self.damage_error(
                f"variable {name!r} has {records} records of the shape {lengths}, which is negative or too large"
            )
        pad = data[at + 4 * len(varies) :] if flags & _HAS_PAD else b""
        coding = compression if flags & _IS_COMPRESSED else 0
        of_records = elements, records, bool(flags & _RECORDS_VARY)
        return following, Variable(name, kind == Z_VDR, number, dtype, *of_records, lengths, sparse, pad, index, coding)

    def read_runs(self, at: int, *, is_first: bool = False) -> Steps[list[Run]]:
        """Return the entries of the VXR at ``at`` and, unless ``is_first`` of its list is enough, of the next ones."""
        found: list[Run] = []
        visited: set[int] = set()
        while at > 0:
            self._enter(at, visited)
            data = yield from self.record(at, VXR)
            at, count, used = self._unpack("Oii", data)
            start = self.layout("Oii").size
            if not 0 <= used <= count <= len(data):
                raise self.damage_error(f"an index uses {used} entries: expected 0 to {count}")
            numbers = self._unpack(f"{count}i{count}i" + "O" * count, data, start)
            found += map(Run, numbers[:used], numbers[count : count + used], numbers[2 * count : 2 * count + used])
            if is_first:
                break
            if len(found) * self.header > self.size:
                raise self.damage_error(
                    "its indexes have {len(found)} entries, too many for a file of {self.size} bytes"
                )
        return found

    def _unpack(self, fields: str, data: bytes, at: int = 0) -> tuple[Any, ...]:
        try:
            return self.layout(fields).unpack_from(data, at)
        except struct.error as e:
            raise self.damage_error(f"one of its records has {len(data)} bytes, which is too short: {e}") from e

    def _text(self, data: bytes, at: int) -> str:
        return decode_text(data[at : at + self._name])

    def _check_rank(self, rank: int) -> int:
        if not 0 <= rank <= MOST_DIMENSIONS:
            raise self.damage_error(f"a variable has {rank} dimensions: expected at most {MOST_DIMENSIONS}")
        return rank

    def _enter(self, at: int, visited: set[int]) -> None:
        if at in visited:
            raise self.damage_error(f"its list of records returns to the record at byte {at}")
        visited.add(at)


_VDR: Final = "OiiOOii12x{gap}xiiOi"
_ADR: Final = "OOiiiiiOiii"
_AEDR: Final = "Oiiiiiiiii"


def decode_text(data: bytes) -> str:
    """Decode a text: in UTF-8 since version 3.8, else in Latin-1."""
    data = data.partition(b"\0")[0]
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
