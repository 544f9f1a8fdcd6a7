"""Decode a partition: one parquet file, with references to chunks of one array. No I/O here.

Row ``r`` of partition ``i`` is the chunk with the number ``i * record_size + r`` in the array's grid. `page_guard`
checks the file, then pyarrow reads it. pyarrow is an optional dependency, which is imported at the first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import NO_TARGET, WHOLE, Ranges
from refshard_fs.core.model import Quota
from refshard_fs.formats.kerchunk_parquet.page_guard import Footer, check_columns
from refshard_fs.references.values import decode_base64

COLUMNS: Final = ("path", "offset", "size", "raw")
ROWS: Final = 1 << 24  # the most rows of a partition: a row takes 20 bytes in memory, but may take none in the file
OFFSETS: Final = 2**63  # byte ranges end before this offset: parquet's integers are signed
LIST_ITEMS: Final = 100_000  # the most items of a list in a footer that pyarrow allocates memory for

_INVALID: Final = "it is not a valid parquet file"
# The least bytes of a value, by physical type.
_WIDTHS: Final = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_FLOATS: Final = frozenset(["halffloat", "float", "double"])

N = TypeVar("N", np.int32, np.int64, np.float64)


def require_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet. If they are missing, raise ImportError with the command to install them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise ImportError("parquet reference sets need pyarrow: pip install 'refshard_fs[parquet]'") from e
    return pyarrow, pyarrow.parquet


def read_columns(data: bytes, footer: Footer) -> dict[str, Any]:
    """Read the `COLUMNS` that the file has, as Arrow arrays by name; None for a column that has only nulls or NaN."""
    pa, parquet = require_pyarrow()
    limit = min(len(data), LIST_ITEMS)
    try:
        with pa.BufferReader(data) as source:
            file = parquet.ParquetFile(
                source,
                read_dictionary=footer.texts & set(COLUMNS),  # a value that many rows share is decoded once
                page_checksum_verification=True,
                thrift_container_size_limit=limit,
            )
            columns = _find_columns(file.schema)
            check_columns(data, footer, {name: (number, _WIDTHS[kind]) for name, (number, kind) in columns.items()})
            table = file.read(columns=list(columns), use_threads=False, use_pandas_metadata=False)
        if table.num_rows != footer.rows:
            raise ValueError(f"it has {table.num_rows} rows: expected {footer.rows}, as its footer states")
        return {name: _join_pieces(table.column(name)) for name in columns}
    except KeyError as e:  # raised for `read_dictionary`, if the footer has the column nested in another column
        raise ValueError(f"its column {e.args[0].decode()!r} is nested: expected a plain column") from e
    except (pa.ArrowException, OSError, MemoryError, RuntimeError) as e:  # the Parquet library raises RuntimeError
        if isinstance(e, ValueError) and not isinstance(e, pa.ArrowException):
            raise
        raise ValueError(f"{_INVALID}: {e}") from e


def _find_columns(schema: Any) -> dict[str, tuple[int, str]]:
    """Return (index in the file, physical type) for each of `COLUMNS` that the file has."""
    columns: dict[str, tuple[int, str]] = {}
    for number in range(len(schema)):
        column = schema.column(number)
        name = column.path.partition(".")[0]
        if name not in COLUMNS:
            continue
        if column.path != name or column.max_repetition_level or column.max_definition_level > 1:
            raise ValueError(f"its column {name!r} is nested: expected a plain column")
        if column.physical_type not in _WIDTHS:
            raise ValueError(
                f"its column {name!r} is of the type {column.physical_type}: expected one of {', '.join(_WIDTHS)}"
            )
        if name in columns:
            raise ValueError(f"it has the column {name!r} twice: expected it once")
        columns[name] = number, column.physical_type
    return columns


def _join_pieces(column: Any) -> Any:
    """Join the chunks of pyarrow's column to one array; None if all rows are null or NaN."""
    if column.null_count == len(column):
        return None
    column.validate(full=True)  # indices of a damaged column may lie outside its dictionary
    array = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    if str(array.type) in _FLOATS and np.isnan(_view_numbers(array, np.float64, np.nan)).all():
        return None
    return array


def _view_numbers(array: Any, dtype: type[N], missing: float) -> npt.NDArray[N]:
    """View an Arrow array as numbers of ``dtype``, with ``missing`` for null.

    Arrow's conversion to numpy would import pandas, which takes long, so the buffer of the array is viewed.
    """
    kind = np.dtype(dtype)
    if str(array.type) != kind.name:
        array = array.cast(kind.name, safe=False)
    if array.null_count:
        array = array.fill_null(missing)
    values = array.buffers()[1]
    numbers = np.frombuffer(values, dtype, len(array), array.offset * kind.itemsize)
    # A view of a small part of a buffer would keep the whole buffer in memory.
    return numbers.copy() if values.size > 2 * kind.itemsize * len(array) else numbers


NOTE: Final = b"refshard"  # the key of a `PartitionHistory` in the key-value metadata of a partition's file


class PartitionHistory(msgspec.Struct, frozen=True):
    """The numbers of the commits that wrote a partition: ``generation`` is the last one, ``earlier`` the ones before.

    ``earlier`` begins with the newest commit; None in it stands for a time when the partition did not exist. Versions
    before its last item are unknown.
    """

    generation: int = 0
    earlier: tuple[int | None, ...] = ()

    @property
    def nbytes(self) -> int:
        """The approximate size in memory in bytes."""
        return 100

    def find_version(self, generation: int) -> int | None:
        """Return the number of the commit that wrote the partition as it was after commit ``generation``.

        The number is at most ``generation``; None if the partition did not exist then. Raises LookupError if unknown.
        """
        for number in (self.generation, *self.earlier):
            if number is None or number <= generation:
                return number
        raise LookupError


