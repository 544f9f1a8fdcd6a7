"""One image of a TIFF: parse its IFD, locate its strips or tiles, and decode them to chunks. No I/O here.

Decoding takes at most the memory that a chunk, and a dictionary of LZMA, need, whatever the compressed bytes announce.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import LISTABLE, Chunks, Contiguous, choose_chunks, encode_chunk, make_entry
from refshard_fs.core.compression import add_up_rows, decode_by_imagecodecs, decompress, import_zstd, unpack_bits
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.libdeflate import try_zlib
from refshard_fs.core.model import Entry, Inline, Listed, Steps
from refshard_fs.formats.tiff.ifds import Ifd, Tag, Tiff
from refshard_fs.formats.tiff.ycbcr import YCbCr, parse_ycbcr

LARGEST: Final = 1 << 31  # the most bytes of a decoded strip or tile: zarr holds it in memory as an array
# A decoded strip or tile has at most `SPARSE` bytes, or `RATIO` bytes for each byte of the file if that is more:
# Deflate expands a byte to a thousand at most.
SPARSE: Final = 1 << 26
RATIO: Final = 1 << 12
LZMA_MEMORY: Final = 1 << 28  # bytes: the dictionary of the strongest preset takes 65 MiB
PIECE: Final = 1 << 12  # strips or tiles whose positions are read at a time: at most 32 KiB of each table

# Tags by their numbers in the specification.
SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, SAMPLES = 254, 256, 257, 258, 259, 262, 266, 277
STRIP_OFFSETS, ROWS, STRIP_SIZES, PLANAR, PREDICTOR, TILE_WIDTH, TILE_HEIGHT = 273, 278, 279, 284, 317, 322, 323
TILE_OFFSETS, TILE_SIZES, SUB_IFDS, EXTRA, FORMAT, JPEG_TABLES = 324, 325, 330, 338, 339, 347
# Tags that locate parts of a file, and may differ between files with the same layout.
POSITIONS: Final = frozenset([STRIP_OFFSETS, STRIP_SIZES, TILE_OFFSETS, TILE_SIZES, SUB_IFDS])
PRIVATE: Final = (32997, 50674)  # tags above 32767 that are read, besides `DESCRIBING`
DEPTH, LERC_PARAMETERS = PRIVATE
SCALE, TIEPOINT, MATRIX, KEYS, DOUBLES, TEXTS = 33550, 33922, 34264, 34735, 34736, 34737
GDAL_METADATA, NODATA, RATIONAL_POLYNOMIAL = 42112, 42113, 50844
DESCRIPTION, T4_OPTIONS, COLOR_MAP = 270, 292, 320
DESCRIBING: Final = (  # tags about the meaning or the place of an image, whose values may be long
    *(DESCRIPTION, SCALE, TIEPOINT, MATRIX, KEYS, DOUBLES, TEXTS, GDAL_METADATA, NODATA, RATIONAL_POLYNOMIAL),
)

_KINDS: Final = {1: "u", 2: "i", 3: "f", 4: "u", 6: "c"}  # by the value of SampleFormat
_COMPLEX_INTEGERS: Final = 5  # the SampleFormat of complex numbers with integer parts
# Bits of samples that are not converted, by kind of data type.
_BITS: Final = {"u": (32, 64), "i": (8, 16, 32, 64), "f": (16, 32, 64), "c": (64, 128)}


# Codecs of zarr by the value of Compression, as in metadata of version 2.
NATIVE: Final[Mapping[int, Any]] = {1: [], 8: [{"id": "zlib", "level": 1}], 50000: [{"id": "zstd", "level": 1}]}

Samples: TypeAlias = bytes | bytearray | npt.NDArray[Any]  # samples of one type, in C order


class TileRecipe(msgspec.Struct, frozen=True):
    """Recipe: decode a strip or tile to a chunk of ``shape`` (rows, columns, samples).

    The file has the first ``rows`` rows of the chunk; the other rows become zeros. ``compression``, ``predictor``,
    ``photometric`` and ``t4_options`` are values of tags, ``tables`` the bytes of JPEGTables. ``bits`` is the size of a
    sample in the file, ``dtype`` its type in the array. If ``encoded``, the decoded chunk is compressed again, because
    the array has zarr's codec. ``within`` is the Compression that was applied to the bytes of an encoded image, 1 for
    none. If ``is_reversed``, the first pixel is in the lowest bit of a byte. ``ycbcr`` is the layout of YCbCr samples,
    which become RGB.
    """

    compression: int
    predictor: int
    bits: int
    dtype: str
    shape: tuple[int, int, int]
    rows: int
    photometric: int
    tables: bytes
    encoded: bool = False
    within: int = 1
    t4_options: int = 0
    is_reversed: bool = False
    ycbcr: YCbCr | None = None

    @property
    def size(self) -> int:
        """Size of the decoded chunk in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def compute_size(self, rows: int) -> int:
        """Return the size of a number of rows after decompression, in bytes; each row begins at a whole byte."""
        if self.ycbcr is not None:
            return self.ycbcr.compute_size(rows, self.shape[1])
        return rows * -(-self.shape[1] * self.shape[2] * self.bits // 8)

    def make(self, raw: bytes) -> bytes:
        return self.encode_chunk(self.decode(raw).tobytes())

    def decode(self, raw: bytes) -> npt.NDArray[Any]:
        """Return the values of the chunk; ValueError if the bytes are damaged."""
        raw = raw.translate(_REVERSED) if self.is_reversed else raw
        values = np.frombuffer(self._decode_rows(raw), self.dtype)
        count = math.prod(self.shape)
        if values.size > count:
            raise ValueError(f"expected at most {count} samples in a strip or tile, got {values.size}")
        if values.size < count:
            padded = np.zeros(count, values.dtype)
            padded[: values.size] = values
            values = padded
        return values.reshape(self.shape)

    def convert(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ``values``, which the array shows unchanged."""
        return values

    def _decode_rows(self, raw: bytes) -> Samples:
        """Return the samples of the rows in the file."""
        if self.compression in IMAGES:
            return self._decode_image(raw)
        if self.compression in FAX:
            return self._decode_fax(raw)
        whole = self.compute_size(self.shape[0])
        decoded = CODECS[self.compression](raw, whole)
        expected, size = self.compute_size(self.rows), len(decoded)
        row = self.compute_size(self.rows + 1) - expected  # Photoshop adds a byte to a strip
        if size < expected or (self.compression != 1 and max(row, 1) <= size - expected < whole - expected):
            raise ValueError(
                f"a strip or tile decompresses to {size} bytes: expected {expected}"
                + (f" for the rows within the image, or {whole}" if expected < whole else "")
            )
        return self._convert_samples(decoded if size == expected else decoded[:expected])

    def encode_chunk(self, data: bytes) -> bytes:
        """Encode decoded bytes with the codec of the array, if it has one."""
        return encode_chunk(data, NATIVE[self.compression]) if self.encoded else data

    def _decode_image(self, raw: bytes) -> Samples:
        """Decode the rows in the file with an image codec, which rejects an image of another shape or type."""
        shape = (self.rows, *self.shape[1:]) if self.shape[2] > 1 else (self.rows, self.shape[1])
        out = np.zeros(shape, np.dtype(self.dtype).newbyteorder("="))
        options: dict[str, Any] = {}
        if self.compression == JPEG:  # use the TIFF's colour space if the stream does not have one
            in_space, out_space = None, {5: "CMYK", 6: "RGB"}.get(self.photometric)
            if self.shape[2] == 1:
                out_space = "GRAYSCALE"
            elif self.shape[2] == 3 and self.photometric != 6:  # three plain bands: libjpeg would assume YCbCr
                in_space, out_space = None if b"JFIF" in raw[:32] else "RGB", "RGB"
            options = {"tables": self.tables or None, "colorspace": in_space, "outcolorspace": out_space}
        if self.compression == WEBP:  # a tile of opaque pixels lacks alpha, so an option of the decoder adds it
            options = {"hasalpha": self.shape[2] == 4}
        raw = bytes(CODECS[self.within](raw, 2 * self.size + LERC_HEADER))
        if self.compression in JPEG_2000:
            _check_jpeg_2000(raw, (self.rows, *self.shape[1:]))
        if self.compression == JPEG and self.rows < self.shape[0]:  # a last strip may have rows beyond the image
            try:
                decode_by_imagecodecs(IMAGES[JPEG], raw, "tiff", out=out, **options)
            except ValueError:
                return msgspec.structs.replace(self, rows=self.shape[0])._decode_image(raw)
            return out
        if self.compression == LERC:
            return self._decode_lerc(raw, out)
        decode_by_imagecodecs(IMAGES[self.compression], raw, "tiff", out=out, **options)
        return out.astype(self.dtype, copy=False)

    def _decode_lerc(self, raw: bytes, out: npt.NDArray[Any]) -> bytes:
        """Decode an image of LERC, in which a mask marks valid pixels: the others become NaN if they are floats.

        GDAL stores alpha as this mask if it is 0 or 255 everywhere, and bands of floats with NaN one after the other.
        """
        rows, columns, *samples = out.shape
        depth = int.from_bytes(raw[22:26], "little")  # of the samples that are stored together
        shape, axis = out.shape, -1
        if samples and out.dtype == np.uint8 and 0 < depth == samples[0] - 1:
            shape = (rows, columns, depth) if depth > 1 else (rows, columns)
        elif samples and depth == 1:
            shape, axis = (*samples, rows, columns), 0
        stored = np.zeros(shape, out.dtype)
        _, is_valid = decode_by_imagecodecs(IMAGES[LERC], raw, "tiff", out=stored, masks=True)
        if is_valid is not None and stored.dtype.kind == "f":
            is_valid = is_valid if is_valid.shape == stored.shape else np.expand_dims(is_valid, axis)
            np.copyto(stored, np.nan, where=~is_valid)
        if stored.size < out.size:
            out[..., :-1] = stored.reshape(rows, columns, depth)
            out[..., -1] = 255 if is_valid is None else np.uint8(255) * is_valid
            stored = out
        # GDAL encodes samples as LERC in the byte order of the file.
        return np.moveaxis(stored, axis, -1).tobytes()

    def _decode_fax(self, raw: bytes) -> bytes:
        """Decode the rows in the file, of one bit a pixel, to one byte a pixel."""
        options = {"t4options": self.t4_options} if self.compression == FAX_3 else {}
        size = {"height": self.rows, "width": self.shape[1]}
        pixels = decode_by_imagecodecs(FAX[self.compression], raw, "tiff", **size, **options)
        return np.asarray(pixels, self.dtype).tobytes()

    def _convert_samples(self, data: bytes | bytearray) -> Samples:
        """Undo the predictor, and convert the samples of the decompressed rows to ``dtype``."""
        dtype, (_, width, samples) = np.dtype(self.dtype), self.shape
        if self.ycbcr is not None:
            return self.ycbcr.convert(bytes(data), self.rows, width)
        if dtype.kind == "c" and self.bits != dtype.itemsize * 8:
            integers = np.frombuffer(data, f"{dtype.str[0]}i{self.bits // 16}")
            return integers.astype(f"{dtype.str[0]}f{dtype.itemsize // 2}")
        if self.bits != dtype.itemsize * 8:  # most significant bit first; rows are padded to whole bytes
            parts = self.rows if width * samples * self.bits % 8 else 1
            size, count = len(data) // parts, self.rows // parts * width * samples
            rows = [unpack_bits(bytes(data[at : at + size]), self.bits, count) for at in range(0, len(data), size)]
            return np.concatenate(rows).astype(dtype)
        match self.predictor:
            case 2:
                steps = np.frombuffer(data, f"{dtype.str[0]}u{dtype.itemsize}").reshape(-1, width, samples)
                native = steps.astype(f"u{dtype.itemsize}", copy=False)
                return add_up_rows(native).astype(steps.dtype, copy=False)
            case 3:  # each row has the most significant bytes of all samples first; these bytes are differences
                steps = np.frombuffer(data, "u1").reshape(self.rows, -1, samples)
                planes = add_up_rows(steps).reshape(self.rows, dtype.itemsize, -1)
                order = range(dtype.itemsize) if dtype.str[0] == ">" else range(dtype.itemsize)[::-1]
                out = np.empty((self.rows, planes.shape[2], dtype.itemsize), "u1")
                for plane, byte in enumerate(order):
                    out[..., byte] = planes[:, plane]
                return out
        return data


def _check_jpeg_2000(raw: bytes, shape: tuple[int, int, int]) -> None:
    """Raise ValueError if an image has another shape: the decoder would allocate it all before it compares shapes."""
    at = 0
    while 0 <= at < len(raw) and not raw.startswith(b"\xff\x4f\xff\x51", at):  # boxes of JP2 before the code stream
        size = int.from_bytes(raw[at : at + 4])
        at += 8 if raw[at + 4 : at + 8] == b"jp2c" else size if size >= 8 else len(raw)
    right, bottom, left, top = (int.from_bytes(raw[at + first : at + first + 4]) for first in (8, 12, 16, 20))
    found = (bottom - top, right - left, int.from_bytes(raw[at + 40 : at + 42]))
    if found != shape:
        raise ValueError(f"its JPEG 2000 image has rows, columns and samples {found}: expected {shape}")


def _decompress_lzma(raw: bytes, most: int) -> bytes:
    import lzma  # few files need it

    return decompress(lzma.LZMADecompressor(memlimit=LZMA_MEMORY), raw, most)


# Functions that decompress samples, by the value of Compression. Their arguments are the compressed bytes, and the
# largest size of the result.
CODECS: Final[Mapping[int, Callable[[bytes, int], bytes | bytearray]]] = {
    1: lambda raw, most: raw,
    5: lambda raw, most: bytes(decode_by_imagecodecs("lzw_decode", raw, "tiff", out=most)),
    8: lambda raw, most: try_zlib(raw, most) or decompress(zlib.decompressobj(), raw, most),
    32773: lambda raw, most: bytes(decode_by_imagecodecs("packbits_decode", raw, "tiff", out=most)),
    34925: _decompress_lzma,
    50000: lambda raw, most: decompress(import_zstd().ZstdDecompressor(), raw, most),
}
# Names of codecs by the value of Compression.
NAMES: Final = {
    1: "", 2: "ccitt_rle", 3: "ccitt_t4", 4: "ccitt_t6", 5: "lzw", 7: "jpeg", 8: "deflate", 32773: "packbits",
    34712: "jpeg2000", 33005: "jpeg2000", 34887: "lerc", 34925: "lzma", 34933: "png", 50000: "zstd", 50001: "webp",
    50002: "jpegxl", 52546: "jpegxl",
}  # fmt: skip
# Codecs of images and of faxes: the name of the function in imagecodecs, by the value of Compression.
JPEG, LERC, WEBP = 7, 34887, 50001
FAX_3: Final = 3
FAX: Final[Mapping[int, str]] = {2: "ccittrle_decode", FAX_3: "ccittfax3_decode", 4: "ccittfax4_decode"}
_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # bytes with their bits in reversed order
LERC_WITHIN: Final = {0: 1, 1: 8, 2: 50000}  # the Compression around LERC, by the second of the LercParameters
LERC_HEADER: Final = 1 << 12  # the most bytes of a LERC block besides twice the size of its samples
JPEG_2000: Final = (34712, 33005)  # 33005 is Aperio's number, for RGB
IMAGES: Final[Mapping[int, str]] = {
    JPEG: "jpeg_decode",
    **dict.fromkeys(JPEG_2000, "jpeg2k_decode"),
    LERC: "lerc_decode",
    34933: "png_decode",
    WEBP: "webp_decode",
    50002: "jpegxl_decode",
    52546: "jpegxl_decode",  # the number that GDAL and libtiff write
}


class Page(msgspec.Struct, frozen=True):
    """One image. ``recipe`` decodes its strips or tiles.

    With ``recipe.encoded``, zarr decodes strips and tiles of full size, without the recipe. ``tables`` are the tags
    with the positions of strips or tiles, and with their sizes if the file has them.
    """

    height: int
    width: int
    samples: int
    is_planar: bool
    is_reduced: bool  # it is an overview of another image
    is_mask: bool  # it marks the valid pixels of another image
    is_tiled: bool
    recipe: TileRecipe
    tables: tuple[Tag, ...]
    number: int = 0  # number of its IFD in the file

    def locate_in(self, ifds: Sequence[Ifd]) -> Page:
        """Return this image with the positions of strips or tiles in another file, whose IFDs are equal otherwise."""
        return msgspec.structs.replace(self, tables=find_tables(ifds[self.number]))

    @property
    def is_plain(self) -> bool:
        """Whether the image has uncompressed strips, which `cut_consecutive_strips` may divide into new chunks."""
        return self.recipe.encoded and self.recipe.compression == 1 and not self.is_tiled

    @property
    def file_codecs(self) -> tuple[str, ...]:
        """The names of the file's codecs, in the order of encoding, if zarr does not decode them."""
        recipe, codecs = self.recipe, []
        if recipe.encoded:
            return ()
        if recipe.predictor != 1:
            codecs.append(f"predictor {recipe.predictor}")
        if recipe.bits != self.dtype.itemsize * 8 and recipe.compression not in FAX:
            codecs.append(f"complex int{recipe.bits // 2}" if self.dtype.kind == "c" else f"{recipe.bits} bits")
        codecs += [] if recipe.ycbcr is None else ["ycbcr"]
        return (*codecs, *filter(None, (NAMES[recipe.compression], NAMES[recipe.within])))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of the samples in the array."""
        return np.dtype(self.recipe.dtype)

    def order_axes(self, y: Any, x: Any, band: Any) -> tuple[Any, ...]:
        """Order three values, for rows, columns and bands, like the array's axes; a single band has no axis."""
        return (y, x) if self.samples == 1 else (band, y, x) if self.is_planar else (y, x, band)

    def may_be_overview_of(self, full: Page) -> bool:
        """Return whether this image has the same ratio of sides as ``full``, up to rounding."""
        return abs(full.height * self.width - full.width * self.height) <= full.height + full.width

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the shown array."""
        return self.order_axes(self.height, self.width, self.samples)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of a chunk of the array."""
        return self.order_axes(*self.recipe.shape)

    @property
    def count(self) -> int:
        """The number of strips or tiles; they are numbered like the chunks of the array."""
        return math.prod(-(-extent // chunk) for extent, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def layout(self) -> tuple[Any, ...]:
        """The properties in which all images of one array must be equal."""
        return self.shape, self.chunks, self.dtype, self.is_tiled, self.recipe.encoded, self.recipe.compression

    def count_rows(self, tile: int) -> int:
        """Return the least number of rows that a strip or tile stores: the last may end where the image ends."""
        height, columns, _ = self.recipe.shape
        if self.is_tiled and (self.recipe.encoded or self.recipe.compression not in CODECS):
            return height
        row = tile // -(-self.width // columns) % -(-self.height // height)
        return min(height, self.height - row * height)


def is_needed_at_opening(number: int) -> bool:
    """Return whether the tag ``number`` is read when a file is opened, unless its values are too long."""
    return number < 1 << 15 or number in PRIVATE or number in DESCRIBING


def find_damage(ifd: Ifd) -> str | None:
    """Return why an IFD, or one of its tags that are read at opening, cannot be read; None if nothing is damaged."""
    lost = next(filter(is_needed_at_opening, ifd.lost), None)
    if ifd.problem is not None or lost is None:
        return ifd.problem
    return (
        f"expected the values of its tag {lost} within the file, found them beyond its end: it is damaged or cut short"
    )


def parse_page(ifd: Ifd, tiff: Tiff) -> Page:
    """Parse the image of an IFD. Raise ValueError if it is damaged or not supported."""
    damage = find_damage(ifd)
    if damage is not None:
        raise ValueError(damage)
    height, width, samples = ifd.get_integer(HEIGHT, 0), ifd.get_integer(WIDTH, 0), ifd.get_integer(SAMPLES, 1)
    if not height or not width or not 0 < samples < 1 << 16:
        found = f"{height} rows, {width} columns and {samples} samples for a pixel"
        raise ValueError(f"its image has {found}: expected 1 or more of each, and at most 65535 samples")
    bits, dtype = _choose_dtype(ifd, tiff.order, samples)
    compression, photometric, within = _parse_compression(ifd)
    described = len(ifd.get_integers(BITS, 1))
    # Some writers describe more samples than there are: the others are ignored. But image codecs convert colours to the
    # number of samples, so that for them a contradiction is an error.
    if described not in (1, samples) and (described < samples or compression in IMAGES):
        raise ValueError(f"its BitsPerSample has {described} values: expected 1 or SamplesPerPixel, {samples}")
    is_planar, is_tiled = samples > 1 and ifd.get_integer(PLANAR, 1) == 2, TILE_WIDTH in ifd.tags
    rows, columns = ifd.get_integer(TILE_HEIGHT, 0), ifd.get_integer(TILE_WIDTH, 0)
    if not is_tiled:
        rows, columns = min(ifd.get_integer(ROWS, height) or height, height), width
    shape = (rows, columns, 1 if is_planar else samples)
    if tiff.order == ">" and compression == LERC and dtype.kind == "f":
        found = "its samples are big-endian floats in LERC, which GDAL damages when it writes them"
        raise ValueError(f"{found}: expected little-endian floats")
    if tiff.order == ">" and bits == 24:
        raise ValueError(
            "its samples have 24 bits in a big-endian file, which readers interpret differently: expected a "
            "little-endian file (gdal_translate -co ENDIANNESS=LITTLE)"
        )
    if compression == WEBP and shape[2] not in (3, 4):
        raise ValueError(f"its strips or tiles of WebP have {shape[2]} samples for a pixel: expected 3 or 4")
    most = min(LARGEST, max(SPARSE, RATIO * tiff.size))
    if not 0 < (size := math.prod(shape) * dtype.itemsize) < most:
        raise ValueError(
            f"its strips or tiles of {rows} rows and {columns} columns decode to {size} bytes: expected more than 0 "
            f"and less than {most} bytes in a file of {tiff.size} bytes"
        )
    is_whole = bits == dtype.itemsize * 8
    predictor = 1 if compression in IMAGES or compression in FAX or compression == 1 else ifd.get_integer(PREDICTOR, 1)
    if dtype.kind not in {1: "uifc", 2: "uif", 3: "f"}.get(predictor, "") or (predictor > 1 and not is_whole):
        expected = "expected 1, 2 for integers or floats of whole bytes, or 3 for floats"
        raise ValueError(f"its Predictor is {predictor}, and its samples are {dtype} of {bits} bits: {expected}")
    is_reversed = ifd.get_integer(FILL_ORDER, 1) == 2
    ycbcr = parse_ycbcr(ifd) if photometric == 6 and compression in CODECS else None
    is_native = compression in NATIVE and predictor == 1 and is_whole and not is_reversed and ycbcr is None
    tables = ifd.tags[JPEG_TABLES].data or b"" if JPEG_TABLES in ifd.tags else b""
    colours = photometric if EXTRA not in ifd.tags else -1
    recipe = TileRecipe(compression, predictor, bits, dtype.str, shape, rows, colours, tables, is_native, within)
    recipe = msgspec.structs.replace(
        recipe, t4_options=ifd.get_integer(T4_OPTIONS, 0), is_reversed=is_reversed, ycbcr=ycbcr
    )
    tables_of_places, subfile = find_tables(ifd), ifd.get_integer(SUBFILE, 0)
    if not tables_of_places or (len(tables_of_places) == 1 and compression != 1):
        missing = "sizes" if tables_of_places else "positions"
        raise ValueError(f"expected a tag with the {missing} of its strips or tiles, found none")
    is_mask = bool(subfile & 4) or photometric == 4
    is_reduced = bool(subfile & 1)
    page = Page(height, width, samples, is_planar, is_reduced, is_mask, is_tiled, recipe, tables_of_places, ifd.number)
    for tag in tables_of_places:
        if tag.dtype.kind != "u":
            raise ValueError(f"the table of its strips or tiles has the type {tag.dtype}: expected unsigned integers")
        if tag.count < page.count:
            expected = f"expected at least {page.count}, one for each strip or tile"
            raise ValueError(f"its tables have {tag.count} entries: {expected}")
    return page


def find_tables(ifd: Ifd) -> tuple[Tag, ...]:
    """Return the tags with the positions of strips or tiles, and with their sizes; fewer if the file lacks them."""
    places = ifd.tags.get(TILE_OFFSETS) or ifd.tags.get(STRIP_OFFSETS)
    sizes = ifd.tags.get(TILE_SIZES) or ifd.tags.get(STRIP_SIZES)
    return () if places is None else (places,) if sizes is None else (places, sizes)


def _parse_compression(ifd: Ifd) -> tuple[int, int, int]:
    """Return Compression, PhotometricInterpretation, and the Compression around LERC; ValueError if not supported."""
    compression, photometric = ifd.get_integer(COMPRESSION, 1), ifd.get_integer(PHOTOMETRIC, 0)
    compression = 8 if compression == 32946 else compression  # the number of Deflate before it was standardised
    if compression not in CODECS and compression not in IMAGES and compression not in FAX:
        known = ", ".join(map(str, sorted({*CODECS, *IMAGES, *FAX})))
        raise ValueError(f"its Compression {compression} is not supported: expected one of {known}")
    if compression in FAX and (ifd.get_integers(BITS, 1), ifd.get_integer(SAMPLES, 1)) != ([1], 1):
        raise ValueError(
            f"its Compression {compression} is for faxes: expected 1 sample of 1 bit, found SamplesPerPixel "
            f"{ifd.get_integer(SAMPLES, 1)} and BitsPerSample {ifd.get_integers(BITS, 1)[:4]}"
        )
    if ifd.get_integer(DEPTH, 1) != 1:
        raise ValueError(f"its ImageDepth is {ifd.get_integer(DEPTH, 1)}, which is not supported: expected 1")
    if ifd.get_integer(FILL_ORDER, 1) == 2 and compression in IMAGES:  # libtiff reverses the bits of some of these
        codec = NAMES[compression]
        raise ValueError(f"its FillOrder is 2 with {codec}, which readers interpret differently: expected 1")
    lerc = [*ifd.get_integers(LERC_PARAMETERS), 0, 0][1] if compression == LERC else 0
    if lerc not in LERC_WITHIN:
        raise ValueError(f"the second number of its LercParameters is {lerc}: expected 0, 1 (deflate) or 2 (zstd)")
    if compression == LERC and ifd.get_integer(PREDICTOR, 1) != 1:  # tifffile applies it, GDAL does not
        predictor = ifd.get_integer(PREDICTOR, 1)
        raise ValueError(f"its Predictor is {predictor} with LERC, which readers interpret differently: expected 1")
    if photometric == 6 and compression in JPEG_2000:  # some readers convert the colours, and some do not
        raise ValueError("its samples are YCbCr in JPEG 2000, which is not supported: expected RGB or grey")
    return compression, photometric, LERC_WITHIN[lerc]


def _choose_dtype(ifd: Ifd, order: str, samples: int) -> tuple[int, np.dtype[Any]]:
    """Return the number of bits of each of the ``samples`` in the file, and their type in the array."""
    sizes, formats = (set(ifd.get_integers(tag, 1)[:samples]) for tag in (BITS, FORMAT))
    if len(sizes) != 1 or len(formats) != 1:
        raise ValueError(
            f"its samples differ: BitsPerSample {sorted(sizes)}, SampleFormat {sorted(formats)}; expected one of each"
        )
    bits, format_ = sizes.pop(), formats.pop()
    kind = _KINDS.get(format_, "?")
    if format_ == _COMPLEX_INTEGERS and bits in (32, 64):
        return bits, np.dtype(f"{order}c{bits // 4}")
    if kind == "u" and 0 < bits < 32:  # use the smallest type that holds the bits
        return bits, np.dtype(f"{order}u{1 if bits <= 8 else 2 if bits <= 16 else 4}")
    if bits not in _BITS.get(kind, ()):
        expected = (
            "1 or 4 with 1 to 32 or 64 bits, 2 with 8, 16, 32 or 64, 3 with 16, 32 or 64, 5 with 32 or 64, 6 with 64 "
            "or 128"
        )
        raise ValueError(f"its samples have {bits} bits and SampleFormat {format_}: expected {expected}")
    return bits, np.dtype(f"{order}{kind}{bits // 8}")


class TileChunks(Chunks):
    """Locate the chunks of ``pages`` with the same layout, one page after the other. A strip or a tile is a chunk.

    If the array has a fill value (``has_fill``), chunks do not exist for strips and tiles that were never written, and
    for a page that is None: zarr returns the fill value there. Otherwise, these are chunks of zeros: in zarr version 2,
    a fill value of 0 would make xarray mask all zeros.
    """

    are_many = True
    are_found_together = True

    def __init__(self, tiff: Tiff, pages: Sequence[Page | None], grid: ChunkGrid, *, has_fill: bool) -> None:
        self._tiff = tiff
        self._pages = pages
        self._grid = grid
        self._has_fill = has_fill
        self._first = next(page for page in pages if page is not None)
        self._count = self._first.count  # strips or tiles of a page

    def find_entry(self, number: int) -> Steps[Entry | None]:
        return self._make_entry(number, *(yield from self._locate(number)))

    def find_entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        rows: dict[int, list[int]] = {}  # the positions in `numbers` of the chunks of each page
        for row, number in enumerate(numbers):
            rows.setdefault(number // self._count, []).append(row)
        pages = {index: self._pages[index] for index in rows}
        if any(table.data is None for page in pages.values() if page is not None for table in page.tables):
            return (yield from super().find_entries(numbers))
        found: list[Entry | None] = [None] * len(numbers)
        for index, page in pages.items():
            tiles = [numbers[row] % self._count for row in rows[index]]
            # Take all values at once: to take them one by one takes ten times as long.
            columns = [] if page is None else [table.values[tiles].tolist() for table in page.tables]
            for row, tile, *values in zip(rows[index], tiles, *columns, strict=True):
                found[row] = self._make_entry(numbers[row], *self._check_place(page, tile, values))
        return found

    def _make_entry(self, number: int, page: Page | None, offset: int, size: int) -> Entry | None:
        if page is None:
            return None if self._has_fill else Inline(self._first.recipe.encode_chunk(bytes(self._first.recipe.size)))
        part, rows = self._tiff.part(offset, size), page.count_rows(number % self._count)
        is_whole = rows == page.recipe.shape[0] and (page.recipe.compression != 1 or size == page.recipe.size)
        if page.recipe.encoded and is_whole:
            return part
        recipe = page.recipe if rows == page.recipe.rows else msgspec.structs.replace(page.recipe, rows=rows)
        return make_entry(part, recipe, None if recipe.encoded else recipe.size, self._tiff.url)

    def list_existing(self) -> Steps[list[Listed] | None]:
        if not self._has_fill or self._grid.size > LISTABLE:
            return None
        existing = []
        for number in range(self._grid.size):
            page, _, _ = yield from self._locate(number)
            if page is not None:
                existing.append(Listed(self._grid.tail(number), None))
        return existing

    def _locate(self, number: int) -> Steps[tuple[Page | None, int, int]]:
        """Return the page of a chunk, and the offset and size of its bytes; None and zeros if it was not written."""
        index, tile = divmod(number, self._count)
        page = self._pages[index]
        if page is None:
            return None, 0, 0
        tables, first = page.tables, 0
        if any(table.data is None for table in tables):
            first = tile - tile % PIECE
            tables = tuple(table.part(first, min(PIECE, self._count - first)) for table in tables)
            yield from self._tiff.read_values(tables)
        return self._check_place(page, tile, [int(table.values[tile - first]) for table in tables])

    def _check_place(self, page: Page | None, tile: int, values: Sequence[int]) -> tuple[Page | None, int, int]:
        """Return the result of `_locate`, given the ``values`` of the tables for a strip or tile of ``page``."""
        if page is None:
            return None, 0, 0
        offset, size = values if len(values) == 2 else (values[0], page.recipe.compute_size(page.count_rows(tile)))
        if offset and not size and self._count == 1 and not page.is_tiled:  # libtiff reads to the end, too
            left = self._tiff.size - offset
            size = left if page.recipe.compression != 1 else min(left, page.recipe.compute_size(page.height))
        return (page, offset, size) if offset and size > 0 else (None, 0, 0)


def cut_consecutive_strips(tiff: Tiff, page: Page, where: str) -> tuple[tuple[int, ...], Chunks] | None:
    """Cut an image of uncompressed, consecutive strips anew: return the shape of chunks, and the chunks.

    One strip may be a whole image, or have only a few rows, so strips are often bad chunks. Return None for other
    images. Raises ManifestError if the image ends beyond the file.
    """
    if not page.is_plain or any(tag.data is None for tag in page.tables):
        return None
    rows = page.recipe.shape[0]
    first_rows = np.arange(page.count, dtype=np.uint64) % -(-page.height // rows) * rows
    expected = np.minimum(page.height - first_rows, rows) * page.recipe.compute_size(1)
    offsets, *sizes = (tag.values[: page.count].astype(np.uint64) for tag in page.tables)
    if any((size != expected).any() for size in sizes) or not offsets[0]:
        return None
    if (offsets[1:] != offsets[:-1] + expected[:-1]).any():
        return None
    chunks = choose_chunks(page.shape, page.dtype.itemsize)
    return chunks, Contiguous(tiff.source, int(offsets[0]), page.shape, chunks, page.dtype.itemsize, where)
