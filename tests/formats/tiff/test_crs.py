"""A CRS that geo keys define by parameters equals the CRS that GDAL reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs.formats.tiff.crs import describe_crs
from tests.support.shards_in_memory import Files
from tests.support.tiff_files import write

rasterio = pytest.importorskip("rasterio")
from rasterio.warp import transform  # noqa: E402  # after importorskip

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")]

SPHERE: dict[int, Any] = {2048: 32767, 2057: 6371007.181, 2058: 6371007.181}
CF = {
    "+proj=sinu +R=6371007.181": {"longitude_of_projection_origin": 0, "semi_minor_axis": 6371007.181},
    "+proj=aea +lat_1=29.5 +lat_2=45.5 +lat_0=23 +lon_0=-96 +datum=NAD83": {"standard_parallel": [29.5, 45.5]},
    "+proj=lcc +lat_1=33 +lat_2=45 +lat_0=40 +lon_0=-97 +datum=WGS84": {"longitude_of_central_meridian": -97},
    "+proj=lcc +lat_1=46.5 +lat_0=46.5 +k_0=0.9998 +x_0=6e5 +a=6378249.2 +b=6356515 +pm=paris": {},
    "+proj=laea +lat_0=52 +lon_0=10 +x_0=4321000 +y_0=3210000 +ellps=GRS80": {"false_easting": 4321000},
    "+proj=laea +lat_0=-90 +datum=WGS84": {"latitude_of_projection_origin": -90},
    "+proj=merc +lat_ts=41 +lon_0=10 +datum=WGS84": {"standard_parallel": 41},
    "+proj=tmerc +lat_0=1 +lon_0=9 +k=0.9996 +ellps=bessel +towgs84=598.1,73.7,418.2,0.2,0.1,-2.5,6.7": {
        "scale_factor_at_central_meridian": 0.9996
    },
    "+proj=utm +zone=33 +south +ellps=intl": {"false_northing": 1e7},
    "+proj=tmerc +axis=wsu +lon_0=19 +datum=WGS84": {},
    "+proj=stere +lat_0=90 +lat_ts=70 +lon_0=-45 +a=6378273 +b=6356889.449": {
        "standard_parallel": 70, "latitude_of_projection_origin": 90, "straight_vertical_longitude_from_pole": -45
    },
    "+proj=stere +lat_0=-90 +k=0.994 +lon_0=9 +datum=WGS84": {"scale_factor_at_projection_origin": 0.994},
    "+proj=omerc +lat_0=57 +lonc=-133 +alpha=323.13 +k=0.9999 +gamma=323.13 +datum=NAD83": {},
    "+proj=aea +lat_1=29.5 +lat_2=45.5 +lat_0=23 +lon_0=-96 +datum=NAD27 +units=us-ft": {},
    "+proj=moll +lon_0=0 +datum=WGS84": {},
    "+proj=longlat +R=6371229": {"grid_mapping_name": "latitude_longitude"},
    "ESRI:102003": {"grid_mapping_name": "albers_conical_equal_area"},
}  # fmt: skip


@pytest.mark.parametrize("crs", CF)
def test_crs_with_parameters_equals_gdal(tmp_path: Path, crs: str) -> None:
    path = write(tmp_path / "a.tif", np.zeros((2, 2), "u1"), crs=crs)
    files = Files.of(path)
    found = json.loads(files.read(files.open(), "spatial_ref/.zattrs") or b"")
    with rasterio.open(path) as ds:
        want = ds.crs
    assert rasterio.crs.CRS.from_wkt(found["crs_wkt"]) == want
    points = ([1e5, 3e5], [2e5, 4e5]) if want.is_projected else ([8.0, 9.0], [47.0, 48.0])
    for got, expected in zip(*(transform(c, "EPSG:4326", *points) for c in (found["crs_wkt"], want)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)
    assert {name: found[name] for name in CF[crs]} == CF[crs]
    assert ("grid_mapping_name" in found) == bool(CF[crs])


def test_geographic_citation_of_a_projected_crs_is_read() -> None:
    keys = {**SPHERE, 3075: 24, 2049: 'GCS Name = the "sphere"|Datum = D|Ellipsoid = E', 3076: 9002}
    found = describe_crs(keys)["crs_wkt"]
    assert found.startswith('PROJCS["unknown",GEOGCS["the ""sphere""",DATUM["D",SPHEROID["E",6371007.181,0.0]]')
    assert 'UNIT["foot",0.3048]' in found
    assert describe_crs({2048: 4326, 3075: 24})["crs_wkt"].startswith("PROJCS")  # not the code of the geographic CRS


def test_projection_of_esri_precedes_a_geographic_code(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tif", np.zeros((2, 2), "u1"), crs="EPSG:3857", GEOTIFF_KEYS_FLAVOR="ESRI_PE")
    files = Files.of(path)
    found = json.loads(files.read(files.open(), "spatial_ref/.zattrs") or b"")["crs_wkt"]
    with rasterio.open(path) as ds:
        assert rasterio.crs.CRS.from_wkt(found) == ds.crs


def test_kind_of_a_crs_follows_from_its_model_type() -> None:
    assert describe_crs({1024: 2, 2048: 4326, 3072: 32633})["crs_wkt"] == "EPSG:4326"
    assert describe_crs({1024: 1, 2048: 4326}) == {}  # a projected CRS without its projection


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {2048: [1.0, 2.0], 3072: "x", 3075: math.nan},
        {**SPHERE, 3075: 99},
        {**SPHERE, 3075: 24, 3076: 9999},
        {**SPHERE, 3075: 24, 3076: 32767},
        {**SPHERE, 2054: 32767, 2055: -1.0},
        {**SPHERE, 2051: 8999},
        {**SPHERE, 2054: 9105, 2061: 2.5969213},
        {**SPHERE, 1024: 3},
        {2048: 32767, 2057: math.inf},
    ],
)
def test_crs_of_unknown_or_damaged_keys_is_not_described(keys: dict[int, Any]) -> None:
    assert describe_crs(keys) == {}
