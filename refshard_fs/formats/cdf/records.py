"""Read the records of a CDF file: descriptors of the file, of variables and of attributes, and indexes. No I/O here.

Names (CDR, GDR, VDR, ADR, AEDR, VXR, VVR, CVVR, CPR) come from the document "CDF Internal Format Description". A
record begins with its size and its type, and may lie anywhere in the file. Descriptors of one type form linked lists.
Offsets have 8 bytes in version 3, and 4 bytes in older versions. All numbers except values are big-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from refshard_fs.core.format import FileBytes, decode_text
from refshard_fs.core.model import Inline, Load, Raw, Span, Steps, run_together
from refshard_fs.errors import ManifestError

CDR, GDR, R_VDR, ADR, AGR_EDR, VXR, VVR, Z_VDR, AZ_EDR, CPR, CVVR = 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13
RLE, HUFFMAN, ADAPTIVE_HUFFMAN, GZIP = 1, 2, 3, 5  # kinds of compression

PAGE: Final = 16 << 10  # bytes of a page, the unit of reading
AHEAD: Final = 8  # pages that are read together if the page before them is in memory: lists are often consecutive
WHOLE: Final = 1 << 20  # bytes: files up to this size are read whole when they are opened
MOST_PAGES: Final = (64 << 20) // PAGE  # the most pages that opening a file reads
MOST_PAGES_OPENED: Final = 16  # the most pages that stay in memory after the file was opened
MOST_DIMENSIONS: Final = 32  # the most dimensions of a variable; the format permits 10

_RECORDS_VARY, _HAS_PAD, _IS_COMPRESSED = 1, 2, 4  # flags of a variable
_IS_ROW_MAJOR, _IS_SINGLE, _HAS_CHECKSUM, _IS_MD5 = 1, 2, 4, 8  # flags of a file
_MOST_VALUES: Final = 1 << 60  # the most values of a variable, so that its size in bytes fits into 64 bits


class Head(NamedTuple):
    """The descriptors of a file (CDR and GDR).

    ``r_variables``, ``z_variables`` and ``attributes`` are the offsets of three lists, ``counts`` their lengths.
    """

    encoding: int
    is_row_major: bool
    has_checksum: bool  # the file ends with an MD5 checksum of all bytes before it
    r_lengths: tuple[int, ...]  # lengths of the dimensions that all rVariables share
    r_variables: int
    z_variables: int
    attributes: int
    counts: tuple[int, int, int]


class Variable(NamedTuple):
    """A variable descriptor. ``lengths`` has only the dimensions along which values vary: others are not stored."""

    name: str
    is_z: bool
    number: int
    type: int
    elements: int
    records: int
    varies: bool  # whether it has a dimension of records
    lengths: tuple[int, ...]
    sparse: int  # 0: no record is missing; 1: missing records have the pad value; 2: they repeat the record before
    pad: bytes  # bytes of one value; empty without a pad value
    index_offset: int  # the offset of its first VXR
    compression: int  # the method, such as `GZIP`; 0 if the variable is not compressed

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.records, *self.lengths) if self.varies else self.lengths


class Entry(NamedTuple):
    """An entry of an attribute: its value, and the number of its variable; for a global attribute, its own number."""

    number: int
    type: int
    elements: int
    strings: int
    data: bytes


class Attribute(NamedTuple):
    """An attribute: its ``entries`` for the file or for rVariables, and its ``z_entries`` for zVariables."""

    name: str
    is_global: bool
    entries: list[Entry]
    z_entries: list[Entry]


class Run(NamedTuple):
    """The consecutive records ``first`` to ``last``, and the offset of the VVR, CVVR or VXR that holds them."""

    first: int
    last: int
    offset: int


class Records(FileBytes):
    """Read the records of a file of ``version`` 2 or 3, in pages, because many records share a page."""

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes, version: int) -> None:
        super().__init__(url, source, size, b"")
        self.is_old = False  # before version 2.5
        self._word = "q" if version == 3 else "i"
        self._name_size = 256 if version == 3 else 64
        self.header = self.make_struct("Oi").size
        self.is_opened = False
        self._bytes_left = 2 * size  # bytes of records that opening may still read: records that do not overlap fit
        self._pages: dict[int, bytes] = {}
        self._add_pages(0, head if len(head) >= size else head[: len(head) // PAGE * PAGE])

    def make_struct(self, fields: str) -> struct.Struct:
        """Make a `struct.Struct` of ``fields``, in which O stands for an offset or the size of a record."""
        return struct.Struct(">" + fields.replace("O", self._word))

    def finish_opening(self) -> None:
        """Drop pages at the end of opening the file: from now on, few pages stay in memory."""
        self.is_opened = True
        if len(self._pages) > MOST_PAGES_OPENED:
            self._pages.clear()

    def _add_pages(self, first_page: int, data: bytes) -> None:
        if self.is_opened:
            self.finish_opening()
        for number in range(-(-len(data) // PAGE)):
            self._pages[first_page + number] = data[number * PAGE : (number + 1) * PAGE]
        if len(self._pages) > MOST_PAGES:
            found = f"its descriptors are spread over {len(self._pages) * PAGE} bytes or more"
            raise self.make_error(f"{found}: expected at most {MOST_PAGES * PAGE}")

    def peek(self, start: int, size: int) -> bytes | None:
        """Return ``size`` bytes at ``start`` if they lie in a page in memory; else None."""
        data = self._pages.get(start // PAGE, b"")[start % PAGE :][:size]
        return data if len(data) == size else None

    def read(self, offset: int, size: int) -> Steps[bytes]:
        """Return ``size`` bytes at ``offset``. Read the pages that are not in memory."""
        self.check_range(offset, size)
        first_page, end_page = offset // PAGE, -(-(offset + size) // PAGE)
        pages = [self._pages.get(number) for number in range(first_page, end_page)]
        if None in pages:
            missing = first_page + pages.index(None)
            ahead = AHEAD if missing - 1 in self._pages and not self.is_opened else 1
            end = min(max(end_page, missing + ahead) * PAGE, self.size)
            data: bytes = yield Load(self.part(missing * PAGE, end - missing * PAGE), Raw())
            self._add_pages(missing, data)
            pages[missing - first_page :] = [data]
        return b"".join([page for page in pages if page])[offset - first_page * PAGE :][:size]

    def read_headers(self, offsets: Sequence[int]) -> Steps[list[tuple[int, int]]]:
        """Return the type of each record at ``offsets``, and for a VVR or a CVVR the size of its values in bytes."""
        layout = self.make_struct("OiiO")
        for offset in offsets:
            self.check_range(offset, self.header)
        # A VVR at the end of the file may be shorter than this layout.
        data_by_record = yield from self.load([(at, min(layout.size, self.size - at)) for at in offsets])
        headers = []
        for offset, data in zip(offsets, data_by_record, strict=True):
            size, kind, _, compressed = layout.unpack(data.ljust(layout.size, b"\0"))
            length = compressed if kind == CVVR else size - self.header
            if kind in (VVR, CVVR) and (length < 0 or offset + self.find_values_offset(kind) + length > self.size):
                raise self.make_error(
                    f"the record of values at byte {offset} has {length} bytes of values: expected at least 0, within "
                    f"the file of {self.size} bytes"
                )
            headers.append((kind, length))
        return headers

    def find_values_offset(self, kind: int) -> int:
        """Return the offset of the values in a VVR or a CVVR, from the start of the record."""
        return self.header if kind == VVR else self.make_struct("OiiO").size

    def read_record(self, offset: int, kind: int) -> Steps[bytes]:
        """Read the record at ``offset``, which must be of type ``kind``. Return its bytes after the type."""
        size, record_type = self.make_struct("Oi").unpack((yield from self.read(offset, self.header)))
        if record_type != kind or size < self.header:
            raise self.make_error(
                f"the record at byte {offset} has the type {record_type} and {size} bytes: expected the type {kind} "
                f"and at least {self.header} bytes"
            )
        self._bytes_left -= 0 if self.is_opened else size
        if self._bytes_left < 0:
            raise self.make_error(
                f"its records have more than {2 * self.size} bytes together, so some overlap: expected at most twice "
                f"the size of the file, {self.size}"
            )
        return (yield from self.read(offset + self.header, size - self.header))

    def read_head(self) -> Steps[Head]:
        """Read the descriptors of the file. Raise ManifestError if the file consists of several files."""
        cdr = yield from self.read_record(8, CDR)
        gdr_offset, version, release, encoding, flags = self._unpack_fields("Oiiii", cdr)
        if not flags & _IS_SINGLE:
            raise ManifestError(
                f"{self.url}: its variables lie in separate files: expected one file. Join them with cdfconvert"
            )
        self.is_old = (version, release) < (2, 5)
        gdr = yield from self.read_record(gdr_offset, GDR)
        r_variables, z_variables, attributes, _, *counts, _, rank, z_count, _, _, _, _ = self._unpack_fields(
            "OOOOiiiiiOiii", gdr
        )
        lengths = self._unpack_fields(f"{self._check_rank(rank)}i", gdr, self.make_struct("OOOOiiiiiOiii").size)
        lists = r_variables, z_variables, attributes, (counts[0], z_count, counts[1])
        has_checksum = bool(flags & _HAS_CHECKSUM and flags & _IS_MD5)
        return Head(encoding, bool(flags & _IS_ROW_MAJOR), has_checksum, lengths, *lists)

    def read_all(self, head: Head) -> Steps[tuple[list[Variable], list[Attribute]]]:
        """Read all variables and attributes of the file; their lists are read in the same rounds."""
        variables: list[list[Variable]] = [[], []]
        attributes: list[Attribute] = []
        reads: list[Steps[None]] = []
        visited: set[int] = set()  # offsets in all lists: no two lists share a record

        def read_variables(offset: int, kind: int, result: list[Variable]) -> Steps[None]:
            while offset > 0:
                self._mark_visited(offset, visited)
                data = yield from self.read_record(offset, kind)
                offset, variable = self._parse_variable(data, kind, head)
                result.append(variable)
                if variable.compression:
                    reads.append(read_compression(result, len(result) - 1))

        def read_compression(result: list[Variable], position: int) -> Steps[None]:
            data = yield from self.read_record(result[position].compression, CPR)
            result[position] = result[position]._replace(compression=self._unpack_fields("i", data)[0])

        def read_attributes(offset: int) -> Steps[None]:
            while offset > 0:
                self._mark_visited(offset, visited)
                data = yield from self.read_record(offset, ADR)
                offset, first_entry, scope, _, _, _, _, first_z_entry, _, _, _ = self._unpack_fields(_ADR, data)
                name = self._decode_name(data, self.make_struct(_ADR).size)
                attribute = Attribute(name, scope in (1, 3), [], [])
                attributes.append(attribute)
                reads.append(read_entries(first_entry, attribute.entries, AGR_EDR))
                reads.append(read_entries(first_z_entry, attribute.z_entries, AZ_EDR))

        def read_entries(offset: int, entries: list[Entry], kind: int) -> Steps[None]:
            while offset > 0:
                self._mark_visited(offset, visited)
                data = yield from self.read_record(offset, kind)
                offset, _, dtype, number, elements, strings, *_ = self._unpack_fields(_AEDR, data)
                entries.append(Entry(number, dtype, elements, strings, data[self.make_struct(_AEDR).size :]))

        reads += [
            read_variables(head.r_variables, R_VDR, variables[0]),
            read_variables(head.z_variables, Z_VDR, variables[1]),
            read_attributes(head.attributes),
        ]
        yield from run_together(reads)
        return variables[0] + variables[1], attributes

    def _parse_variable(self, data: bytes, kind: int, head: Head) -> tuple[int, Variable]:
        """Parse a variable descriptor. Return the offset of the next one, and the variable.

        The ``compression`` of the variable is the offset of a CPR, or 0.
        """
        fields = _VDR.format(gap=128 if self.is_old else 0)
        next_offset, dtype, last_record, index, _, flags, sparse, elements, number, compression, _ = (
            self._unpack_fields(fields, data)
        )
        position = self.make_struct(fields).size
        name = self._decode_name(data, position)
        position += self._name_size
        lengths = head.r_lengths
        if kind == Z_VDR:
            (rank,) = self._unpack_fields("i", data, position)
            lengths = self._unpack_fields(f"{self._check_rank(rank)}i", data, position + 4)
            position += 4 + 4 * rank
        varies = self._unpack_fields(f"{len(lengths)}i", data, position)
        lengths = tuple(length for length, is_there in zip(lengths, varies, strict=True) if is_there)
        records = last_record + 1 if flags & _RECORDS_VARY else 1
        if min(lengths, default=1) < 0 or records < 0 or math.prod(lengths) * records * elements > _MOST_VALUES:
            raise self.make_error(
                f"variable {name!r} has {records} records of shape {lengths}: expected numbers of at least 0, and less "
                "than 2**60 values"
            )
        pad = data[position + 4 * len(varies) :] if flags & _HAS_PAD else b""
        coding = compression if flags & _IS_COMPRESSED else 0
        record_fields = elements, records, bool(flags & _RECORDS_VARY)
        return next_offset, Variable(
            name, kind == Z_VDR, number, dtype, *record_fields, lengths, sparse, pad, index, coding
        )

    def read_runs(self, offset: int, *, is_first: bool = False) -> Steps[list[Run]]:
        """Return the entries of the VXR at ``offset`` and, unless ``is_first``, of the following VXRs in the list."""
        runs: list[Run] = []
        visited: set[int] = set()
        while offset > 0:
            self._mark_visited(offset, visited)
            data = yield from self.read_record(offset, VXR)
            offset, count, used_count = self._unpack_fields("Oii", data)
            start = self.make_struct("Oii").size
            if not 0 <= used_count <= count <= len(data):
                found = f"an index has {count} entries, and uses {used_count}"
                raise self.make_error(f"{found}: expected at most {len(data)} entries, and 0 to {count} used ones")
            numbers = self._unpack_fields(f"{count}i{count}i" + "O" * count, data, start)
            columns = (numbers[first : first + used_count] for first in (0, count, 2 * count))
            runs += map(Run, *columns)
            if is_first:
                break
            if len(runs) * self.header > self.size:
                most = self.size // self.header
                raise self.make_error(f"its indexes have {len(runs)} entries or more: expected at most {most}")
        return runs

    def _unpack_fields(self, fields: str, data: bytes, start: int = 0) -> tuple[Any, ...]:
        try:
            return self.make_struct(fields).unpack_from(data, start)
        except struct.error as e:
            least = start + self.make_struct(fields).size
            raise self.make_error(f"one of its records has {len(data)} bytes: expected at least {least}") from e

    def _decode_name(self, data: bytes, start: int) -> str:
        return decode_text(data[start : start + self._name_size].partition(b"\0")[0])

    def _check_rank(self, rank: int) -> int:
        if not 0 <= rank <= MOST_DIMENSIONS:
            raise self.make_error(f"a variable has {rank} dimensions: expected 0 to {MOST_DIMENSIONS}")
        return rank

    def _mark_visited(self, offset: int, visited: set[int]) -> None:
        if offset in visited:
            raise self.make_error(
                f"its list of records has the record at byte {offset} twice: expected each record once"
            )
        visited.add(offset)


_VDR: Final = "OiiOOii12x{gap}xiiOi"
_ADR: Final = "OOiiiiiOiii"
_AEDR: Final = "Oiiiiiiiii"
