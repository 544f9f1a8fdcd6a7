"""Describe an image to zarr by its FITS header: shape, data type, scale, missing values and attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.array_group import ArrayDescription
from refshard_fs.errors import ManifestError
from refshard_fs.formats.fits.header import Header

_AXES: Final = "xyz"  # names of the three fastest axes
_DTYPES: Final = {8: ">u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
# By BITPIX: the BZERO that turns signed into unsigned integers (or the reverse, for 8 bits), and their data type.
_OTHER_SIGN: Final = {8: (-(1 << 7), "i1"), 16: (1 << 15, "<u2"), 32: (1 << 31, "<u4"), 64: (1 << 63, ">u8")}


class Image(msgspec.Struct, frozen=True):
    """An image, compressed or not. Pixels have the data type ``stored`` in the file, and ``dtype`` in the array.

    ``attribute_dtypes`` are the data types of attributes by name, which JSON cannot hold.
    """

    where: str
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    filters: Sequence[Mapping[str, Any]]
    attributes: Mapping[str, Any]
    fill_value: int | None
    attribute_dtypes: Mapping[str, str]

    def describe(self, chunks: Sequence[int], dimensions: Sequence[str]) -> ArrayDescription:
        """Return zarr's description of the image, with this chunk shape and these names of dimensions."""
        shape, attributes, fill = self.shape, self.attributes, self.fill_value
        return ArrayDescription(
            self.where, shape, tuple(chunks), self.dtype, dimensions, attributes, self.filters, fill, is_masked=True
        )


def parse_image(header: Header, prefix: str = "") -> Image:
    """Parse the image that a header describes; ``prefix`` is Z for a compressed image."""
    bitpix = header.get_bitpix(prefix)
    shape = header.get_axes(prefix)
    scale, zero = header.get_number("BSCALE", 1), header.get_number("BZERO", 0)
    stored = dtype = np.dtype(_DTYPES[bitpix])
    filters: list[Mapping[str, Any]] = []
    attributes = header.attributes
    dtypes: dict[str, str] = {}
    blank: int | None = None
    stated = header.cards.get("BLANK", header.cards.get("ZBLANK") if prefix else None)
    if bitpix > 0 and type(stated) is int:
        blank = stated
    other_zero, other = _OTHER_SIGN.get(bitpix, (None, ""))
    if scale == 1 and zero == other_zero:
        dtype = np.dtype(other)
        filters = [{"id": "fixedscaleoffset", "offset": zero, "scale": 1, "dtype": dtype.str, "astype": stored.str}]
        if bitpix == 64:  # the codec computes with floats, which lose bits
            if prefix:
                raise ManifestError(
                    f"{header.where}: it has tiles of unsigned integers of 64 bits, which are not supported: "
                    "decompress the file with funpack"
                )
            filters = []
        blank = None if blank is None else blank + int(zero)
    elif (scale, zero) != (1, 0):
        attributes |= {"scale_factor": scale, "add_offset": zero}
        single = bitpix in (8, 16, -32)  # astropy scales these to single precision
        dtypes = dict.fromkeys(("scale_factor", "add_offset"), "f4" if single else "f8")
    if blank is not None and not np.iinfo(dtype).min <= blank <= np.iinfo(dtype).max:
        blank = None  # no pixel can have this value
    return Image(header.where, shape, stored, dtype, filters, attributes, blank, dtypes)


def name_axes(images: Mapping[str, Image]) -> dict[str, list[str]]:
    """Name the axes of each image: the fastest axis is x, the next axes are y and z.

    If the lengths of an axis differ, images with the most frequent length use the plain name. The name for each other
    length begins with the name of the first image of that length, such as `SCI_x`.
    """
    lengths: dict[str, list[int]] = {}
    firsts: dict[tuple[str, int], str] = {}
    for name, image in images.items():
        for number, length in enumerate(reversed(image.shape)):
            lengths.setdefault(name_axis(number), []).append(length)
            firsts.setdefault((name_axis(number), length), name)
    for axis, all_lengths in lengths.items():
        firsts[axis, Counter(all_lengths).most_common(1)[0][0]] = ""
    return {name: _combine_names(image.shape, firsts) for name, image in images.items()}


def _combine_names(shape: tuple[int, ...], firsts: Mapping[tuple[str, int], str]) -> list[str]:
    axes = map(name_axis, reversed(range(len(shape))))
    return [f"{firsts[axis, length]}_{axis}".removeprefix("_") for axis, length in zip(axes, shape, strict=True)]


def name_axis(number: int) -> str:
    """Name an axis by its number; the fastest axis has the number 0."""
    return _AXES[number] if number < len(_AXES) else f"axis_{number + 1}"
