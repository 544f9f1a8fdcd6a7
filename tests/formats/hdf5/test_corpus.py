"""Values, types, dimensions and attributes of some hundreds of files are those that h5py and h5netcdf read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from refshard_fs import RefShardFileSystem
from tests.support import hdf5_corpus as corpus
from tests.support import netcdf_files
from tests.support.hdf5_comparison import check_file, check_xarray

SAMPLES = Path(__file__).parents[2] / "data"


def written(writers: dict[str, Any], name: str, folder: Path, suffix: str = "h5") -> Path:
    path = folder / f"{name}.{suffix}"
    writers[name](path)
    return path


@pytest.mark.parametrize("which", [corpus.pairs, pytest.param(list, marks=pytest.mark.slow)], ids=["pairs", "all"])
@pytest.mark.parametrize("kind", corpus.kinds())
def test_values_are_those_that_h5py_reads(kind: str, which: Callable[[list[str]], list[str]], tmp_path: Path) -> None:
    refused = {"refused": frozenset(corpus.REFUSED), "matlab": frozenset(["cell"])}.get(kind, frozenset())
    for name in which(corpus.of_kind(kind)):
        assert check_file(written(corpus.WRITERS, name, tmp_path), refused), name


# Groups with links to nothing, and elements that are arrays, are more than h5netcdf reads.
XARRAY = [
    name
    for name in corpus.WRITERS
    if name.startswith(("matlab", "anndata", "nexus", "keras"))
    or (name.startswith(("scaled ", "attributed ")) and name.split(" ")[1] in ("earliest", "latest"))
    or name in ("chunked v110 extensible gzip", "unchunked latest contiguous True", "chunked earliest fixed plain")
]


@pytest.mark.parametrize("name", XARRAY)
def test_xarray_shows_what_h5netcdf_does(name: str, tmp_path: Path) -> None:
    assert check_xarray(written(corpus.WRITERS, name, tmp_path), decode_cf=False, refused=frozenset(["cell"]))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in netcdf_files.MORE else ()) for name in netcdf_files.WRITERS],
)
def test_netcdf_files_are_what_h5py_and_h5netcdf_read(name: str, tmp_path: Path) -> None:
    path = written(netcdf_files.WRITERS, name, tmp_path, "nc")
    assert check_file(path)
    assert check_xarray(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_reads_the_same_in_both_of_its_formats(zarr_format: int, tmp_path: Path) -> None:
    if zarr_format == 3 and zarr.__version__.startswith("2."):
        pytest.skip("zarr 2 reads no version 3")
    several = [
        *(f"filtered latest fixed {name}" for name in corpus.MORE_FILTERS if name != "szip"),
        "unchunked latest contiguous True",
    ]
    for name in [*several, "chunked latest growing in all shuffle gzip fletcher32", "scaled latest masked", "anndata"]:
        path = written(corpus.WRITERS, name, tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of zarr's, over data types without a specification
            check_file(path, zarr_format=zarr_format)


def test_fill_values_are_masked_as_the_attribute_says_in_both_formats(tmp_path: Path) -> None:
    path = written(corpus.WRITERS, "scaled latest masked", tmp_path)
    with xr.open_dataset(path, engine="h5netcdf") as expected:
        for zarr_format in (2,) if zarr.__version__.startswith("2.") else (2, 3):
            options = {"zarr_format": zarr_format}
            found = xr.open_dataset(str(path), engine="refshard", storage_options=options)
            for name in ("f0", "f1", "f2"):
                assert found[name].dtype == expected[name].dtype
                np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("path", sorted((Path(h5py.__file__).parent / "tests" / "data_files").glob("*.h5")))
def test_values_of_the_files_that_h5py_comes_with_are_those_that_it_reads(path: Path) -> None:
    assert check_file(path)


def test_what_is_refused_is_refused_by_name(tmp_path: Path) -> None:
    fs = RefShardFileSystem(fo=str(written(corpus.WRITERS, "refused", tmp_path)))
    for name, reason in corpus.REFUSED.items():
        assert reason in fs.left_whole[name]
    assert fs.cat("seen/0") == np.arange(5).tobytes()


def test_enums_say_their_names_as_flags(tmp_path: Path) -> None:
    fs = RefShardFileSystem(fo=str(written(netcdf_files.WRITERS, "netcdf4 groups", tmp_path, "nc")))
    found = zarr.open_group(fs.get_mapper(""), mode="r")["cloud"]
    assert found.attrs["flag_values"] == [0, 1, 2]
    assert found.attrs["flag_meanings"] == "clear some thick_fog"


def test_complex_attributes_of_variables_and_groups_are_h5netcdfs(tmp_path: Path) -> None:
    """Before it was mended: Complex attributes of groups of an HDF5 file were pairs of numbers in xarray; those of
    variables were right.
    """
    with h5py.File(tmp_path / "complex.h5", "w") as file:
        below = file.create_group("below")
        for owner in (file, file.create_dataset("a", data=1.0), below, below.create_dataset("a", data=2.0)):
            owner.attrs["one"] = 1 + 2j
            owner.attrs["some"] = np.array([1 - 1j, 2], "c8")
    for group in (None, "below"):
        with xr.open_dataset(tmp_path / "complex.h5", engine="refshard", group=group) as found:
            for attributes in (found.attrs, *(variable.attrs for variable in found.variables.values())):
                assert attributes["one"] == 1 + 2j
                assert attributes["some"].dtype == np.complex64
                assert attributes["some"].tolist() == [1 - 1j, 2]


@pytest.mark.parametrize("number", [7, 12])  # in the object's header, and in a heap
@pytest.mark.parametrize("tracked", [False, True])
def test_attributes_come_in_the_order_that_h5netcdf_has_them_in(number: int, tracked: bool, tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "ordered.nc", "w", libver="v110", track_order=tracked) as file:
        for owner in (file, file.create_dataset("a", data=1.0, track_order=tracked)):
            for name in "zyxwvutsrqpo"[:number]:
                owner.attrs[name] = len(owner.attrs)
            owner.attrs["y"] = "again, and longer than it was"  # its message moves
    with xr.open_dataset(path, engine="refshard") as ours, xr.open_dataset(path, engine="h5netcdf") as theirs:
        assert list(ours.attrs.items()) == list(theirs.attrs.items())
        assert list(ours["a"].attrs.items()) == list(theirs["a"].attrs.items())


def test_a_scale_that_is_text_stays_text(tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "text.nc", "w") as file:
        for name, text in {"a": "2", "b": np.bytes_("2"), "c": "unknown"}.items():
            file.create_dataset(name, data=np.arange(3, dtype="i2")).attrs["scale_factor"] = text
    with xr.open_dataset(path, engine="refshard", decode_cf=False) as ds:
        assert {name: ds[name].attrs["scale_factor"] for name in ds} == {"a": "2", "b": "2", "c": "unknown"}


@pytest.mark.parametrize("name", ["netcdf4 NETCDF4 shuffle ('time', 'x')", "netcdf4 groups", "xarray h5netcdf packed"])
def test_a_converted_set_is_the_file(name: str, tmp_path: Path) -> None:
    path = written(netcdf_files.WRITERS, name, tmp_path, "nc")
    RefShardFileSystem(fo=str(path)).save(str(tmp_path / "refs.json"))
    found = RefShardFileSystem(fo=str(tmp_path / "refs.json"))
    direct = RefShardFileSystem(fo=str(path))
    assert sorted(found.find("")) == sorted(direct.find(""))
    for key in direct.find(""):
        if not key.endswith(".zmetadata"):
            # The type of a packing, which is an attribute in sets; in a file, it is that of scale_factor.
            assert found.cat(key).replace(b',"_refshard_packing":"float32"', b"") == direct.cat(key), key
    pytest.importorskip("kerchunk")
    with xr.open_dataset(str(tmp_path / "refs.json"), engine="kerchunk") as theirs:
        ours = xr.open_dataset(str(path), engine="refshard")
        for variable in ours.data_vars:
            if ours[variable].dtype.kind == "f":
                np.testing.assert_allclose(theirs[variable], ours[variable])
