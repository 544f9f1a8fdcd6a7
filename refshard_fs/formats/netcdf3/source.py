"""NetCDF-3 files as a group of arrays. Only the header is read when a file is opened. No I/O here.

A variable without records is cut into pieces of about four MiB. The file interleaves the records of all variables: a
variable with records has a chunk for each record, or for several small records. Names are those of the format's
specification (classic, 64-bit offset, 64-bit data). Numbers in the header are big-endian. Every count is compared with
the remaining bytes before memory is allocated for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
    Padded,
    choose_chunks,
    encode_fill_value,
    fill_of,
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

MOST_NAMES: Final = 1 << 20  # characters of dimension names, counted for each variable, in a small file
MOST_HEADER: Final = 64 << 20  # bytes of a header; real headers have kilobytes

_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12  # tags of lists in the header
_TYPES: Final = {
    number: np.dtype(name)
    for number, name in enumerate((">i1", "S1", ">i2", ">i4", ">f4", ">f8", ">u1", ">u2", ">u4", ">i8", ">u8"), 1)
}
_CLASSIC_TYPES: Final = 6  # types up to this number exist in all versions, others only in CDF-5
_CHAR: Final = np.dtype("S1")


class Short(Exception):
    """The header continues after the given bytes."""


class Dimension(NamedTuple):
    """A dimension; the length of the record dimension is the number of records."""

    name: str
    length: int
    is_record: bool


class Variable(msgspec.Struct, frozen=True):
    """A variable; ``begin`` is the position of its values, or of its first record."""

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
        """Whether its first dimension is the record dimension."""
        return bool(self.dimensions) and self.dimensions[0].is_record

    @property
    def slab(self) -> int:
        """Size of its values in bytes, or of one record's, without padding."""
        return math.prod(d.length for d in self.dimensions if not d.is_record) * self.dtype.itemsize


class Header(NamedTuple):
    """The content of a header. ``record_size`` is the distance of records, ``length`` the size of the header, in bytes.

    ``reports`` say why other variables are invalid.
    """

    dimensions: tuple[Dimension, ...]
    attributes: dict[str, Any]
    variables: tuple[Variable, ...]
    record_size: int
    length: int
    reports: dict[str, str]


