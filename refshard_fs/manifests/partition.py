"""Rows of one array's references, as one parquet file holds them: bytes to columns, and back. No I/O here.

Row ``r`` of partition ``i`` is the chunk whose number in the array's grid is ``i * record_size + r``. Parquet is read
and written with pyarrow alone, which is an extra and imported at the first use.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.columns import ABSENT, WHOLE, Row, UInt32s, UInt64s
from refshard_fs.manifests.parquet_pages import Footer, check_pages
from refshard_fs.model import Quota

__all__ = ["Partition", "PartitionIndex", "encode", "require_pyarrow"]

MIB = 1 << 20
ROWS = 1 << 24  # that a partition may have: they take 20 bytes each, and may be written in next to none
DECODED = 1024 * MIB  # that its columns may say they take, uncompressed
THINGS = 100_000  # that a list in its footer may have
OFFSETS = 2**63  # parquet's integers are signed
COLUMNS = ("path", "offset", "size", "raw")
_SHARED = ("path", "raw")  # read as dictionaries: each value is made once, however many rows have it
_USUAL = list(COLUMNS)  # as every writer of such sets has them

_KINDS = {
    **dict.fromkeys(("string", "large_string"), "text"),
    **dict.fromkeys(("binary", "large_binary"), "bytes"),
    **{f"{sign}int{bits}": "whole numbers" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

Booleans = npt.NDArray[np.bool_]


class Partition:
    """References of consecutive chunks of one array; immutable.

    A row's target is a place in ``urls`` (as written; None: the default target), ABSENT where
    the row has data in ``inline`` or there is no such chunk; its length may be WHOLE. ``extras``
    hold what only chunk manifests can say of a row: checks, by name; or nothing, if it is empty
    on purpose.
    """

    __slots__ = ("_lengths", "_offsets", "_targets", "extras", "inline", "lengths", "offsets", "targets", "urls")

    def __init__(
        self,
        urls: Sequence[str | None],
        targets: UInt32s,
        offsets: UInt64s,
        lengths: UInt64s,
        inline: Mapping[int, bytes],
        extras: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self.urls, self.inline = urls, inline
        self.extras = extras or {}
        self.targets, self.offsets, self.lengths = targets, offsets, lengths
        self._targets, self._offsets, self._lengths = targets.data, offsets.data, lengths.data

    def __len__(self) -> int:
        """Number of rows, whether their chunks exist or not."""
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, roughly."""
        columns = self.targets.nbytes + self.offsets.nbytes + self.lengths.nbytes
        texts = sum(len(url or "") + 60 for url in self.urls)
        return columns + texts + sum(len(data) + 130 for data in self.inline.values())

    def value(self, row: int) -> Row | bytes | None:
        """Return the reference or data in ``row``, or None if there is no such chunk."""
        target = self._targets[row]
        if target == ABSENT:
            return self.inline.get(row) if self.inline else None
        length = self._lengths[row]
        return Row(target, self._offsets[row], None if length == WHOLE else length)

    def present(self, start: int, stop: int) -> list[int]:
        """Return the rows in ``[start, stop)`` whose chunks exist, ascending."""
        there = self.targets[start:stop] != ABSENT
        if self.inline:
            rows = np.fromiter(self.inline, np.int64, len(self.inline))
            there[rows[(rows >= start) & (rows < stop)] - start] = True
        found: list[int] = (np.flatnonzero(there) + start).tolist()
        return found

    def sizes(self, rows: Sequence[int]) -> list[int | None]:
        """Return the lengths in bytes of ``rows``, which exist; None for whole targets."""
        lengths = self.lengths[rows]
        out: list[int | None] = lengths.tolist()
        for i in np.flatnonzero(lengths == WHOLE).tolist():
            out[i] = None
        if self.inline:
            for i, row in enumerate(rows):
                data = self.inline.get(row)
                if data is not None:
                    out[i] = len(data)
        return out

    def items(self) -> Iterator[tuple[int, Row | bytes]]:
        """Yield (row, reference or data) of each chunk that exists, ascending."""
        for row in self.present(0, len(self)):
            value = self.value(row)
            assert value is not None
            yield row, value


