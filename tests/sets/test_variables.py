"""Files of many kinds that differ in one property: a cube has xarray's values, or an error that names the property."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError
from refshard_fs.core.zarrmeta import zarr_major
from tests.support.joined_sets import VERSIONS

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

DATA = np.array([[0.0, 0.5, 1.0], [2.0, 4.0, 8.0]])
PACKED = {"dtype": "i4", "scale_factor": 0.5, "_FillValue": -9}

# For each difference of two files: keywords of `write_file` for the first and the second file, and results of `concat`
# without and with ``lazy=True``: "equal" to xarray's dataset, or "refused".
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "nothing": ({}, {}, "equal", "equal"),
    "a wider type first": ({"dtype": "f8"}, {"dtype": "f4"}, "refused", "equal"),
    "a narrower type first": ({"dtype": "f4"}, {"dtype": "f8"}, "refused", "equal"),
    "packed by numbers that do not divide": (PACKED, {**PACKED, "scale_factor": 0.003}, "refused", "equal"),
    "packed first": (PACKED, {"dtype": "f4", "_FillValue": 1e20}, "refused", "equal"),
    "type of times": ({}, {"times": "f8"}, "equal", "equal"),
    "fractions of days": ({}, {"times": "f8", "hours": 6}, "equal", "equal"),
    "byte order of coordinates": ({"places": "f4"}, {"places": ">f4"}, "equal", "equal"),
    "width of coordinates": ({"places": "f4"}, {"places": "f8"}, "equal", "equal"),
    "fill value": ({"_FillValue": -1.0}, {"_FillValue": -2.0}, "refused", "equal"),
    "scale": (PACKED, {**PACKED, "scale_factor": 0.25}, "refused", "equal"),
    "offset": (PACKED, {**PACKED, "add_offset": 8.0}, "refused", "equal"),
    "packed or not": ({"dtype": "f8", "_FillValue": 1e20}, PACKED, "refused", "equal"),
    "units": ({"units": "K"}, {"units": "degC"}, "refused", "refused"),
    "units of time": ({}, {"since": "2024-01-02"}, "equal", "equal"),
    "calendar": ({}, {"calendar": "noleap"}, "refused", "refused"),
    "another length": ({}, {"steps": 1}, "equal", "equal"),
    "coordinates": ({}, {"xs": [1, 2, 4]}, "refused", "refused"),
    "a variable less": ({}, {"name": "w"}, "refused", "refused"),
}
# Files of NetCDF-3, where the steps of one variable lie together; and of formats with codecs and chunks.
TOGETHER = {"another length": ({}, {"steps": 1}, "refused", "equal")}
STORED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "codecs": ({"is_compressed": True}, {}, "refused", "equal"),
    "chunks": ({"chunks": (2, 3)}, {"chunks": (1, 2)}, "refused", "equal"),
    "chunks that are cut": ({"chunks": (2, 3), "steps": 1}, {"chunks": (2, 3)}, "refused", "equal"),
    "byte order": ({"endian": "<"}, {"endian": ">"}, "refused", "equal"),
}
SOME = {name: KINDS[name] for name in ("fill value", "scale", "units of time", "another length", "a variable less")}
# `test_recoding` has NetCDF-4.
FORMATS = {"netcdf3": {**KINDS, **TOGETHER}, "zarr2": STORED, "zarr3": {**SOME, **STORED}}


def write_file(
    path: Path,
    kind: str,
    number: int,
    steps: int = 2,
    dtype: str = "f4",
    chunks: tuple[int, int] | None = None,
    endian: str = "<",
    is_compressed: bool = False,
    units: str = "K",
    since: str = "2024-01-01",
    calendar: str = "standard",
    xs: Any = (1, 2, 3),
    name: str = "v",
    times: str = "i4",
    hours: int = 0,
    places: str = "i4",
    **packing: Any,
) -> str:
    shift = 0 if since == "2024-01-01" else 1
    days = (np.arange(steps) + 2 * number - shift + hours / 24).astype(times)
    time = xr.DataArray(days, dims="time", attrs={"units": f"days since {since}", "calendar": calendar})
    values = (("time", "x"), DATA[:steps] + number, {"units": units})
    ds = xr.Dataset({name: values}, coords={"time": time, "x": list(xs)})
    ds["x"] = ds["x"].astype("i4").astype(places)
    ds["x"].encoding["dtype"] = np.dtype(places)
    stored: dict[str, Any] = {"_FillValue": None, "dtype": np.dtype(dtype).newbyteorder(endian), **packing}
    if kind == "netcdf3":
        ds.to_netcdf(path, engine="netcdf4", format="NETCDF3_64BIT", encoding={name: stored}, unlimited_dims=["time"])
    else:
        stored["chunks"] = chunks or (1, 3)
        if not is_compressed:
            stored["compressors" if (zarr_major() or 2) > 2 else "compressor"] = None
        how: dict[str, Any] = {"zarr_format": int(kind[-1])} if 3 in VERSIONS else {}
        ds.to_zarr(path, encoding={name: stored}, consolidated=False, **how)
    return str(path)


def load_file(file: str, kind: str) -> Any:
    return xr.load_dataset(
        file, **({"engine": "netcdf4"} if kind == "netcdf3" else {"engine": "zarr", "consolidated": False})
    )


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "zarr3" or 3 in VERSIONS])
def test_cube_of_unlike_files_is_right_or_refused(tmp_path: Path, kind: str) -> None:
    for name, (one, other, eager, lazy) in FORMATS[kind].items():
        if name == "byte order" and kind == "zarr3":  # data types of zarr 3 have no byte order
            continue
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files = [write_file(folder / f"file{i}", kind, i, **how) for i, how in enumerate((one, other))]
        for is_lazy, outcome in ((False, eager), (True, lazy)):
            what = f"{name} of {kind}, lazy={is_lazy}"
            if outcome == "refused":
                with pytest.raises(ManifestError) as caught:
                    refshard_fs.concat(files, "time", lazy=is_lazy)
                text = str(caught.value)
                assert "file1" in text or "file0" in text, what
                assert any(repr(path) in text for path in ("v", "w", "time", "x")), what
                assert ("lazy=True" in text) == (lazy == "equal"), what
            else:
                cube = refshard_fs.concat(files, "time", lazy=is_lazy)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = xr.concat([load_file(file, kind) for file in files], "time")
                    found = xr.open_dataset(cube, engine=RefShardBackend).load()
                np.testing.assert_array_equal(found["v"].values, expected["v"].values, err_msg=what)
                assert found["time"].equals(expected["time"]), what


@pytest.mark.parametrize("name", ["nothing", "scale", "fill value", "units of time", "another length", "units"])
def test_cube_of_saved_sets_equals_cube_of_their_files(tmp_path: Path, name: str) -> None:
    one, other, eager, lazy = FORMATS["netcdf3"][name]
    files = [write_file(tmp_path / f"file{i}.nc", "netcdf3", i, **how) for i, how in enumerate((one, other))]
    sets = [str(tmp_path / f"file{i}.json") for i in range(2)]
    for file, url in zip(files, sets, strict=True):
        refshard_fs.RefShardFileSystem(file).save(url)
    for is_lazy, outcome in ((False, eager), (True, lazy)):
        if outcome == "refused":
            with pytest.raises(ManifestError, match=r"file1\.json"):
                refshard_fs.concat(sets, "time", lazy=is_lazy)
            continue
        found = xr.open_dataset(refshard_fs.concat(sets, "time", lazy=is_lazy), engine=RefShardBackend)
        expected = xr.concat([load_file(file, "netcdf3") for file in files], "time")
        np.testing.assert_array_equal(found["v"].values, expected["v"].values, err_msg=f"{name}, lazy={is_lazy}")
        assert found["time"].equals(expected["time"])


PICTURES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "nothing": ({}, {}, "equal"),
    "codecs": ({"compress": "deflate"}, {}, "refused"),
    "a narrower type first": ({"dtype": "i2"}, {"dtype": "i4"}, "refused"),
    "a wider type first": ({"dtype": "f8"}, {"dtype": "f4"}, "refused"),
    "tiles": ({"tiled": True, "blockxsize": 16, "blockysize": 16}, {"compress": "lzw"}, "refused"),
    "no data": ({"nodata": -1.0}, {"nodata": -2.0}, "refused"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_cube_of_unlike_images_is_right_or_refused(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    for name, (one, other, eager) in PICTURES.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        expected = []
        for day, how in enumerate((one, other), 1):
            picture = (np.arange(32 * 48).reshape(32, 48) + day).astype(how.get("dtype", "f4"))
            storage = {"count": 1, "dtype": picture.dtype, **{k: v for k, v in how.items() if k != "dtype"}}
            with rasterio.open(
                folder / f"2024010{day}.tif", "w", driver="GTiff", width=48, height=32, **storage
            ) as file:
                file.write(picture, 1)
            with rasterio.open(folder / f"2024010{day}.tif") as file:
                expected.append(file.read(1, masked=True).filled(np.nan if "nodata" in how else 0))
        pattern = f"{folder}/{{time:%Y%m%d}}.tif"
        if eager == "refused":
            with pytest.raises(ManifestError, match=r"(?s)'0' has .*20240102\.tif.*lazy=True"):
                refshard_fs.concat(pattern, "time")
        for is_lazy in (True, False)[: 1 if eager == "refused" else 2]:
            found = xr.open_dataset(refshard_fs.concat(pattern, "time", lazy=is_lazy), engine=RefShardBackend)
            np.testing.assert_array_equal(found["0"].values, np.stack(expected), err_msg=name)
            assert found["time"].values.astype("M8[D]").astype(str).tolist() == ["2024-01-01", "2024-01-02"]


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "bits": ({"bitsPerValue": 16}, {"bitsPerValue": 24}, "equal", "equal"),
    "another length": ({}, {"times": 3}, "equal", "equal"),
    "a variable less": ({}, {"shortName": "sp"}, "refused", "refused"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_cube_of_unlike_fields_is_right_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("eccodes", exc_type=Exception)
    pytest.importorskip("cfgrib", exc_type=Exception)
    from tests.support.grib_messages import make_message

    for name, (one, other, *outcomes) in FIELDS.items():
        files = []
        for day, how in enumerate((one, other), 1):
            keys = {key: value for key, value in how.items() if key != "times"}
            path = tmp_path / f"{name.replace(' ', '-')}{day}.grib2"
            fields = [
                make_message(dataDate=20240100 + day, dataTime=600 * n, **keys) for n in range(how.get("times", 2))
            ]
            path.write_bytes(b"".join(fields))
            files.append(str(path))
        for is_lazy, outcome in zip((False, True), outcomes, strict=True):
            if outcome == "refused":
                with pytest.raises(ManifestError, match=r"[12]\.grib2"):
                    refshard_fs.concat(files, "time", lazy=is_lazy)
                continue
            found = xr.open_dataset(refshard_fs.concat(files, "time", lazy=is_lazy), engine=RefShardBackend)
            opened = [xr.load_dataset(file, engine="cfgrib", indexpath="", decode_timedelta=True) for file in files]
            expected = xr.concat(opened, "time")
            np.testing.assert_array_equal(found["t"].values, expected["t"].values, err_msg=name)
            assert found["time"].values.tolist() == expected["time"].values.tolist()
