"""Columns of any parquet file, as pyarrow reads them: an extra, imported at the first use. No I/O here.

Its pages are looked at first (`parquet_pages`), and what they say of themselves is held against what pyarrow makes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from refshard_fs.manifests.page_values import ROWS, Booleans, Column, Numbers
from refshard_fs.manifests.parquet_pages import WIDTHS, Encoding, Footer, Room, Type, pages
from refshard_fs.manifests.thrift import Damaged

__all__ = ["NOT_READ", "arrow_columns", "require_pyarrow"]

NOT_READ: Final = "it is no parquet file that can be read"
THINGS: Final = 100_000  # that a list in a footer may have
# Of these pyarrow makes what they like from a few bytes. What others make is as long as page or values say.
_UNBOUNDED: Final = frozenset([Encoding.DELTA_LENGTH_BYTE_ARRAY, Encoding.DELTA_BYTE_ARRAY])
_BOUNDED: Final = frozenset(Encoding) - _UNBOUNDED
_KINDS: Final = {
    **dict.fromkeys(("string", "large_string"), "text"),
    **dict.fromkeys(("binary", "large_binary"), "bytes"),
    **{f"{sign}int{bits}": "whole numbers" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_FLOATS: Final = {"halffloat": "f2", "float": "f4", "double": "f8"}


def require_pyarrow() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet; an ImportError that names the extra where there are none."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise ImportError("parquet reference sets need pyarrow: pip install 'refshard_fs[parquet]'") from e
    return pyarrow, pyarrow.parquet


def arrow_columns(data: bytes, footer: Footer, names: Collection[str]) -> dict[str, Column | None]:
    """Return those of the columns ``names`` that are there; None for one in which all rows are null or NaN."""
    pa, _ = require_pyarrow()
    try:
        with pa.BufferReader(data) as source:
            texts = [leaf.name.decode(errors="replace") for leaf in footer.schema if leaf.type == Type.BYTE_ARRAY]
            file = _opened(source, len(data), [name for name in texts if name in names])
            there = _leaves(file.schema, names)
            _check_pages(data, footer, there)
            # Not by what the file says of its columns (whether one is null throughout): where that contradicts
            # itself, pyarrow does not raise an error, but ends the process.
            table = file.read(columns=list(there), use_threads=False, use_pandas_metadata=False)
        if table.num_rows != footer.rows:
            raise ValueError(f"it has {table.num_rows} rows, and says {footer.rows}")
        return {name: _column(name, table.column(name)) for name in there}
    except (pa.ArrowException, OSError, MemoryError, RuntimeError) as e:  # the last is of Parquet's own checks
        if isinstance(e, ValueError) and not isinstance(e, pa.ArrowException):
            raise
        raise ValueError(f"{NOT_READ}: {e}") from e


def _opened(source: Any, size: int, shared: list[str]) -> Any:
    """Return an open file, whose texts ``shared`` are read as dictionaries: each is made once for all rows.

    Its footer can name no more things than the file has bytes, and memory is taken for no more.
    """
    _, parquet = require_pyarrow()
    options = {"page_checksum_verification": True, "thrift_container_size_limit": min(size, THINGS) or 1}
    try:
        return parquet.ParquetFile(source, read_dictionary=shared, **options)
    except KeyError:  # one of them nests
        return parquet.ParquetFile(source, **options)


def _leaves(schema: Any, names: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the columns ``names`` that are there: the number of each among all, and the bytes of a value at least."""
    found: dict[str, tuple[int, int]] = {}
    for number in range(len(schema)):
        column = schema.column(number)
        name = column.path.partition(".")[0]
        if name not in names:
            continue
        if column.path != name or column.max_repetition_level or column.max_definition_level > 1:
            raise ValueError(f"its column {name!r} is nested")
        if column.physical_type not in Type.__members__:
            raise ValueError(f"its column {name!r} is of the type {column.physical_type}")
        if name in found:
            raise ValueError(f"it has the column {name!r} twice")
        found[name] = number, WIDTHS[Type[column.physical_type]]
    return found


def _check_pages(data: bytes, footer: Footer, leaves: dict[str, tuple[int, int]]) -> None:
    """Raise ValueError where decoding columns of ``data`` may take more than their rows can need."""
    room = Room(len(data))
    for chunks, rows in footer.groups:
        for name, (number, width) in leaves.items():
            if number >= len(chunks):
                raise Damaged("a group of rows lacks a column")
            try:
                for page in pages(data, chunks[number], rows, room, width):
                    if page.encoding not in _BOUNDED:
                        raise ValueError(_unreadable(page.encoding))
            except ValueError as e:
                raise ValueError(f"its column {name!r} cannot be read: {e}") from e


def _unreadable(encoding: int) -> str:
    if encoding not in _UNBOUNDED:
        return f"a page has the encoding {encoding}, which nobody knows"
    return (
        f"a page has the encoding {Encoding(encoding).name}, which is read only of one group of {ROWS} rows at most, "
        "uncompressed or compressed by snappy or zstd: write it so, or with a dictionary"
    )


# Arrow arrays are read through their buffers: Arrow's own ways to numpy import pandas, if there is one.


def _column(name: str, column: Any) -> Column | None:
    if column.null_count == len(column):
        return None
    if column.num_chunks == 1:
        array = column.chunk(0)
    else:
        column.validate(full=True)  # a damaged dictionary's codes may lead anywhere
        array = column.unify_dictionaries().combine_chunks()
    kind, values = str(array.type), None
    if kind.startswith("dictionary"):
        kind, values, array = str(array.type.value_type), array.dictionary.to_pylist(), array.indices
    absent = _absent(array)
    if kind not in _KINDS and kind not in _FLOATS:
        return Column(kind, np.zeros(len(array), np.int8), absent)
    dtype = np.dtype(_FLOATS.get(kind, str(array.type)))
    numbers: Numbers = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    if kind in _FLOATS:
        missing = np.isnan(numbers)
        if (missing if absent is None else missing | absent).all():
            return None
    if values is not None:
        places = numbers if absent is None else numbers[~absent]
        if not 0 <= int(places.min()) <= int(places.max()) < len(values):
            raise ValueError(f"the dictionary of its column {name!r} is damaged")
    if array.buffers()[1].size > 16 * len(array):  # a view would keep all of it in memory
        numbers = numbers.copy()
    return Column(_KINDS.get(kind, kind), numbers, absent, values or ())


def _absent(array: Any) -> Booleans | None:
    """Return which rows are null; None if none is."""
    if not array.null_count:
        return None
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    absent: Booleans = bits[array.offset : array.offset + len(array)] == 0
    return absent
