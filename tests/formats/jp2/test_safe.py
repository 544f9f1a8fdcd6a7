"""SAFE folders of Sentinel-2: each image of the manifest is an array, in a group for its resolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.jp2_files import make_smooth_values

BANDS = {"B02": 10, "TCI": 10, "B05": 20, "B11": 20, "B01": 60}  # resolutions in metres
IMAGES = "GRANULE/L1C_T32TQM_A045/IMG_DATA"


def make_product(folder: Path, *, is_level_2: bool = False) -> dict[str, Path]:
    """Write the images of a product with GDAL, and its manifest. Return the files by the path of their array."""
    rasterio = pytest.importorskip("rasterio")
    from rasterio.shutil import copy

    found = {}
    for band, step in BANDS.items():
        name = f"{IMAGES}/T32TQM_20240101T101411_{band}.jp2"
        if is_level_2:
            name = f"{IMAGES}/R{step}m/T32TQM_20240101T101411_{band}_{step}m.jp2"
        path, count, size = folder / name, 3 if band == "TCI" else 1, 1200 // step
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.moveaxis(
            make_smooth_values(size, size, count, dtype="u1" if count > 1 else "u2") + np.uint8(step), 2, 0
        )
        place = rasterio.Affine(step, 0, 600_000, 0, -step, 5_000_000)
        profile = {"count": count, "height": size, "width": size, "dtype": values.dtype, "crs": "EPSG:32632"}
        with rasterio.open(folder / "a.tif", "w", driver="GTiff", transform=place, **profile) as file:
            file.write(values)
        copy(
            folder / "a.tif", path, driver="JP2OpenJPEG", REVERSIBLE="YES", QUALITY="100", BLOCKXSIZE=64, BLOCKYSIZE=64
        )
        found[f"r{step}m/{band}"] = path
    (folder / "a.tif").unlink()
    (folder / "MTD_MSIL1C.xml").write_text("<n1:Level-1C_User_Product/>")
    write_manifest(folder, [str(path.relative_to(folder)) for path in found.values()])
    return found


def write_manifest(folder: Path, names: list[str]) -> None:
    members = [f'<fileLocation locatorType="URL" href="./{name}"/>' for name in ["MTD_MSIL1C.xml", *names]]
    (folder / "manifest.safe").write_text(f"<xfdu:XFDU><dataObjectSection>{''.join(members)}</dataObjectSection>")


@pytest.mark.parametrize("is_level_2", [False, True])
def test_bands_of_a_product_match_gdal(tmp_path: Path, is_level_2: bool) -> None:
    rasterio, xr = pytest.importorskip("rasterio"), pytest.importorskip("xarray")
    images = make_product(tmp_path, is_level_2=is_level_2)
    tree: Any = xr.open_datatree(tmp_path, engine="refshard")
    assert set(tree.groups) == {"/", "/r10m", "/r20m", "/r60m"}
    for name, path in images.items():
        with rasterio.open(path) as file:
            want, place = file.read(), file.transform
            found = tree[name]
            np.testing.assert_array_equal(found.values.reshape(want.shape), want)
            assert found.dims == ("band", "y", "x")[want.shape[0] == 1 :]
            assert (found.x[0], found.y[0]) == (place.c + place.a / 2, place.f + place.e / 2)
            assert file.crs.to_epsg() == 32632
    r20m = xr.open_dataset(tmp_path, engine="refshard", group="r20m")
    assert set(r20m.data_vars) == {"B05", "B11"}
    assert r20m.spatial_ref.attrs["crs_wkt"]


def test_opening_takes_one_request_for_each_image(http_server: RangeServer, tmp_path: Path) -> None:
    images = make_product(tmp_path)
    for path in (*images.values(), tmp_path / "manifest.safe"):
        http_server.put(f"a.SAFE/{path.relative_to(tmp_path)}", path.read_bytes())
    http_server.clear()
    fs = RefShardFileSystem(f"{http_server.url}/a.SAFE/")
    assert {"r10m", "r20m", "r60m"} <= set(fs.ls("", detail=False))
    requests = [request.path for request in http_server.requests()]
    assert sum(path.endswith(".jp2") for path in requests) == len(images)
    http_server.clear()
    assert fs.cat_file("r10m/B02/0.0")
    assert len(http_server.requests()) <= 1


def test_image_that_is_missing_or_damaged_is_reported(tmp_path: Path) -> None:
    images = list(make_product(tmp_path).values())
    images[0].unlink()
    images[2].write_bytes(images[2].read_bytes()[:200])
    fs = RefShardFileSystem(str(tmp_path))
    assert [fs.exists(name) for name in ("r10m/B02", "r20m/B05", "r20m/B11")] == [False, False, True]
    reports = fs.left_whole
    assert "found no such file" in reports[str(images[0])]
    assert "cut short" in reports[str(images[2])] or "damaged" in reports[str(images[2])]


def test_image_with_another_place_is_reported(tmp_path: Path) -> None:
    images = make_product(tmp_path)
    data = images["r20m/B11"].read_bytes()
    north = np.array(5_000_000.0, "<f8").tobytes()  # in the tie point of the GeoTIFF in the image
    assert data.count(north) == 1
    images["r20m/B11"].write_bytes(data.replace(north, np.array(4_000_000.0, "<f8").tobytes()))
    fs = RefShardFileSystem(str(tmp_path))
    assert [fs.exists(name) for name in ("r20m/B05", "r20m/B11")] == [True, False]
    assert "found another" in fs.left_whole[str(images["r20m/B11"])]


def test_product_with_two_granules_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, [f"GRANULE/{granule}/IMG_DATA/T_B01.jp2" for granule in ("A045", "A046")])
    with pytest.raises(ManifestError, match="expected images of one granule, found images of 2 granules"):
        RefShardFileSystem(str(tmp_path)).ls("")


def test_error_of_a_product_without_images_says_what_to_do(tmp_path: Path) -> None:
    for names in (["measurement/s1a-iw-grd-vv.tiff"], ["GRANULE/../../../IMG_DATA/T_B01.jp2"]):
        write_manifest(tmp_path, names)
        with pytest.raises(ManifestError, match="found 0. Open the measurements of other missions one by one"):
            RefShardFileSystem(str(tmp_path)).ls("")
