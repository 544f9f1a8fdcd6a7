"""The fields of Vdatas, the tables of an HDF4 file, as arrays. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from refshard_fs.core.array_group import ArrayDescription, Chunks, choose_chunks
from refshard_fs.core.model import Entry, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf4.chunks import cut_parts
from refshard_fs.formats.hdf4.elements import Elements, Tag
from refshard_fs.formats.hdf4.objects import Vdata


class FieldRecipe(msgspec.Struct, frozen=True):
    """Cut ``width`` bytes at byte ``start`` out of each record, join them, and pad them with zeros to ``size`` bytes.

    A record has ``record`` bytes.
    """

    record: int
    start: int
    width: int
    size: int

    def make(self, raw: bytes) -> bytes:
        records = np.frombuffer(raw, np.uint8).reshape(-1, self.record)
        return records[:, self.start : self.start + self.width].tobytes().ljust(self.size, b"\0")


class FieldChunks(Chunks):
    """The chunks of a field, of ``count`` records each.

    ``start`` is the byte in the values of the Vdata at which its ``records`` begin; if all values of a field lie
    together, at which the values of this field begin.
    """

    def __init__(self, elements: Elements, ref: int, start: int, records: int, count: int, recipe: FieldRecipe) -> None:
        self._elements, self._ref, self._start = elements, ref, start
        self._records, self._count, self._recipe = records, count, recipe

    def find_entry(self, number: int) -> Steps[Entry | None]:
        elements, first_record, record = self._elements, number * self._count, self._recipe.record
        count = min(self._count, self._records - first_record)
        size = count * record
        parts = cut_parts(
            (yield from elements.find_parts((Tag.VDATA_VALUES, self._ref))), self._start + first_record * record, size
        )
        if (found := sum(length for _, length in parts)) < size:
            records = f"records {first_record} to {first_record + count - 1} of its Vdata {self._ref}"
            raise elements.file.make_error(f"{records} have {found} bytes: expected {size}")
        return elements.make_entry(parts, self._recipe, f"its Vdata {self._ref}")


def describe_fields(
    elements: Elements, ref: int, table: Vdata, label: str
) -> Iterator[tuple[str, ArrayDescription, Chunks]]:
    """Yield the name, array and chunks of each field of a Vdata; a field of characters is an array of texts.

    Raises ManifestError if the Vdata cannot be shown.
    """
    widths = [field.order * field.dtype.itemsize for field in table.fields]
    if not widths and table.size:
        raise ManifestError(
            f"{label}: it has records of {table.size} bytes, and a field of an unknown type: expected "
            "numbers or characters of HDF4"
        )
    if sum(widths) != table.size or not all(widths):
        raise ManifestError(
            f"{label}: its fields have {widths} bytes: expected {table.size} in all, and no empty field"
        )
    offset = 0
    for field, width in zip(table.fields, widths, strict=True):
        dtype, inner = field.dtype, () if field.order == 1 else (field.order,)
        if dtype.kind == "S":
            dtype, inner = np.dtype(f"S{width}"), ()
        start, record = (0, table.size) if table.is_by_record else (offset * table.records, width)
        (count,) = choose_chunks((table.records,), record)
        recipe = FieldRecipe(record, offset if table.is_by_record else 0, width, count * width)
        names = ["record", f"{field.name}_x"][: 1 + len(inner)]
        array = ArrayDescription(f"{label}, {field.name!r}", (table.records, *inner), (count, *inner), dtype, names, {})
        yield field.name, array, FieldChunks(elements, ref, start, table.records, count, recipe)
        offset += width
