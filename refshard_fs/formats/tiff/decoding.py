"""A chunk made of a strip or tile that zarr's codecs cannot decode: decompressed, unpacked, summed up, padded.

No more memory is taken than the chunk needs, whatever the compressed bytes promise.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numcodecs
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import Padded
from refshard_fs.core.compression import by_imagecodecs, decompressed, zstd

# Codecs that zarr has, by the value of Compression, as version 2 names them.
NATIVE: Final[Mapping[int, dict[str, Any] | None]] = {
    1: None,
    8: {"id": "zlib", "level": 1},
    32946: {"id": "zlib", "level": 1},
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
        decoded = CODECS[self.compression](raw, self)
        if isinstance(decoded, np.ndarray):
            data = decoded.astype(self.dtype).tobytes()
        elif len(decoded) < self.stored(self.rows):
            raise ValueError(f"its bytes give {len(decoded)} of {self.stored(self.rows)}, decompressed")
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


Decode = Callable[[bytes, Decoded], "bytes | npt.NDArray[Any]"]  # to the bytes of samples, or to an image


def _streamed(make: Callable[[], Any]) -> Decode:
    """Return a decoder of Python's own library."""
    return lambda raw, recipe: decompressed(make(), raw, recipe.stored(recipe.shape[0]))


def _bytes(function: str) -> Decode:
    """Return a decoder of imagecodecs whose result is the bytes of samples."""
    return lambda raw, recipe: bytes(by_imagecodecs(function, raw, "tiff", out=recipe.stored(recipe.shape[0])))


def _canvas(recipe: Decoded) -> npt.NDArray[Any]:
    """Return what an image is decoded into: decoders refuse to where it has another shape or type."""
    shape = (recipe.rows, *recipe.shape[1:]) if recipe.shape[2] > 1 else (recipe.rows, recipe.shape[1])
    return np.zeros(shape, np.dtype(recipe.dtype).newbyteorder("="))


def _webp(raw: bytes, recipe: Decoded) -> npt.NDArray[Any]:
    out = _canvas(recipe)
    by_imagecodecs("webp_decode", raw, "tiff", out=out)
    return out


def _jpeg(raw: bytes, recipe: Decoded) -> npt.NDArray[Any]:
    """Return an image of JPEG, in the colours that the TIFF says, where the stream does not."""
    given = "RGB" if recipe.photometric == 2 and b"JFIF" not in raw[:32] else None
    made = {2: "RGB", 5: "CMYK", 6: "RGB"}.get(recipe.photometric)
    if recipe.shape[2] == 1:
        given, made = None, "GRAYSCALE"
    out = _canvas(recipe)
    options = {"tables": recipe.tables or None, "colorspace": given, "outcolorspace": made}
    by_imagecodecs("jpeg_decode", raw, "tiff", out=out, **options)
    return out


def _lerc(raw: bytes, recipe: Decoded) -> npt.NDArray[Any]:
    """Return an image of LERC, in which NaN is what its mask leaves out; samples have no masks of their own."""
    out = _canvas(recipe)
    _, mask = by_imagecodecs("lerc_decode", raw, "tiff", out=out, masks=True)
    if mask is not None and out.dtype.kind == "f":
        out[~mask] = np.nan
    return out


_INFLATE: Final = _streamed(zlib.decompressobj)

# By the value of Compression; those of images undo what was predicted themselves.
CODECS: Final[Mapping[int, Decode]] = {
    1: lambda raw, recipe: raw,
    5: _bytes("lzw_decode"),
    7: _jpeg,
    8: _INFLATE,
    32773: _bytes("packbits_decode"),
    32946: _INFLATE,
    34887: _lerc,
    50000: _streamed(lambda: zstd().ZstdDecompressor()),
    50001: _webp,
}
IMAGES: Final = frozenset([7, 34887, 50001])
