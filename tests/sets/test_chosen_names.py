"""Names in the selection of a join: some sets may lack them, but not all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files; only the second has ``rain``, and a dimension ``lev`` without a coordinate."""
    for day in range(3):
        ds = xr.Dataset(
            {"air": (("time", "x"), [[1.0, 2.0]])}, {"time": ("time", [day], {"units": "days since 2000-01-01"})}
        )
        if day == 1:
            ds["rain"] = ("time", "lev"), [[1.0, 2.0, 3.0]], {"units": "mm"}
        ds.to_netcdf(tmp_path / f"{day}.nc", engine="h5netcdf")
    return tmp_path


def open_cube(folder: Path, **words: Any) -> xr.Dataset:
    cube = refshard_fs.open(f"{folder}/*.nc", **words)
    cube.save(f"{folder}/saved.refshard")
    xr.testing.assert_identical(
        xr.open_dataset(f"{folder}/saved.refshard", engine="refshard").load(),
        ds := xr.open_dataset(cube, engine="refshard").load(),
    )
    return ds


def test_drop_accepts_sets_that_lack_the_variable(folder: Path) -> None:
    with pytest.raises(ManifestError, match="has no variable 'rain'"):
        refshard_fs.open(f"{folder}/*.nc")
    ds = open_cube(folder, drop=["rain"])
    assert dict(ds.sizes) == {"time": 3, "x": 2}
    assert "rain" not in refshard_fs.concat(f"{folder}/*.nc", "time", drop="rain").references


def test_keep_rename_and_attrs_accept_sets_without_the_variable(folder: Path) -> None:
    words: dict[str, Any] = {
        "keep": ["air", "rain"],
        "rename": {"rain": "pr", "lev": "z"},
        "attrs": {"rain": {"units": "m"}},
    }
    ds = open_cube(folder, join="outer", **words)
    assert ds["pr"].dims == ("time", "z")
    assert ds["pr"].units == "m"
    assert ds["pr"].notnull().values.tolist() == [[False] * 3, [True] * 3, [False] * 3]


@pytest.mark.parametrize(
    "words",
    [{"drop": ["rian"]}, {"keep": ["air", "rian"]}, {"rename": {"rian": "pr"}}, {"attrs": {"air/rian": {}}}],
    ids=str,
)
def test_name_that_no_set_has_is_an_error(folder: Path, words: dict[str, Any]) -> None:
    with pytest.raises(
        ManifestError, match="= names '(air/)?rian', which no source has: their variables are air, rain, time"
    ):
        refshard_fs.open(f"{folder}/*.nc", **words)


def test_error_names_the_set_that_lacks_all_names_in_keep(folder: Path) -> None:
    with pytest.raises(ManifestError, match=r"0\.nc: keep= names 'rain', which the source does not have"):
        refshard_fs.open(f"{folder}/*.nc", keep=["rain"])


def test_append_takes_a_set_that_lacks_a_dropped_variable(folder: Path) -> None:
    refshard_fs.open([f"{folder}/0.nc", f"{folder}/1.nc"], drop=["rain"]).save(f"{folder}/grown.refshard")
    assert refshard_fs.append(f"{folder}/grown.refshard", f"{folder}/*.nc") == 1
    assert xr.open_dataset(f"{folder}/grown.refshard", engine="refshard").sizes["time"] == 3


def test_variable_that_cannot_be_read_can_be_dropped(tmp_path: Path) -> None:
    meta = {
        "zarr_format": 2,
        "shape": [1],
        "chunks": [1],
        "dtype": "|u1",
        "order": "C",
        "fill_value": None,
        "filters": None,
    }
    urls = []
    for day in range(2):
        documents: dict[str, Any] = {
            "time/.zarray": {**meta, "compressor": None},
            "time/.zattrs": {"_ARRAY_DIMENSIONS": ["time"]},
        }
        documents |= {"bad/.zarray": {**meta, "compressor": {"id": 7}}, "bad/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]}}
        refs = {key: json.dumps(document) for key, document in documents.items()} | {"time/0": chr(day), "bad/0": "x"}
        urls.append(str(tmp_path / f"{day}.json"))
        Path(urls[-1]).write_text(json.dumps(refs))
    assert len(refshard_fs.open(urls, drop=["bad"])) == 2
