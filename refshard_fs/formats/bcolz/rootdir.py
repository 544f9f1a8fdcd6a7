"""bcolz rootdirs (0.7 to 1.2, and bcolz-zipline): a carray is a group of one array, a ctable a group of columns.

A chunk is a file with one blosc frame. A full chunk is the unchanged frame. The last chunk is shorter in its file, and
is padded while it is read. No I/O here.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks, make_entry
from refshard_fs.core.dtypes import parse_dtype
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Load, ParsedIndex, Raw, Span, Stat, Steps
from refshard_fs.core.zarrmeta import COUNTABLE, check_integer, check_integers, is_node_name, object_in, shorten
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.formats.bcolz import COLUMNS, STORAGE
from refshard_fs.formats.bcolz.blosc import (
    BODY,
    EXPANSION,
    LARGEST,
    FrameHeader,
    ReframeRecipe,
    StoredFrame,
    describe_compressor,
    parse_frame_header,
)
from refshard_fs.security.policy import protocol_of, relative_to

SIZES: Final = "meta/sizes"
ATTRIBUTES: Final = "__attrs__"
DATA: Final = "data"  # the name of a carray's array
ROW: Final = "row"  # the name of the dimension that a ctable's columns share

FILE_HEADER: Final = 16  # bytes of bcolz's header in a chunk file, before the blosc frame
MOST_DOCUMENT: Final = 1 << 20  # bytes: a JSON document must have fewer

_CODECS: Final = frozenset(["blosclz", "lz4", "lz4hc", "zlib", "zstd"])


def parse_chunk_file(data: bytes) -> FrameHeader:
    """Parse the first 32 bytes of a chunk file: bcolz's header, then the frame's header. Return the frame's header."""
    if len(data) < FILE_HEADER + BODY:
        raise ValueError(f"it is cut short: expected two headers of {FILE_HEADER + BODY} bytes, found {len(data)}")
    if data[:4] != b"blpk":
        raise ValueError(f"it begins with {data[:4]!r}: expected b'blpk'")
    if data[4] != 1:
        raise ValueError(f"its format version is {data[4]}: expected 1 in a bcolz chunk")
    if any(data[5:8]):
        raise ValueError(f"its reserved bytes are {data[5:8].hex(' ')}: expected zeros")
    frames = int.from_bytes(data[8:16], "little", signed=True)
    if frames != 1:
        raise ValueError(f"its nchunks is {frames}: expected 1 in a bcolz chunk")
    return parse_frame_header(data[FILE_HEADER:])


class CarrayChunks(Chunks):
    """The chunks of one carray, which has ``length`` rows of ``row_size`` bytes. A chunk has ``rows`` rows."""

    def __init__(self, url: str, length: int, rows: int, row_size: int, dtype: np.dtype[Any]) -> None:
        self._url = url
        self._length = length
        self._rows_per_chunk = rows
        self._row_size = row_size
        self._dtype = dtype

    def find_entry(self, number: int) -> Steps[Entry | None]:
        url = self._make_chunk_url(number)
        frame = yield from self._read_frame(number)
        full = self._rows_per_chunk * self._row_size
        rows = min(self._rows_per_chunk, self._length - number * self._rows_per_chunk)
        if frame.length == full:
            return Span(url, FILE_HEADER, FILE_HEADER + frame.stored_size)
        least = rows * self._row_size
        if not least <= frame.length < full:
            raise DamagedIndex("", url, f"blosc nbytes {frame.length}: expected {least} (for {rows} rows) to {full}")
        if number and full > frame.stored_size * EXPANSION:
            yield from self._check_full_chunk(number - 1, full)
        recipe = ReframeRecipe((StoredFrame(0, frame.stored_size, frame.length),), full, frame.typesize)
        return make_entry(Span(url, FILE_HEADER, FILE_HEADER + frame.stored_size), recipe, recipe.encoded_size, url)

    def _read_frame(self, number: int) -> Steps[FrameHeader]:
        url = self._make_chunk_url(number)
        load = Load(Span(url, 0, FILE_HEADER + BODY, exact=False, optional=True), ParsedIndex(parse_chunk_file))
        frame: FrameHeader | None = yield load
        if frame is None:
            raise DamagedIndex("", url, "expected a file for each chunk of the carray: this file is missing")
        if self._dtype.itemsize % frame.typesize:
            expected = f"expected a divisor of {self._dtype.itemsize}, the size of {self._dtype}"
            raise DamagedIndex("", url, f"blosc typesize {frame.typesize}: {expected}")
        return frame

    def _check_full_chunk(self, number: int, full: int) -> Steps[None]:
        """Raise DamagedIndex unless chunk ``number`` has ``full`` bytes, as the metadata say.

        If the metadata were damaged, padding the last chunk to this size could take any amount of memory.
        """
        url = self._make_chunk_url(number)
        frame = yield from self._read_frame(number)
        facts: Facts | None = yield Stat(url)
        if frame.length != full:
            raise DamagedIndex("", url, f"blosc nbytes {frame.length}: expected {full}")
        if facts is None or (facts.size is not None and facts.size < FILE_HEADER + frame.stored_size):
            found = "no file" if facts is None else f"{facts.size} bytes"
            expected = f"expected {FILE_HEADER + frame.stored_size} bytes (blosc ctbytes and header)"
            raise DamagedIndex("", url, f"it is cut short: {expected}, found {found}")

    def _make_chunk_url(self, number: int) -> str:
        return relative_to(self._url, f"data/__{number}.blp")


