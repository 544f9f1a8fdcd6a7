"""Rows of one array's references, read from one parquet file. No I/O here.

Row ``r`` of partition ``i`` is the chunk whose number in the array's grid is ``i * record_size + r``. Parquet is read
with pyarrow, which is an extra and imported at the first use; `page_guard` looks at a file first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import ABSENT, WHOLE, Ranges
from refshard_fs.core.model import Quota
from refshard_fs.formats.kerchunk_parquet.page_guard import Footer, check_columns
from refshard_fs.references.values import from_base64

COLUMNS: Final = ("path", "offset", "size", "raw")
ROWS: Final = 1 << 24  # that a partition may have: they take 20 bytes each, and may be written in next to none
OFFSETS: Final = 2**63  # parquet's integers are signed
LIST_ITEMS: Final = 100_000  # that pyarrow takes memory for in a footer

_NOT_READ: Final = "it is no parquet file that can be read"
_WIDTHS: Final = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}  # bytes, at least


_FLOATS: Final = frozenset(["halffloat", "float", "double"])

N = TypeVar("N", np.int32, np.int64, np.float64)


def require_pyarrow() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet; an ImportError that names the extra where there are none."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise ImportError("parquet reference sets need pyarrow: pip install 'refshard_fs[parquet]'") from e
    return pyarrow, pyarrow.parquet


def read_columns(data: bytes, footer: Footer) -> dict[str, Any]:
    """Return those of `COLUMNS` that are there, as Arrow's arrays; None for one in which all rows are null or NaN."""
    pa, parquet = require_pyarrow()
    limit = min(len(data), LIST_ITEMS)
    try:
        with pa.BufferReader(data) as source:
            file = parquet.ParquetFile(
                source,
                read_dictionary=footer.texts & set(COLUMNS),  # a value that many rows have is made once
                page_checksum_verification=True,
                thrift_container_size_limit=limit,
            )
            found = _leaves(file.schema)
            check_columns(data, footer, {name: (number, _WIDTHS[kind]) for name, (number, kind) in found.items()})
            table = file.read(columns=list(found), use_threads=False, use_pandas_metadata=False)
        if table.num_rows != footer.rows:
            raise ValueError(f"it has {table.num_rows} rows, and says {footer.rows}")
        return {name: _column(table.column(name)) for name in found}
    except KeyError as e:  # of `read_dictionary`: the footer has such a column, and not at its top
        raise ValueError(f"its column {e.args[0].decode()!r} is nested") from e
    except (pa.ArrowException, OSError, MemoryError, RuntimeError) as e:  # the last is of Parquet's own checks
        if isinstance(e, ValueError) and not isinstance(e, pa.ArrowException):
            raise
        raise ValueError(f"{_NOT_READ}: {e}") from e


def _leaves(schema: Any) -> dict[str, tuple[int, str]]:
    """Return those of `COLUMNS` that are there: the number of each among all columns, and its physical type."""
    found: dict[str, tuple[int, str]] = {}
    for number in range(len(schema)):
        column = schema.column(number)
        name = column.path.partition(".")[0]
        if name not in COLUMNS:
            continue
        if column.path != name or column.max_repetition_level or column.max_definition_level > 1:
            raise ValueError(f"its column {name!r} is nested")
        if column.physical_type not in _WIDTHS:
            raise ValueError(f"its column {name!r} is of the type {column.physical_type}")
        if name in found:
            raise ValueError(f"it has the column {name!r} twice")
        found[name] = number, column.physical_type
    return found


def _column(column: Any) -> Any:
    """Return what Arrow has read, in one piece; None where all rows are null or NaN."""
    if column.null_count == len(column):
        return None
    column.validate(full=True)  # a damaged dictionary's codes may lead anywhere
    array = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    if str(array.type) in _FLOATS and np.isnan(_numbers(array, np.float64, np.nan)).all():
        return None
    return array


def _numbers(array: Any, dtype: type[N], missing: float) -> npt.NDArray[N]:
    """Return an array as numbers, through its buffer: Arrow's own ways to numpy import pandas, if there is one."""
    kind = np.dtype(dtype)
    if str(array.type) != kind.name:
        array = array.cast(kind.name, safe=False)
    if array.null_count:
        array = array.fill_null(missing)
    values = array.buffers()[1]
    numbers = np.frombuffer(values, dtype, len(array), array.offset * kind.itemsize)
    # A view of a little of a buffer would keep all of it in memory.
    return numbers.copy() if values.size > 2 * kind.itemsize * len(array) else numbers


NOTE: Final = b"refshard"  # the key of a partition's `Written` among the key-value metadata of its file


