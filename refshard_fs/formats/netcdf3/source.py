"""NetCDF-3 files as a group of arrays. Only the header is read when a file is opened. No I/O here.

A variable without records is cut into chunks of about four MiB, and so is the variable with records if there is only
one. The file interleaves the records of several variables: then each of these has a chunk for each record, several
chunks for a large record, or a chunk for several small records. Names are those of the format's specification (classic,
64-bit offset, 64-bit data). Numbers in the header are big-endian. Every count is compared with the remaining bytes
before memory is allocated for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import (
    PACKING,
    PIECE,
    ArrayDescription,
    ArrayGroup,
    Chunks,
    Contiguous,
    ZeroPaddingRecipe,
    choose_chunks,
    convert_fill_value,
    encode_fill_value,
    make_entry,
)
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Entry, Inline, Load, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import COUNTABLE, is_node_name
from refshard_fs.errors import ManifestError
from refshard_fs.formats.netcdf3 import MAGICS

# The header.

MOST_NAMES: Final = 1 << 20  # characters of the names of all variables' dimensions; more only in a larger file
MOST_HEADER: Final = 64 << 20  # bytes of a header; typical headers have kilobytes

_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12  # tags of lists in the header
_TYPES: Final = {
    number: np.dtype(name)
    for number, name in enumerate((">i1", "S1", ">i2", ">i4", ">f4", ">f8", ">u1", ">u2", ">u4", ">i8", ">u8"), 1)
}
_CLASSIC_TYPES: Final = 6  # types up to this number exist in all versions, higher numbers only in CDF-5
_CHAR: Final = np.dtype("S1")


class HeaderIncomplete(Exception):
    """The header is longer than the bytes that were read."""


class Dimension(NamedTuple):
    """A dimension. In the header, the record dimension has the length 0; in variables, the number of records."""

    name: str
    length: int
    is_record: bool


class Variable(msgspec.Struct, frozen=True):
    """A variable; ``begin`` is the byte at which its values, or its first record, begin."""

    name: str
    dimensions: tuple[Dimension, ...]
    attributes: dict[str, Any]
    attribute_dtypes: dict[str, str]
    dtype: np.dtype[Any]
    begin: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dimension.length for dimension in self.dimensions)

    @property
    def is_record(self) -> bool:
        """Whether the variable's first dimension is the record dimension."""
        return bool(self.dimensions) and self.dimensions[0].is_record

    @property
    def slab_size(self) -> int:
        """The size in bytes of the variable's values, or of its values in one record, without padding."""
        return (
            math.prod(dimension.length for dimension in self.dimensions if not dimension.is_record)
            * self.dtype.itemsize
        )


class Header(NamedTuple):
    """The content of a header. ``record_size`` (of all variables together) and ``length`` (of the header) are in bytes.

    ``reports`` are the reasons why variables that are not in ``variables`` are invalid, by name.
    """

    dimensions: tuple[Dimension, ...]
    attributes: dict[str, Any]
    variables: tuple[Variable, ...]
    record_size: int
    length: int
    reports: dict[str, str]


