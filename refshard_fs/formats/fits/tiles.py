"""Locate and decode the tiles of compressed FITS images. No I/O here.

A compressed image is a binary table with a row for each tile. The row refers to the bytes of the tile in the heap after
the table. `PixelTilesRecipe` decodes most tiles. The others need more of astropy: `TileRecipe` builds a small FITS file
in memory that has only the tiles of a chunk.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import Chunks, make_entry_of_parts
from refshard_fs.core.compression import decompress
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.libdeflate import try_gzip
from refshard_fs.core.model import Entry, Inline, Load, Raw, Recipe, Span, Steps
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.formats.fits.header import BLOCK, CARD, Header
from refshard_fs.formats.fits.images import Image
from refshard_fs.formats.fits.tables import parse_forms

SMALL: Final = 1 << 20  # bytes of pixels: a chunk joins consecutive tiles up to this size
LARGEST: Final = 1 << 27  # the most bytes of pixels in a tile
ROWS: Final = 1 << 16  # bytes of the table's rows that are read at a time

_PLIO: Final = "PLIO_1"  # `decode_plio` decodes it: astropy's decoder does not check the sizes that tiles state
_CODECS: Final = ("RICE_1", "RICE_ONE", "GZIP_1", "GZIP_2", "NOCOMPRESS", _PLIO)
_RICE: Final = ("RICE_1", "RICE_ONE")
_GZIPS: Final = ("GZIP_1", "GZIP_2")
_MAIN: Final = "COMPRESSED_DATA"  # the column of compressed tiles; tiles of other columns are not quantized
_NO_DITHER: Final = -1
# How noise is subtracted from floats: astropy's numbers, by the value of ZQUANTIZ.
_DITHER: Final = {"NONE": 0, "NO_DITHER": _NO_DITHER, "SUBTRACTIVE_DITHER_1": 1, "SUBTRACTIVE_DITHER_2": 2}
_LONGEST_BLOCK: Final = 1 << 16  # pixels in a block of RICE_1; 16 or 32 are usual
_UNSAFE: Final = "HCOMPRESS_1"  # a flipped bit crashes the decoders of astropy and imagecodecs
_GZIP: Final = b"\x1f\x8b"
_MOST_BYTES: Final = 8  # the most bytes of a pixel
# Bytes of an element in the heap, by its letter of TFORM; other letters have 1 byte.
_WIDTHS: Final = {"L": 1, "B": 1, "I": 2, "J": 4, "K": 8, "A": 1, "E": 4, "D": 8, "C": 8, "M": 16}
# Cards that astropy needs to decode tiles.
_NEEDED_CARDS: Final = re.compile(
    r"TFIELDS|TTYPE\d+|TFORM\d+|ZIMAGE|ZCMPTYPE|ZBITPIX|ZNAME\d+|ZVAL\d+|ZQUANTIZ|ZBLANK|BLANK|ZSCALE|ZZERO"
)


class Column(NamedTuple):
    """A column of descriptors in ``width`` bytes at byte ``at`` of each row; their elements have ``itemsize`` bytes."""

    name: str
    at: int
    width: int
    itemsize: int


def _parse_columns(header: Header, row_size: int) -> tuple[Column, ...]:
    """Return the columns that refer to the heap."""
    forms = parse_forms(header, row_size)
    return tuple(
        Column(str(header.cards.get(f"TTYPE{f.number}")), f.at, f.width, _WIDTHS.get(f.heap, 1))
        for f in forms
        if f.heap and f.repeat == 1
    )


class Scaling(NamedTuple):
    """The places in a row of the numbers that turn the integers of a tile into floats.

    ``scale``, ``zero`` and ``blank`` are the first bytes of columns; without ``blank``, ``blank_of_all`` is the integer
    of missing pixels, if there is one. ``method`` is astropy's number for how noise is subtracted.
    """

    scale: int
    zero: int
    blank: int | None
    blank_of_all: int | None
    method: int


def _parse_scaling(header: Header, row_size: int) -> Scaling | None:
    """Return the scaling of tiles of floats; None without a scaling, or if only astropy can decode the tiles."""
    columns = {
        (str(header.cards.get(f"TTYPE{f.number}")), f.kind): f.at
        for f in parse_forms(header, row_size)
        if f.repeat == 1
    }
    method = _DITHER.get(header.cards.get("ZQUANTIZ", "NO_DITHER"))
    blank = header.cards.get("ZBLANK", header.cards.get("BLANK"))
    names = Counter(name for name, _ in columns)
    scale, zero, blanks = columns.get(("ZSCALE", "D")), columns.get(("ZZERO", "D")), columns.get(("ZBLANK", "J"))
    is_known = names["ZBLANK"] == (blanks is not None) and (blank is None or type(blank) is int)
    if scale is None or zero is None or method is None or not is_known or max(names.values()) > 1:
        return None
    return Scaling(scale, zero, blanks, blank, method)


class TileChunks(Chunks):
    """Locate the chunks of a tile-compressed image; each has one tile, or several consecutive tiles along an axis."""

    def __init__(self, source: Span | Inline, header: Header, image: Image, size: int) -> None:
        """Take the ``image`` with this ``header`` in ``source``, a file of ``size`` bytes.

        Raises ManifestError if the tiles cannot be decoded.
        """
        where, shape = header.where, image.shape
        kind = header.cards.get("ZCMPTYPE")
        if kind == _UNSAFE:
            raise ManifestError(
                f"{where}: its tiles are compressed as {kind}, whose decoders crash on damaged files: expected one of "
                f"{', '.join(_CODECS)}. Decompress the file with funpack"
            )
        if kind not in _CODECS:
            raise ManifestError(f"{where}: its tiles are compressed as {kind!r}: expected one of {', '.join(_CODECS)}")
        if kind != _PLIO and importlib.util.find_spec("astropy") is None:
            raise ManifestError(f'{where}: astropy is needed to decode its tiles: pip install "refshard_fs[fits]"')
        if not shape or not all(shape):
            raise ManifestError(f"{where}: its image with the axes {shape} has no pixels: expected one or more")
        lengths = [
            header.get_integer(f"ZTILE{len(shape) - axis}", shape[axis] if axis == len(shape) - 1 else 1, least=1)
            for axis in range(len(shape))
        ]
        tile = tuple(map(min, shape, lengths))
        counts = tuple(-(-length // extent) for length, extent in zip(shape, tile, strict=True))
        row_size, rows = header.get_axes()[::-1] if len(header.get_axes()) == 2 else (0, 0)
        if not rows or rows != math.prod(counts):
            found = f"its table has {rows} rows"
            raise ManifestError(f"{where}: {found}: expected {math.prod(counts)}, one for each tile of its image")
        pixels = math.prod(tile) * image.stored.itemsize
        if pixels > LARGEST:
            raise ManifestError(f"{where}: its tiles take {pixels} bytes each when decoded: expected at most {LARGEST}")
        heap = header.get_integer("THEAP", row_size * rows, least=row_size * rows)
        if heap > header.data_size or header.stop + header.data_size > size:
            raise ManifestError(
                f"{where}: its heap begins at byte {heap} of {header.data_size} bytes of data, at byte {header.stop} "
                f"of a file of {size} bytes: expected data within the file, and a heap within the data"
            )
        tiled_axes = [axis for axis, count in enumerate(counts) if count > 1]
        axis = tiled_axes[-1] if tiled_axes else 0
        is_grid = len(tiled_axes) > 1 and axis == len(shape) - 1  # tiles that cut rows are not joined
        joined = 1 if is_grid else max(min(counts[axis], SMALL // pixels), 1)
        self.chunks = tuple(extent * (joined if at == axis else 1) for at, extent in enumerate(tile))
        self.codec = str(kind).lower()
        self._source, self._image, self._tile = source, image, tile
        self._joined_axis, self._joined_count = axis, joined  # the axis along which a chunk joins tiles; their number
        self._tile_grid = ChunkGrid(counts, ChunkKeyEncoding("v2", "."))
        self._grid = ChunkGrid.regular(shape, self.chunks, ChunkKeyEncoding("v2", "."))
        self._table, self._row_count, self._row_size = header.stop, rows, row_size
        self._columns = _parse_columns(header, row_size)
        if kind == _PLIO and (row_size != 8 or [column.itemsize for column in self._columns] != [2]):
            raise ManifestError(
                f"{where}: its table of PLIO_1 has rows of {row_size} bytes, with columns of "
                f"{', '.join(str(8 * column.itemsize) for column in self._columns)} bits: expected rows of 8 bytes, "
                "with one column of 16-bit integers"
            )
        self._heap, self._heap_size = header.stop + heap, header.data_size - heap
        self._cards = {
            name: value
            for name, value in header.cards.items()
            if _NEEDED_CARDS.fullmatch(name) and isinstance(value, (bool, int, float, str))
        }
        self._seed = header.get_integer("ZDITHER0", 0)
        # Most tiles are decoded without astropy's tables, which take 5 ms for each chunk.
        self._rice = _parse_rice_settings(header) if kind in _RICE else None
        self._scaling = _parse_scaling(header, row_size) if image.stored.kind == "f" else None
        is_alone = [column.width for column in self._columns] == [row_size]
        has_decoder = (kind in _GZIPS or (kind in _RICE and _import_rice() is not None)) and _MAIN in (
            column.name for column in self._columns
        )
        is_lossless = not any(name.startswith(("ZSCALE", "ZZERO", "ZBLANK", "BLANK")) for name in self._cards) and (
            is_alone and kind in _GZIPS
        )
        is_known = is_alone if image.stored.kind in "iu" else is_lossless
        if self._scaling is not None:
            is_known = _import_quantize() is not None
        self._is_direct = kind == _PLIO or (has_decoder and is_known)

    def find_entry(self, number: int) -> Steps[Entry | None]:
        shape = self._image.shape
        coords = list(self._grid.coords(number))
        extents = tuple(
            min(chunk, extent - chunk * coord) for chunk, extent, coord in zip(self.chunks, shape, coords, strict=True)
        )
        coords[self._joined_axis] *= self._joined_count
        first = self._tile_grid.number_of(coords) or 0
        count = -(-extents[self._joined_axis] // self._tile[self._joined_axis])
        rows = yield from self._read_rows(first, count)
        scaling = None if self._scaling is None else self._read_scaling(self._scaling, rows, first)
        parts = []
        total = 0
        main_sizes = []  # the sizes of the tiles, if they are all in the column of compressed tiles
        for column in self._columns:
            descriptors = rows[:, column.at : column.at + column.width].copy().view(f">i{column.width // 2}")
            for row, (length, offset) in enumerate(descriptors.tolist()):
                size = length * column.itemsize
                if length < 0 or offset < 0 or offset + size > self._heap_size:
                    reason = f"tile {first + row} has {size} bytes at byte {offset} of the heap"
                    expected = f"expected a range within the {self._heap_size} bytes of the heap"
                    raise DamagedIndex("", self._image.where, f"{reason}: {expected}")
                if size:
                    main_sizes += [size] if column.name == _MAIN or self.codec == _PLIO.lower() else []
                    parts.append((self._heap + offset, size))
                    descriptors[row, 1] = total
                    total += size
            rows[:, column.at : column.at + column.width] = descriptors.view(np.uint8)
        if total > self._heap_size:
            found = f"the tiles {first} to {first + count - 1} have {total} bytes"
            reason = f"{found}: expected at most {self._heap_size}, the size of the heap"
            raise DamagedIndex("", self._image.where, reason)
        sizes = tuple(size for _, size in parts)
        dtype = self._image.stored.str
        recipe: Recipe
        if self._is_direct and (len(main_sizes) == len(parts) == count or self._image.stored.kind != "f"):
            length, axis = self._tile[self._joined_axis], self._joined_axis
            recipe = PixelTilesRecipe(sizes, extents, length, axis, self.chunks, dtype, self.codec, self._rice, scaling)
        else:
            cards = self._encode_cards(extents, count, total, first)
            largest = math.prod(self._tile) * _MOST_BYTES
            recipe = TileRecipe(cards, rows.tobytes(), sizes, largest, self.chunks, dtype)
        size = math.prod(self.chunks) * self._image.stored.itemsize
        where = f"{self._image.where}: tile {first}"
        return make_entry_of_parts(self._source, parts or [(self._heap, 0)], recipe, size, where)

    def _read_rows(self, first: int, count: int) -> Steps[np.ndarray[Any, Any]]:
        """Read ``count`` rows of the table, from row ``first`` on, as an array of (rows, bytes).

        Whole blocks of rows are read, so that chunks in the same block share a request.
        """
        block = max(ROWS // max(self._row_size, 1), 1)
        begins = range(first // block * block, first + count, block)
        ends = [min(begin + block, self._row_count) for begin in begins]
        entries = [
            self._source.part(self._table + begin * self._row_size, (end - begin) * self._row_size)
            for begin, end in zip(begins, ends, strict=True)
        ]
        answers = yield tuple(Load(entry, Raw()) for entry in entries)
        rows = np.frombuffer(b"".join(answers), np.uint8).reshape(-1, self._row_size)
        return rows[first - begins.start :][:count].copy()

    def _read_scaling(self, scaling: Scaling, rows: np.ndarray[Any, Any], first: int) -> TileScales:
        """Return the numbers of `Scaling` for ``rows``, from tile ``first`` on."""

        def read(at: int, dtype: str) -> tuple[Any, ...]:
            width = np.dtype(dtype).itemsize
            return tuple(rows[:, at : at + width].copy().view(dtype)[:, 0].tolist())

        blanks = (scaling.blank_of_all,) * len(rows) if scaling.blank is None else read(scaling.blank, ">i4")
        scales, zeros = read(scaling.scale, ">f8"), read(scaling.zero, ">f8")
        return TileScales(scales, zeros, blanks, scaling.method, self._seed + first)

    def _encode_cards(self, extents: tuple[int, ...], count: int, heap: int, first: int) -> bytes:
        """Encode the header of a table with ``count`` tiles, from tile ``first`` on, and a heap of ``heap`` bytes.

        ``extents`` is the shape of the image that these tiles make.
        """
        cards: dict[str, Any] = {"XTENSION": "BINTABLE", "BITPIX": 8, "NAXIS": 2}
        cards |= {"NAXIS1": self._row_size, "NAXIS2": count, "PCOUNT": heap, "GCOUNT": 1}
        cards |= {name: self._cards[name] for name in sorted(self._cards, key=lambda name: name != "TFIELDS")}
        cards["ZNAXIS"] = len(extents)
        for axis, (extent, tile) in enumerate(zip(reversed(extents), reversed(self._tile), strict=True), 1):
            cards |= {f"ZNAXIS{axis}": extent, f"ZTILE{axis}": tile}
        return encode_header(cards | {"ZDITHER0": self._seed + first})


def encode_header(cards: Mapping[str, Any]) -> bytes:
    """Encode a header, padded with spaces to whole blocks."""
    lines = [f"{name:8}= {_format_value(value)}" for name, value in cards.items()]
    text = "".join(f"{line[:CARD]:{CARD}}" for line in [*lines, "END"])
    return text.encode("latin-1").ljust(-(-len(text) // BLOCK) * BLOCK)


def _format_value(value: Any) -> str:
    """Format the value of a card as the standard's fixed format requires."""
    match value:
        case bool():
            return f"{'FT'[value]:>20}"
        case str():
            return "'" + value.replace("'", "''").ljust(8) + "'"
        case float():
            return f"{value!r:>20}".upper()
    return f"{value:>20}"


