"""Write TIFF files by GDAL, and compare arrays with those of tifffile."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.shard_writers import IS_ZARR_2, open_array

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),  # from rasterio's matrix products
]


RNG = np.random.default_rng(3)


RGB = RNG.integers(0, 255, (70, 50, 3), "u1")


SMOOTH = (np.add.outer(np.arange(150), np.arange(200)) // 2).astype("u1")
COLOURS = np.stack([SMOOTH, SMOOTH // 2, 255 - SMOOTH])


ZARR_FORMATS = [2] if IS_ZARR_2 else [2, 3]


def check_pages(path: Path) -> None:
    """Assert that each page equals the array of its number, with metadata of each zarr version."""
    with tifffile.TiffFile(path) as tiff:
        for zarr_format, (number, page) in itertools.product(ZARR_FORMATS, enumerate(tiff.pages)):
            np.testing.assert_array_equal(open_array(path, str(number), zarr_format=zarr_format)[...], page.asarray())


def write(path: Path, values: Any, **options: Any) -> Path:
    """Write a GeoTIFF by GDAL."""
    rasterio = pytest.importorskip("rasterio")
    from rasterio.transform import from_origin

    planes = values if values.ndim == 3 else values[None]
    where = {"crs": "EPSG:32633", "transform": from_origin(500000, 4600000, 10, 20)}
    size = dict(zip(("count", "height", "width"), planes.shape, strict=True))
    overviews, tags = options.pop("overviews", ()), options.pop("tags", {})
    scales = options.pop("scales", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with rasterio.open(path, "w", **{"driver": "GTiff", "dtype": planes.dtype, **where, **size, **options}) as ds:
            ds.write(planes)
            ds.update_tags(**tags)
            if scales is not None:
                ds.scales, ds.offsets = scales
            if overviews:
                ds.build_overviews(list(overviews))
    return path
