"""Comparison of a TIFF with what tifffile reads of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.support.shard_writers import IS_ZARR_2, array

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),  # of how rasterio multiplies
]


RNG = np.random.default_rng(3)


RGB = RNG.integers(0, 255, (70, 50, 3), "u1")


ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]


def check_pages(path: Path) -> None:
    """Assert that each page is the array of its number, in every version of zarr's metadata."""
    with tifffile.TiffFile(path) as tiff:
        for zarr_format, (number, page) in itertools.product(ZARR_FORMATS, enumerate(tiff.pages)):
            np.testing.assert_array_equal(array(path, str(number), zarr_format=zarr_format)[...], page.asarray())