class RiceSettings(NamedTuple):
    """The number of pixels in a block of RICE_1, and the bytes of a pixel."""

    block: int
    width: int


def _parse_rice_settings(header: Header) -> RiceSettings:
    """Return the settings of tiles of RICE_1. Raise ManifestError for those with which a decoder reads other memory."""
    given: dict[str, Any] = {}
    number = 1
    while f"ZNAME{number}" in header.cards:
        given.setdefault(str(header.cards[f"ZNAME{number}"]).lower(), header.cards.get(f"ZVAL{number}"))
        number += 1
    settings = RiceSettings(given.get("blocksize", 32), given.get("bytepix", 4))
    if settings.width not in (1, 2, 4) or type(settings.block) is not int or not 0 < settings.block <= _LONGEST_BLOCK:
        raise ManifestError(
            f"{header.where}: its tiles of RICE_1 have BYTEPIX {settings.width} and BLOCKSIZE {settings.block}: "
            f"expected 1, 2 or 4 bytes, and 1 to {_LONGEST_BLOCK} pixels"
        )
    return settings


@cache
def _import_rice() -> Any:
    """Return astropy's decoder of one tile; None if astropy has moved it: then `TileRecipe` is used, 8 times slower."""
    try:
        return importlib.import_module("astropy.io.fits.hdu.compressed._codecs").Rice1
    except (ImportError, AttributeError):
        return None