class _Cursor:
    """A cursor over the fields of the header, in a file of ``size`` bytes that begins with ``data``."""

    def __init__(self, data: bytes, size: int, label: str) -> None:
        self.data = data
        self.size = size
        self.label = label
        self.version = data[3]
        self.width = 8 if self.version == 5 else 4  # bytes of a count
        self.at = 4

    def make_error(self, reason: str) -> ManifestError:
        return ManifestError(f"{self.label}: {reason} (byte {self.at} of its header)")

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes, and skip their padding to a multiple of four."""
        end = self.at + count + -count % 4
        if end > self.size:
            raise self.make_error(
                f"it is cut short: expected a header up to byte {end} or more, found {self.size} bytes"
            )
        if end > MOST_HEADER:
            raise self.make_error(f"its header has {end} bytes or more: expected at most {MOST_HEADER}")
        if end > len(self.data):
            raise HeaderIncomplete
        data = self.data[self.at : self.at + count]
        self.at = end
        return data

    def read_uint(self, width: int) -> int:
        """Return the next integer of ``width`` bytes. Raise ManifestError for a negative integer of 8 bytes."""
        number = int.from_bytes(self.take(width), "big")
        if width == 8 and number >= COUNTABLE:
            raise self.make_error(f"expected a number of at least 0, found {number - (1 << 64)}")
        return number

    def read_count(self) -> int:
        """Return the next count, length or index."""
        return self.read_uint(self.width)

    def read_name(self) -> str:
        data = self.take(self.read_count())
        try:
            name, _, _ = data.decode().partition("\0")  # as in netCDF-C, because some writers state a larger length
        except UnicodeDecodeError:
            raise self.make_error(f"expected a name in UTF-8, found {data[:80]!r}") from None
        return name

    def read_list(self, tag: int, label: str) -> range:
        """Read the start of a list. Return the range of its length. Each item takes at least eight bytes."""
        list_tag, count = self.read_uint(4), self.read_count()
        if list_tag not in (0, tag) or (count and not list_tag):
            raise self.make_error(
                f"its list of {label} has the tag {list_tag} and the count {count}: expected the tag {tag}"
            )
        if count * 8 > self.size - self.at:
            most = (self.size - self.at) // 8
            raise self.make_error(
                f"it has {count} {label}: expected at most {most} in the rest of its {self.size} bytes"
            )
        return range(count)

    def read_dtype(self) -> np.dtype[Any]:
        number = self.read_uint(4)
        if number not in _TYPES or (number > _CLASSIC_TYPES and self.version != 5):
            most = max(_TYPES) if self.version == 5 else _CLASSIC_TYPES
            raise self.make_error(
                f"it has a type {number}: expected 1 to {most} in version {self.version} of the format"
            )
        return _TYPES[number]

    def read_attributes(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Read a list of attributes. The second result are the dtypes of packing attributes."""
        attributes: dict[str, Any] = {}
        dtypes: dict[str, str] = {}
        for _ in self.read_list(_ATTRIBUTE, "attributes"):
            name = self.read_name()
            dtype = self.read_dtype()
            data = self.take(self.read_count() * dtype.itemsize)
            if name in attributes:
                raise self.make_error(f"it has two attributes {name!r}: expected attributes of different names")
            attributes[name] = _decode_value(name, dtype, data)
            if name in PACKING and isinstance(attributes[name], (int, float)):
                dtypes[name] = dtype.str
        return attributes, dtypes


def _decode_value(name: str, dtype: np.dtype[Any], data: bytes) -> Any:
    """Decode an attribute to a text, a number, or a list of numbers; a ``_FillValue`` of text to bytes."""
    if dtype == _CHAR:
        return data if name == "_FillValue" else data.decode(errors="replace").replace("\0", "")
    values = np.frombuffer(data, dtype).tolist()
    return values[0] if len(values) == 1 else values