def _read_documents(url: str, names: tuple[str, ...], directories: tuple[str, ...]) -> Steps[list[bytes | None]]:
    """Read the files ``names`` in each of ``directories``, which are paths below ``url``. A missing file is None."""
    urls = [relative_to(url, f"{path}/{name}" if path else name) for path in directories for name in names]
    documents = yield tuple(
        Load(Span(document_url, 0, MOST_DOCUMENT, exact=False, optional=True), Raw()) for document_url in urls
    )
    for document_url, data in zip(urls, documents, strict=True):
        if data is not None and len(data) == MOST_DOCUMENT:
            raise ManifestError(f"{document_url} has {MOST_DOCUMENT} bytes or more: expected fewer")
    return list(documents)


def _describe_carray(
    url: str, documents: list[bytes | None], row: str, prefix: str, zarr_format: int
) -> tuple[ArrayDescription, CarrayChunks]:
    """Describe the carray at ``url``. ``documents`` are its storage, sizes and attributes; None for a missing file."""
    label = relative_to(url, STORAGE)
    storage, sizes, attributes = documents
    if storage is None:
        raise ManifestError(f"expected the data type of the carray in {label}, found no such file")
    if not storage:
        raise ManifestError(
            f"{label}: expected the data type of the carray, found an empty file. Write the carray again"
        )
    doc = object_in(storage, label)
    dtype = parse_dtype(doc.get("dtype"), label, zarr_format)
    chunklen = check_integer(doc.get("chunklen"), "chunklen", label, 1)
    cparams = _parse_cparams(doc.get("cparams"), label, dtype)
    if sizes is None:
        raise ManifestError(f"expected the shape of the carray in {relative_to(url, SIZES)}, found no such file")
    shape = _parse_shape(sizes, relative_to(url, SIZES), dtype)
    attrs = object_in(attributes, relative_to(url, ATTRIBUTES)) if attributes is not None else {}
    # A single chunk has the size of the array, so it needs no padding.
    rows = shape[0] if 0 < shape[0] <= chunklen else chunklen
    row_size = math.prod(shape[1:]) * dtype.itemsize
    if min(rows, shape[0]) * row_size > LARGEST:
        found = f"its 'chunklen' {chunklen} makes chunks of {min(rows, shape[0]) * row_size} bytes"
        raise ManifestError(f"{label}: {found}: expected at most {LARGEST}")
    dimensions = (row, *(f"{prefix}{axis}" for axis in range(1, len(shape))))
    chunks = (rows, *(max(extent, 1) for extent in shape[1:]))
    array = ArrayDescription(label, shape, chunks, dtype, dimensions, attrs, [cparams])
    return array, CarrayChunks(url, shape[0], rows, row_size, dtype)


def _parse_shape(data: bytes, label: str, dtype: np.dtype[Any]) -> tuple[int, ...]:
    doc = object_in(data, label)
    shape = check_integers(doc.get("shape"), "shape", label)
    if not 0 < len(shape) <= 32:
        raise ManifestError(f"{label}: its 'shape' has {len(shape)} dimensions: expected 1 to 32")
    size = math.prod(shape) * dtype.itemsize
    if size >= COUNTABLE:
        raise ManifestError(f"{label}: its 'shape' {shorten(list(shape))} takes {size} bytes: expected less than 2**63")
    if "nbytes" in doc and check_integer(doc.get("nbytes"), "nbytes", label) != size:
        raise ManifestError(f"{label}: its 'nbytes' is {doc['nbytes']}: expected {size} for its shape and dtype")
    return shape


