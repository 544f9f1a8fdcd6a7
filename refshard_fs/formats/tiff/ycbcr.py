"""YCbCr samples of a TIFF, in blocks that share one Cb and one Cr, as RGB. No I/O here."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.formats.tiff.ifds import Ifd

BITS, SAMPLES, PLANAR, PREDICTOR, COEFFICIENTS, SUBSAMPLING, REFERENCE = 258, 277, 284, 317, 529, 530, 532
_COEFFICIENTS: Final = (0.299, 0.587, 0.114)  # of ITU-R BT.601, the default of the specification
_REFERENCE: Final = (0.0, 255.0, 128.0, 255.0, 128.0, 255.0)  # the default of libtiff
_SHIFT: Final = 16  # libtiff computes with integers, in units of 2**-16
_MOST: Final = 128.0 * 32  # libtiff limits samples to this

Samples = npt.NDArray[np.uint8]


class YCbCr(msgspec.Struct, frozen=True):
    """How samples are laid out and converted, by the tags of an image.

    A block has the Y of ``across`` by ``down`` pixels, then one Cb and one Cr. ``coefficients`` are the shares of red,
    green and blue in Y; ``reference`` has the samples of black and white, for Y, Cb and Cr.
    """

    across: int
    down: int
    coefficients: tuple[float, ...]
    reference: tuple[float, ...]

    def size_of(self, rows: int, columns: int) -> int:
        """Return the size of an image in bytes; blocks at its edges are whole."""
        return -(-rows // self.down) * -(-columns // self.across) * (self.across * self.down + 2)

    def convert(self, data: bytes, rows: int, columns: int) -> bytes:
        """Convert blocks to RGB, three bytes a pixel, to the values of libtiff."""
        across, down = self.across, self.down
        blocks = np.frombuffer(data, np.uint8).reshape(-(-rows // down), -(-columns // across), across * down + 2)
        luma = blocks[..., :-2].reshape(*blocks.shape[:2], down, across).swapaxes(1, 2)
        luma = luma.reshape(blocks.shape[0] * down, -1)[:rows, :columns]
        blue, red = (blocks[..., at].repeat(down, 0).repeat(across, 1)[:rows, :columns] for at in (-2, -1))
        return self._make_rgb(luma, blue, red).tobytes()

    def _make_rgb(self, luma: Samples, blue: Samples, red: Samples) -> Samples:
        """Return (rows, columns, 3), as TIFFYCbCrtoRGB of libtiff computes it from tables."""
        of_red, of_green, of_blue = (np.float32(share) for share in self.coefficients)
        black, white = self.reference[::2], self.reference[1::2]
        codes = np.arange(256)
        grey = _scale(codes, black[0], white[0], 255)
        from_blue = _scale(codes - 128, black[1] - 128, white[1] - 128, 127)
        from_red = _scale(codes - 128, black[2] - 128, white[2] - 128, 127)
        two, half = np.float32(2), 1 << _SHIFT - 1
        steps_red, steps_blue = two - two * of_red, two - two * of_blue
        to_red = _fix(steps_red) * from_red + half >> _SHIFT
        to_blue = _fix(steps_blue) * from_blue + half >> _SHIFT
        red_to_green = -_fix(of_red * steps_red / of_green) * from_red
        blue_to_green = -_fix(of_blue * steps_blue / of_green) * from_blue + half
        bright = grey[luma]
        green = bright + (red_to_green[red] + blue_to_green[blue] >> _SHIFT)
        rgb = np.stack([bright + to_red[red], green, bright + to_blue[blue]], axis=2)
        return rgb.clip(0, 255).astype(np.uint8)


def parse_ycbcr(ifd: Ifd) -> YCbCr:
    """Return how the samples of an image are converted; ValueError for forms that are not supported."""
    across, down = (*ifd.integers(SUBSAMPLING, 2, 2), 0)[:2]
    what = {set(ifd.integers(BITS, 1)) == {8}, ifd.integer(SAMPLES, 1) == 3, ifd.integer(PLANAR, 1) == 1}
    if what != {True} or not {across, down} <= {1, 2, 4} or ifd.integer(PREDICTOR, 1) != 1:
        raise ValueError(
            f"its YCbCr samples have BitsPerSample {ifd.integers(BITS, 1)[:4]}, {ifd.integer(SAMPLES, 1)} samples, "
            f"PlanarConfiguration {ifd.integer(PLANAR, 1)}, YCbCrSubSampling {across, down} and Predictor "
            f"{ifd.integer(PREDICTOR, 1)}: expected 3 interleaved samples of 8 bits, one Cb and Cr for 1, 2 or 4 rows "
            "and columns, without a predictor"
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
        found = tuple(map(float, tag.values.tolist()))
    else:
        found = tuple(above / below if below else 0.0 for above, below in tag.values.tolist())
    if len(found) != len(default):
        raise ValueError(
            f"its YCbCr samples are described by {len(found)} values in tag {number}: expected {len(default)}"
        )
    return found


def _scale(codes: npt.NDArray[Any], black: float, white: float, steps: int) -> npt.NDArray[np.int64]:
    """Return how far each code lies from black, where white lies ``steps`` above it."""
    above = (codes - int(black)).astype(np.float32) * np.float32(steps) / np.float32(white - black or 1)
    return above.clip(-_MOST, _MOST).astype(np.int64)


def _fix(value: np.float32) -> int:
    """Return a factor in units of 2**-16, limited as libtiff does."""
    return int(float(min(max(value, np.float32(0)), np.float32(2))) * (1 << _SHIFT) + 0.5)
