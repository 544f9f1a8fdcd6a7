"""Convert YCbCr samples of a TIFF, in which the pixels of a block share one Cb and one Cr, to RGB. No I/O here."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.formats.tiff.ifds import Ifd

BITS, SAMPLES, PLANAR, PREDICTOR, COEFFICIENTS, SUBSAMPLING, REFERENCE = 258, 277, 284, 317, 529, 530, 532
_COEFFICIENTS: Final = (0.299, 0.587, 0.114)  # the specification's default, from ITU-R BT.601
_REFERENCE: Final = (0.0, 255.0, 128.0, 255.0, 128.0, 255.0)  # the default of libtiff
_SHIFT: Final = 16  # libtiff computes with integers, in units of 2**-16
_MOST: Final = 128.0 * 32  # libtiff limits scaled samples to plus and minus this value

Samples = npt.NDArray[np.uint8]


class YCbCr(msgspec.Struct, frozen=True):
    """The layout of an image's YCbCr samples, and the numbers that convert them, from the tags of the image.

    A block has the Y of ``across`` by ``down`` pixels, then one Cb and one Cr. ``coefficients`` are the shares of red,
    green and blue in Y. ``reference`` has the samples of black and of white, for each of Y, Cb and Cr.
    """

    across: int
    down: int
    coefficients: tuple[float, ...]
    reference: tuple[float, ...]

    def compute_size(self, rows: int, columns: int) -> int:
        """Return the size of an image in bytes; blocks at its edges are stored whole."""
        return -(-rows // self.down) * -(-columns // self.across) * (self.across * self.down + 2)

    def convert(self, data: bytes, rows: int, columns: int) -> bytes:
        """Convert blocks to RGB, three bytes a pixel, with the same values as libtiff."""
        across, down = self.across, self.down
        blocks = np.frombuffer(data, np.uint8).reshape(-(-rows // down), -(-columns // across), across * down + 2)
        luma = blocks[..., :-2].reshape(*blocks.shape[:2], down, across).swapaxes(1, 2)
        luma = luma.reshape(blocks.shape[0] * down, -1)[:rows, :columns]
        blue, red = (blocks[..., at].repeat(down, 0).repeat(across, 1)[:rows, :columns] for at in (-2, -1))
        return self._make_rgb(luma, blue, red).tobytes()

    def _make_rgb(self, luma: Samples, blue: Samples, red: Samples) -> Samples:
        """Return an array of (rows, columns, 3), computed from tables as TIFFYCbCrtoRGB of libtiff does."""
        of_red, of_green, of_blue = (np.float32(share) for share in self.coefficients)
        black, white = self.reference[::2], self.reference[1::2]
        codes = np.arange(256)
        grey = _scale(codes, black[0], white[0], 255)
        from_blue = _scale(codes - 128, black[1] - 128, white[1] - 128, 127)
        from_red = _scale(codes - 128, black[2] - 128, white[2] - 128, 127)
        two, half = np.float32(2), 1 << _SHIFT - 1
        steps_red, steps_blue = two - two * of_red, two - two * of_blue
        to_red = _convert_to_fixed_point(steps_red) * from_red + half >> _SHIFT
        to_blue = _convert_to_fixed_point(steps_blue) * from_blue + half >> _SHIFT
        red_to_green = -_convert_to_fixed_point(of_red * steps_red / of_green) * from_red
        blue_to_green = -_convert_to_fixed_point(of_blue * steps_blue / of_green) * from_blue + half
        bright = grey[luma]
        green = bright + (red_to_green[red] + blue_to_green[blue] >> _SHIFT)
        rgb = np.stack([bright + to_red[red], green, bright + to_blue[blue]], axis=2)
        return rgb.clip(0, 255).astype(np.uint8)


def parse_ycbcr(ifd: Ifd) -> YCbCr:
    """Parse the layout of an image's YCbCr samples; ValueError if it is not supported."""
    across, down = (*ifd.get_integers(SUBSAMPLING, 2, 2), 0)[:2]
    are_supported = {
        set(ifd.get_integers(BITS, 1)) == {8},
        ifd.get_integer(SAMPLES, 1) == 3,
        ifd.get_integer(PLANAR, 1) == 1,
    }
    if are_supported != {True} or not {across, down} <= {1, 2, 4} or ifd.get_integer(PREDICTOR, 1) != 1:
        bits, samples, planar, predictor = (ifd.get_integers(tag, 1)[:4] for tag in (BITS, SAMPLES, PLANAR, PREDICTOR))
        raise ValueError(
            f"its YCbCr samples have BitsPerSample {bits}, SamplesPerPixel {samples}, PlanarConfiguration {planar}, "
            f"YCbCrSubSampling {across, down} and Predictor {predictor}: expected 3 interleaved samples of 8 bits, one "
            "Cb and Cr for 1, 2 or 4 rows and columns, without a predictor"
        )
    coefficients = _parse_fractions(ifd, COEFFICIENTS, _COEFFICIENTS)
    if not coefficients[1] > 0:
        raise ValueError(f"its YCbCrCoefficients are {coefficients}: expected a share of green above 0")
    return YCbCr(across, down, coefficients, _parse_fractions(ifd, REFERENCE, _REFERENCE))


def _parse_fractions(ifd: Ifd, number: int, default: tuple[float, ...]) -> tuple[float, ...]:
    """Return the values of a tag of fractions, or ``default`` if it is absent; ValueError for another count."""
    tag = ifd.tags.get(number)
    if tag is None:
        return default
    if tag.dtype.names is None:
        values = tuple(map(float, tag.values.tolist()))
    else:
        pairs = tag.values.tolist()
        values = tuple(numerator / denominator if denominator else 0.0 for numerator, denominator in pairs)
    if len(values) != len(default):
        raise ValueError(
            f"its YCbCr samples are described by {len(values)} values in tag {number}: expected {len(default)}"
        )
    return values


def _scale(codes: npt.NDArray[Any], black: float, white: float, steps: int) -> npt.NDArray[np.int64]:
    """Scale samples linearly, so that ``black`` becomes 0 and ``white`` becomes ``steps``."""
    scaled = (codes - int(black)).astype(np.float32) * np.float32(steps) / np.float32(white - black or 1)
    return scaled.clip(-_MOST, _MOST).astype(np.int64)


def _convert_to_fixed_point(value: np.float32) -> int:
    """Convert a factor to an integer in units of 2**-16. Limit the factor to 0 to 2 first, as libtiff does."""
    return int(float(min(max(value, np.float32(0)), np.float32(2))) * (1 << _SHIFT) + 0.5)
