"""Decode one parquet file, which holds references to chunks of one array. No I/O here.

Row ``r`` of partition ``i`` is the chunk with the number ``i * record_size + r`` in the array's grid. pyarrow reads the
file; it is an extra and is imported at the first use. `page_guard` checks the file first.
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
ROWS: Final = 1 << 24  # most rows of a partition: each takes 20 bytes in memory, but hardly any in the file
OFFSETS: Final = 2**63  # parquet's integers are signed
LIST_ITEMS: Final = 100_000  # most items of a list in a footer that pyarrow allocates memory for

_NOT_READ: Final = "it cannot be read as a parquet file"
_WIDTHS: Final = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}  # bytes, at least


_FLOATS: Final = frozenset(["halffloat", "float", "double"])

N = TypeVar("N", np.int32, np.int64, np.float64)


def require_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet. Raise ImportError, with the name of the extra, if they are not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise ImportError("parquet reference sets need pyarrow: pip install 'refshard_fs[parquet]'") from e
    return pyarrow, pyarrow.parquet


def read_columns(data: bytes, footer: Footer) -> dict[str, Any]:
    """Read the file's columns among `COLUMNS` as Arrow arrays; None for a column of nulls or NaN only."""
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
            found = _find_columns(file.schema)
            check_columns(data, footer, {name: (number, _WIDTHS[kind]) for name, (number, kind) in found.items()})
            table = file.read(columns=list(found), use_threads=False, use_pandas_metadata=False)
        if table.num_rows != footer.rows:
            raise ValueError(f"it has {table.num_rows} rows: its footer says {footer.rows}")
        return {name: _join_pieces(table.column(name)) for name in found}
    except KeyError as e:  # from `read_dictionary`: the footer has the column, but within another
        raise ValueError(f"its column {e.args[0].decode()!r} is nested: expected a plain column") from e
    except (pa.ArrowException, OSError, MemoryError, RuntimeError) as e:  # RuntimeError: Parquet's own checks
        if isinstance(e, ValueError) and not isinstance(e, pa.ArrowException):
            raise
        raise ValueError(f"{_NOT_READ}: {e}") from e


def _find_columns(schema: Any) -> dict[str, tuple[int, str]]:
    """Return (number in the file, physical type) for each of `COLUMNS` in the file."""
    found: dict[str, tuple[int, str]] = {}
    for number in range(len(schema)):
        column = schema.column(number)
        name = column.path.partition(".")[0]
        if name not in COLUMNS:
            continue
        if column.path != name or column.max_repetition_level or column.max_definition_level > 1:
            raise ValueError(f"its column {name!r} is nested: expected a plain column")
        if column.physical_type not in _WIDTHS:
            raise ValueError(f"its column {name!r} is of the type {column.physical_type}, which is not supported")
        if name in found:
            raise ValueError(f"it has the column {name!r} twice")
        found[name] = number, column.physical_type
    return found


def _join_pieces(column: Any) -> Any:
    """Join a column's pieces into one array; None if all rows are null or NaN."""
    if column.null_count == len(column):
        return None
    column.validate(full=True)  # codes of a damaged dictionary may point outside it
    array = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    if str(array.type) in _FLOATS and np.isnan(_view_numbers(array, np.float64, np.nan)).all():
        return None
    return array


def _view_numbers(array: Any, dtype: type[N], missing: float) -> npt.NDArray[N]:
    """View an array as numbers, through its buffer: Arrow's own conversions to numpy import pandas if installed."""
    kind = np.dtype(dtype)
    if str(array.type) != kind.name:
        array = array.cast(kind.name, safe=False)
    if array.null_count:
        array = array.fill_null(missing)
    values = array.buffers()[1]
    numbers = np.frombuffer(values, dtype, len(array), array.offset * kind.itemsize)
    # A view of a small part of a buffer would keep the whole buffer in memory.
    return numbers.copy() if values.size > 2 * kind.itemsize * len(array) else numbers


NOTE: Final = b"refshard"  # the key of a `Written` in the key-value metadata of a partition's file


class Written(msgspec.Struct, frozen=True):
    """The commit that wrote a partition, by its number, and the commits that wrote earlier versions of it.

    None among the earlier ones: the partition did not exist. Versions before the last one listed are unknown.
    """

    generation: int = 0
    earlier: tuple[int | None, ...] = ()

    @property
    def nbytes(self) -> int:
        """Approximate size in memory, in bytes."""
        return 100

    def at(self, generation: int) -> int | None:
        """Return the number of the commit whose version of the partition was current after the commit ``generation``.

        The result is None if the partition did not exist then. Raises LookupError if that is unknown.
        """
        for number in (self.generation, *self.earlier):
            if number is None or number <= generation:
                return number
        raise LookupError