class _Cursor:
    """A cursor over the fields of the header, in a file of ``size`` bytes that begins with ``data``."""

    def __init__(self, data: bytes, size: int, where: str) -> None:
        self.data = data
        self.size = size
        self.where = where
        self.version = data[3]
        self.width = 8 if self.version == 5 else 4  # bytes of a count
        self.at = 4

    def error(self, reason: str) -> ManifestError:
        return ManifestError(f"{self.where}: {reason} (byte {self.at} of its header)")

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes, and skip their padding to a multiple of four."""
        end = self.at + count + -count % 4
        if end > self.size:
            raise self.error(f"it is cut short: its header continues to byte {end}, the file has {self.size}")
        if end > MOST_HEADER:
            raise self.error(f"its header has more than {MOST_HEADER} bytes")
        if end > len(self.data):
            raise Short
        found = self.data[self.at : self.at + count]
        self.at = end
        return found

    def uint(self, width: int) -> int:
        """Return the next integer of ``width`` bytes. One of 8 bytes is signed and may not be negative."""
        number = int.from_bytes(self.take(width), "big")
        if width == 8 and number >= COUNTABLE:
            raise self.error(f"a number must not be negative: {number - (1 << 64)}")
        return number

    def number(self) -> int:
        """Return the next count, length or index."""
        return self.uint(self.width)

    def name(self) -> str:
        data = self.take(self.number())
        try:
            return data.decode().partition("\0")[0]  # some lengths are too large: netCDF-C stops at the NUL
        except UnicodeDecodeError:
            raise self.error(f"a name is not UTF-8: {data[:80]!r}") from None

    def entries(self, tag: int, what: str) -> range:
        """Return the numbers of a list's entries. Each entry takes at least eight bytes."""
        found, count = self.uint(4), self.number()
        if found not in (0, tag) or (count and not found):
            raise self.error(f"its list of {what} has the tag {found} and the count {count}: expected the tag {tag}")
        if count * 8 > self.size - self.at:
            raise self.error(f"it is cut short or damaged: {count} {what} do not fit into its {self.size} bytes")
        return range(count)

    def dtype(self) -> np.dtype[Any]:
        number = self.uint(4)
        if number not in _TYPES or (number > _CLASSIC_TYPES and self.version != 5):
            raise self.error(f"version {self.version} of the format does not define type {number}")
        return _TYPES[number]

    def attributes(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return attributes, and the dtypes of packing attributes."""
        found: dict[str, Any] = {}
        dtypes: dict[str, str] = {}
        for _ in self.entries(_ATTRIBUTE, "attributes"):
            name = self.name()
            dtype = self.dtype()
            data = self.take(self.number() * dtype.itemsize)
            if name in found:
                raise self.error(f"it has two attributes named {name!r}")
            found[name] = _decode_value(name, dtype, data)
            if name in PACKING and isinstance(found[name], (int, float)):
                dtypes[name] = dtype.str
        return found, dtypes


def _decode_value(name: str, dtype: np.dtype[Any], data: bytes) -> Any:
    """Return an attribute as JSON: text, a number, or a list of numbers; a ``_FillValue`` of text as bytes."""
    if dtype == _CHAR:
        return data if name == "_FillValue" else data.decode(errors="replace").replace("\0", "")
    values = np.frombuffer(data, dtype).tolist()
    return values[0] if len(values) == 1 else values


def parse_header(data: bytes, size: int, where: str) -> Header:
    """Parse the header of a file of ``size`` bytes that begins with ``data``; errors begin with ``where``.

    Raises `Short` if ``data`` are too few, and ManifestError if the header contradicts itself or the file's size.
    """
    cursor = _Cursor(data, size, where)
    records = int.from_bytes(cursor.take(cursor.width), "big")
    dimensions = _read_dimensions(cursor)
    attributes, _ = cursor.attributes()
    variables: dict[str, Variable] = {}
    reports: dict[str, str] = {}
    named = 0  # bytes of dimension names for each variable: zarr's metadata repeat them
    for _ in cursor.entries(_VARIABLE, "variables"):
        name = cursor.name()
        if name in variables:
            raise cursor.error(f"it has two variables named {name!r}")
        ids = _read_ids(cursor, name)
        problem = _find_problem(ids, dimensions)
        shared = tuple(dimensions[number] for number in ids) if problem is None else ()
        of_it, dtypes = cursor.attributes()
        dtype = cursor.dtype()
        cursor.number()  # vsize is redundant, and wrong for variables of 4 GiB or more: the shape gives the size
        named += sum(len(dimension.name) for dimension in shared)
        if named > max(MOST_NAMES, size):
            raise cursor.error(f"the names of its variables' dimensions have {named} characters, more than the file")
        begin = cursor.uint(4 if cursor.version == 1 else 8)
        if problem is None:
            variables[name] = Variable(name, shared, of_it, dtypes, dtype, begin)
        else:
            reports[name] = problem
    if hidden := _find_hidden_variable(cursor, dimensions):
        reports[hidden] = f"its header counts only the {len(variables) + len(reports)} variables before this one"
    if reports:  # such a variable may be part of each record, so the position of other parts is unknown
        for name in [name for name, variable in variables.items() if variable.is_record]:
            reports[name] = f"its records lie between those of {next(iter(reports))!r}, whose size is unknown"
            del variables[name]
    recorded = [variable for variable in variables.values() if variable.is_record]
    record_size = sum(variable.slab + -variable.slab % 4 for variable in recorded)
    if len(recorded) == 1:  # its records have no padding
        record_size = recorded[0].slab
    if records == (1 << 8 * cursor.width) - 1:  # the file was written as a stream: count records by its size
        begin = min((variable.begin for variable in recorded), default=size)
        records = max(size - begin, 0) // record_size if recorded else 0
    if records >= COUNTABLE:
        raise ManifestError(f"{where}: its number of records is negative: {records}")
    whole = []
    for variable in variables.values():
        what = f"variable {variable.name!r}"
        first, *others = variable.dimensions or (None,)
        steps, length = 0, variable.slab
        if first is not None and first.is_record:
            variable = msgspec.structs.replace(variable, dimensions=(first._replace(length=records), *others))
            steps, length = max(records - 1, 0) * record_size, length if records else 0
        if length and variable.begin < cursor.at:
            reports[variable.name] = f"it begins at byte {variable.begin}, within the header"
            continue
        end = variable.begin + steps + length
        if length and end > size:
            raise ManifestError(f"{where} is cut short: {what} ends at byte {end}, the file at byte {size}")
        whole.append(variable)
    return Header(tuple(dimensions), attributes, tuple(whole), record_size, cursor.at, reports)


def _find_hidden_variable(cursor: _Cursor, dimensions: list[Dimension]) -> str:
    """Return the name of a variable that lies behind the counted ones, as where the count is damaged; "" if none does.

    Other bytes may lie there: the end of a header that was longer.
    """
    rest = _Cursor(cursor.data, min(cursor.size, len(cursor.data)), cursor.where)
    rest.at = cursor.at
    try:
        name = rest.name()
        ids = _read_ids(rest, name)
        rest.attributes()
        rest.dtype()
        rest.number()
        begin = rest.uint(4 if cursor.version == 1 else 8)
    except ManifestError:
        return ""
    return name if _find_problem(ids, dimensions) is None and rest.at <= begin < cursor.size else ""


def _read_dimensions(cursor: _Cursor) -> list[Dimension]:
    found: list[Dimension] = []
    for _ in cursor.entries(_DIMENSION, "dimensions"):
        name, length = cursor.name(), cursor.number()
        if not length and any(dimension.is_record for dimension in found):
            raise cursor.error(f"dimension {name!r} is a second record dimension: its length is 0")
        found.append(Dimension(name, length, not length))
    if len({dimension.name for dimension in found}) < len(found):
        raise cursor.error("two dimensions have the same name")
    return found


def _read_ids(cursor: _Cursor, name: str) -> tuple[int, ...]:
    """Return the numbers of a variable's dimensions."""
    rank = cursor.number()
    width = cursor.width
    if rank * width > cursor.size - cursor.at:
        raise cursor.error(f"variable {name!r} has {rank} dimensions, which do not fit into its {cursor.size} bytes")
    return tuple(np.frombuffer(cursor.take(rank * width), f">u{width}").tolist())


def _find_problem(ids: tuple[int, ...], dimensions: list[Dimension]) -> str | None:
    """Return the reason why a variable cannot have the dimensions ``ids``; None if it can."""
    if any(number >= len(dimensions) for number in ids):
        return f"it has the dimensions number {ids}, but the file has {len(dimensions)} dimensions"
    if any(dimensions[number].is_record for number in ids[1:]):
        return "the record dimension is not its first dimension"
    return None


# Arrays and their chunks.

GUESS: Final = 256 << 10  # bytes that are read if the header is longer than the first bytes
# With a chunk for each of 20,000 records of a coordinate, opening takes 2.4 s instead of 0.2 s: xarray reads it whole.
TIMELINE: Final = 1 << 14  # records in a chunk of a coordinate along the records
SMALL: Final = 4 << 10  # bytes of a record, up to which several records of a variable form a chunk;
BAND: Final = 256 << 10  # such a chunk spans this number of bytes of the file: the cost of reading one value
SPARSE: Final = 16 << 10  # distance of records in bytes from which one request a record costs less than all bytes
REMEMBERED: Final = 16  # headers in the cache, each of up to
LONGEST: Final = 1 << 16  # bytes
MOST_DIMENSIONS: Final = 32  # the limit of older numpy versions


class StridedRecipe(msgspec.Struct, frozen=True):
    """Takes the first ``slab`` bytes of each ``step``, and adds zeros up to ``size`` bytes."""

    step: int
    slab: int
    size: int

    def make(self, raw: bytes) -> bytes:
        whole = np.frombuffer(raw.ljust(-(-len(raw) // self.step) * self.step, b"\0"), np.uint8)
        taken = whole.reshape(-1, self.step)[:, : self.slab].tobytes()
        if len(taken) > self.size:
            raise ValueError(f"a chunk has {len(taken)} bytes: expected at most {self.size}")
        return taken.ljust(self.size, b"\0")


class RecordChunks(Chunks):
    """The chunks of a variable with small records: each has many records, with other variables between them.

    If the bytes between them are few, the whole range is read; otherwise each record alone.
    """

    def __init__(self, source: Span | Inline, variable: Variable, record_size: int, records: int) -> None:
        self._source = source
        self._variable = variable
        self._record_size = record_size
        self._records = records

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        first = number * self._records
        count = min(self._records, self._variable.shape[0] - first)
        slab, step = self._variable.slab, self._record_size
        found = self._source.part(self._variable.begin + first * step, (count - 1) * step + slab)
        size = self._records * slab
        if isinstance(found, Span) and (count - 1) * step > (BAND if step > SPARSE else PIECE):
            parts = tuple(found.part(i * step, slab) for i in range(count))
            return Packed(found, Padded(size), size, parts=parts)
        return make_entry(found, StridedRecipe(step, slab, size), size, "")


class _Layout(NamedTuple):
    """The header of a file, without its URL. Files of one writer often have the same header, byte by byte."""

    data: bytes
    record_size: int
    variables: Mapping[str, tuple[Variable, ArrayDescription]]  # only variables that are shown
    group: ArrayGroup


class _FileChunks(Mapping[str, Chunks]):
    """The chunks of a file's variables, by path, made on demand: a cube reads few of a file's variables."""

    def __init__(self, source: Span | Inline, url: str, layout: _Layout) -> None:
        self._source = source
        self._url = url
        self._layout = layout

    def __getitem__(self, path: str) -> Chunks:
        variable, array = self._layout.variables[path]
        size = self._layout.record_size
        records = _records_per_chunk(variable, size)
        if records > 1:
            return RecordChunks(self._source, variable, size, records)
        stride = size if variable.is_record else None
        where = f"{self._url}, variable {path!r}"
        return Contiguous(self._source, variable.begin, array.shape, array.chunks, array.dtype.itemsize, where, stride)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.variables)

    def __len__(self) -> int:
        return len(self._layout.variables)


# A cache of recent headers, by file size and zarr version. Without it, opening a file takes three times as long.
_layouts: Final[LRU[tuple[int, int], _Layout]] = LRU(REMEMBERED)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a NetCDF-3 file."""
    source, size = probe.file("NetCDF-3")
    if probe.head[:4] not in MAGICS:
        raise ManifestError(f"{probe.url} begins with other bytes than a NetCDF-3 file")
    kind = size, options.zarr_format
    layout = _layouts.get(kind)
    if layout is None or not probe.head.startswith(layout.data):
        header, data = yield from _read_header(probe, size)
        layout = _make_layout(header, data, probe.url, options.zarr_format)
        if len(data) <= LONGEST:
            _layouts.put(kind, layout)
    return layout.group.with_chunks(_FileChunks(source, probe.url, layout))


def _make_layout(header: Header, data: bytes, url: str, zarr_format: int) -> _Layout:
    variables: dict[str, tuple[Variable, ArrayDescription]] = {}
    reports = dict(header.reports)
    for variable in header.variables:
        name, where = variable.name, f"{url}, variable {variable.name!r}"
        reason = _find_refusal(variable)
        if reason is not None:
            reports[name] = reason
            continue
        variables[name] = variable, _describe(variable, header.record_size, where)
    arrays = {name: array for name, (_, array) in variables.items()}
    group = ArrayGroup(arrays, {}, zarr_format, header.attributes, reports)
    group.attribute_dtypes = {v.name: v.attribute_dtypes for v in header.variables if v.attribute_dtypes}
    group.unlimited_dimensions = {"": [dimension.name for dimension in header.dimensions if dimension.is_record]}
    return _Layout(data, header.record_size, variables, group)


def _read_header(probe: Probe, size: int) -> Steps[tuple[Header, bytes]]:
    """Read the header. Return it with its bytes."""
    data = probe.head
    pin = None if probe.facts is None else probe.facts.pin
    most = GUESS
    while True:
        try:
            header = parse_header(data, size, probe.url)
        except Short:
            data = yield Load(Span(probe.url, 0, min(most, size), pin=pin), Raw())
            most *= 16
        else:
            return header, data[: header.length]


def _find_refusal(variable: Variable) -> str | None:
    """Return the reason why a variable cannot be shown; None if it can."""
    if not is_node_name(variable.name):
        return f"its name {variable.name!r} cannot be part of a key"
    if len(variable.dimensions) > MOST_DIMENSIONS:
        return f"it has {len(variable.dimensions)} dimensions: expected at most {MOST_DIMENSIONS}"
    return None


def _records_per_chunk(variable: Variable, record_size: int) -> int:
    """Return the number of a variable's records in a chunk; 1 for parts of a record and for records without gaps."""
    if not variable.is_record or record_size == variable.slab:
        return 1
    count = 1
    if [dimension.name for dimension in variable.dimensions] == [variable.name]:
        count = TIMELINE
    elif variable.slab <= SMALL:
        count = BAND // record_size
    return max(min(count, variable.shape[0]), 1)


def _describe(variable: Variable, record_size: int, where: str) -> ArrayDescription:
    shape, dtype = variable.shape, variable.dtype
    records = _records_per_chunk(variable, record_size)
    if variable.is_record and record_size > variable.slab:
        chunks = (records, *choose_chunks(shape[1:], dtype.itemsize))
    else:
        chunks = choose_chunks(shape, dtype.itemsize)
    attributes, fill = _split_fill(variable.attributes, dtype)
    names = [dimension.name for dimension in variable.dimensions]
    return ArrayDescription(where, shape, chunks, dtype, names, attributes, fill_value=fill, is_masked=True)


def _split_fill(attributes: dict[str, Any], dtype: np.dtype[Any]) -> tuple[dict[str, Any], Any]:
    """Return the attributes without ``_FillValue``, and its JSON for zarr; None if it is not a value of ``dtype``."""
    others = {name: value for name, value in attributes.items() if name != "_FillValue"}
    match attributes.get("_FillValue"):
        case bytes(text) if dtype.kind == "S" and len(text) == 1:
            return others, encode_fill_value(text, dtype)
        case value:
            return others, fill_of(value, dtype)
