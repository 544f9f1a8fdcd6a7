"""HDF4 files: values, dimensions and attributes equal those of pyhdf; damaged files are errors."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.formats.hdf4.elements import SMALL_FILE
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import check_commands, check_damage, count_rounds_to_open
from tests.support.hdf4_files import make_hdf4_file, make_values, read_elements, read_hdf4_file, spread_elements
from tests.support.shard_writers import IS_ZARR_2
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")

SHOWN = {
    "doubles": ("f8", (3, 4, 5)),
    "deflated": ("i4", (12, 10)),
    "runs": ("u1", (12, 10)),
    "chunks": ("f4", (7, 9)),
    "deflated_chunks": ("u2", (7, 9)),
    "chunks_of_runs": ("i2", (7, 9)),
    "bits": ("i4", (7, 9)),
    "little": ("f4", (3, 5)),
    "records": ("i4", (40, 6)),
    "last": ("u1", (3,)),
}


def write_file(tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"{name}.hdf"
    path.write_bytes(read_hdf4_file(name))
    return path


@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning")
def test_data_sets_of_many_layouts_are_read(tmp_path: Path) -> None:
    path = write_file(tmp_path, "layouts")
    for zarr_format in (2,) if IS_ZARR_2 else (2, 3):
        with xr.open_dataset(
            path, engine="refshard", mask_and_scale=False, storage_options={"zarr_format": zarr_format}
        ) as actual:
            for name, (dtype, shape) in SHOWN.items():
                assert actual[name].dtype.newbyteorder("=") == np.dtype(dtype), name
                np.testing.assert_array_equal(actual[name].values, make_values(dtype, shape), name)
            assert "".join(text.decode() for text in actual.texts.values) == b"".join(make_values("S1", (24,))).decode()
            assert actual.records.dims[0] == "time"
            sparse = np.full((8, 8), -9, "i2")
            sparse[:4, 4:] = make_values("i2", (8, 8))[:4, 4:]
            np.testing.assert_array_equal(actual.sparse.values, sparse)
            without_fill = actual.sparse_without_fill.values
            np.testing.assert_array_equal(without_fill[:4, 4:], make_values("f4", (8, 8))[:4, 4:])
            assert set(without_fill[4:].ravel().tolist()) == {9.969209968386869e36}
            assert set(actual.never.values.ravel().tolist()) == {-32767}


def test_attributes_and_scales_match_the_file(tmp_path: Path) -> None:
    with xr.open_dataset(write_file(tmp_path, "layouts"), engine="refshard") as dataset:
        assert dataset.attrs == {"title": "a title", "number": 7, "numbers": [1.5, 2.0], "lon.units": "degrees_east"}
        assert dataset.plain.attrs == {"units": "K", "range": [1.5, 2.5]}
        assert dataset.plain.dtype == np.float32
        assert np.isnan(dataset.plain.values[0, 1])
        assert dataset.plain.values[0, 2] == 7.0  # 14 * 0.5
        assert dataset.lat.values.tolist() == [10, 20, 30, 40, 50]
        assert dataset.lat.attrs == {"units": "degrees_north"}
        assert "lon" not in dataset.coords


def test_unsupported_data_sets_are_reported() -> None:
    files = Files({ROOT: read_hdf4_file("layouts")})
    keyspace = files.open()
    assert "skipping Huffman" in keyspace.reports["huffman"]
    assert "another file, 'outside.dat'" in keyspace.reports["outside"]
    for name in ("huffman", "outside"):
        with pytest.raises(ManifestError, match="is not shown"):
            files.read(keyspace, f"{name}/0.0")


def test_grid_has_coordinates_and_a_crs(tmp_path: Path) -> None:
    with xr.open_dataset(write_file(tmp_path, "grid"), engine="refshard", mask_and_scale=False) as grid:
        assert grid.NDVI.dims == ("YDim", "XDim")
        np.testing.assert_array_equal(grid.NDVI.values, make_values("i2", (30, 40)))
        step = 1111950.519667 / 40
        np.testing.assert_allclose(grid.XDim.values[[0, -1]], [-1111950.519667 + step / 2, -step / 2])
        assert grid.YDim.values[0] > grid.YDim.values[-1]
        assert grid.NDVI.attrs["grid_mapping"] == "spatial_ref"
        assert grid.spatial_ref.attrs["grid_mapping_name"] == "sinusoidal"
        transform = list(map(float, grid.spatial_ref.attrs["GeoTransform"].split()))
        assert transform == pytest.approx([-1111950.519667, step, 0, 5559752.598333, 0, -step * 4 / 3])


def test_file_codecs_name_coders_that_zarr_lacks() -> None:
    keyspace = Files({ROOT: read_hdf4_file("layouts")}).open()
    coders = {path: codecs for path, codecs in keyspace.file_codecs.items() if not path.startswith("image")}
    assert set(coders.values()) == {("rle",), ("nbit",)}
    assert "deflated_chunks" not in coders


def test_each_of_several_grids_is_a_group(tmp_path: Path) -> None:
    with xr.open_datatree(write_file(tmp_path, "grids"), engine="refshard") as tree:
        coarse, fine = tree["Coarse"], tree["Fine"]
        assert coarse.XDim.values.tolist() == [-135, -45, 45, 135]
        assert coarse.YDim.attrs["units"] == "degrees_north"
        assert set(fine.data_vars) == {"refl", "qc"}
        assert fine.refl.shape == (6, 8)
        assert fine.spatial_ref.attrs["crs_wkt"] == "EPSG:32733"


def test_fields_of_a_swath_have_coordinates(tmp_path: Path) -> None:
    with xr.open_dataset(write_file(tmp_path, "swath"), engine="refshard") as swath:
        assert {"Latitude", "Longitude"} <= set(swath.rad.coords)
        assert swath.rad.dims == ("band", "along", "across")
        assert swath.t.dims == ("along",)
        assert swath.Pressure.dims == ("band",)
        assert swath.Pressure.values.tolist() == [0, 1]
    keyspace = Files({ROOT: read_hdf4_file("swath")}).open()
    assert keyspace.reports == {}
    assert any(path.startswith("Notes/") for path in keyspace.grids)


def test_swath_field_in_linked_blocks_is_read(tmp_path: Path) -> None:
    elements = read_elements(read_hdf4_file("swath"))
    ref = next(ref for (tag, ref), data in elements.items() if tag == 1962 and b"Pressure" in data)
    values = elements.pop((1963, ref))
    elements |= {(20, 900): struct.pack(">HHHH", 0, 901, 902, 0), (20, 901): values[:4], (20, 902): values[4:]}
    elements[1963 | 0x4000, ref] = struct.pack(">HiiiH", 1, len(values), 4, 2, 900)
    (tmp_path / "linked.hdf").write_bytes(make_hdf4_file(elements))
    with (
        xr.open_dataset(tmp_path / "linked.hdf", engine="refshard") as actual,
        xr.open_dataset(write_file(tmp_path, "swath"), engine="refshard") as expected,
    ):
        xr.testing.assert_identical(actual.Pressure, expected.Pressure)


def test_files_of_older_libraries_are_read(tmp_path: Path) -> None:
    with xr.open_dataset(write_file(tmp_path, "old"), engine="refshard", mask_and_scale=False) as dataset:
        data = dataset["Data-Set-2"]
        np.testing.assert_array_equal(data.values, make_values("i2", (3, 4)))
        assert dataset.fakeDim1.values.tolist() == [1, 2, 3, 4]
        assert data.attrs["long_name"] == "label"
        assert (data.attrs["valid_max"], data.attrs["valid_min"]) == (90, 3)
        assert data.attrs["calibrated_nt"] == 22


def test_commands_take_a_file_and_convert_it_to_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_file(tmp_path, "layouts")
    refs = check_commands(path, tmp_path, capsys, "deflated_chunks")
    xr.testing.assert_identical(*(xr.open_dataset(fo, engine="refshard").load() for fo in (path, refs)))
    entries = json.loads(refs.read_text())["refs"]
    assert len(entries["deflated_chunks/1.1"]) == 3  # URL, offset and length: readers decode deflate
    assert len(entries["plain/0.0"]) == 3


def test_opening_takes_few_rounds_and_a_chunk_one_request(http_server: RangeServer, tmp_path: Path) -> None:
    path = tmp_path / "a.hdf"
    path.write_bytes(spread_elements(read_hdf4_file("grids"), 50_000))
    assert path.stat().st_size > SMALL_FILE
    assert count_rounds_to_open(path) <= 4
    url = http_server.put("/a.hdf", path.read_bytes())
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    fs.ls("")
    http_server.clear()
    chunk = zlib.decompress(fs.cat_file("Fine/refl/2.0"))
    assert len(http_server.requests()) == 1
    assert chunk == make_values(">i2", (6, 8))[2:3].tobytes()


def test_small_hdf4_file_is_opened_in_two_rounds(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf"
    path.write_bytes(spread_elements(read_hdf4_file("layouts"), 5_000))
    assert count_rounds_to_open(path) == 2


def test_chunks_far_from_their_headers_are_found() -> None:
    data = read_hdf4_file("layouts")
    files, moved = Files({ROOT: data}), Files({ROOT: spread_elements(data, 10, also_headers=True)})
    keys = ("deflated_chunks/1.1", "chunks_of_runs/2.0", "bits/0.0", "sparse/0.1", "records/0.0", "chunks/1.1")
    for key in keys:
        assert moved.read(moved.open(), key) == files.read(files.open(), key) is not None


def test_damaged_files_raise_only_refshard_errors() -> None:
    check_damage(read_hdf4_file("layouts"), seed=1, header=34_000, times=60)
    check_damage(read_hdf4_file("old"), seed=2, times=60)
    check_damage(read_hdf4_file("swath"), seed=3, times=20)


def test_file_without_data_sets_is_refused() -> None:
    with pytest.raises(ManifestError, match="that can be shown, found none$"):
        Files({ROOT: b"\x0e\x03\x13\x01\0\1\0\0\0\0" + bytes(12)}).open()


@pytest.mark.parametrize("kind", ["INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "FLOAT32", "FLOAT64"])
def test_data_sets_equal_pyhdf(tmp_path: Path, kind: str) -> None:
    module: Any = pytest.importorskip("pyhdf.SD", reason="pyhdf is not installed")
    sdc = module.SDC
    path = str(tmp_path / "a.hdf")
    file = module.SD(path, sdc.WRITE | sdc.CREATE)
    dtype = kind.replace("INT", "int").replace("U", "u").replace("FLOAT", "float")
    for number, shape in enumerate([(7,), (5, 9), (3, 4, 5)]):
        data = file.create(f"v{number}", getattr(sdc, kind), shape)
        if number == 1:
            data.setcompress(sdc.COMP_DEFLATE, 5)
        data[:] = make_values(dtype, shape)
        data.units = "K"
        data.endaccess()
    file.end()
    file = module.SD(path)
    with xr.open_dataset(path, engine="refshard") as actual:
        for name in file.datasets():
            np.testing.assert_array_equal(actual[name].values, np.asarray(file.select(name).get()))
            assert actual[name].attrs == file.select(name).attributes()
