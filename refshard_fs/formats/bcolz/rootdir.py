"""bcolz rootdirs (0.7 to 1.2, and bcolz-zipline): a carray is a group of one array, a ctable a group of columns.

A chunk is a file with one blosc frame. A full chunk is the frame as stored; the last chunk, shorter on disk, is padded
when it is read. No I/O here.
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
from refshard_fs.core.model import Entry, Facts, Load, Parsed, Raw, Span, Stat, Steps
from refshard_fs.core.zarrmeta import COUNTABLE, check_integer, check_integers, is_node_name, object_in, shorten
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.formats.bcolz import COLUMNS, STORAGE
from refshard_fs.formats.bcolz.blosc import (
    BODY,
    EXPANSION,
    LARGEST,
    FrameHeader,
    Piece,
    ReframeRecipe,
    describe_compressor,
    parse,
)
from refshard_fs.security.policy import protocol_of, relative_to

SIZES: Final = "meta/sizes"
ATTRIBUTES: Final = "__attrs__"
DATA: Final = "data"  # name of a carray's array
ROW: Final = "row"  # the common dimension of a ctable's columns

FILE_HEADER: Final = 16
MOST: Final = 1 << 20  # bytes of a JSON document

_CODECS: Final = frozenset(["blosclz", "lz4", "lz4hc", "zlib", "zstd"])


def parse_chunk_file(data: bytes) -> FrameHeader:
    """Parse bcolz's header and the frame's header, the first 32 bytes of a chunk's file. Return the frame's header."""
    if len(data) < FILE_HEADER + BODY:
        raise ValueError(f"it is cut short: it has {len(data)} bytes, its two headers have {FILE_HEADER + BODY}")
    if data[:4] != b"blpk":
        raise ValueError(f"it begins with {data[:4]!r}: expected b'blpk'")
    if data[4] != 1:
        raise ValueError(f"its format version is {data[4]}: expected 1 in a bcolz chunk")
    if any(data[5:8]):
        raise ValueError(f"its reserved bytes are {data[5:8].hex(' ')}: expected zeros")
    frames = int.from_bytes(data[8:16], "little", signed=True)
    if frames != 1:
        raise ValueError(f"its nchunks is {frames}: expected 1 in a bcolz chunk")
    return parse(data[FILE_HEADER:])


class CarrayChunks(Chunks):
    """The chunks of one carray: ``rows`` rows of ``row_size`` bytes each, and ``length`` rows in all."""

    def __init__(self, url: str, length: int, rows: int, row_size: int, dtype: np.dtype[Any]) -> None:
        self._url = url
        self._length = length
        self._rows_per_chunk = rows
        self._row_size = row_size
        self._dtype = dtype

    def entry(self, number: int) -> Steps[Entry | None]:
        url = self._chunk_url(number)
        frame = yield from self._read_frame(number)
        full = self._rows_per_chunk * self._row_size
        rows = min(self._rows_per_chunk, self._length - number * self._rows_per_chunk)
        if frame.length == full:
            return Span(url, FILE_HEADER, FILE_HEADER + frame.stored)
        if not rows * self._row_size <= frame.length < full:
            due = f"expected {rows} rows of {self._row_size} bytes or a full chunk"
            raise DamagedIndex("", url, f"blosc nbytes {frame.length}: {due}")
        if number and full > frame.stored * EXPANSION:
            yield from self._check_full_chunk(number - 1, full)
        recipe = ReframeRecipe((Piece(0, frame.stored, frame.length),), full, frame.typesize)
        return make_entry(Span(url, FILE_HEADER, FILE_HEADER + frame.stored), recipe, recipe.made, url)

    def _read_frame(self, number: int) -> Steps[FrameHeader]:
        url = self._chunk_url(number)
        load = Load(Span(url, 0, FILE_HEADER + BODY, exact=False, optional=True), Parsed(parse_chunk_file))
        frame: FrameHeader | None = yield load
        if frame is None:
            raise DamagedIndex("", url, "expected a file for each chunk of the carray: this file is missing")
        if self._dtype.itemsize % frame.typesize:
            raise DamagedIndex("", url, f"blosc typesize {frame.typesize} does not divide the size of {self._dtype}")
        return frame

    def _check_full_chunk(self, number: int, full: int) -> Steps[None]:
        """Check that a chunk has the size in the metadata: padding another chunk to this size allocates memory."""
        url = self._chunk_url(number)
        frame = yield from self._read_frame(number)
        facts: Facts | None = yield Stat(url)
        if frame.length != full:
            raise DamagedIndex("", url, f"blosc nbytes {frame.length}: expected {full}")
        if facts is None or (facts.size is not None and facts.size < FILE_HEADER + frame.stored):
            raise DamagedIndex("", url, f"it is cut short: expected blosc ctbytes {frame.stored}")

    def _chunk_url(self, number: int) -> str:
        return relative_to(self._url, f"data/__{number}.blp")


def _read_documents(url: str, names: tuple[str, ...], where: tuple[str, ...]) -> Steps[list[bytes | None]]:
    """Read each of ``names`` in each of the directories ``where`` (paths below ``url``); None if it is missing."""
    urls = [relative_to(url, f"{path}/{name}" if path else name) for path in where for name in names]
    found = yield tuple(Load(Span(u, 0, MOST, exact=False, optional=True), Raw()) for u in urls)
    for u, data in zip(urls, found, strict=True):
        if data is not None and len(data) == MOST:
            raise ManifestError(f"{u} has more than {MOST} bytes: expected a JSON document of at most that many")
    return list(found)


def _describe_carray(
    url: str, found: list[bytes | None], row: str, prefix: str, zarr_format: int
) -> tuple[ArrayDescription, CarrayChunks]:
    """Describe the carray at ``url``, whose storage, sizes and attributes are ``found``."""
    where = relative_to(url, STORAGE)
    storage, sizes, attributes = found
    if storage is None:
        raise ManifestError(f"{where} is missing: a carray needs it")
    if not storage:
        raise ManifestError(f"{where} is empty: the writer ended before it wrote it")
    doc = object_in(storage, where)
    dtype = parse_dtype(doc.get("dtype"), where, zarr_format)
    chunklen = check_integer(doc.get("chunklen"), "chunklen", where, 1)
    cparams = _parse_cparams(doc.get("cparams"), where, dtype)
    if sizes is None:
        raise ManifestError(f"{relative_to(url, SIZES)} is missing: it has the shape")
    shape = _parse_shape(sizes, relative_to(url, SIZES), dtype)
    attrs = object_in(attributes, relative_to(url, ATTRIBUTES)) if attributes is not None else {}
    rows = shape[0] if 0 < shape[0] <= chunklen else chunklen  # a single chunk is never padded
    row_size = math.prod(shape[1:]) * dtype.itemsize
    if min(rows, shape[0]) * row_size > LARGEST:
        raise ManifestError(f"{where}: its 'chunklen' {chunklen} makes chunks larger than a frame, {LARGEST} bytes")
    dimensions = (row, *(f"{prefix}{axis}" for axis in range(1, len(shape))))
    chunks = (rows, *(max(extent, 1) for extent in shape[1:]))
    array = ArrayDescription(where, shape, chunks, dtype, dimensions, attrs, [cparams])
    return array, CarrayChunks(url, shape[0], rows, row_size, dtype)


def _parse_shape(data: bytes, where: str, dtype: np.dtype[Any]) -> tuple[int, ...]:
    doc = object_in(data, where)
    shape = check_integers(doc.get("shape"), "shape", where)
    if not 0 < len(shape) <= 32:
        raise ManifestError(f"{where}: its 'shape' has {len(shape)} dimensions: expected 1 to 32")
    size = math.prod(shape) * dtype.itemsize
    if size >= COUNTABLE:
        raise ManifestError(f"{where}: its 'shape' {shorten(list(shape))} has too many bytes for 63 bits")
    if "nbytes" in doc and check_integer(doc.get("nbytes"), "nbytes", where) != size:
        raise ManifestError(f"{where}: its 'nbytes' is {doc['nbytes']}, but shape and dtype take {size}")
    return shape


def _parse_cparams(cparams: object, where: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    match cparams:
        case {**given}:
            codec = given.get("cname", "blosclz")  # the only codec before bcolz 0.8
            level, shuffle = given.get("clevel", 5), given.get("shuffle", True)
            if codec == "snappy":
                raise ManifestError(f"{where}: its 'cname' is snappy, which zarr's blosc codec cannot decode")
            if not isinstance(codec, str) or codec not in _CODECS:
                raise ManifestError(f"{where}: its 'cname' {shorten(codec)} is not a codec of blosc")
            match level, shuffle:
                case int(), bool() | 0 | 1 | 2 if 0 <= level <= 9:
                    return describe_compressor(codec, int(level), int(shuffle), min(dtype.itemsize, 255))
    raise ManifestError(f"{where}: its 'cparams' {shorten(cparams)} are not parameters of blosc")


def _parse_column_names(data: bytes, where: str, reports: dict[str, str]) -> tuple[str, ...]:
    """Return the names of columns; add to ``reports`` why other names cannot be directories."""
    names = object_in(data, where).get("names")
    if not isinstance(names, list):
        raise ManifestError(f"{where}: its 'names' is {shorten(names)}: expected a list")
    found: list[str] = []
    for name in names:
        if isinstance(name, str) and is_node_name(name):
            found.append(name)
        else:
            reports[shorten(name)] = f"{where}: {shorten(name)} in its 'names' cannot be the name of a directory"
    if len(set(found)) < len(found):
        raise ManifestError(f"{where}: expected distinct 'names'")
    if names and not found:
        raise ManifestError(f"{where}: none of its 'names' can be the name of a directory: {shorten(names)}")
    return tuple(found)


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
        (own,) = yield from _read_documents(url, (ATTRIBUTES,), ("",))
        try:
            attributes = object_in(own, relative_to(url, ATTRIBUTES)) if own is not None else {}
        except ManifestError as e:
            reports["attributes of '/'"] = str(e)
        paths = tuple(map(quote, columns)) if protocol_of(url) in ("http", "https") else columns
    names = (STORAGE, SIZES, ATTRIBUTES)
    found = (yield from _read_documents(url, names, paths)) if columns else []
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, CarrayChunks] = {}
    for i, (name, path) in enumerate(zip(columns, paths, strict=True)):
        row, prefix = ("dim_0", "dim_") if table is None else (ROW, f"{name}_dim_")
        documents = found[i * len(names) : (i + 1) * len(names)]
        where = relative_to(url, path) if path else url
        try:
            arrays[name], chunks[name] = _describe_carray(where, documents, row, prefix, options.zarr_format)
        except ManifestError as e:
            if table is None:
                raise
            reports[name] = str(e)
    if columns and not arrays:
        raise ManifestError(f"{url}: none of its columns can be shown. {next(iter(reports.values()))}")
    lengths = {name: array.shape[0] for name, array in arrays.items()}
    most = Counter(lengths.values()).most_common()
    if len(most) > 1 and most[0][1] == most[1][1]:
        raise ManifestError(f"{url}: expected columns of one length, found {shorten(lengths)}")
    for name, length in lengths.items():
        if length != most[0][0]:
            reports[name] = f"it has {length} rows, but most columns have {most[0][0]}"
            del arrays[name]
    return ArrayGroup(arrays, chunks, options.zarr_format, attributes, reports)