class PartitionIndex(msgspec.Struct, frozen=True):
    """Decodes a partition's bytes.

    ``chunks`` of the array's grid lie in it, and it may have rows up to ``record_size``.
    ``version`` tells the states of a set that was rewritten; ``quota`` bounds how many
    partitions of it are remembered.
    """

    chunks: int
    record_size: int
    version: str = ""
    quota: Quota | None = None

    def decode(self, data: bytes) -> Partition:
        pa, _ = require_pyarrow()
        try:
            footer = Footer(data)
        except ValueError as e:
            raise ValueError(f"it is no parquet file that can be read: {e}") from e
        try:
            with pa.BufferReader(data) as source:
                file = _opened(source, len(data), [name for name in _SHARED if name.encode() in footer.names])
                self._check(file.metadata)
                # To make Arrow's schema of it takes as long as to read a column.
                is_usual = file.metadata.schema.names == _USUAL
                names = _USUAL if is_usual else _columns(file.schema_arrow.names)
                check_pages(data, footer, file.schema, names)
                # Not by what the file says of its columns (whether one is null throughout): where that contradicts
                # itself, pyarrow does not raise an error, but ends the process.
                table = file.read(columns=names, use_threads=False, use_pandas_metadata=False)
            if table.num_rows < self.chunks:
                raise ValueError(f"it has {table.num_rows} rows, and {self.chunks} chunks lie in it")
            if table.num_rows > self.chunks:
                table = table.slice(0, self.chunks)
            return _partition({name: table.column(name) for name in names}, self.chunks)
        except (pa.ArrowException, OSError, MemoryError, RuntimeError) as e:  # the last is of Parquet's own checks
            if isinstance(e, ValueError) and not isinstance(e, pa.ArrowException):
                raise
            raise ValueError(f"it is no parquet file that can be read: {e}") from e

    def _check(self, metadata: Any) -> None:
        rows = metadata.num_rows
        if rows < self.chunks:
            raise ValueError(f"it has {rows} rows, and {self.chunks} chunks lie in it")
        if rows > min(self.record_size, ROWS):
            raise ValueError(f"it has {rows} rows, more than the {min(self.record_size, ROWS)} that there may be")
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        if size > DECODED:
            raise ValueError(f"its columns would take {size} bytes, more than {DECODED} are allowed")


def require_pyarrow() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet; an ImportError that names the extra where there are none."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise ImportError("parquet reference sets need pyarrow: pip install 'refshard_fs[parquet]'") from e
    return pyarrow, pyarrow.parquet


def _opened(source: Any, size: int, shared: list[str]) -> Any:
    """Return an open file, whose columns ``shared`` are read as dictionaries where there are such.

    Its footer can name no more things than the file has bytes, and memory is taken for no more.
    """
    _, parquet = require_pyarrow()
    options = {"page_checksum_verification": True, "thrift_container_size_limit": min(size, THINGS) or 1}
    try:
        return parquet.ParquetFile(source, read_dictionary=shared, **options)
    except KeyError:  # there is no such column
        return parquet.ParquetFile(source, **options)


def _columns(there: Sequence[str]) -> list[str]:
    """Return which of our columns are there; ValueError if none is, or one is there twice."""
    names = [name for name in COLUMNS if name in there]
    if not names:
        raise ValueError(f"it has none of the columns {', '.join(COLUMNS)}")
    twice = [name for name in names if list(there).count(name) > 1]
    if twice:
        raise ValueError(f"it has the column {twice[0]!r} twice")
    return names


def _partition(columns: Mapping[str, Any], rows: int) -> Partition:
    urls, targets = _paths(columns.get("path"), rows)
    offsets = _integers("offset", columns.get("offset"), rows)
    lengths = _integers("size", columns.get("size"), rows)
    inline = _raw(columns.get("raw"))
    if inline:
        targets = targets.copy()
        targets[np.fromiter(inline, np.int64, len(inline))] = ABSENT
    spans, sizes = offsets.view(np.uint64), lengths.view(np.uint64)
    if int(spans.max()) + int(sizes.max()) >= OFFSETS:  # as negative ones are, too
        there = targets != ABSENT
        wrong = np.flatnonzero(there & ((offsets < 0) | (lengths < 0) | (offsets > OFFSETS - 1 - lengths)))
        for row in wrong.tolist():
            raise ValueError(f"row {row} is no byte range: offset {offsets[row]}, size {lengths[row]}")
    if not sizes.all():
        sizes = np.where((targets != ABSENT) & (sizes == 0) & (spans == 0), np.uint64(WHOLE), sizes)
    return Partition(urls, targets, spans, sizes, inline)


# Arrow arrays are read through their buffers: Arrow's own ways to numpy import pandas, if there is one.


def _absent(array: Any) -> Booleans | None:
    """Return which rows are null; None if none is."""
    if not array.null_count:
        return None
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    absent: Booleans = bits[array.offset : array.offset + len(array)] == 0
    return absent


