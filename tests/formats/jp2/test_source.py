"""JPEG 2000 images have the values and coordinates that GDAL reads, in few requests; cut files have no wrong values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.damage import check_beside
from tests.support.files_of_arrays import check_commands, check_damage, count_rounds_to_open
from tests.support.jp2_files import encode, encode_tiles, make_box, make_gml_box, make_jp2_file, make_smooth_values
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files

pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # raised within rasterio

TILED = {"BLOCKXSIZE": 64, "BLOCKYSIZE": 64, "RESOLUTIONS": 4}
# Images that GDAL writes: shape, data type, and options of its driver.
WRITTEN: dict[str, tuple[tuple[int, int, int], str, dict[str, Any]]] = {
    "tiles": ((1, 150, 200), "u2", TILED),
    "signed": ((1, 150, 200), "i2", TILED),
    "tile parts": ((3, 150, 200), "u1", {**TILED, "TILEPARTS": "RESOLUTIONS", "PROGRESSION": "RLCP"}),
    "layers": ((2, 150, 200), "u2", {**TILED, "QUALITY": "20,100", "PROGRESSION": "RPCL", "TLM": "YES", "PLT": "YES"}),
    "colours": ((3, 150, 200), "u1", {**TILED, "YCC": "YES", "SOP": "YES", "EPH": "YES"}),
    "lossy": ((1, 300, 270), "u2", {"REVERSIBLE": "NO", "QUALITY": "20", "BLOCKXSIZE": 300, "BLOCKYSIZE": 300}),
    "gml": ((1, 150, 200), "u1", {**TILED, "GeoJP2": "NO"}),
    "12 bits": ((1, 150, 200), "u2", {**TILED, "NBITS": 12}),
}


def write(path: Path, shape: tuple[int, int, int], dtype: str, crs: str = "EPSG:32632", **options: Any) -> Path:
    """Write an image with GDAL."""
    rasterio = pytest.importorskip("rasterio")
    from rasterio.shutil import copy

    bands, rows, columns = shape
    values = np.moveaxis(
        make_smooth_values(rows, columns, bands, dtype=dtype) // (100 if "NBITS" in options else 1), 2, 0
    )
    place = rasterio.Affine(10, 0, 600_000, 0, -10, 5_000_000)
    profile = {"driver": "GTiff", "count": bands, "height": rows, "width": columns, "dtype": np.dtype(dtype).name}
    with rasterio.open(path.with_suffix(".tif"), "w", **profile, crs=crs, transform=place) as file:
        file.write(values)
    copy(path.with_suffix(".tif"), path, driver="JP2OpenJPEG", **{"REVERSIBLE": "YES", "QUALITY": "100", **options})
    return path


@pytest.mark.parametrize("kind", WRITTEN)
def test_values_and_coordinates_match_gdal(tmp_path: Path, kind: str) -> None:
    rasterio, xr = pytest.importorskip("rasterio"), pytest.importorskip("xarray")
    shape, dtype, options = WRITTEN[kind]
    path = write(tmp_path / "a.jp2", shape, dtype, **options)
    ds = xr.open_dataset(path, engine="refshard")
    with rasterio.open(path) as file:
        want = file.read()
        assert ds["0"].dtype == want.dtype
        np.testing.assert_array_equal(ds["0"].values.reshape(want.shape), want)
        assert ds["0"].dims == ("band", "y", "x")[shape[0] == 1 :]
        for axis, index in (("x", np.arange(shape[2])), ("y", np.arange(shape[1]))):
            at = file.xy(index, index, offset="center")[axis == "y"]
            np.testing.assert_allclose(ds[axis], at, rtol=1e-14)
        assert ds["spatial_ref"].attrs["crs_wkt"] == f"EPSG:{file.crs.to_epsg()}"
        overviews = file.overviews(1)
    levels = [name for name in ds if str(name).isdigit()]
    assert len(levels) == 4 if "BLOCKXSIZE" not in options or options["BLOCKXSIZE"] == 64 else len(levels) > 1
    for level, _ in enumerate(overviews):
        with rasterio.open(path, overview_level=level) as file:
            want = file.read()
        np.testing.assert_array_equal(ds[str(level + 1)].values.reshape(want.shape), want)


def test_bare_code_stream_is_read(tmp_path: Path) -> None:
    values = make_smooth_values(200, 300)
    (tmp_path / "a.j2k").write_bytes(encode_tiles(values))
    (tmp_path / "b.jp2").write_bytes(make_jp2_file(encode_tiles(values, is_open=True)))
    for name in ("a.j2k", "b.jp2"):
        np.testing.assert_array_equal(open_array(tmp_path / name, "0")[...], values)
        assert open_array(tmp_path / name, "1").shape == (100, 150)


def test_commands_accept_jpeg_2000_and_convert_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    xr = pytest.importorskip("xarray")
    path = tmp_path / "a.jp2"
    place = make_gml_box("5000 2000", "0 10", "-10 0", "urn:ogc:def:crs:EPSG::4326")
    path.write_bytes(make_jp2_file(encode_tiles(make_smooth_values(200, 300), tlm=0x50), place))
    refs = check_commands(path, tmp_path, capsys, "0")
    shown = xr.open_dataset(path, engine="refshard").load()
    xr.testing.assert_identical(shown, xr.open_dataset(refs, engine="refshard").load())
    assert shown.x[:2].values.tolist() == [2000, 2010]


def test_files_are_joined_by_a_pattern_of_names(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    images = {f"s_2024010{day}.jp2": make_smooth_values(150, 140 + day)[:, day:] for day in (1, 2)}
    for name, values in images.items():
        (tmp_path / name).write_bytes(make_jp2_file(encode(values)))
    fs = refshard_fs.concat(str(tmp_path / "s_{time:%Y%m%d}.jp2"), lazy=True)
    fs.save(str(tmp_path / "cube.json"))
    ds = xr.open_dataset(tmp_path / "cube.json", engine="refshard")
    np.testing.assert_array_equal(ds["0"], list(images.values()))
    assert ds["1"].shape == (2, 75, 70)


@pytest.mark.parametrize("tlm", [None, 0x60])
def test_opening_takes_one_request_and_a_tile_two_at_most(
    http_server: RangeServer, tmp_path: Path, tlm: int | None
) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 60_000, (700, 700), "u2")
    (tmp_path / "a.jp2").write_bytes(make_jp2_file(encode_tiles(values, tlm=tlm)))
    url = http_server.put("/a.jp2", (tmp_path / "a.jp2").read_bytes())
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert "0" in fs.ls("", detail=False)
    assert len(http_server.requests()) == 1
    http_server.clear()
    tile = np.frombuffer(fs.cat_file("0/3.2"), "u2").reshape(128, 128)
    np.testing.assert_array_equal(tile, values[384:512, 256:384])
    assert len(http_server.requests()) <= (1 if tlm else 2)
    http_server.clear()
    fs.cat_file("1/5.5")
    assert len(http_server.requests()) <= 1


def test_palette_becomes_an_attribute() -> None:
    colours = make_box(b"pclr", b"\0\2\3\7\7\7" + bytes([0, 0, 0, 255, 128, 1]))
    files = Files({ROOT: make_jp2_file(encode(make_smooth_values(20, 30, dtype="u1")), make_box(b"jp2h", colours))})
    keyspace = files.open()
    assert b'"color_map":["#000000","#ff8001"]' in (files.read(keyspace, "0/.zattrs") or b"")
    files = Files(
        {ROOT: make_jp2_file(encode(make_smooth_values(20, 30, dtype="u1")), make_box(b"jp2h", colours[:-9] + b"\0"))}
    )
    assert "box b'pclr'" in files.open().reports["palette"]


def test_unsupported_components_are_refused() -> None:
    stream = encode(make_smooth_values(64, 64, 3, dtype="u1"))
    at = stream.index(b"\x07\x01\x01")
    for components, reason in (
        (b"\x07\x01\x01\x07\x04\x04\x07\x04\x04", "differ in sampling, and its components differ in sampling"),
        (b"\x1e\x01\x01\x87\x01\x01\x07\x01\x01", "32 bits"),
        (b"\x07\x00\x01" * 3, "samples at distances of 0"),
        (b"\x25\x01\x01" * 3, "38 bits"),
    ):
        with pytest.raises(ManifestError, match=reason):
            Files({ROOT: stream[:at] + components + stream[at + 9 :]}).open()


def test_damaged_files_raise_only_refshard_errors() -> None:
    check_damage(make_jp2_file(encode_tiles(make_smooth_values(200, 150), tlm=0x40)), 1, header=300, times=30)
    check_damage(encode_tiles(make_smooth_values(200, 150)), 2, header=300, times=30)


def test_small_file_opens_in_one_round(tmp_path: Path) -> None:
    (tmp_path / "a.jp2").write_bytes(make_jp2_file(encode_tiles(make_smooth_values(200, 300))))
    assert count_rounds_to_open(tmp_path / "a.jp2") == 1


def test_only_the_first_of_several_code_streams_is_shown() -> None:
    first, second = (encode(make_smooth_values(20, size)) for size in (30, 40))
    files = Files({ROOT: make_jp2_file(second, make_box(b"jp2c", first))})
    keyspace = files.open()
    assert b'"shape":[20,30]' in (files.read(keyspace, "0/.zarray") or b"").replace(b" ", b"")
    assert "2 code streams" in keyspace.reports["other images"]
    assert keyspace.file_codecs["0"] == ("jpeg2000",)


@pytest.mark.parametrize("tlm", [None, 0x40])
def test_damaged_tiles_give_no_values_of_their_own(tmp_path: Path, tlm: int | None) -> None:
    """A byte in a tile part once gave wrong values, although the code stream did not end after the last part."""
    codecs = pytest.importorskip("imagecodecs")
    values = make_smooth_values(100, 70)
    (tmp_path / "a.j2k").write_bytes(encode_tiles(values, tlm=tlm) if tlm else encode_tiles(values))

    def read(path: Path) -> dict[str, Any]:
        return {"0": codecs.jpeg2k_decode(path.read_bytes())}

    check_beside(tmp_path / "a.j2k", read, seed=1, times=25)
