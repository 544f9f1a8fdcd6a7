"""Coordinates and attributes of the place of an image are those that GDAL finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.shard_writers import array
from tests.support.tiff_files import SMOOTH, write

rasterio = pytest.importorskip("rasterio")

pytestmark = [pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")]  # of how rasterio multiplies


def place(path: Path) -> dict[str, Any]:
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    return json.loads(fs.cat_file("spatial_ref/.zattrs"))  # type: ignore[no-any-return]  # JSON


def test_pixels_that_are_points_lie_half_a_pixel_further(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", SMOOTH, tags={"AREA_OR_POINT": "Point"})
    with rasterio.open(path) as ds:
        first = ds.xy(0, 0)
    assert (array(path, "x")[0], array(path, "y")[0]) == first


def test_grid_turned_has_no_coordinates_but_its_transform(tmp_path: Path) -> None:
    turned = rasterio.Affine(9.0, 1.0, 500.0, 2.0, -8.0, 700.0)
    path = write(tmp_path / "a.tif", SMOOTH, transform=turned)
    assert not RefShardFileSystem(str(path)).exists("x")
    assert tuple(map(float, place(path)["GeoTransform"].split())) == turned.to_gdal()