def parse_header(data: bytes, size: int, label: str) -> Header:
    """Parse the header of a file of ``size`` bytes that begins with ``data``; errors begin with ``label``.

    Raises `HeaderIncomplete` if the header is longer than ``data``, ManifestError if it contradicts itself or ``size``.
    """
    cursor = _Cursor(data, size, label)
    records = int.from_bytes(cursor.take(cursor.width), "big")
    dimensions = _read_dimensions(cursor)
    attributes, _ = cursor.read_attributes()
    variables: dict[str, Variable] = {}
    reports: dict[str, str] = {}
    name_length = 0  # characters of dimension names in all variables: zarr's metadata repeat the names
    for _ in cursor.read_list(_VARIABLE, "variables"):
        name = cursor.read_name()
        if name in variables:
            raise cursor.make_error(f"it has two variables {name!r}: expected variables of different names")
        ids = _read_ids(cursor, name)
        problem = _find_problem(ids, dimensions)
        variable_dimensions = tuple(dimensions[number] for number in ids) if problem is None else ()
        variable_attributes, dtypes = cursor.read_attributes()
        dtype = cursor.read_dtype()
        cursor.read_count()  # vsize repeats the size, and is wrong from 4 GiB on: the size follows from the shape
        name_length += sum(len(dimension.name) for dimension in variable_dimensions)
        if name_length > max(MOST_NAMES, size):
            raise cursor.make_error(
                f"the names of its variables' dimensions have {name_length} characters: "
                f"expected at most {max(MOST_NAMES, size)}"
            )
        begin = cursor.read_uint(4 if cursor.version == 1 else 8)
        if problem is None:
            variables[name] = Variable(name, variable_dimensions, variable_attributes, dtypes, dtype, begin)
        else:
            reports[name] = problem
    if hidden := _find_hidden_variable(cursor, dimensions):
        counted = len(variables) + len(reports)
        reports[hidden] = f"expected {counted} variables, as its header states, found this variable after them"
    if reports:  # an invalid variable may be part of each record: then the places of other parts are unknown
        for name in [name for name, variable in variables.items() if variable.is_record]:
            reports[name] = f"its records lie between records of {next(iter(reports))!r}, whose size is unknown"
            del variables[name]
    record_variables = [variable for variable in variables.values() if variable.is_record]
    record_size = sum(variable.slab_size + -variable.slab_size % 4 for variable in record_variables)
    if len(record_variables) == 1:  # its records have no padding
        record_size = record_variables[0].slab_size
    if records == (1 << 8 * cursor.width) - 1:  # the file was written as a stream: the number follows from its size
        begin = min((variable.begin for variable in record_variables), default=size)
        records = max(size - begin, 0) // record_size if record_variables else 0
    if records >= COUNTABLE:
        raise ManifestError(f"{label}: its number of records is {records - (1 << 64)}: expected at least 0")
    complete = []
    for variable in variables.values():
        description = f"variable {variable.name!r}"
        first_dimension, *other_dimensions = variable.dimensions or (None,)
        steps, length = 0, variable.slab_size
        if first_dimension is not None and first_dimension.is_record:
            variable = msgspec.structs.replace(
                variable, dimensions=(first_dimension._replace(length=records), *other_dimensions)
            )
            steps, length = max(records - 1, 0) * record_size, length if records else 0
        if length and variable.begin < cursor.at:
            reports[variable.name] = (
                f"it begins at byte {variable.begin}: expected at least {cursor.at}, after the header"
            )
            continue
        end = variable.begin + steps + length
        if length and end > size:
            raise ManifestError(f"{label} is cut short: expected {description} up to byte {end}, found {size} bytes")
        complete.append(variable)
    _check_overlap(complete, record_size, label)
    return Header(tuple(dimensions), attributes, tuple(complete), record_size, cursor.at, reports)


def _check_overlap(variables: list[Variable], record_size: int, label: str) -> None:
    """Raise ManifestError if two variables lie at the same bytes: a damaged ``begin`` is not noticed otherwise."""
    places = [(v.begin, v.begin + v.slab_size, v.name, v) for v in variables if math.prod(v.shape)]
    records = [place for place in places if place[3].is_record]
    if len(records) and records[0][3].shape[0] > 1:  # all records after the first, as one place
        begin, _, name, variable = min(records, key=lambda place: place[0])
        end = max(records, key=lambda place: place[1])[1] + (variable.shape[0] - 1) * record_size
        places.append((begin + record_size, end, name, variable))
    places.sort(key=lambda place: place[:2])
    for (_, end, name, _), (begin, _, next_name, _) in pairwise(places):
        if begin < end:
            raise ManifestError(
                f"{label}: variable {next_name!r} has values at byte {begin}: expected byte {end} or more, after the "
                f"values of variable {name!r}. The header is damaged"
            )


def _find_hidden_variable(cursor: _Cursor, dimensions: list[Dimension]) -> str:
    """Return the name of a variable that follows the last counted variable: then the count is damaged. "" if none does.

    Other bytes may follow the last variable: the end of an earlier, longer header.
    """
    tail = _Cursor(cursor.data, min(cursor.size, len(cursor.data)), cursor.label)
    tail.at = cursor.at
    try:
        name = tail.read_name()
        ids = _read_ids(tail, name)
        tail.read_attributes()
        tail.read_dtype()
        tail.read_count()
        begin = tail.read_uint(4 if cursor.version == 1 else 8)
    except ManifestError:
        return ""
    return name if _find_problem(ids, dimensions) is None and tail.at <= begin < cursor.size else ""


