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

from refshard_fs.columns import ABSENT, WHOLE, Row, UInt32s, UInt64s
from refshard_fs.model import Quota

__all__ = ["Partition", "PartitionIndex", "encode", "require_pyarrow"]

MIB = 1 << 20
ROWS = 1 << 26  # that a partition may have
DECODED = 1024 * MIB  # that its columns may say they take, uncompressed
OFFSETS = 2**63  # parquet's integers are signed
COLUMNS = ("path", "offset", "size", "raw")


class Partition:
    """References of consecutive chunks of one array; immutable.

    A row's target is a place in ``urls`` (as written; None: the default target), ABSENT where
    the row has data in ``inline`` or there is no such chunk; its length may be WHOLE.
    """

    __slots__ = ("_lengths", "_offsets", "_targets", "inline", "lengths", "offsets", "targets", "urls")

    def __init__(
        self,
        urls: Sequence[str | None],
        targets: UInt32s,
        offsets: UInt64s,
        lengths: UInt64s,
        inline: Mapping[int, bytes],
    ) -> None:
        self.urls, self.inline = urls, inline
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
        pa, parquet = require_pyarrow()
        try:
            with pa.BufferReader(data) as source:
                metadata = parquet.read_metadata(source)
                self._check(metadata)
                names = [name for name in COLUMNS if name in metadata.schema.names]
                if not names:
                    raise ValueError(f"it has none of the columns {', '.join(COLUMNS)}")
                file = parquet.ParquetFile(
                    source,
                    metadata=metadata,
                    read_dictionary=[name for name in names if name == "path"],
                    page_checksum_verification=True,
                )
                table = file.read(columns=names, use_threads=False, use_pandas_metadata=False)
            if table.num_rows < self.chunks:
                raise ValueError(f"it has {table.num_rows} rows, and {self.chunks} chunks lie in it")
            table.validate(full=True)  # a damaged dictionary's codes may lead anywhere
            table = table.slice(0, self.chunks)
            return _partition({name: table.column(name) for name in names}, self.chunks)
        except (pa.ArrowException, OSError, MemoryError) as e:
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


def _partition(columns: Mapping[str, Any], rows: int) -> Partition:
    urls, targets = _paths(columns.get("path"), rows)
    offsets = _integers("offset", columns.get("offset"), rows)
    lengths = _integers("size", columns.get("size"), rows)
    inline = _raw(columns.get("raw"))
    if inline:
        targets[np.fromiter(inline, np.int64, len(inline))] = ABSENT
    there = targets != ABSENT
    wrong = np.flatnonzero(there & ((offsets < 0) | (lengths < 0) | (offsets > OFFSETS - 1 - lengths)))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(f"row {row} is no byte range: offset {offsets[row]}, size {lengths[row]}")
    spans, sizes = offsets.view(np.uint64), lengths.view(np.uint64)
    sizes[there & (offsets == 0) & (lengths == 0)] = WHOLE
    return Partition(urls, targets, spans, sizes, inline)


def _missing(column: Any) -> bool:
    """Whether a column holds nothing, as None or as NaN."""
    pa, _ = require_pyarrow()
    import pyarrow.compute as compute

    if column is None or column.null_count == len(column):
        return True
    return pa.types.is_floating(column.type) and bool(compute.all(compute.is_null(column, nan_is_null=True)).as_py())


def _kind(column: Any) -> str:
    """Return what a column's values are: text, bytes, or else the name of their type."""
    pa, _ = require_pyarrow()
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    return "bytes" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else str(kind)


def _paths(column: Any, rows: int) -> tuple[tuple[str, ...], UInt32s]:
    pa, _ = require_pyarrow()
    if _missing(column):
        return (), np.full(rows, ABSENT, np.uint32)
    kind = _kind(column)
    if kind not in ("text", "bytes"):
        raise ValueError(f"its column 'path' is of type {kind}, not text")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    urls = tuple(u.decode() if isinstance(u, bytes) else u for u in array.dictionary.to_pylist())
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    targets = np.where(codes < 0, np.int64(ABSENT), codes).astype(np.uint32)
    return urls, targets


def _integers(name: str, column: Any, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a column of whole numbers as a copy of its own; what is missing is 0."""
    pa, _ = require_pyarrow()
    if _missing(column):
        return np.zeros(rows, np.int64)
    if not pa.types.is_integer(column.type):
        raise ValueError(f"its column {name!r} is of type {column.type}, not of whole numbers")
    values: np.ndarray[Any, np.dtype[np.int64]]
    values = np.array(column.cast(pa.int64()).fill_null(0).to_numpy(), np.int64)
    return values


def _raw(column: Any) -> dict[int, bytes]:
    """Return row → data; text that starts with base64: is decoded, as in JSON."""
    pa, _ = require_pyarrow()
    if _missing(column):
        return {}
    types = pa.types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if not (
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_string(kind) or types.is_large_string(kind)
    ):
        raise ValueError(f"its column 'raw' is of type {kind}, not of bytes")
    return {row: _data(value, row) for row, value in enumerate(column.to_pylist()) if value is not None}


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
