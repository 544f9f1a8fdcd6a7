"""Join files that store a quantity in different encodings: a lazy cube shows one encoding, and the right values."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.cubes.recoding import Recoding
from refshard_fs.errors import ManifestError, ReferenceNotReachable
from tests.servers.http import RangeServer
from tests.support.joined_sets import VERSIONS

xr = pytest.importorskip("xarray")
netCDF4 = pytest.importorskip("netCDF4")
pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

STEPS, WIDTH = 2, 5
PHYSICAL = np.array([[0.0, 0.5, 1.0, 2.5, 10.0], [3.0, 4.5, -1.0, 7.0, 8.5]])


def write_stores(
    path: Path,
    number: int,
    dtype: str = "i4",
    missing: bool = False,
    scale: float | None = None,
    offset: float | None = None,
    fill: float | None = None,
    endian: str = "little",
    skip: bool = False,
    unsigned: bool = False,
    **storage: Any,
) -> str:
    """Write two steps of a quantity, each in one chunk, with the given encoding."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", WIDTH)
        time = file.createVariable("time", "i4", ("time",))
        time.units = "days since 2000-01-01"
        time[:] = [number * STEPS, number * STEPS + 1]
        var = file.createVariable(
            "v",
            np.dtype(dtype).newbyteorder(">" if endian == "big" else "<"),
            ("time", "x"),
            chunksizes=(1, WIDTH),
            fill_value=fill,
            endian=endian,
            **storage,
        )
        if scale is not None:
            var.scale_factor = np.float64(scale)
        if offset is not None:
            var.add_offset = np.float64(offset)
        values = np.ma.array(PHYSICAL + number, mask=False)
        if unsigned:
            var.setncattr("_Unsigned", "true")
            values = abs(values) + (200 if scale is None else 0)
        if dtype == "u2":
            values = abs(values)
        if missing:
            values[0, 1] = np.ma.masked
        if scale is None and dtype.startswith(("i", "u")):
            values = np.ma.array(np.trunc(values), mask=values.mask)
        var[1 if skip else 0 :] = values[1 if skip else 0 :]
    return str(path)


