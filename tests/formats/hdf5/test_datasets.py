"""Hundreds of files have the values, types, dimensions and attributes that h5py and h5netcdf read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from refshard_fs import RefShardError, RefShardFileSystem
from refshard_fs.tools.info import summarise
from tests.support import hdf5_corpus as corpus
from tests.support import netcdf_files
from tests.support.hdf5_comparison import check_file
from tests.support.hdf5_corpus import written

SAMPLES = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("choose", [corpus.choose, pytest.param(list, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("kind", corpus.kinds())
def test_values_equal_h5py(kind: str, choose: Callable[[list[str]], list[str]], tmp_path: Path) -> None:
    refused = frozenset(corpus.REFUSED if kind == "refused" else ())
    for name in choose(corpus.of_kind(kind)):
        assert check_file(written(corpus.WRITERS, name, tmp_path), refused), name


def test_info_names_filters_that_zarr_lacks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = np.arange(10, dtype="i4")
        file.create_dataset("scaled", data=values, chunks=(5,), scaleoffset=0, shuffle=True)
        file.create_dataset("plain", data=values, chunks=(5,), compression="gzip")
    fs = RefShardFileSystem(str(tmp_path / "a.h5"), skip_instance_cache=True)
    assert {array.name: array.codecs for array in summarise(fs).arrays} == {
        "plain": ("zlib",),
        "scaled": ("scale-offset", "shuffle"),
    }


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_values_of_both_zarr_formats_equal_h5py(zarr_format: int, tmp_path: Path) -> None:
    if zarr_format == 3 and zarr.__version__.startswith("2."):
        pytest.skip("zarr 2 reads no version 3")
    several = [
        *(f"filtered latest fixed {name}" for name in corpus.MORE_FILTERS if name != "szip"),
        "unchunked latest contiguous True",
    ]
    for name in [*several, "chunked latest growing in all shuffle gzip fletcher32", "scaled latest masked", "anndata"]:
        path = written(corpus.WRITERS, name, tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr warns about data types without a specification
            check_file(path, zarr_format=zarr_format)


@pytest.mark.parametrize("path", sorted((Path(h5py.__file__).parent / "tests" / "data_files").glob("*.h5")))
def test_h5pys_test_files_have_the_values_of_h5py(path: Path) -> None:
    assert check_file(path)


def test_unsupported_datasets_are_reported_with_reasons(tmp_path: Path) -> None:
    fs = RefShardFileSystem(fo=str(written(corpus.WRITERS, "refused", tmp_path)))
    for name, reason in corpus.REFUSED.items():
        assert reason in fs.left_whole[name]
    assert fs.cat("seen/0") == np.arange(5).tobytes()


@pytest.mark.parametrize("name", ["netcdf4 NETCDF4 shuffle ('time', 'x')", "netcdf4 groups", "xarray h5netcdf packed"])
def test_converted_set_equals_the_file(name: str, tmp_path: Path) -> None:
    path = written(netcdf_files.WRITERS, name, tmp_path, "nc")
    RefShardFileSystem(fo=str(path)).save(str(tmp_path / "refs.json"))
    converted = RefShardFileSystem(fo=str(tmp_path / "refs.json"))
    direct = RefShardFileSystem(fo=str(path))
    assert sorted(converted.find("")) == sorted(direct.find(""))
    for key in direct.find(""):
        if not key.endswith(".zmetadata"):
            # Sets keep the data type of scale_factor in an attribute; in a file, scale_factor itself has this type.
            assert converted.cat(key).replace(b',"_refshard_packing":"float32"', b"") == direct.cat(key), key
    pytest.importorskip("kerchunk")
    with xr.open_dataset(str(tmp_path / "refs.json"), engine="kerchunk") as by_kerchunk:
        by_refshard = xr.open_dataset(str(path), engine="refshard")
        for variable in by_refshard.data_vars:
            if by_refshard[variable].dtype.kind == "f":
                np.testing.assert_allclose(by_kerchunk[variable], by_refshard[variable])


@pytest.mark.parametrize("version", [1, 2])
def test_fill_value_of_size_minus_one_is_undefined(version: int, tmp_path: Path) -> None:
    path = tmp_path / "undefined.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (4,), "<i4", chunks=(2,), fillvalue=7)[:2] = 5
    data = bytearray(path.read_bytes())
    size = data.index(b"\4\0\0\0\7\0\0\0")
    data[size : size + 4] = b"\xff" * 4
    data[size - 4] = version
    path.write_bytes(data)
    with h5py.File(path) as file:
        expected = file["a"][:2]
    assert RefShardFileSystem(str(path)).cat_file("a/0") == expected.tobytes()


def test_huge_unwritten_chunk_is_refused(tmp_path: Path) -> None:
    """A small file may have an unwritten chunk of any size."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, size in (("huge", (64 << 20) + 1), ("large", 1 << 20)):
            dataset = file.create_dataset(name, (size,), "u1", chunks=(size,), compression="gzip")
            dataset.attrs["_FillValue"] = np.uint8(7)  # zarr would fill a missing chunk with 7, HDF5 fills with 0
    fs = RefShardFileSystem(str(tmp_path / "a.h5"), skip_instance_cache=True)
    assert len(fs.cat_file("large/0")) < 1 << 16
    with pytest.raises(RefShardError, match="'huge/0'.* never written, and filling it takes .* expected at most"):
        fs.cat_file("huge/0")
