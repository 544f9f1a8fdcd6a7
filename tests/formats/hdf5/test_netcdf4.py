"""NetCDF-4 files have the dimensions, attributes and fill values of h5netcdf and xarray."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from refshard_fs import RefShardFileSystem
from tests.support import hdf5_corpus as corpus
from tests.support import netcdf_files
from tests.support.hdf5_comparison import check_file, check_xarray
from tests.support.hdf5_corpus import written

# h5netcdf cannot read the other files: their groups have dangling links, or their elements are arrays.
XARRAY = [
    name
    for name in corpus.WRITERS
    if name.startswith(("matlab", "anndata", "nexus", "keras"))
    or (name.startswith(("scaled latest ", "attributed latest ")) and not name.endswith(" 0"))
    or name in ("attributed earliest True 200", "chunked v110 extensible gzip", "unchunked latest contiguous True")
]


@pytest.mark.parametrize("name", XARRAY)
def test_xarray_dataset_equals_h5netcdf(name: str, tmp_path: Path) -> None:
    assert check_xarray(written(corpus.WRITERS, name, tmp_path), decode_cf=False, left_out=frozenset(["cell"]))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in netcdf_files.MORE else ()) for name in netcdf_files.WRITERS],
)
def test_netcdf_files_equal_h5py_and_h5netcdf(name: str, tmp_path: Path) -> None:
    path = written(netcdf_files.WRITERS, name, tmp_path, "nc")
    assert check_file(path)
    assert check_xarray(path)


@pytest.mark.parametrize("zarr_format", [2] if zarr.__version__.startswith("2.") else [2, 3])
@pytest.mark.parametrize("dtype", ["<M8[s]", "<m8[ns]"])
def test_unwritten_times_are_zero_as_in_h5py(tmp_path: Path, dtype: str, zarr_format: int) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = file.create_dataset("t", (4,), h5py.opaque_dtype(np.dtype(dtype)), chunks=(2,))
        array[:2] = np.array([5, 6], dtype).astype(array.dtype)
    fs = RefShardFileSystem(str(tmp_path / "a.h5"), zarr_format=zarr_format)
    if zarr_format == 2:
        found = zarr.open_group(fs.get_mapper(), mode="r")["t"][:]
    else:
        found = xr.open_dataset(fs, engine="refshard", decode_cf=False)["t"].values
    assert found.view("i8").tolist() == [5, 6, 0, 0]


def test_fill_values_are_masked_in_both_formats(tmp_path: Path) -> None:
    path = written(corpus.WRITERS, "scaled latest masked", tmp_path)
    with xr.open_dataset(path, engine="h5netcdf") as expected:
        for zarr_format in (2,) if zarr.__version__.startswith("2.") else (2, 3):
            options = {"zarr_format": zarr_format}
            actual = xr.open_dataset(str(path), engine="refshard", storage_options=options)
            for name in ("f0", "f1", "f2"):
                assert actual[name].dtype == expected[name].dtype
                np.testing.assert_array_equal(actual[name], expected[name])


def test_enum_names_become_flag_attributes(tmp_path: Path) -> None:
    fs = RefShardFileSystem(fo=str(written(netcdf_files.WRITERS, "netcdf4 groups", tmp_path, "nc")))
    array = zarr.open_group(fs.get_mapper(""), mode="r")["cloud"]
    assert array.attrs["flag_values"] == [0, 1, 2]
    assert array.attrs["flag_meanings"] == "clear some thick_fog"


def test_complex_attributes_become_complex_numbers(tmp_path: Path) -> None:
    """Attributes of groups and of variables become complex numbers."""
    with h5py.File(tmp_path / "complex.h5", "w") as file:
        subgroup = file.create_group("below")
        for owner in (file, file.create_dataset("a", data=1.0), subgroup, subgroup.create_dataset("a", data=2.0)):
            owner.attrs["one"] = 1 + 2j
            owner.attrs["some"] = np.array([1 - 1j, 2], "c8")
    for group in (None, "below"):
        with xr.open_dataset(tmp_path / "complex.h5", engine="refshard", group=group) as dataset:
            for attributes in (dataset.attrs, *(variable.attrs for variable in dataset.variables.values())):
                assert attributes["one"] == 1 + 2j
                assert attributes["some"].dtype == np.complex64
                assert attributes["some"].tolist() == [1 - 1j, 2]


@pytest.mark.parametrize("number", [7, 12])  # 7 are stored in the object header, 12 in a heap
@pytest.mark.parametrize("tracked", [False, True])
def test_attributes_have_the_order_of_h5netcdf(number: int, tracked: bool, tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "ordered.nc", "w", libver="v110", track_order=tracked) as file:
        for owner in (file, file.create_dataset("a", data=1.0, track_order=tracked)):
            for name in "zyxwvutsrqpo"[:number]:
                owner.attrs[name] = len(owner.attrs)
            owner.attrs["y"] = "again, and longer than it was"  # the longer message moves to the end
    with xr.open_dataset(path, engine="refshard") as actual, xr.open_dataset(path, engine="h5netcdf") as expected:
        assert list(actual.attrs.items()) == list(expected.attrs.items())
        assert list(actual["a"].attrs.items()) == list(expected["a"].attrs.items())


def test_scale_factor_of_text_stays_text(tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "text.nc", "w") as file:
        for name, text in {"a": "2", "b": np.bytes_("2"), "c": "unknown"}.items():
            file.create_dataset(name, data=np.arange(3, dtype="i2")).attrs["scale_factor"] = text
    with xr.open_dataset(path, engine="refshard", decode_cf=False) as ds:
        assert {name: ds[name].attrs["scale_factor"] for name in ds} == {"a": "2", "b": "2", "c": "unknown"}