# By name: the encodings of the first and the second file.
DIFFERENCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "compressed or not": ({}, {"zlib": True}),
    "shuffled": ({"zlib": True, "shuffle": False}, {"zlib": True, "shuffle": True}),
    "level": ({"zlib": True, "complevel": 1}, {"zlib": True, "complevel": 9}),
    "checksummed": ({"zlib": True}, {"zlib": True, "fletcher32": True}),
    "byte order": ({}, {"endian": "big"}),
    "wider first": ({"dtype": "i4"}, {"dtype": "i2"}),
    "floats": ({"dtype": "f8"}, {"dtype": "f4"}),
    "fill value": ({"fill": -999, "missing": True}, {"fill": -1000, "missing": True}),
    "no fill value": ({"dtype": "f4", "missing": True, "fill": 1e20}, {"dtype": "f4"}),
    "scale": ({"scale": 0.25, "dtype": "i4"}, {"scale": 0.5, "dtype": "i2"}),
    "offset": ({"scale": 0.5, "offset": 8.0}, {"scale": 0.5, "offset": -8.0}),
    "packed into floats": ({"dtype": "f8", "fill": 1e20}, {"scale": 0.5, "dtype": "i2", "fill": -1, "missing": True}),
    "narrower first": ({"dtype": "i2"}, {"dtype": "i4"}),
    "narrower floats first": ({"dtype": "f4"}, {"dtype": "f8"}),
    "whole numbers first": ({"dtype": "i2", "fill": -9, "missing": True}, {"dtype": "f4"}),
    # As ERA5 was: integers of two bytes, with the range of each file.
    "scales that do not divide": (
        {"scale": 0.01, "dtype": "i2", "fill": -32767},
        {"scale": 0.003, "offset": 1.7, "dtype": "i2", "fill": -32767, "missing": True},
    ),
    "unsigned": (
        {"scale": 0.5, "dtype": "i1", "offset": 100.0, "unsigned": True},
        {"scale": 0.05, "dtype": "i1", "unsigned": True},
    ),
    "wider unsigned": ({"dtype": "u2"}, {"dtype": "i1", "unsigned": True}),
    "all": (
        {"scale": 0.25, "offset": 1.0, "fill": -9, "missing": True},
        {"scale": 0.5, "dtype": "i2", "fill": -32768, "endian": "big", "zlib": True, "missing": True},
    ),
    "missing values later alone": ({}, {"fill": -9, "missing": True}),
    "missing packed values later alone": ({"scale": 0.5}, {"scale": 0.5, "fill": -9, "missing": True}),
    "never written": ({"fill": -9, "missing": True}, {"fill": -8, "skip": True}),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_lazy_cube_of_different_encodings_has_xarrays_values(tmp_path: Path, name: str) -> None:
    """Packed bytes with `_Unsigned = "true"` were once recoded as signed numbers: numbers above 127 became negative."""
    stored = DIFFERENCES[name]
    files = [write_stores(tmp_path / f"{i}.nc", i, **how) for i, how in enumerate(stored)]
    cube = refshard_fs.concat(files, "time", lazy=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = xr.concat([xr.load_dataset(file, engine="netcdf4") for file in files], "time")
        found = xr.open_dataset(pickle.loads(pickle.dumps(cube)), engine=RefShardBackend).load()
    assert found["time"].equals(expected["time"])
    np.testing.assert_array_equal(found["v"].values, expected["v"].values)
    fs = refshard_fs.RefShardFileSystem(cube)
    assert {entry["size"] for entry in fs.ls("v", detail=True) if entry["name"] == "v/3.0"} <= {None, 5, 10, 20, 40}
    with pytest.raises(ManifestError):
        refshard_fs.concat(files, "time")  # references cannot convert values
    report = refshard_fs.check(fs, "full")
    assert not report.has_errors, report.findings


@pytest.mark.parametrize("join", ["exact", "outer"])
@pytest.mark.parametrize("fills", [("i4", -99, "f4", -9.0), ("u1", 255, "f8", 1e20), ("i2", -9, "i8", -5)])
@pytest.mark.skipif(3 not in VERSIONS, reason="zarr 2 has no version 3")
def test_missing_values_survive_a_join_to_a_wider_type(tmp_path: Path, fills: Any, join: Any) -> None:
    files = []
    for number, (dtype, fill) in enumerate([fills[:2], fills[2:]]):
        values = np.array([1, fill, 3], dtype)
        time = "time", np.arange(3) + 3 * number
        ds = xr.Dataset({"v": ("time", values, {"_FillValue": values[1]}), "time": time})
        files.append(str(tmp_path / f"{number}.zarr"))
        ds.to_zarr(files[-1], zarr_format=3, consolidated=False)
    cube = refshard_fs.concat(files, "time", lazy=True, join=join)
    found = xr.open_dataset(cube, engine=RefShardBackend)["v"].values
    np.testing.assert_array_equal(found, [1, np.nan, 3] * 2)


@pytest.mark.parametrize("scales", [("f4", "f4"), ("f8", "f8")])
def test_decoded_numbers_have_the_type_of_xarray(tmp_path: Path, scales: tuple[str, str]) -> None:
    files = [write_stores(tmp_path / f"{i}.nc", i, dtype="i2", fill=-9) for i in range(2)]
    for file, dtype in zip(files, scales, strict=True):
        with netCDF4.Dataset(file, "a") as opened:
            opened["v"].scale_factor = np.dtype(dtype).type(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = xr.concat([xr.load_dataset(file, engine="netcdf4") for file in files], "time")
        found = xr.open_dataset(refshard_fs.concat(files, "time", lazy=True), engine=RefShardBackend).load()
    assert found["v"].dtype == expected["v"].dtype == np.dtype(scales[0])
    np.testing.assert_array_equal(found["v"].values, expected["v"].values)


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_derived_sets_decode_to_the_type_of_the_file(tmp_path: Path, suffix: str) -> None:
    if suffix == ".zarr" and 3 not in VERSIONS:
        pytest.skip("chunk manifests are of version 3")
    file, url = write_stores(tmp_path / "a.nc", 0, dtype="i2", fill=-9), str(tmp_path / f"a{suffix}")
    with netCDF4.Dataset(file, "a") as opened:
        opened["v"].scale_factor = np.float32(0.1)
    fs = refshard_fs.RefShardFileSystem(file)
    fs.save(url)
    for source in (url, refshard_fs.rebase(file, {str(tmp_path): str(tmp_path)}), refshard_fs.snapshot(file)):
        xr.testing.assert_identical(xr.open_dataset(source, engine=RefShardBackend), xr.load_dataset(file))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("types", [("f4", "f4"), ("f8", "f8"), ("f4", "f8"), ("f8", "f4")])
def test_packed_files_are_joined_to_the_type_of_xarray(tmp_path: Path, types: tuple[str, str], version: int) -> None:
    files = [write_stores(tmp_path / f"{i}.nc", i, dtype="i2", fill=-9) for i in range(2)]
    for file, dtype in zip(files, types, strict=True):
        with netCDF4.Dataset(file, "a") as opened:
            opened["v"].scale_factor = np.dtype(dtype).type(0.25)
            opened["v"].add_offset = np.dtype(dtype).type(1)
    expected = xr.concat([xr.load_dataset(file, engine="netcdf4") for file in files], "time")
    url, grown = str(tmp_path / "cube.json"), str(tmp_path / "grown.json")
    made = refshard_fs.concat(files, "time", zarr_format=version)
    made.save(url)
    refshard_fs.concat(files[:1], "time", zarr_format=version).save(grown)
    refshard_fs.append(grown, files[1], "time", zarr_format=version)
    for fo in (made, url, grown, refshard_fs.concat([url], "time")):
        found = xr.open_dataset(fo, engine=RefShardBackend).load()
        assert found["v"].dtype == expected["v"].dtype, fo
        assert found["v"].encoding["scale_factor"] == 0.25
        assert "_refshard_packing" not in {**found["v"].attrs, **found["v"].encoding}
        np.testing.assert_array_equal(found["v"].values, expected["v"].values)


def test_integers_beyond_float_precision_are_an_error(tmp_path: Path) -> None:
    """In a lazy cube of floating-point numbers, 64-bit integers beyond 2^53 were once rounded."""
    files = [write_stores(tmp_path / f"{i}.nc", i, dtype=dtype) for i, dtype in enumerate(("f8", "i8"))]
    with netCDF4.Dataset(files[1], "a") as file:
        file["v"][1, 0] = 2**53 + 1
    fs = refshard_fs.RefShardFileSystem(refshard_fs.concat(files, "time", lazy=True))
    assert len(fs.cat_file("v/2.0")) == 8 * WIDTH
    with pytest.raises(ReferenceNotReachable, match="cannot be stored exactly as float64"):
        fs.cat_file("v/3.0")


def test_append_of_files_with_other_packing_equals_xarray(tmp_path: Path) -> None:
    stored: list[dict[str, Any]] = [{"scale": 0.01}, {"scale": 0.01}, {"scale": 0.003}, {"scale": 0.01}]
    files = [write_stores(tmp_path / f"{i}.nc", i, dtype="i2", **how) for i, how in enumerate(stored)]
    url = str(tmp_path / "cube.json")
    refshard_fs.concat(files[:2], "time", lazy=True).save(url)
    for file in files[2:]:
        assert refshard_fs.append(url, file, "time") == STEPS
    expected = xr.concat([xr.load_dataset(file, engine="netcdf4") for file in files], "time")
    found = xr.open_dataset(url, engine=RefShardBackend).load()
    np.testing.assert_array_equal(found["v"].values, expected["v"].values)


def test_valid_value_equal_to_the_fill_value_is_an_error(tmp_path: Path) -> None:
    files = [write_stores(tmp_path / f"{i}.nc", i, fill=fill) for i, fill in enumerate((3, -5))]
    fs = refshard_fs.RefShardFileSystem(refshard_fs.concat(files, "time", lazy=True))
    assert len(fs.cat_file("v/0.0")) > 0
    with pytest.raises(ReferenceNotReachable, match="the fill value"):
        [fs.cat_file(f"v/{step}.0") for step in range(4)]


def test_error_of_an_array_that_cannot_be_recoded_names_fields(tmp_path: Path) -> None:
    for number, zarr_codec in enumerate(({}, {"compressor": {"id": "zlib", "level": 1}})):
        xr.Dataset({"n": ("x", np.array([1j]))}, {"x": [number]}).to_zarr(
            tmp_path / f"{number}.zarr", zarr_format=2, consolidated=False
        )
        path = tmp_path / f"{number}.zarr" / "n" / ".zarray"
        path.write_text(json.dumps({**json.loads(path.read_text()), "compressor": None, **zarr_codec}))
    with pytest.raises(ManifestError, match=r"is <c16, compressor \{.id.:.zlib.*has <c16, compressor null: only"):
        refshard_fs.concat([str(tmp_path / f"{number}.zarr") for number in range(2)], "x", lazy=True)


def test_units_that_differ_are_refused(tmp_path: Path) -> None:
    files = [write_stores(tmp_path / f"{i}.nc", i) for i in range(2)]
    with netCDF4.Dataset(files[1], "a") as file:
        file["v"].units = "K"
    with pytest.raises(ManifestError, match="attribute units"):
        refshard_fs.concat(files, "time", lazy=True)


@pytest.mark.parametrize("chunk", [2, 3])
@pytest.mark.parametrize("fills", [(-999.0, 1e20), (1e20, np.nan), (-999.0, [7.0, -1.0])])
def test_missing_values_of_each_store_stay_missing(tmp_path: Path, fills: tuple[Any, Any], chunk: int) -> None:
    """If stores of version 3 have different missing values, or a list of them, these once became numbers in a cube."""
    stores = [str(tmp_path / f"{number}.zarr") for number in range(2)]
    for number, (store, fill) in enumerate(zip(stores, fills, strict=True)):
        v = ("time", np.array([np.nan, number, 7.0, -1.0], "f4"))
        ds = xr.Dataset({"v": v}, {"time": np.arange(4) + 4 * number})
        marked = isinstance(fill, list)
        if marked:
            ds["v"].attrs["missing_value"] = fill
        encoding = {"v": {"_FillValue": None if marked else fill, "chunks": (2,)}}
        ds.to_zarr(store, encoding=encoding, zarr_format=VERSIONS[-1], consolidated=False)
    cube = refshard_fs.concat(stores, "time", lazy=True, chunks={"time": chunk})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = xr.concat([xr.open_zarr(store, chunks=None, consolidated=False) for store in stores], "time").load()
        found = xr.open_dataset(cube, engine=RefShardBackend).load()
    np.testing.assert_array_equal(found["v"].values, expected["v"].values)


def write_months(folder: Path, chunk: int, packed: bool) -> list[str]:
    """Write files of 40 steps in chunks of ``chunk``; if ``packed``, each file has another scale."""
    paths = []
    for number in range(3):
        paths.append(str(folder / f"{number}.nc"))
        with netCDF4.Dataset(paths[-1], "w") as file:
            file.createDimension("time", 40)
            file.createDimension("x", 64)
            time = file.createVariable("time", "i4", ("time",))
            time.units = "days since 2000-01-01"
            time[:] = np.arange(40) + 40 * number
            var = file.createVariable("v", "i2", ("time", "x"), chunksizes=(chunk, 64), zlib=True)
            if packed:
                var.scale_factor = 0.5 / 2**number
            var.set_auto_maskandscale(False)
            var[:] = np.arange(40 * 64).reshape(40, 64) % 100 * 2**number
    return paths


@pytest.mark.parametrize(("chunk", "packed"), [(1, True), (3, False), (3, True)])
def test_recoded_and_recut_chunks_are_fetched_ahead(
    http_server: RangeServer, tmp_path: Path, chunk: int, packed: bool
) -> None:
    paths = write_months(tmp_path, chunk, packed)
    urls = [http_server.put(f"{n}.nc", Path(path).read_bytes()) for n, path in enumerate(paths)]
    cube = pickle.loads(pickle.dumps(refshard_fs.concat(urls, "time", lazy=True)))  # without the first bytes of files
    fs = refshard_fs.RefShardFileSystem(cube, skip_instance_cache=True)
    keys = [f"v/{i}.0" for i in range(-(-120 // chunk))]
    http_server.log.clear()
    one_by_one = {key: fs.cat_file(key) for key in keys}
    assert fs.stats()["ahead_hits"] > len(keys) / 2
    assert len(http_server.log.requests()) < len(keys) / 2
    assert refshard_fs.RefShardFileSystem(cube, skip_instance_cache=True, readahead=0).cat(keys) == one_by_one
    fs = refshard_fs.RefShardFileSystem(cube, skip_instance_cache=True, readahead=0)
    fs.prefetch(keys)
    http_server.log.clear()
    assert fs.cat(keys) == one_by_one
    assert not http_server.log.requests()


MARK = -7


def write_packed(path: Path, first: int, scale: float) -> np.ndarray[Any, Any]:
    """Write four steps of packed numbers, one of which is missing, and return the unpacked values."""
    stored = np.arange(first, first + 48, dtype="i2").reshape(4, 3, 4)
    stored[1, 1, 1] = MARK
    h5netcdf = pytest.importorskip("h5netcdf")
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"t": 4, "y": 3, "x": 4}
        file.create_variable("t", ("t",), "i4")[:] = np.arange(first, first + 4)
        named: dict[str, Any] = {"chunks": (1, 3, 4), "compression": "gzip", "fillvalue": np.int16(MARK)}
        variable = file.create_variable("v", ("t", "y", "x"), "i2", **named)
        variable.attrs["scale_factor"], variable.attrs["add_offset"] = scale, 270.0
        variable[:] = stored
    return np.where(stored == MARK, np.nan, stored * scale + 270.0)


@pytest.mark.skipif(zarr_major() == 2, reason="zarr 3 alone")
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "http"])
def test_only_selected_elements_are_converted(
    tmp_path: Path, http_server: RangeServer, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    expected = np.concatenate([write_packed(tmp_path / f"{n}.nc", 100 * n, 0.5 + n) for n in range(3)])
    for path in tmp_path.iterdir():
        http_server.put(f"/{path.name}", path.read_bytes())
    names = [f"{http_server.url if is_remote else tmp_path}/{n}.nc" for n in range(3)]
    made: Any = refshard_fs.concat(names, dim="t", lazy=True)
    converted: list[int] = []
    convert = Recoding.convert
    monkeypatch.setattr(Recoding, "convert", lambda self, v: converted.append(v.size) or convert(self, v))
    with xr.open_dataset(made, engine=RefShardBackend) as ds:
        converted.clear()
        np.testing.assert_array_equal(ds["v"][:, 1, 1].values, expected[:, 1, 1])
        assert converted == [1] * 12
        np.testing.assert_array_equal(ds["v"][5, ::2].values, expected[5, ::2])  # this chunk is kept decoded
        assert ds["v"][5, 2, 3].item() == expected[5, 2, 3]
        assert converted[12:] == [8, 1]
        np.testing.assert_array_equal(ds["v"].values, expected)
