"""A chunk made of a strip or tile that zarr's codecs cannot decode: decompressed, unpacked, summed up, padded.

No more memory is taken than the chunk needs, whatever the compressed bytes promise.
"""

from __future__ import annotations

import importlib
import lzma
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numcodecs
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import Padded
from refshard_fs.core.compression import decompressed, zstd

DICTIONARY: Final = 1 << 28  # bytes that decoding LZMA may take; its strongest preset needs a quarter of them
_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))

# Codecs that zarr has, by the value of Compression, as version 2 names them.
NATIVE: Final[Mapping[int, dict[str, Any] | None]] = {
    1: None,
    8: {"id": "zlib", "level": 1},
    32946: {"id": "zlib", "level": 1},
    34925: {"id": "lzma", "format": lzma.FORMAT_XZ, "check": -1, "preset": 0, "filters": None},
    50000: {"id": "zstd", "level": 1},
}


class Decoded(msgspec.Struct, frozen=True):
    """A chunk of ``shape`` (rows, columns, samples), of which ``rows`` are stored; zeros follow them.

    ``bits`` are those of a sample in the file, ``dtype`` is what it is shown as. The chunk is plain, or (``encoded``)
    compressed again for zarr's own codec.
    """

    compression: int
    predictor: int
    bits: int
    dtype: str
    shape: tuple[int, int, int]
    rows: int
    is_reversed: bool
    photometric: int
    tables: bytes
    encoded: bool = False

    @property
    def size(self) -> int:
        """Bytes of the chunk, decoded."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def stored(self, rows: int) -> int:
        """Return how many bytes ``rows`` have, decompressed: each begins with a byte of its own."""
        return rows * -(-self.shape[1] * self.shape[2] * self.bits // 8)

    def make(self, raw: bytes) -> bytes:
        codec = CODECS[self.compression]
        try:
            decoded = codec.decode(raw.translate(_REVERSED) if self.is_reversed else raw, self)
        except (ValueError, ImportError):
            raise
        except Exception as e:  # each library has errors of its own for damaged bytes
            raise ValueError(f"its {codec.name} bytes are damaged: {e}") from e
        if isinstance(decoded, np.ndarray):
            data = decoded.astype(self.dtype).tobytes()
        elif len(decoded) < self.stored(self.rows):
            raise ValueError(f"its {codec.name} bytes give {len(decoded)} of {self.stored(self.rows)}")
        else:
            data = self._samples(decoded[: self.stored(self.rows)])
        return self.finished(Padded(self.size).make(data))

    def finished(self, data: bytes) -> bytes:
        """Return the chunk whose plain bytes are ``data``."""
        if not self.encoded or NATIVE[self.compression] is None:
            return data
        return bytes(numcodecs.get_codec(NATIVE[self.compression]).encode(data))

    def _samples(self, data: bytes) -> bytes:
        """Return the samples of the stored rows, as they are shown."""
        dtype, (_, width, samples) = np.dtype(self.dtype), self.shape
        if self.bits != dtype.itemsize * 8:  # the most significant bit first; rows are padded to whole bytes
            bits = np.unpackbits(
                np.frombuffer(data, "u1").reshape(self.rows, -1), axis=1, count=width * samples * self.bits
            )
            weights = 1 << np.arange(self.bits, dtype="u4")[::-1]
            return (bits.reshape(-1, self.bits) @ weights).astype(dtype).tobytes()
        match self.predictor:
            case 2:
                steps = np.frombuffer(data, f"{dtype.str[0]}u{dtype.itemsize}").reshape(-1, width, samples)
                return np.cumsum(steps, axis=1, dtype=f"u{dtype.itemsize}").astype(steps.dtype).tobytes()
            case 3:  # the bytes of each row are differences, and lie by significance, the highest first
                steps = np.frombuffer(data, "u1").reshape(self.rows, -1, samples)
                planes = np.cumsum(steps, axis=1, dtype="u1").reshape(self.rows, dtype.itemsize, -1)
                return planes.transpose(0, 2, 1).copy().view(dtype.newbyteorder(">")).astype(dtype).tobytes()
        return data


Decode = Callable[[bytes, Decoded], "bytes | npt.NDArray[Any]"]


class Codec(NamedTuple):
    """How a value of Compression is decoded: to the bytes of samples, or to an image."""

    name: str
    decode: Decode
    is_image: bool = False


def _streamed(name: str, make: Callable[[], Any]) -> Codec:
    """Return a codec of Python's own library."""

    def decode(raw: bytes, recipe: Decoded) -> bytes:
        return decompressed(make(), raw, recipe.stored(recipe.shape[0]))

    return Codec(name, decode)


