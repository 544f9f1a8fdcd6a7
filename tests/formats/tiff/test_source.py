"""Images in TIFF files have the values that tifffile and GDAL read, and few requests are needed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli import main
from refshard_fs.core.lru import LRU
from refshard_fs.formats.tiff import source
from refshard_fs.formats.tiff.source import _describe_pages
from refshard_fs.tools.info import summarise
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import check_commands, count_rounds_to_open
from tests.support.plain_tiff import make_tiff
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files
from tests.support.tiff_files import COLOURS, RGB, RNG, SMOOTH, ZARR_FORMATS, check_pages, write

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")

pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),  # raised within rasterio
]


def list_names(path: Path, **options: Any) -> set[str]:
    fs = RefShardFileSystem(str(path), skip_instance_cache=True, **options)
    return {key.split("/")[0] for key in fs.ls("", detail=False) if not key.startswith(".") and key != "zarr.json"}


def read_metadata(path: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    return json.loads(fs.cat(f"{name}/.zarray")), json.loads(fs.cat(f"{name}/.zattrs"))


def test_pages_of_different_sizes_have_different_dimensions(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    path = tmp_path / "pages.tif"
    with tifffile.TiffWriter(path) as writer:
        for shape in ((30, 20), (30, 20), (15, 10), (30, 10)):
            writer.write(RNG.integers(0, 9, shape, "u2"), compression="zlib", metadata=None)
    check_pages(path)
    ds = xr.open_dataset(path, engine="refshard", mask_and_scale=False)
    assert {name: variable.dims for name, variable in ds.data_vars.items()} == {
        "0": ("y", "x"),
        "1": ("y", "x"),
        "2": ("y_2", "x_2"),
        "3": ("y", "x_3"),
    }
    assert set(xr.open_datatree(path, engine="refshard")["/"].data_vars) == set("0123")


def test_unsupported_pages_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "mixed.tif"
    with tifffile.TiffWriter(path) as writer:
        writer.write(RGB[..., 0], metadata=None)
        writer.write(RGB[..., 0], metadata=None)
    with tifffile.TiffFile(path) as tiff:
        at = tiff.pages[1].tags["Compression"].valueoffset
    data = bytearray(path.read_bytes())
    data[at : at + 2] = struct.pack("<H", 34713)
    path.write_bytes(data)
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    np.testing.assert_array_equal(open_array(path, "0")[...], RGB[..., 0])
    assert not fs.exists("1")
    keyspace = Files({ROOT: bytes(data)}).open()
    assert keyspace.reports.keys() == {"1"}
    assert keyspace.reports["1"].startswith("its Compression 34713 is not supported: expected one of 1, 2, 3")
    with pytest.raises(ManifestError, match="that can be shown, found none: 0: its Compression 6"):
        Files({ROOT: make_tiff(b"1", 1, 1, 8, 6)}).open()


def test_layout_of_equal_ifds_is_described_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of files that differ only in the positions of tiles is cached; each file has its own tiles."""
    described: list[str] = []

    def describe(tiff: Any, *arguments: Any) -> Any:
        described.append(tiff.url)
        return _describe_pages(tiff, *arguments)

    monkeypatch.setattr(source, "_describe_pages", describe)
    monkeypatch.setattr(source, "_layouts", LRU(4))
    rng = np.random.default_rng(5)
    fields = [rng.integers(0, most, (96, 80), "u2") for most in (9, 60000, 300)]
    options = {"tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate", "predictor": 2}
    paths = [write(tmp_path / f"{n}.tif", field, overviews=[2], **options) for n, field in enumerate(fields)]
    other = write(tmp_path / "other.tif", fields[0], overviews=[2], **options, nodata=7)
    files = [Files({ROOT: path.read_bytes()}) for path in (*paths, other, paths[0])]
    opened = [file.open() for file in files]
    assert len(described) == 2
    for file, keyspace, path in zip(files, opened, (*paths, other, paths[0]), strict=True):
        with tifffile.TiffFile(path) as tiff:
            for name, page in zip("01", tiff.pages, strict=True):
                tile = np.frombuffer(file.read(keyspace, f"{name}/0.0") or b"", "u2").reshape(-1, page.tilewidth)
                np.testing.assert_array_equal(tile[:32, :32], page.asarray()[:32, :32])
    assert [json.loads(files[n].read(opened[n], "0/.zarray") or b"")["fill_value"] for n in (2, 3)] == [None, 7]