def _read_dimensions(cursor: _Cursor) -> list[Dimension]:
    dimensions: list[Dimension] = []
    for _ in cursor.read_list(_DIMENSION, "dimensions"):
        name, length = cursor.read_name(), cursor.read_count()
        if not length and any(dimension.is_record for dimension in dimensions):
            found = f"dimension {name!r} is a second record dimension (its length is 0)"
            raise cursor.make_error(f"{found}: expected one record dimension")
        dimensions.append(Dimension(name, length, not length))
    names = [dimension.name for dimension in dimensions]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise cursor.make_error(f"it has two dimensions {twice!r}: expected dimensions of different names")
    return dimensions


def _read_ids(cursor: _Cursor, name: str) -> tuple[int, ...]:
    """Read the numbers of a variable's dimensions in the list of dimensions."""
    rank = cursor.read_count()
    width = cursor.width
    if rank * width > cursor.size - cursor.at:
        raise cursor.make_error(
            f"variable {name!r} has {rank} dimensions: expected at most {(cursor.size - cursor.at) // width} in the "
            f"rest of its {cursor.size} bytes"
        )
    return tuple(np.frombuffer(cursor.take(rank * width), f">u{width}").tolist())


def _find_problem(ids: tuple[int, ...], dimensions: list[Dimension]) -> str | None:
    """Check the dimensions of a variable, given by number. Return the text of an error, or None if they are valid."""
    if any(number >= len(dimensions) for number in ids):
        return f"its dimensions have the numbers {ids}: expected less than {len(dimensions)}, the number of dimensions"
    if any(dimensions[number].is_record for number in ids[1:]):
        return f"its dimensions have the numbers {ids}: expected the record dimension only in the first place"
    return None


# Arrays and their chunks.

GUESS: Final = 256 << 10  # bytes that are read if the header is longer than the first bytes
# Records in a chunk of the record dimension's coordinate. xarray reads such a coordinate whole: with a chunk for each
# of 20,000 records, opening takes 2.4 s instead of 0.2 s.
TIMELINE: Final = 1 << 14
# Bytes of the file that a chunk of this coordinate spans, if it is read together with the other variables.
LONGEST_TIMELINE: Final = 4 * PIECE
SMALL: Final = 4 << 10  # bytes of a variable in a record, up to which several records form a chunk
BAND: Final = 256 << 10  # bytes of the file that a chunk of several records spans: reading one value reads all of them
SPARSE: Final = 16 << 10  # bytes: if records are larger, a request for each record costs less than reading all bytes
SPARSE_IN_SMALL_FILE: Final = 64 << 10  # the same, if all records together have at most `LONGEST_TIMELINE` bytes
GAP: Final = 64 << 10  # bytes between the records of a variable that cost less than a request for each record
# The most bytes of a record, and of all records, with which small values, such as times, are read together with all
# bytes between them: other variables are usually read next, and find their records in memory.
RECORD_WITH_TIME: Final = 128 << 10
RECORDS_WITH_TIMES: Final = 16 * PIECE
REMEMBERED: Final = 16  # headers in the cache
LONGEST: Final = 1 << 16  # bytes of a header in the cache
MOST_DIMENSIONS: Final = 32  # the limit of numpy before version 2


