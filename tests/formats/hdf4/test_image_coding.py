"""Images that were compressed before HDF 4 have the pixels that the HDF4 library reads."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf4.image_coding import ImageCoding
from tests.support.hdf4_files import make_hdf4_file
from tests.support.shard_writers import open_array

codecs = pytest.importorskip("imagecodecs")

PIXELS = np.array([[1, 2, 3, 3, 3, 3, 3, 9]] * 4, "u1")
RUNS = b"\x02\x01\x02\x85\x03\x01\x09" * 4  # each row: two bytes as they are, five times 3, one byte


def write_image(path: Path, compression: int, data: bytes, rows: int, columns: int, bands: int = 1) -> Path:
    """Write an image as the interface of HDF 3 does: a group (306) names its shape (300) and its bytes (303)."""
    shape = struct.pack(">iiHHhhHH", columns, rows, 106, 1, bands, 0, compression, 2)
    members = struct.pack(">4H", 300, 2, 303, 2)
    path.write_bytes(
        make_hdf4_file({(106, 1): bytes([1, 21, 8, 0]), (306, 2): members, (300, 2): shape, (303, 2): data})
    )
    return path


def test_run_lengths_of_each_row_are_decoded(tmp_path: Path) -> None:
    np.testing.assert_array_equal(open_array(write_image(tmp_path / "a.hdf", 11, RUNS, 4, 8), "image 2")[...], PIXELS)


def test_block_of_16_pixels_has_two_colours(tmp_path: Path) -> None:
    # A block has a bit for each of 16 pixels, the value of a set bit, and the value of an unset bit.
    blocks = bytes([0b10100101, 0xFF, 7, 4, 0xF0, 0x0F, 1, 2])
    pixels = open_array(write_image(tmp_path / "a.hdf", 12, blocks, 4, 8), "image 2")[...]
    first_block = [[7, 4, 7, 4], [4, 7, 4, 7], [7] * 4, [7] * 4]
    np.testing.assert_array_equal(pixels, np.hstack([first_block, [[1] * 4, [2] * 4, [2] * 4, [1] * 4]]))


@pytest.mark.parametrize("bands", [1, 3])
def test_jpeg_is_decoded_with_its_bands(tmp_path: Path, bands: int) -> None:
    values = np.random.default_rng(2).integers(0, 255, (16, 24, 3)[: 2 + (bands > 1)], "u1")
    data = codecs.jpeg_encode(values, level=95)
    image = open_array(write_image(tmp_path / "a.hdf", 16 if bands == 1 else 15, data, 16, 24, bands), "image 2")
    assert image.attrs["_ARRAY_DIMENSIONS"] == ["y", "x", "band"][: values.ndim]
    np.testing.assert_array_equal(image[...], codecs.jpeg_decode(data))


@pytest.mark.parametrize(("compression", "data"), [(11, RUNS[:-3]), (12, bytes(7)), (16, b"\xff\xd8")])
def test_bytes_that_do_not_fit_an_image_are_errors(compression: int, data: bytes) -> None:
    recipe = ImageCoding(compression, 4, 8, 1).make_recipe(32, 1)
    with pytest.raises(ValueError, match="decode|cut short|bytes of blocks"):
        recipe.make(data)


def test_pixels_of_several_bytes_are_refused() -> None:
    with pytest.raises(ManifestError, match="pixels have 2 bytes: expected 1"):
        ImageCoding(11, 4, 8, 1).make_recipe(64, 2)