def test_layout_of_uncompressed_strips_is_not_cached(tmp_path: Path) -> None:
    """Consecutive strips are cut into larger chunks, so the layout of files with such strips is not cached."""
    path = tmp_path / "strips.tif"
    tifffile.imwrite(path, RGB[..., 0], rowsperstrip=10, metadata=None)
    with tifffile.TiffFile(path) as tiff:
        at, first = tiff.pages[0].tags["StripOffsets"].valueoffset, tiff.pages[0].dataoffsets[0]
    data = path.read_bytes()
    turned = bytearray(data)
    for strip, start in enumerate(range(first + 3000, first - 1, -500)):
        turned[at + 4 * strip : at + 4 * strip + 4] = struct.pack("<I", start)
        turned[start : start + 500] = data[first + 500 * strip : first + 500 * strip + 500]
    files = [Files({ROOT: content}) for content in (data, bytes(turned), data)]
    chunks = [json.loads(file.read(file.open(), "0/.zarray") or b"")["chunks"] for file in files]
    assert chunks == [[70, 50], [10, 50], [70, 50]]


def test_pyramid_is_a_multiscale_group(tmp_path: Path) -> None:
    path = tmp_path / "pyramid.tif"
    levels = [RGB[..., 0][:: 1 << n, :: 1 << n] for n in range(3)]
    with tifffile.TiffWriter(path) as writer:
        writer.write(levels[0], subifds=2, tile=(16, 16), compression="zlib", metadata=None)
        for level in levels[1:]:
            writer.write(level, subfiletype=1, tile=(16, 16), compression="zlib")
    for number, level in enumerate(levels):
        np.testing.assert_array_equal(open_array(path, str(number))[...], level)
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    (described,) = json.loads(fs.cat(".zattrs"))["multiscales"]
    assert [level["path"] for level in described["datasets"]] == ["0", "1", "2"]
    scales = [level["coordinateTransformations"][0]["scale"] for level in described["datasets"]]
    assert scales[:2] == [[1, 1], [2, 2]]


def test_unwritten_overview_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "pyramid.tif"
    with tifffile.TiffWriter(path) as writer:
        writer.write(RGB[..., 0], subifds=1, metadata=None)
        writer.write(RGB[::2, ::2, 0], subfiletype=1)
    with tifffile.TiffFile(path) as tiff:
        at = tiff.pages[0].tags["SubIFDs"].valueoffset
    data = bytearray(path.read_bytes())
    data[at : at + 4] = bytes(4)
    path.write_bytes(data)
    assert list_names(path) == {"0"}
    np.testing.assert_array_equal(open_array(path, "0")[...], RGB[..., 0])


@pytest.mark.parametrize("compression", [None, "zlib", "lzw"])
def test_ome_tiff_array_has_the_axes_of_its_xml(tmp_path: Path, compression: str | None) -> None:
    path = tmp_path / "a.ome.tif"
    values = RNG.integers(0, 999, (3, 2, 4, 33, 21), "u2")
    with tifffile.TiffWriter(path, ome=True) as writer:
        writer.write(values, metadata={"axes": "TCZYX"}, subifds=1, tile=(16, 16), compression=compression)
        writer.write(values[..., ::2, ::2], subfiletype=1, tile=(16, 16), compression=compression)
    for zarr_format in ZARR_FORMATS:
        np.testing.assert_array_equal(open_array(path, "0", zarr_format=zarr_format)[...], values)
        np.testing.assert_array_equal(open_array(path, "1", zarr_format=zarr_format)[...], values[..., ::2, ::2])
    assert read_metadata(path, "0")[1]["_ARRAY_DIMENSIONS"] == ["t", "c", "z", "y", "x"]
    assert read_metadata(path, "1")[1]["_ARRAY_DIMENSIONS"] == ["t", "c", "z", "y_1", "x_1"]


