"""Arrays of characters, which are as wide as a file's longest text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import refshard_fs
from tests.support.text_files import check_texts, open_dataset, write

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("scipy")
pytest.importorskip("zarr", minversion="3")


@pytest.mark.parametrize(("way", "version"), [("characters of NetCDF-4", 3), ("characters of NetCDF-3", 2)])
@pytest.mark.parametrize("texts", [[["a", "b"], ["cdef", "g"], ["hi"]], [["abcd"], ["e"], ["fgh", "i"]]])
def test_character_arrays_of_different_widths_are_joined(
    tmp_path: Path, way: str, version: int, texts: list[list[str]]
) -> None:
    urls, expected = write(tmp_path, way, texts)
    cube = refshard_fs.concat(urls, "time", lazy=True, zarr_format=version)
    found = open_dataset(cube, version)
    assert found["name"].dtype == expected["name"].dtype
    check_texts(found, expected)
    cube.save(str(tmp_path / "cube.refshard"))
    check_texts(open_dataset(str(tmp_path / "cube.refshard"), version), expected)


def test_common_name_of_a_dimension_of_characters_is_kept(tmp_path: Path) -> None:
    urls = []
    for number, width in enumerate((2, 4)):
        ds = xr.Dataset({"name": ("time", np.array([b"a" * width])), "other": ("time", np.array([b"bcd"]))})
        for variable in ds.variables.values():
            variable.encoding["char_dim_name"] = "strlen" if variable.dtype.itemsize == width else "three"
        urls.append(str(tmp_path / f"{number}.nc"))
        ds.to_netcdf(urls[-1], engine="scipy")
    fs = refshard_fs.RefShardFileSystem(refshard_fs.concat(urls, "time", lazy=True, zarr_format=3), zarr_format=3)
    group = pytest.importorskip("zarr").open_group(fs.get_mapper(), mode="r")
    assert group["name"].metadata.dimension_names == ("time", "strlen")
    assert group["name"].shape == (2, 4)
    assert group["other"].metadata.dimension_names == ("time", "three")


def test_texts_whose_widths_swap_between_files_are_joined(tmp_path: Path) -> None:
    """One file has texts of two and of four characters, the other texts of four and of two."""
    urls, each = [], []
    for number, (one, other) in enumerate((("ab", "cdef"), ("ghij", "kl"))):
        ds = xr.Dataset({"name": ("time", np.array([one.encode()])), "v": ("time", [1.0])})
        ds["other"] = "time", np.array([other.encode()])
        ds["fixed"] = "time", np.array([b"mnop"])
        urls.append(str(tmp_path / f"{number}.nc"))
        ds.to_netcdf(urls[-1], engine="scipy")
        each.append(ds)
    found = open_dataset(refshard_fs.concat(urls, "time", lazy=True), 2)
    expected = xr.concat(each, "time")
    for name in ("name", "other", "fixed"):
        assert found[name].values.tolist() == expected[name].values.tolist()
