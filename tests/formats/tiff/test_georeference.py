"""The coordinates and the transform of an image are the same as in GDAL."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.shard_writers import open_array
from tests.support.tiff_files import SMOOTH, write

tifffile = pytest.importorskip("tifffile")
rasterio = pytest.importorskip("rasterio")

pytestmark = [pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")]  # raised within rasterio


def read_spatial_ref(path: Path) -> dict[str, Any]:
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    return json.loads(fs.cat_file("spatial_ref/.zattrs"))  # type: ignore[no-any-return]  # JSON


def test_point_pixels_are_shifted_by_half_a_pixel(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", SMOOTH, tags={"AREA_OR_POINT": "Point"})
    with rasterio.open(path) as ds:
        first = ds.xy(0, 0)
    assert (open_array(path, "x")[0], open_array(path, "y")[0]) == first


def test_rotated_image_has_a_transform_and_no_coordinates(tmp_path: Path) -> None:
    turned = rasterio.Affine(9.0, 1.0, 500.0, 2.0, -8.0, 700.0)
    path = write(tmp_path / "a.tif", SMOOTH, transform=turned)
    assert not RefShardFileSystem(str(path)).exists("x")
    assert tuple(map(float, read_spatial_ref(path)["GeoTransform"].split())) == turned.to_gdal()


def test_image_without_a_transform_has_its_crs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", SMOOTH, transform=None)
    assert read_spatial_ref(path) == {"_ARRAY_DIMENSIONS": [], "crs_wkt": "EPSG:32633", "spatial_ref": "EPSG:32633"}


def test_geo_keys_beyond_the_stated_number_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", SMOOTH, tags={"AREA_OR_POINT": "Point"})
    with tifffile.TiffFile(path) as tiff:
        at = tiff.pages[0].tags[34735].valueoffset + 6
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes(2) + data[at + 2 :])
    with rasterio.open(path) as ds:
        assert ds.crs is None
        assert tuple(map(float, read_spatial_ref(path)["GeoTransform"].split())) == ds.transform.to_gdal()
    assert "crs_wkt" not in read_spatial_ref(path)


def test_negative_y_scale_gives_the_transform_of_gdal(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", SMOOTH)
    scale = struct.pack("<3d", 10, 20, 0)
    path.write_bytes(path.read_bytes().replace(scale, struct.pack("<3d", 10, -20, 0)))
    with rasterio.open(path) as ds:
        assert tuple(map(float, read_spatial_ref(path)["GeoTransform"].split())) == ds.transform.to_gdal()


@pytest.mark.parametrize("kind", ["Area", "Point"])
def test_ground_control_points_equal_gdal(tmp_path: Path, kind: str) -> None:
    corners = [(0, 0, 10, 50), (0, 200, 11, 50.1), (150, 0, 10.1, 49), (150, 200, 11.2, 49.2)]
    points = [rasterio.control.GroundControlPoint(*corner, z=number) for number, corner in enumerate(corners)]
    path = write(tmp_path / "a.tif", SMOOTH, gcps=points, transform=None, crs="EPSG:4326", tags={"AREA_OR_POINT": kind})
    with rasterio.open(path) as ds:
        want, _ = ds.gcps
    attributes = read_spatial_ref(path)
    found = json.loads(attributes["gcps"])["features"]
    assert [(f["properties"]["row"], f["properties"]["col"]) for f in found] == [(p.row, p.col) for p in want]
    assert [tuple(f["geometry"]["coordinates"]) for f in found] == [(p.x, p.y, p.z) for p in want]
    assert attributes["crs_wkt"] == "EPSG:4326"
    assert "GeoTransform" not in attributes
    assert not RefShardFileSystem(str(path)).exists("x")


def test_rational_polynomials_equal_gdal(tmp_path: Path) -> None:
    ones = [number / 7 for number in range(20)]
    rest = dict.fromkeys(("line_num_coeff", "line_den_coeff", "samp_num_coeff", "samp_den_coeff"), ones)
    names = [f"{axis}_{kind}" for kind in ("off", "scale") for axis in ("height", "lat", "line", "long", "samp")]
    rpcs = rasterio.rpc.RPC(**rest, **{name: 1.5 + number for number, name in enumerate(names)}, err_bias=1, err_rand=2)
    path = write(tmp_path / "a.tif", SMOOTH, rpcs=rpcs, transform=None, crs=None, overviews=(2,))
    assert rasterio.rpc.RPC(**json.loads(read_spatial_ref(path)["rpcs"])) == rpcs
    assert "rpcs" not in json.loads(RefShardFileSystem(str(path)).cat_file("spatial_ref_1/.zattrs"))