def test_images_of_an_ome_tiff_are_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    images = [RNG.integers(0, 9, shape, "u1") for shape in ((4, 20, 30), (2, 10, 12))]
    with tifffile.TiffWriter(path, ome=True) as writer:
        writer.write(images[0], metadata={"axes": "CYX"}, photometric="minisblack")
        writer.write(images[1], metadata={"axes": "ZYX"}, photometric="minisblack")
    for number, values in enumerate(images):
        np.testing.assert_array_equal(open_array(path, f"{number}/0")[...], values)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<OME><Image><Pixels DimensionOrder="XYZCT" SizeT="99999999"/></Image></OME>', "has 99999999 planes"),
        ('<OME><Image><Pixels DimensionOrder="ZYXCT"/></Image></OME>', "DimensionOrder is 'ZYXCT'"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><OME>&a;</OME>', "document type"),
        ("<OME><Image></OME>", "damaged"),
        ('<OME UUID="a"><Image><Pixels DimensionOrder="XYZCT"><TiffData><UUID FileName="b.tif">b</UUID></TiffData>'
         "</Pixels></Image></OME>", "lie in another file, 'b.tif'"),
    ],
)  # fmt: skip
def test_pages_with_wrong_ome_xml_are_shown_as_single_arrays(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, RGB, description=text, photometric="rgb", metadata=None)
    check_pages(path)
    assert reason in Files.of(path).open().reports["OME-XML"]


@pytest.mark.parametrize("edge", [16, 100])
def test_ome_tiff_of_many_pages_opens_in_few_rounds(tmp_path: Path, edge: int) -> None:
    path = tmp_path / "a.ome.tif"
    values = RNG.integers(0, 255, (24, edge, edge), "u1")
    with tifffile.TiffWriter(path, ome=True) as writer:
        options = {"tile": (64, 64), "compression": "zlib", "photometric": "minisblack"}
        writer.write(values, subifds=1, metadata={"axes": "ZYX"}, **options)
        writer.write(values[:, ::2, ::2], subfiletype=1, **options)
    assert count_rounds_to_open(path) <= 3
    np.testing.assert_array_equal(open_array(path, "1")[...], values[:, ::2, ::2])


def read_image(path: Path, name: str = "0", **options: Any) -> Any:
    """Read an image with the bands as first axis, as GDAL returns it."""
    found = open_array(path, name, **options)[...]
    if found.ndim == 2:
        return found[None]
    names = read_metadata(path, name)[1]["_ARRAY_DIMENSIONS"]
    return np.moveaxis(found, names.index(next(n for n in names if n.startswith("band"))), 0)


