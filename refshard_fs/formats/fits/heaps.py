"""Values of columns of variable length, which lie in the heap behind a table. No I/O here."""

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
ELEMENT: Final = "element_dtype"  # the attribute with the type of the elements of a sequence that is shown as bytes
MOST_ROWS: Final = 1 << 14  # in a chunk


def choose_codec(kind: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return zarr's codec for sequences of ``kind``: zarr 3 has texts and bytes, zarr 2.18 sequences of numbers."""
    if kind == "A":
        return TEXT
    return BYTES if (zarr_major() or 3) > 2 else {"id": "vlen-array", "dtype": dtype.str}


class HeapRecipe(msgspec.Struct, frozen=True):
    """Encodes sequences of ``counts`` elements, which lie one after the other, for zarr's ``codec``.

    Elements have the ``kind`` of a form, and the type ``dtype``. With ``is_inverted``, their highest bit is inverted.
    """

    counts: tuple[int, ...]
    kind: str
    dtype: str
    codec: dict[str, Any]
    is_inverted: bool = False

    def make(self, raw: bytes) -> bytes:
        held = np.empty(len(self.counts), object)
        at = 0
        for row, count in enumerate(self.counts):
            size = size_of(self.kind, self.dtype, count)
            held[row] = self._convert(raw[at : at + size], count)
            at += size
        return encode_chunk(held, [self.codec])

    def _convert(self, data: bytes, count: int) -> Any:
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


def size_of(kind: str, dtype: str, count: int) -> int:
    """Return the number of bytes of ``count`` elements."""
    return -(-count // 8) if kind == "X" else count if kind in "AL" else count * np.dtype(dtype).itemsize


class Rows(NamedTuple):
    """The rows of a table in a file, from byte ``start`` on, and its heap."""

    source: Span | Inline
    start: int
    length: int
    size: int  # bytes of a row
    heap: int
    heap_size: int


class HeapChunks(Chunks):
    """The chunks of a column; each has ``count`` rows, with descriptors of the kind P or Q at byte ``at`` of each.

    The recipe has no counts yet.
    """

    def __init__(self, rows: Rows, at: int, descriptor: str, count: int, recipe: HeapRecipe, where: str) -> None:
        self._rows, self._at, self._count, self._recipe, self._where = rows, at, count, recipe, where
        self._descriptor = np.dtype((">i4" if descriptor == "P" else ">i8", (2,)))

    def entry(self, number: int) -> Steps[Entry | None]:
        table, first = self._rows, number * self._count
        rows = min(self._count, table.length - first)
        (raw,) = yield (Load(table.source.part(table.start + first * table.size, rows * table.size), Raw()),)
        cells = np.frombuffer(raw, np.uint8).reshape(rows, table.size)
        cells = np.ascontiguousarray(cells[:, self._at : self._at + self._descriptor.itemsize])
        counts: list[int] = []
        parts: list[tuple[int, int]] = []
        total = 0
        for count, offset in cells.view(self._descriptor.base).tolist():
            size = size_of(self._recipe.kind, self._recipe.dtype, max(count, 0))
            total += size
            if count < 0 or (size and not 0 <= offset <= table.heap_size - size) or total > table.heap_size:
                reason = f"{count} elements at byte {offset}: expected ranges of its heap of {table.heap_size} bytes"
                raise DamagedIndex("", self._where, f"row {first + len(counts)} has {reason}")
            counts.append(count)
            if size:
                parts.append((table.heap + offset, size))
        recipe = msgspec.structs.replace(self._recipe, counts=(*counts, *[0] * (self._count - rows)))
        return make_entry_of_parts(table.source, parts or [(table.heap, 0)], recipe, None, self._where)