def _numbers(array: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array of numbers, of any kind; those of null rows mean nothing."""
    dtype = np.dtype({"halffloat": "f2", "float": "f4", "double": "f8"}.get(str(array.type), str(array.type)))
    numbers: np.ndarray[Any, Any]
    numbers = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    return numbers


def _is_part(array: Any, rows: int) -> bool:
    """Whether an array is part of something larger, all of which a view of it would keep in memory."""
    size: int = array.buffers()[1].size
    return size > 16 * rows


def _there(column: Any) -> Any | None:
    """Return a column as one array; None if all of it is missing, as None or as NaN."""
    if column is None or column.null_count == len(column):
        return None
    pa, _ = require_pyarrow()
    if column.num_chunks == 1:
        array = column.chunk(0)
    else:
        column.validate(full=True)  # a damaged dictionary's codes may lead anywhere
        array = column.unify_dictionaries().combine_chunks()
    if pa.types.is_floating(array.type):
        missing = np.isnan(_numbers(array))
        absent = _absent(array)
        if (missing if absent is None else missing | absent).all():
            return None
    return array


def _kind(array: Any) -> str:
    """Return what an array's values are: text, bytes, whole numbers, or else the name of their type."""
    pa, _ = require_pyarrow()
    kind = array.type.value_type if isinstance(array.type, pa.DictionaryType) else array.type
    return _KINDS.get(str(kind), str(kind))


def _paths(column: Any, rows: int) -> tuple[tuple[str, ...], UInt32s]:
    array = _there(column)
    if array is None:
        return (), np.full(rows, ABSENT, np.uint32)
    if _kind(array) not in ("text", "bytes"):
        raise ValueError(f"its column 'path' is of {_kind(array)}, not of text")
    urls = tuple(u.decode() if isinstance(u, bytes) else u for u in array.dictionary.to_pylist())
    codes = array.indices
    numbers = _numbers(codes)
    absent = _absent(codes)
    if numbers.dtype == np.int32 and absent is None and not _is_part(codes, rows):
        targets = numbers.view(np.uint32)
    else:
        targets = numbers.astype(np.uint32)
    if absent is not None:
        targets[absent] = 0
    if int(targets.max()) >= len(urls):
        raise ValueError("its dictionary of paths is damaged")
    if absent is not None:
        targets[absent] = ABSENT
    return urls, targets


def _integers(name: str, column: Any, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a column of whole numbers, not to be changed; what is missing is 0, and what is too large negative."""
    array = _there(column)
    if array is None:
        return np.zeros(rows, np.int64)
    if _kind(array) != "whole numbers":
        raise ValueError(f"its column {name!r} is of {_kind(array)}, not of whole numbers")
    absent = _absent(array)
    numbers = _numbers(array).astype(np.int64, copy=_is_part(array, rows) or absent is not None)
    if absent is not None:
        numbers[absent] = 0
    return numbers


def _raw(column: Any) -> dict[int, bytes]:
    """Return row → data; text that starts with base64: is decoded, as in JSON."""
    array = _there(column)
    if array is None:
        return {}
    if _kind(array) not in ("text", "bytes"):
        raise ValueError(f"its column 'raw' is of {_kind(array)}, not of bytes")
    codes = array.indices
    absent = _absent(codes)
    rows = range(len(array)) if absent is None else np.flatnonzero(~absent).tolist()
    numbers = _numbers(codes)
    values = array.dictionary.to_pylist()
    made: dict[int, bytes] = {}
    out = {}
    for row in rows:
        code = int(numbers[row])
        if code not in made:
            if not 0 <= code < len(values):
                raise ValueError("its dictionary of data is damaged")
            made[code] = _data(values[code], row)
        out[row] = made[code]
    return out


def _data(value: str | bytes, row: int) -> bytes:
    match value:
        case bytes():
            return value
        case str() if value.startswith("base64:"):
            try:
                return base64.b64decode("".join(value[7:].split()), validate=True)
            except binascii.Error as e:
                raise ValueError(f"the base64 text of row {row} is damaged: {e}") from e
        case str():
            return value.encode()


def encode(partition: Partition) -> bytes:
    """Return the bytes of a parquet file with the rows of ``partition``, readable by fsspec as well.

    The column of data is there only where it is needed. Data that is empty stands for an
    empty range at offset 0, which would mean the whole target.
    """
    pa, parquet = require_pyarrow()
    absent = partition.targets == ABSENT
    empty = ~absent & (partition.lengths == 0) & (partition.offsets == 0)
    inline = dict(partition.inline) | dict.fromkeys(np.flatnonzero(empty).tolist(), b"")
    absent |= empty
    lengths = np.where(absent | (partition.lengths == WHOLE), 0, partition.lengths).astype(np.int64)
    offsets = np.where(absent, 0, partition.offsets).astype(np.int64)
    codes = pa.array(np.where(absent, 0, partition.targets).astype(np.int32), mask=absent)
    urls = pa.array(partition.urls or [""], pa.string())
    columns = [pa.DictionaryArray.from_arrays(codes, urls).cast(pa.string()), pa.array(offsets), pa.array(lengths)]
    fields = [
        pa.field("path", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),  # or else pandas makes inexact fractions of them
        pa.field("size", pa.int64(), nullable=False),
    ]
    if inline:
        columns.append(pa.array(map(inline.get, range(len(partition))), pa.binary(), size=len(partition)))
        fields.append(pa.field("raw", pa.binary()))
    out = io.BytesIO()
    parquet.write_table(
        pa.table(columns, schema=pa.schema(fields)),
        out,
        compression="zstd",
        use_dictionary=["path"],
        write_statistics=[
            "offset",
            "size",
        ],  # pandas takes columns without for ones with nulls, and makes floats of them
        store_schema=False,
        write_page_checksum=True,
        row_group_size=max(len(partition), 1),
    )
    return out.getvalue()