TILED = {"tiled": True, "blockxsize": 64, "blockysize": 64}
FLOATS = RNG.normal(size=(150, 200)).astype("f4")
HOLES = np.where(SMOOTH > 150, np.nan, FLOATS)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "JPEG of YCbCr": (COLOURS, {"compress": "jpeg", "photometric": "YCBCR", "interleave": "pixel", **TILED}),
    "JPEG of RGB": (COLOURS, {"compress": "jpeg", "photometric": "RGB", "interleave": "pixel", **TILED}),
    "JPEG in strips": (COLOURS, {"compress": "jpeg", "photometric": "YCBCR", "interleave": "pixel"}),
    "JPEG of bands": (COLOURS, {"compress": "jpeg", "interleave": "band", **TILED}),
    "JPEG of grey": (SMOOTH, {"compress": "jpeg"}),
    "JPEG of no colours": (COLOURS, {"compress": "jpeg", "photometric": "MINISBLACK", "interleave": "pixel"}),
    "WebP": (COLOURS, {"compress": "webp", "WEBP_LOSSLESS": "YES", "interleave": "pixel", **TILED}),
    "LERC": (FLOATS, {"compress": "lerc", **TILED}),
    "LERC with holes": (HOLES, {"compress": "lerc", "nodata": np.nan, **TILED}),
    "LERC of bands": (np.stack([FLOATS, FLOATS]), {"compress": "lerc", "interleave": "pixel", **TILED}),
    "LERC, big-endian": (SMOOTH.astype("u2") * 9, {"compress": "lerc", "ENDIANNESS": "BIG", **TILED}),
    "LERC in deflate": (FLOATS, {"compress": "lerc_deflate", **TILED}),
    "LERC in zstd": (HOLES, {"compress": "lerc_zstd", "nodata": np.nan, **TILED}),
    "floats, predicted": (FLOATS, {"compress": "zstd", "predictor": 3, **TILED}),
    "1 bit": ((SMOOTH > 90).astype("u1"), {"nbits": 1}),
    "4 bits": (SMOOTH % 16, {"nbits": 4, "compress": "lzw"}),
    "12 bits": (SMOOTH.astype("u2") * 9, {"nbits": 12}),
    "big-endian BigTIFF": (COLOURS, {"BIGTIFF": "YES", "ENDIANNESS": "BIG", "compress": "deflate", "predictor": 2}),
    "complex": (FLOATS.astype("c8"), {"compress": "deflate"}),
    "tiles never written": (np.zeros((150, 200), "i2"), {"SPARSE_OK": "TRUE", "compress": "deflate", **TILED}),
    "no data": (np.full((150, 200), 7, "i2"), {"SPARSE_OK": "TRUE", "nodata": 7, **TILED}),
    "COG": (np.tile(FLOATS, (4, 4)), {"driver": "COG", "compress": "deflate", "predictor": 3, "blocksize": 128}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_equal_gdal(tmp_path: Path, name: str) -> None:
    rasterio = pytest.importorskip("rasterio")
    values, options = CASES[name]
    path = write(tmp_path / "a.tif", values, **options)
    with rasterio.open(path) as ds:
        want = ds.read()
    most = 3 if "JPEG" in name else 0  # versions of libjpeg smooth colours differently
    for zarr_format in ZARR_FORMATS:
        found = read_image(path, zarr_format=zarr_format)
        np.testing.assert_allclose(found.astype(want.dtype.kind + "8"), want, 0, most)


def test_overviews_equal_gdal(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    path = write(
        tmp_path / "a.tif", np.tile(COLOURS, (1, 4, 4)), overviews=(2, 4), compress="lzw", predictor=2, **TILED
    )
    for level in (1, 2):
        with rasterio.open(path, overview_level=level - 1) as ds:
            np.testing.assert_array_equal(read_image(path, str(level)), ds.read())


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_coordinates_and_attributes_equal_rasterio(tmp_path: Path, zarr_format: int) -> None:
    xr = pytest.importorskip("xarray")
    rasterio = pytest.importorskip("rasterio")
    values = SMOOTH.astype("i2")[:40]
    options = {"nodata": 7, "overviews": (2,), "scales": ((0.5,), (10.0,))}
    path = write(tmp_path / "a.tif", values, **options)
    ds = xr.open_dataset(path, engine="refshard", storage_options={"zarr_format": zarr_format})
    with rasterio.open(path) as want, rasterio.open(path, overview_level=0) as half:
        for image, name, where, oracle in (("0", "", "spatial_ref", want), ("1", "_1", "spatial_ref_1", half)):
            got = ds[image]
            rows, columns = np.arange(oracle.height), np.arange(oracle.width)
            np.testing.assert_allclose(got["y" + name], oracle.xy(rows, np.zeros_like(rows))[1])
            np.testing.assert_allclose(got["x" + name], oracle.xy(np.zeros_like(columns), columns)[0])
            assert got.attrs["grid_mapping"] == where
            assert tuple(map(float, got[where].attrs["GeoTransform"].split())) == oracle.transform.to_gdal()
            assert rasterio.crs.CRS.from_user_input(got[where].attrs["crs_wkt"]) == oracle.crs
            packed = oracle.read(1)
            np.testing.assert_array_equal(got.values, np.where(packed == 7, np.nan, packed * 0.5 + 10))
    assert ds["0"].encoding["_FillValue"] == 7


def test_scaled_integers_keep_missing_values(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    rasterio = pytest.importorskip("rasterio")
    path = tmp_path / "a.tif"
    scale = '<GDALMetadata><Item name="SCALE" sample="0" role="scale">2</Item></GDALMetadata>'
    tifffile.imwrite(path, SMOOTH, metadata=None, extratags=[(42112, "s", 0, scale), (42113, "s", 0, "7")])
    got = xr.open_dataset(path, engine="refshard")["0"]
    np.testing.assert_array_equal(got.values, np.where(SMOOTH == 7, np.nan, SMOOTH * 2.0))
    path = write(tmp_path / "b.tif", SMOOTH, nodata=7, scales=((2,), (0,)))
    with rasterio.open(path, "r+") as ds:
        ds.descriptions = ["a < b & 'c'"]
    got = xr.open_dataset(path, engine="refshard")["0"]
    np.testing.assert_array_equal(got.values, np.where(SMOOTH == 7, np.nan, SMOOTH * 2.0))
    assert got.attrs["long_name"] == "a < b & 'c'"


def test_tags_texts_and_colours_are_attributes_as_in_rioxarray(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    tags = {"place": "Oslo", "count": "5", "scale_factor": "7", "TIFFTAG_SOFTWARE": "ours"}
    path = write(tmp_path / "a.tif", SMOOTH, photometric="palette", tags=tags)
    with rasterio.open(path, "r+") as ds:
        ds.write_colormap(1, {0: (255, 0, 16, 255), 2: (1, 2, 3, 255)})
        ds.update_tags(1, STATISTICS_MAXIMUM="3.5")
        ds.update_tags(ns="OTHER", hidden="1")
    found = read_metadata(path, "0")[1]
    assert found.pop("color_map")[:3] == ["#ff0010", "#000000", "#010203"]
    for name in ("_ARRAY_DIMENSIONS", "coordinates", "grid_mapping"):
        del found[name]
    assert found == {"place": "Oslo", "count": 5, "TIFFTAG_SOFTWARE": "ours", "STATISTICS_MAXIMUM": 3.5}
    path = write(tmp_path / "b.tif", COLOURS)
    with rasterio.open(path, "r+") as ds:
        for band in (1, 2, 3):
            ds.update_tags(band, mean=str(band), unit="K", some="x" if band == 1 else None)
    found = read_metadata(path, "0")[1]
    assert (found["mean"], found["unit"]) == ([1, 2, 3], "K")


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
@pytest.mark.parametrize("factor", [1, 256, 257])
def test_colours_of_8_and_16_bits_equal_gdal(tmp_path: Path, factor: int) -> None:
    rasterio = pytest.importorskip("rasterio")
    path = tmp_path / "a.tif"
    colours = RNG.integers(0, 256, (3, 256)).astype("u2") * np.uint16(factor)
    tifffile.imwrite(path, SMOOTH, photometric="palette", colormap=colours, metadata=None)
    with rasterio.open(path) as ds:
        want = [f"#{bytes(colour[:3]).hex()}" for _, colour in sorted(ds.colormap(1).items())]
    assert read_metadata(path, "0")[1]["color_map"] == want


@pytest.mark.usefixtures("large_files")
def test_overview_and_window_take_one_request_each(tmp_path: Path) -> None:
    values = np.tile(COLOURS, (1, 14, 10))
    path = write(tmp_path / "cog.tif", values, driver="COG", compress="deflate", predictor=2, blocksize=256)
    with RangeServer(directory=tmp_path) as server:
        fs = RefShardFileSystem(f"{server.url}/cog.tif", skip_instance_cache=True)
        fs.ls("")
        assert len(server.requests()) == count_rounds_to_open(path) == 1
        assert sum((r.stop or 0) - (r.start or 0) for r in server.requests() if r.method == "GET") <= 70_000
        server.clear()
        grid = Files.of(path).open().grids
        last = max(int(name) for name in grid if name.isdecimal())
        fs.cat_file(f"{last}/0.0.0")
        fs.cat_file("0/3.3.0")
        assert len(server.requests()) == 2
        server.clear()
        fs.cat([f"{last}/0.0.0", "0/4.4.0"])
        assert len(server.requests()) == 2


def test_commands_accept_tiff_and_keep_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = RNG.integers(0, 999, (70, 50), "u2")
    for number, options in enumerate([{"compression": "zlib", "rowsperstrip": 16}, {"compression": "lzw"}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        tifffile.imwrite(folder / "a.tif", values, **options)
        refs = check_commands(folder / "a.tif", folder, capsys, "0")
        np.testing.assert_array_equal(open_array(refs, "0")[...], values)
        if not number:  # zarr has the codec, so the set refers to the file; the other one holds the decoded chunk
            assert sum(isinstance(value, list) for value in json.loads(refs.read_text())["refs"].values()) == 4


def test_info_and_convert_name_the_codecs_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as writer:
        for options in ({"compression": "lzw", "predictor": 2}, {"compression": "zlib"}):
            writer.write(RGB[..., 0], metadata=None, **options)
    fs = RefShardFileSystem(str(path), skip_instance_cache=True)
    assert [array.codecs for array in summarise(fs).arrays] == [("predictor 2", "lzw"), ("zlib",)]
    assert main(["convert", str(path), str(tmp_path / "refs.json"), "--keep", "0"]) == 0
    said, *_ = capsys.readouterr().out.splitlines()
    assert said == "zarr cannot decode the chunks of 0 (predictor 2, lzw): they are decoded and copied"


def test_tiff_is_read_from_memory(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", RGB, compression="lzw", photometric="rgb")
    data = (tmp_path / "a.tif").read_bytes()
    np.testing.assert_array_equal(open_array(data, "0")[...], RGB)


def test_mask_has_a_name_and_its_image_refers_to_it(tmp_path: Path) -> None:
    path = tmp_path / "mask.tif"
    with tifffile.TiffWriter(path) as writer:
        for step, kind in ((1, 0), (2, 1)):
            image = RGB[::step, ::step, 0]
            writer.write(image, subfiletype=kind, metadata=None)
            writer.write(image > 7, subfiletype=kind | 4, photometric="mask", metadata=None)
    group = pytest.importorskip("zarr").open_group(f"refshard::{path}", mode="r")
    for image, mask in (("0", "1"), ("2", "3")):
        assert group[image].attrs["ancillary_variables"] == mask
        assert group[mask].attrs["long_name"].startswith(f"mask of '{image}'")
        assert np.array_equal(group[mask][...].astype(bool), group[image][...] > 7)
    (pyramid,) = group.attrs["multiscales"]
    assert [level["path"] for level in pyramid["datasets"]] == ["0", "2"]


def test_aperio_pyramid_has_the_image_without_the_label(tmp_path: Path) -> None:
    path = tmp_path / "slide.svs"
    rgb = np.zeros((512, 1024, 3), "u1")
    head = "Aperio Image Library v11.2.1 \r\n"
    tiled = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "zlib"}
    strips = {"rowsperstrip": 16, "photometric": "rgb", "metadata": None, "compression": "zlib"}
    with tifffile.TiffWriter(path) as writer:
        writer.write(rgb, description=f"{head}1024x512 [0,0 1024x512]|AppMag = 20|MPP = 0.4990", **tiled)
        writer.write(rgb[::4, ::4], description=f"{head}1024x512 -> 256x128", **strips)
        writer.write(rgb[::2, ::2], description=f"{head}1024x512 -> 512x256", **tiled)
        writer.write(rgb[:200, :300], description=f"{head}label 300x200", subfiletype=1, **strips)
        writer.write(rgb[:100, :200], description=f"{head}macro 200x100", subfiletype=9, **strips)  # as 512 to 1024
    group = pytest.importorskip("zarr").open_group(f"refshard::{path}", mode="r")
    (pyramid,) = group.attrs["multiscales"]
    scales = {d["path"]: d["coordinateTransformations"][0]["scale"] for d in pyramid["datasets"]}
    assert scales == {"0": [0.499, 0.499, 1], "2": [0.998, 0.998, 1]}
    assert [axis.get("unit") for axis in pyramid["axes"]] == ["micrometer", "micrometer", None]
    assert [group[name].attrs["long_name"] for name in "134"] == ["thumbnail", "label", "macro"]


def test_sizes_and_channels_of_ome_xml_are_attributes(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    text = (
        '<OME><Image Name="a"><Pixels DimensionOrder="XYCTZ" SizeX="32" SizeY="32" SizeC="2" SizeT="3" SizeZ="1" '
        'PhysicalSizeX="0.25" PhysicalSizeY="500" PhysicalSizeYUnit="nm" PhysicalSizeZ="-1" TimeIncrement="2">'
        '<Channel Name="DAPI"/><Channel Name="GFP"/></Pixels></Image></OME>'
    )
    with tifffile.TiffWriter(path, ome=False) as writer:
        for page in range(7):
            writer.write(RGB[:32, :32, 0], description=None if page else text, subifds=1, metadata=None)
            writer.write(RGB[:16, :16, 0], subfiletype=1, metadata=None)
    group = pytest.importorskip("zarr").open_group(f"refshard::{path}", mode="r")
    (pyramid,) = group.attrs["multiscales"]
    assert [(a["name"], a.get("unit")) for a in pyramid["axes"]] == [
        ("t", "second"), ("c", None), ("y", "nanometer"), ("x", "micrometer")
    ]  # fmt: skip
    scales = [level["coordinateTransformations"][0]["scale"] for level in pyramid["datasets"]]
    assert scales == [[2, 1, 500, 0.25], [2, 1, 1000, 0.5]]
    assert group.attrs["omero"] == {"channels": [{"label": "DAPI"}, {"label": "GFP"}]}
    assert RefShardFileSystem(str(path)).left_whole == {"page 6": "it is not in an image of the OME-XML"}