class StridedRecipe(msgspec.Struct, frozen=True):
    """Recipe: cut ``slab`` bytes at ``offset`` out of every ``step`` bytes, and pad with zeros to ``size`` bytes."""

    step: int
    slab: int
    size: int
    offset: int = 0

    def make(self, raw: bytes) -> bytes:
        padded = np.frombuffer(raw.ljust(-(-len(raw) // self.step) * self.step, b"\0"), np.uint8)
        slabs = padded.reshape(-1, self.step)[:, self.offset : self.offset + self.slab].tobytes()
        if len(slabs) > self.size:
            raise ValueError(f"a chunk has {len(slabs)} bytes: expected at most {self.size}")
        return slabs.ljust(self.size, b"\0")


class RecordChunks(Chunks):
    """The chunks of a variable with small records: ``records`` in each chunk, with other variables between them.

    Whole records are read, in the same ranges for all variables, so that a read of the next variable finds them in
    memory. If records are large and many, each part of this variable is read alone. ``begin`` is the byte at which the
    first record begins.
    """

    def __init__(
        self, source: Span | Inline, variable: Variable, record_size: int, records: int, begin: int, file_size: int
    ) -> None:
        self._source = source
        self._variable = variable
        self._record_size = record_size
        self._records = records
        self._begin = begin
        self._file_size = file_size

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        first_record = number * self._records
        count = min(self._records, self._variable.shape[0] - first_record)
        slab, step = self._variable.slab_size, self._record_size
        size = self._records * slab
        is_sparse = _is_sparse(step, self._variable.shape[0])
        if isinstance(self._source, Span) and is_sparse and (count - 1) * step > BAND:
            first = self._variable.begin + first_record * step
            is_near = step <= RECORD_WITH_TIME and step * self._variable.shape[0] <= RECORDS_WITH_TIMES
            parts = msgspec.structs.replace(self._source, interleaved=is_near)
            whole_range = parts.part(first, (count - 1) * step + slab)
            slabs = tuple(parts.part(first + index * step, slab) for index in range(count))
            assert isinstance(whole_range, Span)
            return Packed(whole_range, ZeroPaddingRecipe(size), size, parts=slabs)
        offset = self._variable.begin - self._begin
        if not 0 <= offset <= step - slab:  # a damaged header: the variable does not lie within the records
            offset = 0
        first = self._variable.begin - offset + first_record * step
        # The file may end within the last record, after its last value.
        source = self._source.part(first, min(count * step, self._file_size - first))
        if isinstance(source, Span):
            source = msgspec.structs.replace(source, mixed=True)
        band = _count_records_per_band(step) * step
        length = source.size or 0
        cuts = tuple((at, min(band, length - at)) for at in range(0, length, band)) if length > band else ()
        return make_entry(source, StridedRecipe(step, slab, size, offset), size, "", cuts)


class _Layout(NamedTuple):
    """A parsed header, which may belong to several files: files of one writer often have the same header.

    Records of ``record_size`` bytes begin at the byte ``begin``.
    """

    data: bytes
    record_size: int
    begin: int
    variables: Mapping[str, tuple[Variable, ArrayDescription]]  # without variables that cannot be shown
    group: ArrayGroup


class _FileChunks(Mapping[str, Chunks]):
    """The chunks of a file's variables, by path. They are made when they are used: a cube reads only few variables."""

    def __init__(self, source: Span | Inline, file_size: int, url: str, layout: _Layout) -> None:
        self._source = source
        self._file_size = file_size
        self._url = url
        self._layout = layout
        self._made: dict[str, Chunks] = {}

    def __getitem__(self, path: str) -> Chunks:
        if path not in self._made:
            self._made[path] = self._make_chunks(path)
        return self._made[path]

    def _make_chunks(self, path: str) -> Chunks:
        variable, array = self._layout.variables[path]
        size = self._layout.record_size
        records = _count_records_per_chunk(variable, size)
        if records > 1:
            return RecordChunks(self._source, variable, size, records, self._layout.begin, self._file_size)
        stride = size if variable.is_record else None
        label = f"{self._url}, variable {path!r}"
        source = self._source
        if isinstance(source, Span) and stride is not None and 0 < size - variable.slab_size <= GAP:
            source = msgspec.structs.replace(source, interleaved=True)
        return Contiguous(source, variable.begin, array.shape, array.chunks, array.dtype.itemsize, label, stride)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.variables)

    def __len__(self) -> int:
        return len(self._layout.variables)


# A cache of parsed headers, by file size and zarr format. Without it, opening a file takes three times as long.
_layouts: Final[LRU[tuple[int, int], _Layout]] = LRU(REMEMBERED)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a NetCDF-3 file."""
    source, size = probe.file("NetCDF-3 file")
    if probe.head[:4] not in MAGICS:
        raise ManifestError(f"{probe.url}: expected a NetCDF-3 file, found the first bytes {probe.head[:4]!r}")
    key = size, options.zarr_format
    layout = _layouts.get(key)
    if layout is None or not probe.head.startswith(layout.data):
        header, data = yield from _read_header(probe, size)
        layout = _make_layout(header, data, probe.url, options.zarr_format)
        if len(data) <= LONGEST:
            _layouts.put(key, layout)
    return layout.group.with_chunks(_FileChunks(source, size, probe.url, layout))


def _make_layout(header: Header, data: bytes, url: str, zarr_format: int) -> _Layout:
    variables: dict[str, tuple[Variable, ArrayDescription]] = {}
    reports = dict(header.reports)
    for variable in header.variables:
        name, label = variable.name, f"{url}, variable {variable.name!r}"
        reason = _find_refusal(variable)
        if reason is not None:
            reports[name] = reason
            continue
        variables[name] = variable, _describe(variable, header.record_size, label)
    arrays = {name: array for name, (_, array) in variables.items()}
    group = ArrayGroup(arrays, {}, zarr_format, header.attributes, reports)
    group.attribute_dtypes = {
        variable.name: variable.attribute_dtypes for variable in header.variables if variable.attribute_dtypes
    }
    group.unlimited_dimensions = {"": [dimension.name for dimension in header.dimensions if dimension.is_record]}
    begin = min((variable.begin for variable in header.variables if variable.is_record), default=0)
    return _Layout(data, header.record_size, begin, variables, group)


def _read_header(probe: Probe, size: int) -> Steps[tuple[Header, bytes]]:
    """Read and parse the header. The second result are its bytes."""
    data = probe.head
    pin = None if probe.facts is None else probe.facts.pin
    length = GUESS
    while True:
        try:
            header = parse_header(data, size, probe.url)
        except HeaderIncomplete:
            data = yield Load(Span(probe.url, 0, min(length, size), pin=pin), Raw())
            length *= 16
        else:
            return header, data[: header.length]


def _find_refusal(variable: Variable) -> str | None:
    """Return the reason why a variable cannot be shown; None if it can be shown."""
    if not is_node_name(variable.name):
        return f"its name is {variable.name!r}: expected a name that can be part of a key of zarr"
    if len(variable.dimensions) > MOST_DIMENSIONS:
        return f"it has {len(variable.dimensions)} dimensions: expected at most {MOST_DIMENSIONS}"
    return None


def _count_records_per_chunk(variable: Variable, record_size: int) -> int:
    """Return the number of records in a chunk of a variable; 1 if its records are large, or lie without gaps."""
    if not variable.is_record or record_size == variable.slab_size:
        return 1
    count, band = 1, _count_records_per_band(record_size)
    if [dimension.name for dimension in variable.dimensions] == [variable.name]:
        count = TIMELINE
        if not _is_sparse(record_size, variable.shape[0]):
            count = max(min(count, LONGEST_TIMELINE // record_size) // band, 1) * band
    elif variable.slab_size <= SMALL:
        count = band
    return max(min(count, variable.shape[0]), 1)


def _is_sparse(record_size: int, records: int) -> bool:
    """Return whether to request a small variable record by record, rather than all bytes of the records."""
    is_small = record_size * records <= LONGEST_TIMELINE
    return record_size > (SPARSE_IN_SMALL_FILE if is_small else SPARSE)


def _count_records_per_band(record_size: int) -> int:
    """Return the number of records in the ranges of the file that variables with small records share."""
    return max(BAND // record_size, 1)


def _describe(variable: Variable, record_size: int, label: str) -> ArrayDescription:
    shape, dtype = variable.shape, variable.dtype
    records = _count_records_per_chunk(variable, record_size)
    if variable.is_record and record_size > variable.slab_size:
        chunks = (records, *choose_chunks(shape[1:], dtype.itemsize))
    else:
        chunks = choose_chunks(shape, dtype.itemsize)
    attributes, fill = _split_fill(variable.attributes, dtype)
    names = [dimension.name for dimension in variable.dimensions]
    return ArrayDescription(label, shape, chunks, dtype, names, attributes, fill_value=fill, is_masked=True)


def _split_fill(attributes: dict[str, Any], dtype: np.dtype[Any]) -> tuple[dict[str, Any], Any]:
    """Return the attributes without ``_FillValue``, and the fill value as JSON (None: not a value of ``dtype``)."""
    other_attributes = {name: value for name, value in attributes.items() if name != "_FillValue"}
    match attributes.get("_FillValue"):
        case bytes(text) if dtype.kind == "S" and len(text) == 1:
            return other_attributes, encode_fill_value(text, dtype)
        case value:
            return other_attributes, convert_fill_value(value, dtype)
