"""Tables of FITS files, binary or of text: each column becomes an array along its rows. No I/O here.

A table is stored row by row, so that a chunk of a column is cut out of the rows that hold it. A column that fills its
rows, or has long arrays, is read alone.
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

WIDE: Final = 1 << 14  # bytes of an element from which a column is read alone
UNSIGNED: Final = np.dtype(">u8")  # stored as integers with signs, whose highest bit is inverted
LARGEST: Final = 1 << 27  # bytes of an element that has to be converted

_FORM: Final = re.compile(r"\s*(\d{0,18})([LXBIJKAEDCMPQ])\s*([LXBIJKAEDCM]?)")
_TEXT_FORM: Final = re.compile(r"\s*([AIJFED])(\d{0,9})(?:\.\d*)?\s*$")
_DIMENSIONS: Final = re.compile(r"\s*\((\s*\d{1,9}\s*(?:,\s*\d{1,9}\s*){0,30})\)\s*")
_WIDTHS: Final = {"L": 1, "B": 1, "I": 2, "J": 4, "K": 8, "A": 1, "E": 4, "D": 8, "C": 8, "M": 16, "P": 8, "Q": 16}
_DTYPES: Final = {
    "L": "?", "X": "?", "B": "u1", "I": ">i2", "J": ">i4", "K": ">i8", "E": ">f4", "D": ">f8", "C": ">c8", "M": ">c16"
}  # fmt: skip
_OTHER_SIGN: Final = {"B": (-(1 << 7), "i1"), "I": (1 << 15, ">u2"), "J": (1 << 31, ">u4"), "K": (1 << 63, ">u8")}
_MOST_COLUMNS: Final = 999  # the limit of the standard


class Form(msgspec.Struct, frozen=True):
    """The place of a column: ``repeat`` elements of ``kind`` take ``width`` bytes at byte ``at`` of each row.

    ``heap`` is the kind of elements that a descriptor (P or Q) points to.
    """

    number: int
    at: int
    width: int
    repeat: int
    kind: str
    heap: str = ""


def parse_forms(header: Header, row_size: int) -> Iterator[Form]:
    """Yield the columns of a binary table. Raise ManifestError if one is invalid, or they do not fill a row."""
    at = 0
    for number in range(1, min(header.integer("TFIELDS"), _MOST_COLUMNS) + 1):
        form = _FORM.match(str(header.cards.get(f"TFORM{number}")))
        if form is None:
            raise ManifestError(f"{header.where}: its TFORM{number} is invalid: {header.cards.get(f'TFORM{number}')!r}")
        repeat, kind = int(form[1] or 1), form[2]
        width = -(-repeat // 8) if kind == "X" else repeat * _WIDTHS[kind]
        yield Form(number, at, width, repeat, kind, form[3] if kind in "PQ" else "")
        at += width
    if at != row_size:
        raise ManifestError(f"{header.where}: its columns take {at} bytes: expected {row_size} (NAXIS1)")


def _parse_text_forms(header: Header, row_size: int) -> Iterator[Form]:
    """Yield the columns of a table of text; each begins at its TBCOL."""
    for number in range(1, min(header.integer("TFIELDS"), _MOST_COLUMNS) + 1):
        form = _TEXT_FORM.match(str(header.cards.get(f"TFORM{number}")))
        at = header.integer(f"TBCOL{number}", least=1) - 1
        width = int(form[2] or 1) if form is not None else 0
        if form is None or not width or at + width > row_size:
            found = f"TFORM{number} is {header.cards.get(f'TFORM{number}')!r}, at byte {at} of {row_size}"
            raise ManifestError(f"{header.where}: its {found}: expected a column within the row")
        yield Form(number, at, width, width, form[1])


class ColumnRecipe(msgspec.Struct, frozen=True):
    """Cuts a column out of rows of ``row_size`` bytes, and converts it to ``dtype``.

    The column has ``width`` bytes at byte ``at``, of the ``kind`` of its form, or that many ``bits`` of kind X. The
    result is padded with zeros to ``size`` bytes. In tables of text (``null`` is not None), the text ``null`` and
    blanks stand for NaN or 0.
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
        values = self._convert(cells) if self.null is None else self._parse(cells)
        return values.tobytes().ljust(self.size, b"\0")

    def _convert(self, cells: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        dtype = np.dtype(self.dtype)
        match self.kind:
            case "L":
                return np.equal(cells, ord("T"))
            case "X":
                return np.unpackbits(cells, axis=1)[:, : self.bits]
            case "A":
                return np.char.rstrip(cells.view(dtype)).astype(dtype)
        if dtype != np.dtype(_DTYPES[self.kind]):  # the other signedness: the highest bit is inverted
            unsigned = np.dtype(f">u{dtype.itemsize}")
            highest = unsigned.type(1 << 8 * dtype.itemsize - 1)
            return np.asarray(cells.view(unsigned) ^ highest, unsigned)
        return cells

    def _parse(self, cells: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        dtype = np.dtype(self.dtype)
        texts = np.char.strip(cells.view(f"S{self.width}"))
        if dtype.kind == "S":
            return np.char.rstrip(cells.view(dtype)).astype(dtype)
        is_null = (texts == (self.null or "").encode()) | (texts == b"")
        texts = np.where(is_null, b"nan" if dtype.kind == "f" else b"0", np.char.replace(texts, b"D", b"E"))
        return np.asarray(texts, dtype)


class ColumnChunks(Chunks):
    """The chunks of a column: each is cut out of ``count`` rows of a table at ``start``."""

    def __init__(
        self, source: Span | Inline, start: int, rows: int, count: int, recipe: ColumnRecipe, where: str
    ) -> None:
        self._source, self._start, self._rows, self._count = source, start, rows, count
        self._recipe, self._where = recipe, where

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        recipe, first = self._recipe, number * self._count
        begin, size = self._start + first * recipe.row_size, min(self._count, self._rows - first) * recipe.row_size
        if self._count == 1:  # other columns of the row are not read
            begin, size = begin + recipe.at, recipe.width
            recipe = msgspec.structs.replace(recipe, at=0, row_size=recipe.width)
        return make_entry(self._source.part(begin, size), recipe, recipe.size, self._where)


def cut_unsigned(
    source: Span | Inline, start: int, shape: tuple[int, ...], where: str
) -> tuple[tuple[int, ...], ColumnChunks]:
    """Return the chunk shape and the chunks of an image of `UNSIGNED`: a table of one column, a row for each step."""
    row_size = math.prod(shape[1:]) * 8
    if row_size > LARGEST:
        raise ManifestError(
            f"{where}: a step along its first axis has {row_size} bytes: at most {LARGEST} are supported"
        )
    cut = (choose_chunks(shape[:1], max(row_size, 1))[0], *(max(extent, 1) for extent in shape[1:]))
    recipe = ColumnRecipe(row_size, 0, row_size, "K", 0, UNSIGNED.str, math.prod(cut) * 8)
    return cut, ColumnChunks(source, start, shape[0], cut[0], recipe, where)


class Column(msgspec.Struct, frozen=True):
    """A column that is shown: its array, its chunks, and the data types of its attributes by name."""

    array: ArrayDescription
    chunks: Chunks
    attribute_dtypes: dict[str, str]


def parse_table(header: Header, source: Span | Inline) -> Iterator[tuple[str, Column | str]]:
    """Yield name and column for each column of a table; instead of one that cannot be shown, the reason.

    Raises ManifestError if the table itself is invalid.
    """
    axes = header.axes()
    if len(axes) != 2 or header.bitpix() != 8:
        raise ManifestError(
            f"{header.where}: its table has the axes {axes} and {header.bitpix()} bits: expected 2 and 8"
        )
    rows, row_size = axes
    is_text = header.cards.get("XTENSION") == "TABLE"
    if header.cards.get("ZTABLE") is True:
        raise ManifestError(f"{header.where}: it is a compressed table (ZTABLE), which is not supported")
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
    number, kind = form.number, form.kind
    where = f"{header.where}, column {number}"
    if not form.width:
        raise ManifestError(f"{where}: expected elements of at least 1 byte, found 0")
    if kind in "PQ":
        return _parse_heap_column(header, source, form, rows, row_size)
    scale, zero = header.number(f"TSCAL{number}", 1), header.number(f"TZERO{number}", 0)
    attributes: dict[str, Any] = {}
    unit = header.cards.get(f"TUNIT{number}")
    if isinstance(unit, str) and unit:
        attributes["units"] = unit
    dtypes: dict[str, str] = {}
    null = header.cards.get(f"TNULL{number}")
    if is_text:
        shape: tuple[int, ...] = ()
        dtype = _dtype_of_text(kind, form.width)
    else:
        shape, dtype = _shape_of(header, form)
    bits = math.prod(shape)
    width = -(-bits // 8) if kind == "X" else bits * dtype.itemsize if not is_text else form.width  # the used part
    is_plain = not is_text and kind not in "LXA"
    other = _OTHER_SIGN.get(kind)
    fill: int | None = null if type(null) is int and dtype.kind in "iu" else None
    if not is_text and other is not None and (scale, zero) == (1, other[0]):
        dtype, is_plain = np.dtype(other[1]), False
        fill = None if fill is None else fill + other[0]
    elif (scale, zero) != (1, 0) and dtype.kind == "c":  # xarray would scale the real part, and drop the other
        raise ManifestError(f"{where}: its complex numbers are scaled (TSCAL, TZERO), which is not supported")
    elif (scale, zero) != (1, 0) and dtype.kind in "iuf":
        attributes |= {"scale_factor": float(scale), "add_offset": float(zero)}
        dtypes = {"scale_factor": "f8", "add_offset": "f8"}
    if fill is not None and not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
        fill = None
    full = (rows, *shape)
    if is_plain and (width >= WIDE or rows == 1 or width == row_size):
        is_alone = width == row_size
        cut = choose_chunks(full if is_alone else (1, *shape), dtype.itemsize)
        place = header.stop + form.at
        chunks: Chunks = Contiguous(source, place, full, cut, dtype.itemsize, where, None if is_alone else row_size)
    else:
        if width > LARGEST:
            raise ManifestError(f"{where}: its elements have {width} bytes each: at most {LARGEST} are supported")
        count = choose_chunks((rows,), row_size)[0]
        cut = (count, *shape)
        size = math.prod(cut) * dtype.itemsize
        text = None if not is_text else str(null).strip()
        recipe = ColumnRecipe(row_size, form.at, width, kind, bits, dtype.str, size, text)
        chunks = ColumnChunks(source, header.stop, rows, count, recipe, where)
    dimensions = ["row", *(f"{name}_{name_axis(axis)}" for axis in reversed(range(len(shape))))]
    array = ArrayDescription(where, full, cut, dtype, dimensions, attributes, (), fill, is_masked=True)
    return Column(array, chunks, dtypes)


def _parse_heap_column(header: Header, source: Span | Inline, form: Form, rows: int, row_size: int) -> Column:
    """Return a column whose rows have different lengths: texts, or sequences of numbers."""
    number, kind = form.number, form.heap
    where = f"{header.where}, column {number}"
    if form.repeat != 1 or not kind:
        raise ManifestError(
            f"{where}: its TFORM is {header.cards.get(f'TFORM{number}')!r}: expected one sequence a row"
        )
    heap = header.integer("THEAP", row_size * rows, least=row_size * rows)
    if heap > header.data_size:
        raise ManifestError(f"{where}: its heap at byte {heap} is beyond its data of {header.data_size} bytes")
    dtype = np.dtype(_DTYPES.get(kind, "S1"))
    scale, zero = header.number(f"TSCAL{number}", 1), header.number(f"TZERO{number}", 0)
    other = _OTHER_SIGN.get(kind)
    is_inverted = other is not None and (scale, zero) == (1, other[0])
    if other is not None and is_inverted:
        dtype = np.dtype(other[1])
    elif (scale, zero) != (1, 0):
        raise ManifestError(f"{where}: its values of variable length are scaled (TSCAL, TZERO), which is not supported")
    codec = choose_codec(kind, dtype)
    attributes: dict[str, Any] = {} if codec is not BYTES else {ELEMENT: dtype.str}
    unit = header.cards.get(f"TUNIT{number}")
    if isinstance(unit, str) and unit:
        attributes["units"] = unit
    heap_size = header.data_size - heap
    each = row_size + heap_size // max(rows, 1)
    count = min(choose_chunks((rows,), max(each, 1))[0], MOST_ROWS)
    recipe = HeapRecipe((), kind, dtype.str, codec, is_inverted)
    table = Rows(source, header.stop, rows, row_size, header.stop + heap, heap_size)
    chunks = HeapChunks(table, form.at, form.kind, count, recipe, where)
    array = ArrayDescription(where, (rows,), (count,), np.dtype(object), ["row"], attributes, (codec,))
    return Column(array, chunks, {})


def _shape_of(header: Header, form: Form) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape of an element, from TDIM if it fits, and its data type."""
    found = _DIMENSIONS.fullmatch(str(header.cards.get(f"TDIM{form.number}")))
    axes = () if found is None else tuple(map(int, found[1].split(",")))[::-1]
    if not axes or not 0 < math.prod(axes) <= form.repeat:
        axes = (form.repeat,)
    if form.kind == "A":
        return axes[:-1], np.dtype(f"S{axes[-1]}")
    return axes if axes != (1,) or form.kind == "X" else (), np.dtype(_DTYPES[form.kind])


def _dtype_of_text(kind: str, width: int) -> np.dtype[Any]:
    """Return the data type of a column of text, with the sizes of integers that CFITSIO uses."""
    if kind == "A":
        return np.dtype(f"S{width}")
    if kind in "IJ":
        return np.dtype("<i8" if kind == "J" or width > 9 else "<i2" if width <= 4 else "<i4")
    return np.dtype("<f8")
