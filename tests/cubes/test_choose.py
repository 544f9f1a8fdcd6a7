"""Select a part of a source with keep, drop, rename and isel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli.program import main
from tests.support.arrays_in_memory import make_array, make_references

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")


def test_bare_names_select_in_all_groups_and_paths_in_one() -> None:
    fs = RefShardFileSystem(
        make_references(x=make_array([3], ["x"]), g__x=make_array([3], ["x"]), g__a=make_array([3], ["x"]))
    )

    def list_arrays(**words: Any) -> set[str]:
        return {key.removesuffix("/.zarray") for key in fs.select(**words).find("") if key.endswith("/.zarray")}

    assert list_arrays(drop="x") == {"g/a"}
    assert list_arrays(drop="/x") == {"g/x", "g/a"}
    assert list_arrays(keep="g/a") == {"x", "g/x", "g/a"}  # coordinates of the group and of those above
    assert list_arrays(rename={"x": "y"}) == {"y", "g/y", "g/a"}
    assert list_arrays(rename={"g": "h", "g/a": "b"}) == {"x", "h/x", "h/b"}
    renamed = fs.select(rename={"x": "y"})
    assert json.loads(renamed.cat_file("g/a/.zattrs"))["_ARRAY_DIMENSIONS"] == ["y"]
    assert renamed.resolve("g/y/1") == ("s3://b/g/x", 3, 6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"drop": "nope"}, "drop= names 'nope'.* its names are a, x"),
        ({"keep": ["nope"]}, "keep= names 'nope'.* its names are a, x"),
        ({"rename": {"nope": "b"}}, "rename= names 'nope'.* its names are a, x"),
        ({"rename": {"a": "x"}}, "'a' and 'x' the same name, 'x'"),
        ({"rename": {"a": "g/b"}}, "expected a name in the same group"),
        ({"rename": {"a": ".zgroup"}}, "expected a name that zarr accepts"),
        ({"attrs": {"nope": {}}}, "attrs= names 'nope'"),
        ({"isel": {"nope": slice(1)}}, "isel= names 'nope'.* its dimensions are x"),
        ({"isel": {"x": slice(0, 8, 2)}}, "a slice with step 1"),
        ({"isel": {"x": [3]}}, "expected an integer or a slice"),
        ({"isel": {"x": 0}}, "isel= or squeeze= changes the chunks of 'a', which cannot be cut"),
        ({"isel": {"x": 10}}, r"isel=\{'x': 10\}: 'x' has the length 10"),
        ({"isel": {"x": -11}}, r"isel=\{'x': -11\}: 'x' has the length 10"),
        ({"squeeze": "nope"}, "squeeze= names 'nope'.* its dimensions are x"),
        ({"squeeze": "x"}, "'x' has the length 10"),
        ({"assign": {"a": object()}}, "expected numbers, texts or times"),
        ({"assign": {"nope/a": 1}}, "assign= names 'nope/a', whose group"),
        ({"isel": {"x": slice(4, 8)}}, "4 along 'x', where chunks begin at 0, 3, 6"),
    ],
)
def test_invalid_selections_are_errors(words: dict[str, Any], message: str) -> None:
    odd = make_array([3], ["x"], compressor={"id": "unknown"})
    fs = RefShardFileSystem(make_references(a=odd, x=make_array([3], ["x"])))
    with pytest.raises((ManifestError, ValueError, TypeError), match=message):
        fs.select(**words)


def write_stations(path: Path, number: int = 0) -> None:
    """Write a NetCDF-3 file, whose texts are arrays of characters: names of stations, and a label for each time."""
    ds = xr.Dataset(
        {"air": (("time", "station"), [[1.0, 2.0]], {}, {"coordinates": "label"}), "count": ("time", [number])},
        {
            "station": ["ab", "cde"],
            "time": [number],
            "label": ("time", [f"day {number}"]),
            "height": ("station", [1, 2]),
        },
    )
    ds.to_netcdf(path, engine="scipy")


def test_character_coordinates_are_selected_as_by_xarray(tmp_path: Path) -> None:
    write_stations(tmp_path / "a.nc")
    whole = xr.open_dataset(tmp_path / "a.nc").load()
    fs = RefShardFileSystem(f"{tmp_path}/a.nc")
    for words, expected in (
        ({"keep": ["air"]}, whole[["air"]]),
        ({"isel": {"station": 1}}, whole.isel(station=1)),
        ({"sel": {"station": "cde"}}, whole.sel(station="cde")),
        ({"rename": {"station": "place"}}, whole.rename(station="place")),
    ):
        xr.testing.assert_identical(xr.open_dataset(fs.select(**words), engine="refshard").load(), expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"assign": {"x": [1, 2]}}, r"assign= of 'x' has 2 values along 'x': expected 10, as in 'a'$"),
        ({"assign": {"m": (("x", "y"), [[1]])}}, r"assign= of 'm' has 1 values along 'x': expected 10, as in 'a'$"),
        ({"assign": {"x": [1, 2]}, "isel": {"x": slice(1)}}, "has 2 values along 'x': expected 1"),
        ({"assign": {"t": [1, 2]}, "rename": {"x": "t"}}, "has 2 values along 't': expected 10"),
        ({"assign": {"k": [1, 2], "n": ("k", [1])}}, "assign= of 'k' has 2 values along 'k': expected 1, as in 'n'"),
        ({"assign": {"g/x": [1, 2, 3]}}, "assign= of 'g/x' has 3 values along 'x': expected 4, as in 'g/b'"),
    ],
)
def test_assigned_values_need_the_length_of_the_dimension(words: dict[str, Any], message: str) -> None:
    arrays = {"a": make_array([3], ["x"]), "g__b": make_array([5], ["x"], shape=[4])}
    with pytest.raises(ManifestError, match=message):
        RefShardFileSystem(make_references(**arrays)).select(**words).find("")


def test_assigned_values_may_replace_the_only_values() -> None:
    fs = RefShardFileSystem(make_references(x=make_array([3], ["x"]), y=make_array([1], ["y"], shape=[1])))
    chosen = fs.select(assign={"x": [1, 2], "y": 3, "/z": [4]}, squeeze="y")
    assert chosen.exists("x/0")
    assert json.loads(chosen.cat_file("z/.zattrs"))["_ARRAY_DIMENSIONS"] == ["z"]


def make_described() -> Any:
    """Make a dataset whose variables name others in the attributes of CF."""
    x, y, lev, time = np.arange(3.0), np.arange(2.0), np.arange(2.0), np.arange(4.0)
    box = np.zeros((4, 2, 2, 3), "f4")
    ds = xr.Dataset(
        {
            "ta": (("time", "lev", "y", "x"), box, {"grid_mapping": "crs", "cell_measures": "area: area"}),
            "pr": (("time", "y", "x"), box[:, 0], {"grid_mapping": "crs: x y other: lat lon"}),
            "quality": (("time", "lev", "y", "x"), box.astype("i1")),
            "tas": (("time", "y", "x"), box[:, 0], {"ancillary_variables": "quality"}),
            "crs": ((), np.int32(0)),
            "other": ((), np.int32(1)),
            "area": (("y", "x"), box[0, 0]),
            "ps": (("time", "y", "x"), box[:, 0]),
            "time_bnds": (("time", "nv"), np.zeros((4, 2))),
        },
        {"x": x, "y": y, "lev": lev, "time": time, "lat": (("y", "x"), box[0, 0]), "lon": (("y", "x"), box[0, 0])},
    )
    ds["time"].attrs["bounds"] = "time_bnds"
    ds["lev"].attrs["formula_terms"] = "ps: ps"
    return ds


@pytest.mark.parametrize("name", ["ta", "pr", "tas"])
def test_keep_shows_the_variables_that_describe_others(name: str, tmp_path: Path) -> None:
    make_described().to_netcdf(tmp_path / "all.nc", engine="h5netcdf")
    fs = RefShardFileSystem(str(tmp_path / "all.nc"))
    with (
        xr.open_dataset(tmp_path / "all.nc", engine="h5netcdf", decode_coords="all") as ds,
        xr.open_dataset(fs.select(keep=name), engine="refshard", decode_times=False) as found,
    ):
        # xarray keeps each coordinate of the dataset that has only dimensions of the variable.
        expected = set(ds[[name]].variables) - ({"area", "ps"} if name in ("pr", "tas") else {"other"})
        expected -= {"crs", "other"} if name == "tas" else set()
        assert set(found.variables) == expected
        for variable in found.variables:
            xr.testing.assert_equal(found[variable].variable, ds[variable].variable)


def test_saved_document_keeps_describing_variables(tmp_path: Path) -> None:
    for number in (0, 1):
        part = make_described().isel(time=slice(2 * number, 2 * number + 2))
        part.to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf")
    refshard_fs.open(str(tmp_path / "*.nc"), keep=["ta"]).save(str(tmp_path / "ta.refshard"))
    assert main(["convert", str(tmp_path / "ta.refshard"), str(tmp_path / "part.json"), "--keep", "ta"]) == 0
    for saved in ("ta.refshard", "part.json"):
        with xr.open_dataset(tmp_path / saved, engine="refshard") as ds:
            assert set(ds.variables) == {"ta", "crs", "area", "ps", "time", "lev", "y", "x", "lat", "lon"}
            assert ds["ps"].shape == (4, 2, 3)
