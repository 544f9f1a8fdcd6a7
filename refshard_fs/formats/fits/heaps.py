"""Locate and decode columns of variable length: each row refers to a sequence in the heap after the table. No I/O."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import Chunks, encode_chunk, make_entry_of_parts
from refshard_fs.core.model import Entry, Inline, Load, Raw, Span, Steps
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.errors import DamagedIndex

TEXT: Final[dict[str, Any]] = {"id": "vlen-utf8"}
BYTES: Final[dict[str, Any]] = {"id": "vlen-bytes"}
ELEMENT: Final = "element_dtype"  # the attribute that names the type of numbers in sequences that are shown as bytes
MOST_ROWS: Final = 1 << 14  # the most rows in a chunk


def choose_codec(kind: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return zarr's codec for sequences of elements of a ``kind``, one of the letters of TFORM.

    Characters become texts. Numbers become arrays in zarr 2, and bytes in zarr 3, which cannot hold arrays as elements.
    """
    if kind == "A":
        return TEXT
    return BYTES if (zarr_major() or 3) > 2 else {"id": "vlen-array", "dtype": dtype.str}


class HeapRecipe(msgspec.Struct, frozen=True):
    """Recipe: encode the sequences of a chunk's rows with zarr's ``codec``.

    The bytes are joined sequences; ``counts`` has the number of elements in each row. Elements have a ``kind``, one of
    the letters of TFORM, and the type ``dtype``. If ``is_inverted``, their highest bit is inverted.
    """

    counts: tuple[int, ...]
    kind: str
    dtype: str
    codec: dict[str, Any]
    is_inverted: bool = False

    def make(self, raw: bytes) -> bytes:
        values = np.empty(len(self.counts), object)
        at = 0
        for row, count in enumerate(self.counts):
            size = compute_size(self.kind, self.dtype, count)
            values[row] = self._convert(raw[at : at + size], count)
            at += size
        return encode_chunk(values, [self.codec])

    def _convert(self, data: bytes, count: int) -> Any:
        """Convert the bytes of ``count`` elements to the value of a row: a text, bytes or an array."""
        if self.kind == "A":
            return data.split(b"\0")[0].decode("latin-1").rstrip(" ")
        values: npt.NDArray[Any]
        if self.kind == "X":
            values = np.unpackbits(np.frombuffer(data, np.uint8))[:count].astype("?")
        elif self.kind == "L":
            values = np.frombuffer(data, np.uint8) == ord("T")
        else:
            dtype = np.dtype(self.dtype)
            values = np.frombuffer(data, dtype)
            if self.is_inverted:
                unsigned = np.dtype(f">u{dtype.itemsize}")
                values = (
                    (values.view(unsigned) ^ unsigned.type(1 << 8 * dtype.itemsize - 1)).astype(unsigned).view(dtype)
                )
        return values.tobytes() if self.codec["id"] == "vlen-bytes" else values


def compute_size(kind: str, dtype: str, count: int) -> int:
    """Return the size of ``count`` elements in bytes; ``kind`` is a letter of TFORM."""
    return -(-count // 8) if kind == "X" else count if kind in "AL" else count * np.dtype(dtype).itemsize


class Rows(NamedTuple):
    """The place of a table's rows and of its heap in the file ``source``."""

    source: Span | Inline
    start: int  # byte of the first row
    length: int  # number of rows
    size: int  # bytes of a row
    heap: int  # byte at which the heap begins
    heap_size: int  # in bytes


class HeapChunks(Chunks):
    """Locate the chunks of a column; each chunk has ``count`` rows.

    Each row has a descriptor of the kind P or Q at byte ``at``: the number of elements, and their position in the heap.
    The counts of ``recipe`` are read for each chunk.
    """

    def __init__(self, rows: Rows, at: int, descriptor: str, count: int, recipe: HeapRecipe, where: str) -> None:
        self._rows, self._at, self._count, self._recipe, self._where = rows, at, count, recipe, where
        self._descriptor = np.dtype((">i4" if descriptor == "P" else ">i8", (2,)))

    def find_entry(self, number: int) -> Steps[Entry | None]:
        table, first = self._rows, number * self._count
        rows = min(self._count, table.length - first)
        (raw,) = yield (Load(table.source.part(table.start + first * table.size, rows * table.size), Raw()),)
        cells = np.frombuffer(raw, np.uint8).reshape(rows, table.size)
        cells = np.ascontiguousarray(cells[:, self._at : self._at + self._descriptor.itemsize])
        counts: list[int] = []
        parts: list[tuple[int, int]] = []
        total = 0
        for count, offset in cells.view(self._descriptor.base).tolist():
            size = compute_size(self._recipe.kind, self._recipe.dtype, max(count, 0))
            total += size
            if count < 0 or (size and not 0 <= offset <= table.heap_size - size) or total > table.heap_size:
                row = first + len(counts)
                reason = f"row {row} has {count} elements at byte {offset} of the heap: expected a range within the"
                raise DamagedIndex("", self._where, f"{reason} {table.heap_size} bytes of the heap, without overlaps")
            counts.append(count)
            if size:
                parts.append((table.heap + offset, size))
        recipe = msgspec.structs.replace(self._recipe, counts=(*counts, *[0] * (self._count - rows)))
        return make_entry_of_parts(table.source, parts or [(table.heap, 0)], recipe, None, self._where)
