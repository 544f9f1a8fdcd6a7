"""NetCDF-3 files as a group of arrays: opened by their header alone. No I/O here.

A variable without records is cut into pieces of about four MiB. The records of all variables take turns in the file: a
variable with records has a chunk for each, or for several where there is little in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import (
    PIECE,
    ArrayDescription,
    ArrayGroup,
    Chunks,
    Contiguous,
    Padded,
    fill_of,
    made,
    pieces,
    spelled_fill,
)
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Load, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import is_node_name
from refshard_fs.errors import ManifestError
from refshard_fs.formats.netcdf3 import MAGICS
from refshard_fs.formats.netcdf3.header import Header, Short, Variable, parse_header

GUESS: Final = 256 << 10  # bytes that are read of a header longer than the first bytes of the file
# Of 20,000 records, a chunk for each of their coordinate's made opening take 2.4 s instead of 0.2 s; it is read whole.
TIMELINE: Final = 1 << 14  # records of a chunk of their coordinate
SMALL: Final = 4 << 10  # bytes in a record of variables that have several records in a chunk,
BAND: Final = 256 << 10  # which lie in so many bytes of the file: what reading one value costs at most
REMEMBERED: Final = 16  # headers of files that were opened, each of up to so many bytes:
LONGEST: Final = 1 << 16
MOST_DIMENSIONS: Final = 32  # that numpy has everywhere


class Taken(msgspec.Struct, frozen=True):
    """The first ``slab`` bytes of each ``step``, with zeros up to ``size`` bytes."""

    step: int
    slab: int
    size: int

    def make(self, raw: bytes) -> bytes:
        whole = np.frombuffer(raw.ljust(-(-len(raw) // self.step) * self.step, b"\0"), np.uint8)
        taken = whole.reshape(-1, self.step)[:, : self.slab].tobytes()
        if len(taken) > self.size:
            raise ValueError(f"{len(taken)} bytes are more than the {self.size} of a chunk")
        return taken.ljust(self.size, b"\0")


class Records(Chunks):
    """The chunks of a variable with little in each record, each of many records; between them lie other variables.

    Where that is not much, all of it is read, and else what is wanted alone.
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
        if isinstance(found, Span) and (count - 1) * step > PIECE:
            parts = tuple(found.part(i * step, slab) for i in range(count))
            return Packed(found, Padded(size), size, parts=parts)
        return made(found, Taken(step, slab, size), size, "")


class _Layout(NamedTuple):
    """What a header says of a file: all but its URL. Files of one writer have the same header, byte by byte."""

    data: bytes
    record_size: int
    variables: Mapping[str, tuple[Variable, ArrayDescription]]  # those that are shown
    group: ArrayGroup


class _FileChunks(Mapping[str, Chunks]):
    """The chunks of a file's variables, by path; of ten thousand files, few chunks of one variable are read."""

    def __init__(self, source: Span | Inline, url: str, layout: _Layout) -> None:
        self._source = source
        self._url = url
        self._layout = layout

    def __getitem__(self, path: str) -> Chunks:
        variable, array = self._layout.variables[path]
        size = self._layout.record_size
        records = _together(variable, size)
        if records > 1:
            return Records(self._source, variable, size, records)
        stride = size if variable.is_record else None
        where = f"{self._url}, variable {path!r}"
        return Contiguous(self._source, variable.begin, array.shape, array.chunks, array.dtype.itemsize, where, stride)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.variables)

    def __len__(self) -> int:
        return len(self._layout.variables)


# By size and zarr version of the files that were opened last. Without it, opening a file takes three times as long.
_layouts: Final[dict[tuple[int, int], _Layout]] = {}


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a NetCDF-3 file."""
    source, size = probe.file("NetCDF-3")
    if probe.head[:4] not in MAGICS:
        raise ManifestError(f"{probe.url} begins with other bytes: it is no NetCDF-3 file that can be read")
    kind = size, options.zarr_format
    layout = _layouts.get(kind)
    if layout is None or not probe.head.startswith(layout.data):
        header, data = yield from _header(probe, size)
        layout = _laid_out(header, data, probe.url, options.zarr_format)
        if len(data) <= LONGEST:
            _layouts[kind] = layout
            with suppress(KeyError, RuntimeError):  # other threads do the same
                while len(_layouts) > REMEMBERED:
                    del _layouts[next(iter(_layouts))]
    return layout.group.with_chunks(_FileChunks(source, probe.url, layout))


def _laid_out(header: Header, data: bytes, url: str, zarr_format: int) -> _Layout:
    variables: dict[str, tuple[Variable, ArrayDescription]] = {}
    reports: dict[str, str] = {}
    for variable in header.variables:
        name, where = variable.name, f"{url}, variable {variable.name!r}"
        reason = _unshown(variable)
        if reason is not None:
            reports[name] = reason
            continue
        variables[name] = variable, _described(variable, header.record_size, where)
    arrays = {name: array for name, (_, array) in variables.items()}
    group = ArrayGroup(arrays, {}, zarr_format, header.attributes, reports)
    group.attribute_dtypes = {v.name: v.attribute_dtypes for v in header.variables if v.attribute_dtypes}
    group.unlimited_dimensions = {"": [dimension.name for dimension in header.dimensions if dimension.is_record]}
    return _Layout(data, header.record_size, variables, group)


def _header(probe: Probe, size: int) -> Steps[tuple[Header, bytes]]:
    """Return the header, and its bytes."""
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


def _unshown(variable: Variable) -> str | None:
    """Return why a variable cannot be shown as an array; None if it can."""
    if not is_node_name(variable.name):
        return f"its name {variable.name!r} is no name that a key can have"
    if len(variable.dimensions) > MOST_DIMENSIONS:
        return f"it has {len(variable.dimensions)} dimensions, more than {MOST_DIMENSIONS}"
    return None


def _together(variable: Variable, record_size: int) -> int:
    """Return how many records of a variable are a chunk; 1 for pieces of one record, or of records without a gap."""
    if not variable.is_record or record_size == variable.slab:
        return 1
    count = 1
    if [dimension.name for dimension in variable.dimensions] == [variable.name]:
        count = TIMELINE
    elif variable.slab <= SMALL:
        count = BAND // record_size
    return max(min(count, variable.shape[0]), 1)


def _described(variable: Variable, record_size: int, where: str) -> ArrayDescription:
    shape, dtype = variable.shape, variable.dtype
    records = _together(variable, record_size)
    if variable.is_record and record_size > variable.slab:
        chunks = (records, *pieces(shape[1:], dtype.itemsize))
    else:
        chunks = pieces(shape, dtype.itemsize)
    attributes, fill = _fill(variable.attributes, dtype)
    names = [dimension.name for dimension in variable.dimensions]
    return ArrayDescription(where, shape, chunks, dtype, "C", None, names, attributes, fill_value=fill, is_masked=True)


def _fill(attributes: dict[str, Any], dtype: np.dtype[Any]) -> tuple[dict[str, Any], Any]:
    """Return the attributes without ``_FillValue``, and that as zarr spells it; None if it is no value of ``dtype``."""
    others = {name: value for name, value in attributes.items() if name != "_FillValue"}
    match attributes.get("_FillValue"):
        case bytes(text) if dtype.kind == "S" and len(text) == 1:
            return others, spelled_fill(text, dtype)
        case value:
            return others, fill_of(value, dtype)
