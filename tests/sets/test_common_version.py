"""Sets of zarr version 2 and 3 are joined, shown in version 3."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli.program import main
from tests.servers.http import RangeServer

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
codecs = pytest.importorskip("numcodecs")
pytest.importorskip("h5netcdf")
pytestmark = [  # of zarr 3.1, for texts and codecs
    pytest.mark.filterwarnings("ignore:The data type .FixedLengthUTF32"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]

DAYS = 2


def make_part(number: int) -> Any:
    time = ("time", np.arange(DAYS) + DAYS * number, {"units": "days since 2024-01-01"})
    air = np.arange(DAYS * 6, dtype="f4").reshape(DAYS, 2, 3) + 100 * number
    air[0, 0, 0] = np.nan
    variables = {
        "air": (("time", "y", "x"), air, {"units": "K"}),
        "packed": (("time", "x"), air[:, 0] / 2),
        "count": (("time", "y"), air[:, :, 1].astype("i2")),
        "name": (("time",), np.array([f"day {DAYS * number + day}" for day in range(DAYS)], "U8")),
        "mask": (("y", "x"), np.ones((2, 3), "?")),
        "flag": (("time", "x"), air[:, 0] > 1),
    }
    return xr.Dataset(variables, {"time": time, "x": [1.0, 2.0, 3.0], "y": [5, 6]}, {"title": "air"})


def write_part(path: Path, number: int, version: int, *, consolidated: bool = False, codec: Any = None) -> str:
    encoding: dict[str, Any] = {"packed": {"scale_factor": 0.5, "dtype": "i2", "_FillValue": -1}}
    encoding |= {"air": {"chunks": (1, 2, 3)}, "count": {}}
    if codec is not None and version == 2:
        encoding = {name: {**how, "compressors": [codec]} for name, how in encoding.items()}
    make_part(number).to_zarr(path, zarr_format=version, encoding=encoding, consolidated=consolidated)
    return str(path)


def load(source: Any, **options: Any) -> Any:
    with xr.open_dataset(source, engine="refshard", **options) as ds:
        return ds.load()


def load_parts(paths: list[str]) -> Any:
    """Return the dataset of xarray's own join."""
    parts = [
        xr.open_dataset(path, engine="zarr" if path.endswith(".zarr") else None, consolidated=False)
        if path.endswith(".zarr")
        else xr.open_dataset(path, engine="h5netcdf")
        for path in paths
    ]
    return xr.concat([part.load() for part in parts], "time", data_vars="minimal", coords="minimal", compat="override")


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("versions", [(2, 3), (3, 2), (3, 2, 2, 3)])
@pytest.mark.parametrize("how", ["plain", "consolidated", "other codec"])
def test_stores_of_both_versions_are_joined(versions: tuple[int, ...], how: str, tmp_path: Path) -> None:
    codec = codecs.Zlib(3) if how == "other codec" else None
    paths = [
        write_part(tmp_path / f"{n}.zarr", n, version, consolidated=how == "consolidated", codec=codec)
        for n, version in enumerate(versions)
    ]
    expected = load_parts(paths)
    xr.testing.assert_equal(load(f"{tmp_path}/*.zarr"), expected)
    cube = refshard_fs.open(paths)
    cube.save(str(tmp_path / "all.refshard"))
    assert main(["convert", str(tmp_path / "all.refshard"), str(tmp_path / "all.json")]) == 0
    for saved in ("all.refshard", "all.json"):
        xr.testing.assert_equal(load(str(tmp_path / saved)), expected)
        group = zarr.open_group(f"refshard::{tmp_path}/{saved}", mode="r")
        assert group.metadata.zarr_format == 3
        np.testing.assert_array_equal(group["air"][-1, 0], expected["air"].values[-1, 0])
    part = cube.select(isel={"time": slice(1, 3)}, keep=["air"])
    xr.testing.assert_equal(load(part), expected[["air"]].isel(time=slice(1, 3)))


def test_chunks_of_both_versions_stay_references(tmp_path: Path) -> None:
    paths = [write_part(tmp_path / f"{n}.zarr", n, v, codec=codecs.Zstd(0)) for n, v in enumerate((3, 2))]
    fs = RefShardFileSystem(refshard_fs.open(paths))
    assert fs.resolve("air/c/0/0/0")[0] == f"{paths[0]}/air/c/0/0/0"
    assert fs.resolve("air/c/3/0/0")[0] == f"{paths[1]}/air/1.0.0"


@pytest.mark.parametrize("versions", [(2, 3), (3, 2)])
def test_references_to_both_versions_are_joined(versions: tuple[int, int], tmp_path: Path) -> None:
    paths = [write_part(tmp_path / f"{n}.zarr", n, v, codec=codecs.Zstd(0)) for n, v in enumerate(versions)]
    refshard_fs.concat(paths, "time", keep=["air", "count"]).save(str(tmp_path / "all.json"))
    xr.testing.assert_equal(load(str(tmp_path / "all.json")), load_parts(paths)[["air", "count"]])


def test_netcdf_is_joined_with_version_3(tmp_path: Path) -> None:
    paths = [str(tmp_path / "0.nc"), str(tmp_path / "1.zarr")]
    for number, path in enumerate(paths):
        part = make_part(number).drop_vars(["mask", "flag", "name"])
        if path.endswith(".nc"):
            part.to_netcdf(path, engine="h5netcdf")
        else:
            part.to_zarr(path, zarr_format=3, consolidated=False)
    expected = load_parts(paths)
    xr.testing.assert_equal(load(paths), expected)


@pytest.mark.parametrize("versions", list(itertools.product((2, 3), repeat=2)))
def test_version_is_converted_in_append(versions: tuple[int, int], tmp_path: Path) -> None:
    paths = [write_part(tmp_path / f"{n}.zarr", n, version) for n, version in enumerate((versions[0], 3, versions[1]))]
    target = str(tmp_path / "all.refshard")
    refshard_fs.open(paths[:2]).save(target)
    assert refshard_fs.append(target, paths[2]) == DAYS
    assert refshard_fs.append(target, f"{tmp_path}/*.zarr") == 0
    xr.testing.assert_equal(load(target), load_parts(paths))


def test_version_3_is_not_appended_to_version_2(tmp_path: Path) -> None:
    paths = [write_part(tmp_path / f"{n}.zarr", n, version) for n, version in enumerate((2, 2, 3))]
    target = str(tmp_path / "all.refshard")
    refshard_fs.open(paths[:2]).save(target)
    with pytest.raises(ManifestError, match="zarr_format 2 in .* and 3 in .*pass the set of version 2 as a URL"):
        refshard_fs.append(target, paths[2])


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("versions", [(2, 3, 2), (3, 2, 3)])
def test_stores_of_both_versions_are_joined_over_http(
    versions: tuple[int, ...], http_server: RangeServer, tmp_path: Path
) -> None:
    paths = [write_part(tmp_path / f"{n}.zarr", n, version, consolidated=True) for n, version in enumerate(versions)]
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        http_server.put(str(file.relative_to(tmp_path)), file.read_bytes())
    expected = load_parts(paths)
    cube = refshard_fs.open([f"{http_server.url}/{n}.zarr" for n in range(3)])
    xr.testing.assert_equal(load(cube), expected)
    cube.save(str(tmp_path / "all.refshard"))
    xr.testing.assert_equal(load(str(tmp_path / "all.refshard")), expected)