class StoredPartition(Chunks, frozen=True, eq=False):
    """A partition, with the numbers of the commits that wrote it and of those that wrote its earlier versions."""

    history: PartitionHistory = PartitionHistory()


def _parse_history(footer: Footer) -> PartitionHistory:
    note = footer.notes.get(NOTE)
    try:
        return PartitionHistory() if note is None else msgspec.json.decode(note, type=PartitionHistory)
    except msgspec.DecodeError as e:
        raise ValueError(f"its note {NOTE.decode()!r} is damaged: {e}") from e


class PartitionIndex(msgspec.Struct, frozen=True):
    """Decode a partition of ``chunks`` chunks; its file may have up to ``record_size`` rows.

    ``version`` is the version of the set's document: a set that was written anew has other partitions. ``quota`` limits
    how many partitions of the set are in the cache. If a commit after commit ``generation`` wrote the file, the result
    is only the history of the partition.
    """

    chunks: int
    record_size: int
    version: str = ""
    quota: Quota | None = None
    generation: int = 0

    def decode(self, data: bytes) -> StoredPartition | PartitionHistory:
        try:
            footer = Footer(data)
        except ValueError as e:
            raise ValueError(f"{_INVALID}: {e}") from e
        history = _parse_history(footer)
        if history.generation > self.generation:
            return history
        rows, most = footer.rows, min(self.record_size, ROWS)
        if rows < self.chunks:
            raise ValueError(f"it has {rows} rows: expected at least {self.chunks}, one for each chunk")
        if rows > most:
            raise ValueError(f"it has {rows} rows: expected at most {most}")
        columns = read_columns(data, footer)
        if not columns:
            raise ValueError(f"it has none of the columns {', '.join(COLUMNS)}: expected at least one")
        return _make_partition(columns, rows, self.chunks, history)


def _make_partition(columns: Mapping[str, Any], rows: int, chunks: int, history: PartitionHistory) -> StoredPartition:
    """Make a partition of the first ``chunks`` rows; further rows are padding of the last partition."""
    paths, codes = _split_texts("path", columns.get("path"), rows)
    urls = tuple(path.decode() if isinstance(path, bytes) else path for path in paths)
    targets = codes.astype(np.uint32)  # -1 becomes NO_TARGET
    offsets = _read_integers("offset", columns.get("offset"), rows)
    lengths = _read_integers("size", columns.get("size"), rows)
    inline = _decode_inline(*_split_texts("raw", columns.get("raw"), rows), chunks)
    if rows > chunks:
        targets, offsets, lengths = targets[:chunks].copy(), offsets[:chunks].copy(), lengths[:chunks].copy()
    if inline:
        targets[np.fromiter(inline, np.int64, len(inline))] = NO_TARGET
    spans, sizes = offsets.view(np.uint64), lengths.view(np.uint64)
    if int(spans.max()) + int(sizes.max()) >= OFFSETS:  # also true if a number is negative
        has_target = targets != NO_TARGET
        wrong = np.flatnonzero(has_target & ((offsets < 0) | (lengths < 0) | (offsets > OFFSETS - 1 - lengths)))
        for row in wrong.tolist():
            raise ValueError(
                f"row {row} is not a byte range: offset {offsets[row]}, size {lengths[row]}; expected numbers of at "
                "least 0, and an end below 2**63"
            )
    if not sizes.all():
        sizes = np.where((targets != NO_TARGET) & (sizes == 0) & (spans == 0), np.uint64(WHOLE), sizes)
    return StoredPartition(urls, Ranges(targets, spans, sizes), inline, history=history)


def _split_texts(name: str, array: Any, rows: int) -> tuple[Sequence[str | bytes], npt.NDArray[np.int32]]:
    """Return the distinct values of a column, and for each row the index of its value among these; -1 for null."""
    if array is None:
        return (), np.full(rows, -1, np.int32)
    if not str(array.type).startswith("dictionary"):
        raise ValueError(f"its column {name!r} has the type {array.type}: expected text or bytes")
    return array.dictionary.to_pylist(), _view_numbers(array.indices, np.int32, -1)


def _read_integers(name: str, array: Any, rows: int) -> npt.NDArray[np.int64]:
    """Return a column of integers, read-only; null becomes 0, and a number that is too large becomes negative."""
    if array is None:
        return np.zeros(rows, np.int64)
    if not str(array.type).startswith(("int", "uint")):
        raise ValueError(f"its column {name!r} has the type {array.type}: expected integers")
    return _view_numbers(array, np.int64, 0)


def _decode_inline(values: Sequence[str | bytes], codes: npt.NDArray[np.int32], chunks: int) -> dict[int, bytes]:
    """Return inline data by row. As in JSON, a text that begins with ``base64:`` is decoded."""
    decoded: dict[int, bytes] = {}
    inline = {}
    for row in np.flatnonzero(codes[:chunks] >= 0).tolist():
        code = int(codes[row])
        if code not in decoded:
            decoded[code] = _decode_value(values[code], row)
        inline[row] = decoded[code]
    return inline


def _decode_value(value: str | bytes, row: int) -> bytes:
    match value:
        case bytes():
            return value
        case str() if value.startswith("base64:"):
            try:
                return decode_base64(value)
            except ValueError as e:
                raise ValueError(f"row {row}: {e}") from e
        case str():
            return value.encode()