def _by_imagecodecs(function: str, *args: Any, **options: Any) -> Any:
    """Call the library that decodes what neither Python nor numcodecs can."""
    try:
        library = importlib.import_module("imagecodecs")
    except ImportError as e:
        raise ImportError('this TIFF needs imagecodecs to be read: pip install "refshard_fs[tiff]"') from e
    return getattr(library, function)(*args, **options)


def _bytes(name: str, function: str) -> Codec:
    """Return a codec of imagecodecs whose result is the bytes of samples."""
    return Codec(name, lambda raw, recipe: bytes(_by_imagecodecs(function, raw, out=recipe.stored(recipe.shape[0]))))


def _image(
    name: str, function: str, options: Callable[[bytes, Decoded], dict[str, Any]] = lambda raw, recipe: {}
) -> Codec:
    """Return a codec of imagecodecs whose result is an image, which must have the rows that are stored."""

    def decode(raw: bytes, recipe: Decoded) -> npt.NDArray[Any]:
        out = _canvas(recipe)
        _by_imagecodecs(function, raw, out=out, **options(raw, recipe))
        return out

    return Codec(name, decode, is_image=True)


def _canvas(recipe: Decoded) -> npt.NDArray[Any]:
    """Return what an image is decoded into: decoders refuse to where it has another shape or type."""
    shape = (recipe.rows, *recipe.shape[1:]) if recipe.shape[2] > 1 else (recipe.rows, recipe.shape[1])
    return np.zeros(shape, np.dtype(recipe.dtype).newbyteorder("="))


def _lerc(raw: bytes, recipe: Decoded) -> npt.NDArray[Any]:
    """Return an image of LERC, in which NaN is what its mask leaves out; samples with masks of their own are planes."""
    out = _canvas(recipe)
    try:
        _, mask = _by_imagecodecs("lerc_decode", raw, out=out, masks=True)
    except ValueError:
        if recipe.shape[2] == 1:
            raise
        planes = np.zeros((recipe.shape[2], *out.shape[:2]), out.dtype)
        _, mask = _by_imagecodecs("lerc_decode", raw, out=planes, masks=True)
        out = np.moveaxis(planes, 0, -1)
        mask = np.moveaxis(mask, 0, -1) if mask is not None and mask.ndim == 3 else mask
    if mask is not None and out.dtype.kind == "f":
        out[~mask] = np.nan
    return out


def _jpeg_options(raw: bytes, recipe: Decoded) -> dict[str, Any]:
    """Return the colours that a JPEG stream has, and is to be decoded to: what the TIFF says, and it does not."""
    given = "RGB" if recipe.photometric == 2 and b"JFIF" not in raw[:32] else None
    made = {2: "RGB", 5: "CMYK", 6: "RGB"}.get(recipe.photometric)
    if recipe.shape[2] == 1:
        given, made = None, "GRAYSCALE"
    return {"tables": recipe.tables or None, "colorspace": given, "outcolorspace": made}


_DEFLATE = _streamed("deflate", zlib.decompressobj)

# By the value of Compression.
CODECS: Final[Mapping[int, Codec]] = {
    1: Codec("plain", lambda raw, recipe: raw),
    5: _bytes("LZW", "lzw_decode"),
    7: _image("JPEG", "jpeg_decode", _jpeg_options),
    8: _DEFLATE,
    32773: _bytes("PackBits", "packbits_decode"),
    32946: _DEFLATE,
    34887: Codec("LERC", _lerc, is_image=True),
    34925: _streamed("LZMA", lambda: lzma.LZMADecompressor(memlimit=DICTIONARY)),
    50000: _streamed("zstd", lambda: zstd().ZstdDecompressor()),
    50001: _image("WebP", "webp_decode"),
}