class StoredPartition(Chunks, frozen=True, eq=False):
    """A partition with the commit that wrote it."""

    written: Written = Written()


def _read_note(footer: Footer) -> Written:
    note = footer.notes.get(NOTE)
    try:
        return Written() if note is None else msgspec.json.decode(note, type=Written)
    except msgspec.DecodeError as e:
        raise ValueError(f"its note {NOTE.decode()!r} is damaged: {e}") from e


class PartitionIndex(msgspec.Struct, frozen=True):
    """Decodes a partition.

    ``chunks`` is the number of the array's chunks in it; it may have up to ``record_size`` rows. ``version`` tells
    apart the states of a set that was rewritten. ``quota`` bounds the number of the set's partitions in the cache. If a
    commit later than ``generation`` wrote the partition, the result is its `Written` only.
    """

    chunks: int
    record_size: int
    version: str = ""
    quota: Quota | None = None
    generation: int = 0

    def decode(self, data: bytes) -> StoredPartition | Written:
        try:
            footer = Footer(data)
        except ValueError as e:
            raise ValueError(f"{_NOT_READ}: {e}") from e
        written = _read_note(footer)
        if written.generation > self.generation:
            return written
        rows, most = footer.rows, min(self.record_size, ROWS)
        if rows < self.chunks:
            raise ValueError(f"it has {rows} rows: expected at least {self.chunks}, one for each chunk")
        if rows > most:
            raise ValueError(f"it has {rows} rows: expected at most {most}")
        columns = read_columns(data, footer)
        if not columns:
            raise ValueError(f"it has none of the columns {', '.join(COLUMNS)}")
        return _make_partition(columns, rows, self.chunks, written)


def _make_partition(columns: Mapping[str, Any], rows: int, chunks: int, written: Written) -> StoredPartition:
    """Make a partition of the first ``chunks`` rows; further rows are padding of the last partition."""
    paths, codes = _split_texts("path", columns.get("path"), rows)
    urls = tuple(u.decode() if isinstance(u, bytes) else u for u in paths)
    targets = codes.astype(np.uint32)  # -1 becomes ABSENT
    offsets = _read_integers("offset", columns.get("offset"), rows)
    lengths = _read_integers("size", columns.get("size"), rows)
    inline = _decode_inline(*_split_texts("raw", columns.get("raw"), rows), chunks)
    if rows > chunks:
        targets, offsets, lengths = targets[:chunks].copy(), offsets[:chunks].copy(), lengths[:chunks].copy()
    if inline:
        targets[np.fromiter(inline, np.int64, len(inline))] = NO_TARGET
    spans, sizes = offsets.view(np.uint64), lengths.view(np.uint64)
    if int(spans.max()) + int(sizes.max()) >= OFFSETS:  # also true if a number is negative
        there = targets != NO_TARGET
        wrong = np.flatnonzero(there & ((offsets < 0) | (lengths < 0) | (offsets > OFFSETS - 1 - lengths)))
        for row in wrong.tolist():
            raise ValueError(f"row {row} is not a byte range: offset {offsets[row]}, size {lengths[row]}")
    if not sizes.all():
        sizes = np.where((targets != NO_TARGET) & (sizes == 0) & (spans == 0), np.uint64(WHOLE), sizes)
    return StoredPartition(urls, Ranges(targets, spans, sizes), inline, written=written)


def _split_texts(name: str, array: Any, rows: int) -> tuple[Sequence[str | bytes], npt.NDArray[np.int32]]:
    """Return the distinct values of a column, and the position of each row's value; -1 for null."""
    if array is None:
        return (), np.full(rows, -1, np.int32)
    if not str(array.type).startswith("dictionary"):
        raise ValueError(f"its column {name!r} is of {array.type}: expected text or bytes")
    return array.dictionary.to_pylist(), _view_numbers(array.indices, np.int32, -1)


def _read_integers(name: str, array: Any, rows: int) -> npt.NDArray[np.int64]:
    """Return a column of integers, read-only; null becomes 0, and a number that is too large becomes negative."""
    if array is None:
        return np.zeros(rows, np.int64)
    if not str(array.type).startswith(("int", "uint")):
        raise ValueError(f"its column {name!r} is of {array.type}: expected integers")
    return _view_numbers(array, np.int64, 0)


def _decode_inline(values: Sequence[str | bytes], codes: npt.NDArray[np.int32], chunks: int) -> dict[int, bytes]:
    """Return data by row. As in JSON, a text that starts with ``base64:`` is decoded."""
    made: dict[int, bytes] = {}
    out = {}
    for row in np.flatnonzero(codes[:chunks] >= 0).tolist():
        code = int(codes[row])
        if code not in made:
            made[code] = _decode_value(values[code], row)
        out[row] = made[code]
    return out


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