def _decode_rice(piece: bytes, settings: RiceSettings, count: int) -> np.ndarray[Any, Any]:
    """Decode a tile of ``count`` pixels; ValueError if it is damaged."""
    try:
        decoder = _import_rice()(blocksize=settings.block, bytepix=settings.width, tilesize=count)
        pixels = np.asarray(decoder.decode(np.frombuffer(piece, np.uint8)))[:count]
    except Exception as e:  # noqa: BLE001  # decoders raise any error for damaged bytes
        raise ValueError(f"astropy cannot decode a tile: {type(e).__name__}: {e}") from None
    return pixels.view(np.uint8) if settings.width == 1 else pixels


class TileRecipe(msgspec.Struct, frozen=True):
    """Recipe: decode the tiles of a chunk to pixels, padded with zeros to the shape ``chunks``.

    ``cards`` and ``rows`` are the header and the rows of a table that has only these tiles. ``sizes`` are the sizes of
    the parts of its heap; none may decompress to more than ``largest`` bytes.
    """

    cards: bytes
    rows: bytes
    sizes: tuple[int, ...]
    largest: int
    chunks: tuple[int, ...]
    dtype: str

    def make(self, raw: bytes) -> bytes:
        fits = importlib.import_module("astropy.io.fits")
        primary = encode_header({"SIMPLE": True, "BITPIX": 8, "NAXIS": 0, "EXTEND": True})
        table = self.rows + raw
        data = primary + self.cards + table.ljust(-(-len(table) // BLOCK) * BLOCK, b"\0")
        try:
            self._check_sizes(raw)
            with fits.open(io.BytesIO(data), do_not_scale_image_data=True, memmap=False) as hdus:
                pixels = np.asarray(hdus[1].data)
            chunk = np.zeros(self.chunks, self.dtype)
            chunk[tuple(map(slice, pixels.shape))] = pixels
        except Exception as e:  # noqa: BLE001  # decoders raise any error for damaged bytes
            raise ValueError(f"astropy cannot decode a tile: {type(e).__name__}: {e}") from None
        return chunk.tobytes()

    def _check_sizes(self, raw: bytes) -> None:
        """Raise ValueError if gzip would decompress a tile to more than its pixels."""
        at = 0
        for size in self.sizes:
            piece = raw[at : at + size]
            if piece[:2] == _GZIP and len(zlib.decompressobj(31).decompress(piece, self.largest + 1)) > self.largest:
                raise ValueError(f"a tile decompresses to too many bytes: expected at most {self.largest}")
            at += size


class TileScales(NamedTuple):
    """The numbers that turn the integers of tiles into floats: a scale, a zero and a blank for each tile.

    ``method`` is astropy's number for how noise is subtracted. ``seed`` is the seed of the noise of the first tile.
    """

    scales: tuple[float, ...]
    zeros: tuple[float, ...]
    blanks: tuple[int | None, ...]
    method: int
    seed: int

    def scale(self, number: int, integers: np.ndarray[Any, Any], itemsize: int) -> np.ndarray[Any, Any]:
        """Return the floats of tile ``number``, in ``itemsize`` bytes each."""
        seed = 0 if self.method == _NO_DITHER else self.seed + number
        quantize = _import_quantize()(row=seed, dither_method=self.method, quantize_level=None, bitpix=-8 * itemsize)
        floats = np.asarray(quantize.decode_quantized(integers, self.scales[number], self.zeros[number]))
        if (blank := self.blanks[number]) is not None:
            floats = np.where(integers == blank, np.nan, floats.reshape(integers.shape))
        return floats


@cache
def _import_quantize() -> Any:
    """Return astropy's class that scales a tile; None if astropy has moved it: then `TileRecipe` is used."""
    try:
        return importlib.import_module("astropy.io.fits.hdu.compressed._quantization").Quantize
    except (ImportError, AttributeError):
        return None


def _decode_gzip(piece: bytes, count: int, width: int, *, is_shuffled: bool, is_float: bool) -> np.ndarray[Any, Any]:
    """Decode a tile of ``count`` pixels, probably of ``width`` bytes; ValueError if it is damaged."""
    data = try_gzip(piece, count * width) or decompress(zlib.decompressobj(31), piece, count * _MOST_BYTES)
    width = len(data) // count
    dtypes = {1: ">u1", 2: ">i2", 4: ">f4" if is_float else ">i4", 8: ">f8" if is_float else ">i8"}
    if width not in dtypes or width * count != len(data):
        raise ValueError(f"a tile decompresses to {len(data)} bytes: expected 1, 2, 4 or 8 for each of {count} pixels")
    if is_shuffled:  # the most significant bytes of all pixels come first
        data = np.frombuffer(data, np.uint8).reshape(width, count).T.tobytes()
    return np.frombuffer(data, dtypes[width])


class PixelTilesRecipe(msgspec.Struct, frozen=True):
    """Recipe: decode tiles to pixels, padded with zeros to the shape ``chunks``.

    ``sizes`` are the sizes of the tiles in bytes. The tiles are joined along ``axis`` to an image of the shape
    ``extents``; each tile has the extent ``length`` along that axis, except a shorter last one. ``codec`` is the
    compression, and ``rice`` are the settings of RICE_1. With ``scales``, the tiles have integers, which stand for
    floats.
    """

    sizes: tuple[int, ...]
    extents: tuple[int, ...]
    length: int
    axis: int
    chunks: tuple[int, ...]
    dtype: str
    codec: str
    rice: RiceSettings | None = None
    scales: TileScales | None = None

    def make(self, raw: bytes) -> bytes:
        chunk = np.zeros(self.chunks, self.dtype)
        at = 0
        for number, first in enumerate(range(0, self.extents[self.axis], self.length)):
            if number >= len(self.sizes):
                raise ValueError(f"tile {number} of the chunk has no bytes: expected compressed pixels")
            shape = list(self.extents)
            shape[self.axis] = min(self.length, shape[self.axis] - first)
            place = [slice(0, extent) for extent in shape]
            place[self.axis] = slice(first, first + shape[self.axis])
            piece = raw[at : at + self.sizes[number]]
            pixels = self._decode_tile(piece, math.prod(shape))
            if self.scales is not None:
                pixels = self.scales.scale(number, pixels, chunk.itemsize)
            chunk[tuple(place)] = pixels.reshape(shape)
            at += self.sizes[number]
        return chunk.tobytes()

    def _decode_tile(self, piece: bytes, count: int) -> np.ndarray[Any, Any]:
        if self.rice is not None:
            return _decode_rice(piece, self.rice, count)
        if self.codec == _PLIO.lower():
            return decode_plio(np.frombuffer(piece, ">i2").tolist(), count)
        dtype = np.dtype(self.dtype if self.scales is None else ">i4")
        is_shuffled = self.codec == "gzip_2"
        return _decode_gzip(piece, count, dtype.itemsize, is_shuffled=is_shuffled, is_float=dtype.kind == "f")


def decode_plio(words: Sequence[int], count: int) -> np.ndarray[Any, Any]:
    """Decode the 16-bit ``words`` of a line list, as PLIO_1 of IRAF encodes a tile, to ``count`` integers.

    After a header, the high four bits of each word are an instruction. Raise ValueError if the list is damaged.
    """
    # If the third word is positive, it is the length of the list, and the header has three words. Otherwise, the second
    # word is the length of the header, and the fourth and fifth word are the length of the list.
    is_short = len(words) > 3 and words[2] > 0
    if len(words) < 4 or (not is_short and len(words) < 7):
        raise ValueError(
            f"a PLIO_1 line list has {len(words)} words: expected at least 4, or 7 if the third word is not positive"
        )
    first, length = (3, words[2]) if is_short else (words[1], (words[4] << 15) + words[3])
    if not 0 < first <= length <= len(words):
        raise ValueError(
            f"a PLIO_1 line list of {len(words)} words states a header of {first} words, and a length of {length} "
            "words: expected a header within the length, and a length within the list"
        )
    pixels = np.zeros(count, np.int64)
    at, high = 0, 1  # the next pixel, and the value of pixels that are not zero
    instructions = iter(words[first:length])
    for word in instructions:
        code, number = divmod(word, 1 << 12)
        match code:
            case 0:  # zeros
                at += number
            case 1:  # set the value; the next word has its high bits
                high = (next(instructions, 0) << 12) + number
            case 2 | 3:  # change the value
                high += number if code == 2 else -number
            case 4:  # a run
                pixels[at : at + number] = high
                at += number
            case 5:  # zeros, and one pixel
                at += number
                pixels[max(at, 1) - 1 : at] = high
            case 6 | 7:  # change the value, and one pixel
                high += number if code == 6 else -number
                pixels[at : at + 1] = high
                at += 1
            case _:
                raise ValueError(f"a PLIO_1 line list has the instruction {code}: expected 0 to 7")
        if at > count:
            raise ValueError(f"a PLIO_1 line list has {at} pixels or more: expected at most {count}")
    return pixels
