"""One group of a file looks the same whether the other groups are read or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.formats.hdf5.objects import _Reader
from tests.servers.http import RangeServer

h5netcdf = pytest.importorskip("h5netcdf")
netCDF4 = pytest.importorskip("netCDF4")
xr = pytest.importorskip("xarray")

COUNT = 60
TRACKS = range(2)


def write_variable(group: Any, name: str, dims: tuple[str, ...], **attributes: Any) -> None:
    """Write a variable of netCDF with 5 elements along each dimension."""
    values = np.arange(5.0 ** len(dims)).reshape((5,) * len(dims))
    variable = group.create_variable(name, dims, "f8", data=values)
    for key, value in attributes.items():
        variable.attrs[key] = value


def write_own_dimensions(file: Any) -> None:
    for number in TRACKS:
        group = file.create_group(f"track{number}/land")
        group.dimensions["x"] = 5
        write_variable(group, "x", ("x",))
        write_variable(group, "v", ("x",), units="m", one=np.array([1.5]))
        write_variable(group.create_group("below"), "w", ("x",))


def write_dimensions_above(file: Any) -> None:
    file.dimensions["x"] = 5
    write_variable(file, "x", ("x",))
    for number in TRACKS:
        write_variable(file.create_group(f"track{number}/land"), "v", ("x",))


def write_unlimited_dimension_above(file: Any) -> None:
    """Another group has the longest variable along the dimension."""
    file.createDimension("t", None)
    for number, length in enumerate((2, 7)):
        file.createGroup(f"track{number}/land").createVariable("v", "f8", ("t",))[:] = np.arange(float(length))


def write_numbered_dimensions(file: h5py.File) -> None:
    """Dimensions without scales have numbers that begin with those of the groups above."""
    file["above"] = np.zeros((3, 4))
    for number in TRACKS:
        file[f"track{number}/land/v"] = np.ones((4, 5))
        file[f"track{number}/other/w"] = np.ones((6, 7, 8))


def write_soft_link(file: h5py.File) -> None:
    file["track1/v"] = np.arange(3.0)
    file["track0/land/v"] = np.arange(4.0)
    file["track0/land/link"] = h5py.SoftLink("/track1/v")


def write_reference(file: h5py.File) -> None:
    file["track1/v"] = np.arange(3.0)
    file["track0/land/v"] = np.arange(4.0)
    file["track0/land/v"].attrs["other"] = file["track1/v"].ref


def write_attribute_of_one_element(file: h5py.File) -> None:
    """It is a number if the file has a dimension scale anywhere, as files of netCDF have, else an array."""
    file["track0/land/v"] = np.arange(4.0)
    file["track0/land/v"].attrs["one"] = np.array([2.5])
    file["track1/scale"] = np.arange(4.0)
    file["track1/scale"].make_scale()


def write_soft_link_above(file: h5py.File) -> None:
    file["track1/land/v"] = np.arange(3.0)
    file["track0"] = h5py.SoftLink("/track1")


# The library that writes a file, what it writes, and whether a group can be read without the others.
CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], None], bool]] = {
    "own dimensions": (h5netcdf.File, write_own_dimensions, True),
    "dimensions above": (h5netcdf.File, write_dimensions_above, True),
    "an unlimited dimension above": (netCDF4.Dataset, write_unlimited_dimension_above, False),
    "numbered dimensions": (h5py.File, write_numbered_dimensions, True),
    "a soft link": (h5py.File, write_soft_link, False),
    "a reference": (h5py.File, write_reference, False),
    "an attribute of one element": (h5py.File, write_attribute_of_one_element, False),
    "a soft link above": (h5py.File, write_soft_link_above, False),
}


@pytest.mark.parametrize("case", CASES)
def test_group_is_the_same_without_the_other_groups(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.h5"
    open_file, write, is_alone = CASES[case]
    with open_file(path, "w") as file:
        write(file)
    read: list[int] = []
    read_object = _Reader._read_object

    def count(self: _Reader, address: int, messages: Any) -> Any:
        read.append(address)
        return read_object(self, address, messages)

    monkeypatch.setattr(_Reader, "_read_object", count)
    expected = xr.open_dataset(RefShardFileSystem(str(path)), engine="refshard", group="track0/land").load()
    of_all = len(read)
    read.clear()
    alone = xr.open_dataset(str(path), engine="refshard", group="track0/land").load()
    xr.testing.assert_identical(alone, expected)
    assert alone.encoding.get("unlimited_dims") == expected.encoding.get("unlimited_dims")
    assert (len(read) < of_all) == is_alone


def test_subgroup_of_the_chosen_group_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "file.nc"
    with h5netcdf.File(path, "w") as file:
        write_own_dimensions(file)
    tree = xr.open_datatree(str(path), engine="refshard", group="track1/land")
    assert list(tree["below"]["w"].values) == list(range(5))


def test_unknown_group_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "file.nc"
    with h5netcdf.File(path, "w") as file:
        write_own_dimensions(file)
    with pytest.raises(Exception, match="track9"):
        xr.open_dataset(str(path), engine="refshard", group="track9")


def write_many_groups(path: Path) -> bytes:
    """Write a file of COUNT groups, each with one variable; return its bytes."""
    with h5netcdf.File(path, "w") as file:
        for number in range(COUNT):
            group = file.create_group(f"g{number:02}")
            group.dimensions = {"x": 20_000}
            group.create_variable("v", ("x",), "f8", chunks=(10_000,))[:] = np.arange(20_000.0) + number
    return path.read_bytes()


def test_one_of_many_groups_takes_few_bytes(tmp_path: Path, http_server: RangeServer) -> None:
    url = http_server.put("file.nc", data := write_many_groups(tmp_path / "file.nc"))
    with xr.open_dataset(url, engine="refshard", group="g41") as ds:
        assert float(ds["v"][7].values) == 48.0
    assert http_server.bytes_sent < len(data) // 4
    assert len(http_server.requests()) < COUNT // 4


def test_zarr_opens_one_of_many_groups_by_few_requests(tmp_path: Path, http_server: RangeServer) -> None:
    zarr = pytest.importorskip("zarr", "3")
    url = http_server.put("file.nc", write_many_groups(tmp_path / "file.nc"))
    group = zarr.open_group(f"refshard::{url}", path="g41", storage_options={"group": "g41"}, mode="r")
    assert group["v"][7] == 48.0
    assert len(http_server.requests()) < COUNT // 4
