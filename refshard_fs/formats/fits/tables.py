"""Show the columns of binary and text tables of FITS files as arrays along the rows. No I/O here.

A table is stored row by row, so a chunk of a column is cut out of whole rows. A column is read without the rest of the
rows if its elements are long, or if the table has only one row or one column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import ArrayDescription, Chunks, Contiguous, choose_chunks, make_entry
from refshard_fs.core.model import Entry, Inline, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.fits.header import Header, make_name
from refshard_fs.formats.fits.heaps import BYTES, ELEMENT, MOST_ROWS, HeapChunks, HeapRecipe, Rows, choose_codec
from refshard_fs.formats.fits.images import name_axis

WIDE: Final = 1 << 14  # bytes of an element: longer elements are read without the rest of the row
UNSIGNED: Final = np.dtype(">u8")  # stored as signed integers whose highest bit is inverted
LARGEST: Final = 1 << 27  # the most bytes of an element that has to be converted

_FORM: Final = re.compile(r"\s*(\d{0,18})([LXBIJKAEDCMPQ])\s*([LXBIJKAEDCM]?)")
_TEXT_FORM: Final = re.compile(r"\s*([AIJFED])(\d{0,9})(?:\.\d*)?\s*$")
_DIMENSIONS: Final = re.compile(r"\s*\((\s*\d{1,9}\s*(?:,\s*\d{1,9}\s*){0,30})\)\s*")
_WIDTHS: Final = {"L": 1, "B": 1, "I": 2, "J": 4, "K": 8, "A": 1, "E": 4, "D": 8, "C": 8, "M": 16, "P": 8, "Q": 16}
_DTYPES: Final = {
    "L": "?", "X": "?", "B": "u1", "I": ">i2", "J": ">i4", "K": ">i8", "E": ">f4", "D": ">f8", "C": ">c8", "M": ">c16"
}  # fmt: skip
# By TFORM: the TZERO that turns signed into unsigned integers (or the reverse, for B), and their data type.
_OTHER_SIGN: Final = {"B": (-(1 << 7), "i1"), "I": (1 << 15, ">u2"), "J": (1 << 31, ">u4"), "K": (1 << 63, ">u8")}
_MOST_COLUMNS: Final = 999  # the standard's limit


class Form(msgspec.Struct, frozen=True):
    """The place of a column: ``repeat`` elements of ``kind`` in ``width`` bytes at byte ``at`` of each row.

    ``kind`` is a letter of TFORM. If it is P or Q, a descriptor of elements in the heap, ``heap`` is the kind of these
    elements. The ``number`` counts columns from 1.
    """

    number: int
    at: int
    width: int
    repeat: int
    kind: str
    heap: str = ""


def parse_forms(header: Header, row_size: int) -> Iterator[Form]:
    """Yield the columns of a binary table. Raise ManifestError if a column is invalid, or columns do not fill a row."""
    at = 0
    for number in range(1, min(header.get_integer("TFIELDS"), _MOST_COLUMNS) + 1):
        form = _FORM.match(str(header.cards.get(f"TFORM{number}")))
        if form is None:
            found = repr(header.cards.get(f"TFORM{number}"))
            raise ManifestError(
                f"{header.where}: its TFORM{number} is {found}: expected a count and a letter, as in 2J"
            )
        repeat, kind = int(form[1] or 1), form[2]
        width = -(-repeat // 8) if kind == "X" else repeat * _WIDTHS[kind]
        yield Form(number, at, width, repeat, kind, form[3] if kind in "PQ" else "")
        at += width
    if at != row_size:
        raise ManifestError(f"{header.where}: its columns take {at} bytes: expected {row_size} (NAXIS1)")


def _parse_text_forms(header: Header, row_size: int) -> Iterator[Form]:
    """Yield the columns of a text table; each begins at its TBCOL. Raise ManifestError if a column is invalid."""
    for number in range(1, min(header.get_integer("TFIELDS"), _MOST_COLUMNS) + 1):
        form = _TEXT_FORM.match(str(header.cards.get(f"TFORM{number}")))
        at = header.get_integer(f"TBCOL{number}", least=1) - 1
        width = int(form[2] or 1) if form is not None else 0
        if form is None or not width or at + width > row_size:
            raise ManifestError(
                f"{header.where}: its TFORM{number} is {header.cards.get(f'TFORM{number}')!r}, at byte {at} of a row: "
                f"expected a form such as I6, A10 or E12.5, and a column within the {row_size} bytes of a row"
            )
        yield Form(number, at, width, width, form[1])


class ColumnRecipe(msgspec.Struct, frozen=True):
    """Recipe: cut a column out of rows of ``row_size`` bytes, and convert it to ``dtype``.

    The column has ``width`` bytes at byte ``at`` of each row. ``kind`` is its letter of TFORM; an element of kind X has
    ``bits`` bits. The result is padded with zeros to ``size`` bytes. ``null`` is None for a binary table. In a text
    table, the text ``null`` and blanks become NaN, or 0 in a column of integers.
    """

    row_size: int
    at: int
    width: int
    kind: str
    bits: int
    dtype: str
    size: int
    null: str | None = None

    def make(self, raw: bytes) -> bytes:
        rows = np.frombuffer(raw, np.uint8).reshape(-1, self.row_size)
        cells = np.ascontiguousarray(rows[:, self.at : self.at + self.width])
        values = self._decode_cells(cells) if self.null is None else self._parse(cells)
        return values.tobytes().ljust(self.size, b"\0")

    def _decode_cells(self, cells: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Decode the cells of a binary table, an array of (rows, bytes)."""
        dtype = np.dtype(self.dtype)
        match self.kind:
            case "L":
                return np.equal(cells, ord("T"))
            case "X":
                return np.unpackbits(cells, axis=1)[:, : self.bits]
            case "A":
                return np.char.rstrip(cells.view(dtype)).astype(dtype)
        if dtype != np.dtype(_DTYPES[self.kind]):  # the column has the other signedness: its highest bit is inverted
            unsigned = np.dtype(f">u{dtype.itemsize}")
            highest = unsigned.type(1 << 8 * dtype.itemsize - 1)
            return np.asarray(cells.view(unsigned) ^ highest, unsigned)
        return cells

    def _parse(self, cells: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Parse the cells of a text table, an array of (rows, characters)."""
        dtype = np.dtype(self.dtype)
        texts = np.char.strip(cells.view(f"S{self.width}"))
        if dtype.kind == "S":
            return np.char.rstrip(cells.view(dtype)).astype(dtype)
        is_null = (texts == (self.null or "").encode()) | (texts == b"")
        texts = np.where(is_null, b"nan" if dtype.kind == "f" else b"0", np.char.replace(texts, b"D", b"E"))
        return np.asarray(texts, dtype)


class ColumnChunks(Chunks):
    """Locate the chunks of a column: each is cut out of ``count`` of the ``rows`` of a table at byte ``start``."""

    def __init__(
        self, source: Span | Inline, start: int, rows: int, count: int, recipe: ColumnRecipe, where: str
    ) -> None:
        self._source, self._start, self._rows, self._count = source, start, rows, count
        self._recipe, self._where = recipe, where

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        recipe, first = self._recipe, number * self._count
        begin, size = self._start + first * recipe.row_size, min(self._count, self._rows - first) * recipe.row_size
        if self._count == 1:  # read only this column of the row
            begin, size = begin + recipe.at, recipe.width
            recipe = msgspec.structs.replace(recipe, at=0, row_size=recipe.width)
        return make_entry(self._source.part(begin, size), recipe, recipe.size, self._where)


def cut_unsigned(
    source: Span | Inline, start: int, shape: tuple[int, ...], where: str
) -> tuple[tuple[int, ...], ColumnChunks]:
    """Return the chunk shape and the chunks of an image of `UNSIGNED` integers with this ``shape``.

    The image is treated like a table with a single column. A step along the first axis is a row.
    """
    row_size = math.prod(shape[1:]) * 8
    if row_size > LARGEST:
        raise ManifestError(f"{where}: a step along its first axis has {row_size} bytes: expected at most {LARGEST}")
    chunk_shape = (choose_chunks(shape[:1], max(row_size, 1))[0], *(max(extent, 1) for extent in shape[1:]))
    recipe = ColumnRecipe(row_size, 0, row_size, "K", 0, UNSIGNED.str, math.prod(chunk_shape) * 8)
    return chunk_shape, ColumnChunks(source, start, shape[0], chunk_shape[0], recipe, where)


class Column(msgspec.Struct, frozen=True):
    """A column as an array: its description, its chunks, and the data types of its attributes by name."""

    array: ArrayDescription
    chunks: Chunks
    attribute_dtypes: dict[str, str]


def parse_table(header: Header, source: Span | Inline) -> Iterator[tuple[str, Column | str]]:
    """Yield each column of a table with its name; for a column that cannot be shown, yield the reason instead.

    Raises ManifestError if the table itself is invalid.
    """
    axes = header.get_axes()
    if len(axes) != 2 or header.get_bitpix() != 8:
        raise ManifestError(
            f"{header.where}: its table has the axes {axes} and BITPIX {header.get_bitpix()}: expected 2 axes and "
            "BITPIX 8"
        )
    rows, row_size = axes
    is_text = header.cards.get("XTENSION") == "TABLE"
    if header.cards.get("ZTABLE") is True:
        raise ManifestError(f"{header.where}: it is a compressed table (ZTABLE): decompress the file with funpack")
    taken: set[str] = set()
    for form in list((_parse_text_forms if is_text else parse_forms)(header, row_size)):
        name = make_name(header.cards.get(f"TTYPE{form.number}")) or f"col{form.number}"
        while name in taken:
            name = f"{name}_{form.number}"
        taken.add(name)
        try:
            yield name, _parse_column(header, source, form, name, rows, row_size, is_text=is_text)
        except ManifestError as e:
            yield name, str(e)


def _parse_column(
    header: Header, source: Span | Inline, form: Form, name: str, rows: int, row_size: int, *, is_text: bool
) -> Column:
    """Describe a column, and locate its chunks. Raise ManifestError if it is not supported."""
    number, kind = form.number, form.kind
    where = f"{header.where}, column {number}"
    if not form.width:
        raise ManifestError(f"{where}: expected elements of at least 1 byte, found 0")
    if kind in "PQ":
        return _parse_heap_column(header, source, form, rows, row_size)
    scale, zero = header.get_number(f"TSCAL{number}", 1), header.get_number(f"TZERO{number}", 0)
    attributes: dict[str, Any] = {}
    unit = header.cards.get(f"TUNIT{number}")
    if isinstance(unit, str) and unit:
        attributes["units"] = unit
    dtypes: dict[str, str] = {}
    null = header.cards.get(f"TNULL{number}")
    if is_text:
        shape: tuple[int, ...] = ()
        dtype = _choose_text_dtype(kind, form.width)
    else:
        shape, dtype = _parse_shape(header, form)
    bits = math.prod(shape)
    width = -(-bits // 8) if kind == "X" else bits * dtype.itemsize if not is_text else form.width
    is_plain = not is_text and kind not in "LXA"
    other = _OTHER_SIGN.get(kind)
    fill: int | None = null if type(null) is int and dtype.kind in "iu" else None
    if not is_text and other is not None and (scale, zero) == (1, other[0]):
        dtype, is_plain = np.dtype(other[1]), False
        fill = None if fill is None else fill + other[0]
    elif (scale, zero) != (1, 0) and dtype.kind == "c":  # xarray would drop the imaginary part
        raise ManifestError(f"{where}: its complex numbers have TSCAL {scale} and TZERO {zero}: expected 1 and 0")
    elif (scale, zero) != (1, 0) and dtype.kind in "iuf":
        attributes |= {"scale_factor": float(scale), "add_offset": float(zero)}
        dtypes = {"scale_factor": "f8", "add_offset": "f8"}
    if fill is not None and not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
        fill = None
    array_shape = (rows, *shape)
    if is_plain and (width >= WIDE or rows == 1 or width == row_size):
        stride = None if width == row_size else row_size
        chunk_shape = choose_chunks(array_shape if stride is None else (1, *shape), dtype.itemsize)
        start = header.stop + form.at
        chunks: Chunks = Contiguous(source, start, array_shape, chunk_shape, dtype.itemsize, where, stride)
    else:
        if width > LARGEST:
            raise ManifestError(f"{where}: its elements have {width} bytes each: expected at most {LARGEST}")
        count = choose_chunks((rows,), row_size)[0]
        chunk_shape = (count, *shape)
        size = math.prod(chunk_shape) * dtype.itemsize
        text = None if not is_text else str(null).strip()
        recipe = ColumnRecipe(row_size, form.at, width, kind, bits, dtype.str, size, text)
        chunks = ColumnChunks(source, header.stop, rows, count, recipe, where)
    dimensions = ["row", *(f"{name}_{name_axis(axis)}" for axis in reversed(range(len(shape))))]
    array = ArrayDescription(where, array_shape, chunk_shape, dtype, dimensions, attributes, (), fill, is_masked=True)
    return Column(array, chunks, dtypes)


def _parse_heap_column(header: Header, source: Span | Inline, form: Form, rows: int, row_size: int) -> Column:
    """Describe a column of variable length, of texts or sequences of numbers. ManifestError if it is not supported."""
    number, kind = form.number, form.heap
    where = f"{header.where}, column {number}"
    if form.repeat != 1 or not kind:
        raise ManifestError(
            f"{where}: its TFORM is {header.cards.get(f'TFORM{number}')!r}: expected one sequence in each row, and the "
            "letter of its elements, as in 1PE(9)"
        )
    heap = header.get_integer("THEAP", row_size * rows, least=row_size * rows)
    if heap > header.data_size:
        raise ManifestError(
            f"{where}: its heap begins at byte {heap} of the data: expected at most {header.data_size}, the size of "
            "the data"
        )
    dtype = np.dtype(_DTYPES.get(kind, "S1"))
    scale, zero = header.get_number(f"TSCAL{number}", 1), header.get_number(f"TZERO{number}", 0)
    other = _OTHER_SIGN.get(kind)
    is_inverted = other is not None and (scale, zero) == (1, other[0])
    if other is not None and is_inverted:
        dtype = np.dtype(other[1])
    elif (scale, zero) != (1, 0):
        found = f"its values of variable length have TSCAL {scale} and TZERO {zero}"
        expected = "expected 1 and 0, which mean no scaling, or the TZERO of an integer type of the other signedness"
        raise ManifestError(f"{where}: {found}: {expected}")
    codec = choose_codec(kind, dtype)
    attributes: dict[str, Any] = {} if codec is not BYTES else {ELEMENT: dtype.str}
    unit = header.cards.get(f"TUNIT{number}")
    if isinstance(unit, str) and unit:
        attributes["units"] = unit
    heap_size = header.data_size - heap
    mean_size = row_size + heap_size // max(rows, 1)  # bytes that reading a row takes
    count = min(choose_chunks((rows,), max(mean_size, 1))[0], MOST_ROWS)
    recipe = HeapRecipe((), kind, dtype.str, codec, is_inverted)
    table = Rows(source, header.stop, rows, row_size, header.stop + heap, heap_size)
    chunks = HeapChunks(table, form.at, form.kind, count, recipe, where)
    array = ArrayDescription(where, (rows,), (count,), np.dtype(object), ["row"], attributes, (codec,))
    return Column(array, chunks, {})


def _parse_shape(header: Header, form: Form) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape of an element and its data type. The shape is TDIM, if TFORM has enough elements for it."""
    dimensions = _DIMENSIONS.fullmatch(str(header.cards.get(f"TDIM{form.number}")))
    axes = () if dimensions is None else tuple(map(int, dimensions[1].split(",")))[::-1]
    if not axes or not 0 < math.prod(axes) <= form.repeat:
        axes = (form.repeat,)
    if form.kind == "A":
        return axes[:-1], np.dtype(f"S{axes[-1]}")
    return axes if axes != (1,) or form.kind == "X" else (), np.dtype(_DTYPES[form.kind])


def _choose_text_dtype(kind: str, width: int) -> np.dtype[Any]:
    """Return the data type of a column of a text table; integers get the size that CFITSIO uses for their ``width``."""
    if kind == "A":
        return np.dtype(f"S{width}")
    if kind in "IJ":
        return np.dtype("<i8" if kind == "J" or width > 9 else "<i2" if width <= 4 else "<i4")
    return np.dtype("<f8")