def _parse_cparams(cparams: object, label: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    match cparams:
        case {**parameters}:
            codec = parameters.get("cname", "blosclz")  # before 0.8, bcolz had only this codec
            level, shuffle = parameters.get("clevel", 5), parameters.get("shuffle", True)
            if codec == "snappy":
                raise ManifestError(
                    f"{label}: its 'cname' is snappy, which zarr's blosc codec cannot decode: expected "
                    f"{', '.join(sorted(_CODECS))}"
                )
            if not isinstance(codec, str) or codec not in _CODECS:
                expected = ", ".join(sorted(_CODECS))
                raise ManifestError(f"{label}: its 'cname' is {shorten(codec)}: expected {expected}")
            match level, shuffle:
                case int(), bool() | 0 | 1 | 2 if 0 <= level <= 9:
                    return describe_compressor(codec, int(level), int(shuffle), min(dtype.itemsize, 255))
    expected = "expected an object with a clevel from 0 to 9, and a shuffle of 0, 1 or 2"
    raise ManifestError(f"{label}: its 'cparams' are {shorten(cparams)}: {expected}")


def _parse_column_names(data: bytes, label: str, reports: dict[str, str]) -> tuple[str, ...]:
    """Return the names of columns. For a name that cannot be the name of a directory, add a report to ``reports``."""
    names = object_in(data, label).get("names")
    if not isinstance(names, list):
        raise ManifestError(f"{label}: its 'names' is {shorten(names)}: expected a list")
    columns: list[str] = []
    for name in names:
        if isinstance(name, str) and is_node_name(name):
            columns.append(name)
        else:
            reports[shorten(name)] = f"{label}: its 'names' contain {shorten(name)}: expected a name of a directory"
    if len(set(columns)) < len(columns):
        raise ManifestError(f"{label}: expected distinct 'names', found {shorten(names)}")
    if names and not columns:
        raise ManifestError(f"{label}: its 'names' are {shorten(names)}: expected at least one name of a directory")
    return tuple(columns)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a bcolz array or table."""
    url = probe.url
    table = probe.documents.get(COLUMNS)
    attributes: dict[str, Any] = {}
    reports: dict[str, str] = {}
    columns: tuple[str, ...] = (DATA,)
    paths: tuple[str, ...] = ("",)
    if table is not None:
        columns = _parse_column_names(table.data, relative_to(url, COLUMNS), reports)
        (table_attributes,) = yield from _read_documents(url, (ATTRIBUTES,), ("",))
        try:
            attributes = (
                object_in(table_attributes, relative_to(url, ATTRIBUTES)) if table_attributes is not None else {}
            )
        except ManifestError as e:
            reports["attributes of '/'"] = str(e)
        paths = tuple(map(quote, columns)) if protocol_of(url) in ("http", "https") else columns
    names = (STORAGE, SIZES, ATTRIBUTES)
    documents = (yield from _read_documents(url, names, paths)) if columns else []
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, CarrayChunks] = {}
    for column, (name, path) in enumerate(zip(columns, paths, strict=True)):
        row, prefix = ("dim_0", "dim_") if table is None else (ROW, f"{name}_dim_")
        column_documents = documents[column * len(names) : (column + 1) * len(names)]
        column_url = relative_to(url, path) if path else url
        try:
            arrays[name], chunks[name] = _describe_carray(
                column_url, column_documents, row, prefix, options.zarr_format
            )
        except ManifestError as e:
            if table is None:
                raise
            reports[name] = str(e)
    if columns and not arrays:
        raise ManifestError(
            f"{url}: expected at least one column that can be shown, found none: {next(iter(reports.values()))}"
        )
    lengths = {name: array.shape[0] for name, array in arrays.items()}
    length_counts = Counter(lengths.values()).most_common()
    if len(length_counts) > 1 and length_counts[0][1] == length_counts[1][1]:
        raise ManifestError(f"{url}: expected columns of one length, found {shorten(lengths)}")
    for name, length in lengths.items():
        if length != length_counts[0][0]:
            most, count = length_counts[0]
            reports[name] = f"it has {length} rows: expected {most}, as in {count} of the {len(lengths)} columns"
            del arrays[name]
    return ArrayGroup(arrays, chunks, options.zarr_format, attributes, reports)