class Written(msgspec.Struct, frozen=True):
    """Which commit wrote a partition: the number of that commit, and those that wrote its earlier versions.

    None among the earlier ones: there was no such partition. Those before the last one are not known.
    """

    generation: int = 0
    earlier: tuple[int | None, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, roughly."""
        return 100

    def at(self, generation: int) -> int | None:
        """Return the number of the commit that wrote what the set had after the commit ``generation``.

        None if there was no such partition then; LookupError if that is not known.
        """
        for number in (self.generation, *self.earlier):
            if number is None or number <= generation:
                return number
        raise LookupError


class StoredPartition(Chunks, frozen=True, eq=False):
    """A partition as it was read."""

    written: Written = Written()


def _written(footer: Footer) -> Written:
    note = footer.notes.get(NOTE)
    try:
        return Written() if note is None else msgspec.json.decode(note, type=Written)
    except msgspec.DecodeError as e:
        raise ValueError(f"its note {NOTE.decode()!r} cannot be read: {e}") from e


class PartitionIndex(msgspec.Struct, frozen=True):
    """Decodes a partition's bytes.

    ``chunks`` of the array's grid lie in it, and it may have rows up to ``record_size``.
    ``version`` tells the states of a set that was rewritten; ``quota`` bounds how many
    partitions of it are remembered. What a later commit than ``generation`` wrote is `Written`, and not decoded.
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
        written = _written(footer)
        if written.generation > self.generation:
            return written
        rows, most = footer.rows, min(self.record_size, ROWS)
        if rows < self.chunks:
            raise ValueError(f"it has {rows} rows, and {self.chunks} chunks lie in it")
        if rows > most:
            raise ValueError(f"it has {rows} rows, more than the {most} that there may be")
        columns = read_columns(data, footer)
        if not columns:
            raise ValueError(f"it has none of the columns {', '.join(COLUMNS)}")
        return _partition(columns, rows, self.chunks, written)


def _partition(columns: Mapping[str, Any], rows: int, chunks: int, written: Written) -> StoredPartition:
    """Return the first ``chunks`` of ``rows``: those after them pad the last partition."""
    paths, codes = _texts("path", columns.get("path"), rows)
    urls = tuple(u.decode() if isinstance(u, bytes) else u for u in paths)
    targets = codes.astype(np.uint32)  # which makes -1 ABSENT
    offsets = _integers("offset", columns.get("offset"), rows)
    lengths = _integers("size", columns.get("size"), rows)
    inline = _raw(*_texts("raw", columns.get("raw"), rows), chunks)
    if rows > chunks:
        targets, offsets, lengths = targets[:chunks].copy(), offsets[:chunks].copy(), lengths[:chunks].copy()
    if inline:
        targets[np.fromiter(inline, np.int64, len(inline))] = ABSENT
    spans, sizes = offsets.view(np.uint64), lengths.view(np.uint64)
    if int(spans.max()) + int(sizes.max()) >= OFFSETS:  # as negative ones are, too
        there = targets != ABSENT
        wrong = np.flatnonzero(there & ((offsets < 0) | (lengths < 0) | (offsets > OFFSETS - 1 - lengths)))
        for row in wrong.tolist():
            raise ValueError(f"row {row} is no byte range: offset {offsets[row]}, size {lengths[row]}")
    if not sizes.all():
        sizes = np.where((targets != ABSENT) & (sizes == 0) & (spans == 0), np.uint64(WHOLE), sizes)
    return StoredPartition(urls, Ranges(targets, spans, sizes), inline, written=written)


def _texts(name: str, array: Any, rows: int) -> tuple[Sequence[str | bytes], npt.NDArray[np.int32]]:
    """Return the values of a column, and which of them each row has: -1 for none."""
    if array is None:
        return (), np.full(rows, -1, np.int32)
    if not str(array.type).startswith("dictionary"):
        raise ValueError(f"its column {name!r} is of {array.type}, neither text nor bytes")
    return array.dictionary.to_pylist(), _numbers(array.indices, np.int32, -1)


def _integers(name: str, array: Any, rows: int) -> npt.NDArray[np.int64]:
    """Return a column of whole numbers, not to be changed; what is missing is 0, and what is too large negative."""
    if array is None:
        return np.zeros(rows, np.int64)
    if not str(array.type).startswith(("int", "uint")):
        raise ValueError(f"its column {name!r} is of {array.type}, not of whole numbers")
    return _numbers(array, np.int64, 0)


def _raw(values: Sequence[str | bytes], codes: npt.NDArray[np.int32], chunks: int) -> dict[int, bytes]:
    """Return row → data; text that starts with base64: is decoded, as in JSON."""
    made: dict[int, bytes] = {}
    out = {}
    for row in np.flatnonzero(codes[:chunks] >= 0).tolist():
        code = int(codes[row])
        if code not in made:
            made[code] = _data(values[code], row)
        out[row] = made[code]
    return out


def _data(value: str | bytes, row: int) -> bytes:
    match value:
        case bytes():
            return value
        case str() if value.startswith("base64:"):
            try:
                return from_base64(value)
            except ValueError as e:
                raise ValueError(f"row {row}: {e}") from e
        case str():
            return value.encode()
