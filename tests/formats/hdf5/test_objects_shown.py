"""Datasets of Python objects (references, sequences, compounds with these), and datasets without elements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from refshard_fs import RefShardFileSystem
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.errors import RefShardError
from tests.support.hdf5_comparison import open_arrays

IS_ZARR_2 = zarr_major() == 2
LOW = ["earliest", "v110"]
TEXT, REFERENCE, REGION = h5py.string_dtype(), h5py.ref_dtype, h5py.regionref_dtype
MEMBERS = {"n": np.dtype(">i2"), "t": TEXT, "o": REFERENCE, "r": REGION, "s": np.dtype("S3"), "f": np.dtype(("<f4", 2))}


def get_path(file: h5py.File, reference: Any) -> str:
    return file[reference].name if reference else ""


def make_value(random: np.random.Generator, file: h5py.File, kind: str) -> Any:
    """Return a random value for a member of ``kind``; some references are null."""
    target = file[f"g{random.integers(3)}/x"]
    match kind:
        case "o":
            return target.ref if random.random() < 0.8 else h5py.Reference()
        case "r":
            return target.regionref[:2] if random.random() < 0.8 else h5py.RegionReference()
        case "t":
            return "é" * int(random.integers(4))
        case "s":
            return b"ab"
        case "f":
            return [1.5, 2.5]
    return int(random.integers(99))


def write_random(path: Path, random: np.random.Generator, low: str) -> None:
    """Write datasets of references, texts and compounds with random chunks and filters. Some chunks are unwritten."""
    with h5py.File(path, "w", libver=(low, "latest"), userblock_size=512 * int(random.integers(2))) as file:
        for number in range(3):
            file[f"g{number}/x"] = np.arange(5)
        for number in range(4):
            kinds = list(random.permutation(list(MEMBERS)))[: random.integers(1, 5)]
            kinds = kinds if set(kinds) & {"t", "o", "r"} else ["o", *kinds]
            single = kinds[0] if kinds[0] in ("t", "o", "r") else ""
            dtype = MEMBERS[single] if single else np.dtype([(kind, MEMBERS[kind]) for kind in kinds])
            size = int(random.integers(1, 12))
            filters = {"compression": "gzip", "shuffle": True} if random.random() < 0.5 else {}
            options: Any = {"chunks": (int(random.integers(1, size + 1)),), "maxshape": (None,), **filters}
            dataset = file.create_dataset(f"d{number}", (size,), dtype, **(options if random.random() < 0.7 else {}))
            for row in np.flatnonzero(random.random(size) < 0.7):
                values = tuple(make_value(random, file, kind) for kind in kinds)
                dataset[row] = values[0] if single else np.array([values], dtype)[0]
            dataset.attrs["number"] = number


def convert_expected(file: h5py.File, column: Any, dtype: np.dtype[Any]) -> Any:
    if h5py.check_ref_dtype(dtype) is not None:
        return [get_path(file, reference) for reference in column]
    return [text.decode() for text in column] if dtype == TEXT else column.tolist()


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 20))])
def test_objects_equal_h5py(seed: int, low: str, tmp_path: Path) -> None:
    write_random(tmp_path / "a.h5", np.random.default_rng(seed), low)
    fs, arrays = open_arrays(tmp_path / "a.h5")
    assert not fs.left_whole
    with h5py.File(tmp_path / "a.h5") as file:
        for number in range(4):
            dataset = file[f"d{number}"]
            assert json.loads(fs.cat(f"d{number}/.zattrs"))["number"] == number
            names = dataset.dtype.names
            columns = {name: (dataset[...][name], dataset.dtype[name]) for name in names or ()}
            for name, (column, dtype) in (columns or {"": (dataset[...], dataset.dtype)}).items():
                base = dtype.subdtype[0] if dtype.subdtype else dtype
                array = arrays[f"d{number}/{name}".rstrip("/")][...]
                assert array.tolist() == convert_expected(file, column, base), (number, name)


@pytest.mark.parametrize("low", LOW)
def test_reference_attributes_become_paths(low: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver=(low, "latest")) as file:
        target = file.create_dataset("g/x", data=np.arange(5))
        file.attrs.create("one", target.ref, dtype=REFERENCE)
        file.attrs.create("two", [target.ref, h5py.Reference()], shape=(2,), dtype=REFERENCE)
        file.attrs.create("region", target.regionref[1:2], dtype=REGION)
        lists = np.empty(2, object)
        lists[:] = [np.array([target.ref, file["g"].ref], REFERENCE), np.array([], REFERENCE)]
        file.attrs.create("lists", lists, dtype=h5py.vlen_dtype(REFERENCE))
        row = np.zeros(1, [("n", "<i4"), ("t", TEXT), ("o", REFERENCE)])
        row[0] = (7, "é", file["g"].ref)
        file.attrs["row"] = row
    attributes = json.loads(RefShardFileSystem(str(tmp_path / "a.h5")).cat(".zattrs"))
    expected = {"one": "/g/x", "two": ["/g/x", ""], "region": "/g/x", "row": [[7, "é", "/g"]]}
    assert attributes == expected | {"lists": [["/g/x", "/g"], []]}


@pytest.mark.parametrize("low", LOW)
def test_compounds_within_compounds_are_groups(low: str, tmp_path: Path) -> None:
    inner = np.dtype([("q", TEXT), ("p", "<f4")])
    dtype = np.dtype(
        [("n", "<i4"), ("in", [("deep", inner), ("o", REFERENCE)]), ("plain", [("a", "<i2"), ("b", "S3")])]
    )
    with h5py.File(tmp_path / "a.h5", "w", libver=(low, "latest")) as file:
        dataset = file.create_dataset("d", (3,), dtype, chunks=(2,), compression="gzip")
        dataset[0] = np.array((7, (("é", 1.5), file.ref), (1, b"ab")), dtype)
        dataset.attrs.update({"encoding-type": "rec-array", "note": "n"})
    fs, arrays = open_arrays(tmp_path / "a.h5")
    assert not fs.left_whole
    values = {name: array[...].tolist() for name, array in arrays.items()}
    assert values["d/in/deep/q"] == ["é", "", ""]
    assert values["d/in/deep/p"] == [1.5, 0, 0]
    assert values["d/in/o"] == ["/", "", ""]
    assert values["d/plain"] == [(1, b"ab"), (0, b""), (0, b"")]
    # The group does not have the "encoding-type" of the dataset: AnnData would refuse it.
    assert json.loads(fs.cat("d/.zattrs")) == {"note": "n"}


@pytest.mark.skipif(IS_ZARR_2, reason="zarr 2 has no version 3")
def test_compounds_of_mixed_byte_order_are_shown_in_version_3(tmp_path: Path) -> None:
    dtype = np.dtype([("a", ">i2"), ("in", [("b", ">f8"), ("s", "S3")]), ("c", "<f4", (2,))])
    values = np.array([(1, (2.5, b"ab"), (1, 2)), (-1, (0, b""), (3, 4))], dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("d", data=values, chunks=(1,), compression="gzip")
        file.create_dataset("fill", (2,), dtype, fillvalue=values[0], chunks=(1,))
        file.create_dataset("array", data=values.reshape(2, 1), dtype=np.dtype((dtype, ())))
        file.create_dataset("split", (2,), np.dtype([("t", TEXT), ("in", dtype)]))
    fs = RefShardFileSystem(str(tmp_path / "a.h5"), zarr_format=3)
    assert not fs.left_whole
    group = zarr.open_group(fs.get_mapper(""), mode="r")
    expected = [(1, (2.5, b"ab"), 1, 2), (-1, (0, b""), 3, 4)]
    assert group["d"][:].tolist() == group["array"][:, 0].tolist() == expected
    assert group["fill"][:].tolist() == [expected[0]] * 2
    assert group["split/in"][:].tolist() == [(0, (0, b""), 0, 0)] * 2
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["d"] = np.array([(1, 2.5), (-1, 0)], [("a", ">i2"), ("b", ">f8")])
    # This reads metadata of version 2; xarray's engine "h5netcdf" raises TypeError.
    with xr.open_dataset(tmp_path / "b.h5", engine="refshard") as ds:
        assert ds["d"].values["a"].tolist() == [1, -1]


def test_phony_dimensions_have_one_length_in_a_tree(tmp_path: Path) -> None:
    """The dimension of an array datatype is named, too, and a subgroup has a dimension of another length."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["plain"] = np.zeros((3, 4))
        file["below/other"] = np.zeros((5, 6, 7))
        file.create_dataset("array", (3,), np.dtype(("<i2", (8, 9))))
        file.create_dataset("split", (11,), np.dtype([("t", TEXT), ("n", "<f4", (2,))]))
    with xr.open_datatree(tmp_path / "a.h5", engine="refshard") as tree:
        assert tree["array"].shape == (3, 8, 9)
        assert tree["split/n"].shape == (11, 2)


def test_sequences_become_ragged_arrays_or_bytes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("ragged", (5,), h5py.vlen_dtype(">i4"), chunks=(2,))
        dataset[0], dataset[3] = [1, 2], [3]
        for name, (dtype, row) in {"bools": ("?", [True, False]), "texts": ("S3", [b"ab", b"c"])}.items():
            file.create_dataset(name, (2,), h5py.vlen_dtype(np.dtype(dtype)))[1] = np.array(row, dtype)
        file["x"] = np.arange(3)
    fs = RefShardFileSystem(str(tmp_path / "a.h5"))
    group = zarr.open_group(fs.get_mapper(""), mode="r")
    assert list(group["x"][:]) == [0, 1, 2]
    if IS_ZARR_2:
        assert [row.tolist() for row in group["ragged"][:]] == [[1, 2], [], [], [3], []]
        assert [row.tolist() for row in group["bools"][:]] == [[], [True, False]]
        assert [row.tolist() for row in group["texts"][:]] == [[], [b"ab", b"c"]]
        return
    assert fs.left_whole == {}
    for name, expected in {"ragged": [[1, 2], [], [], [3], []], "bools": [[], [True, False]]}.items():
        dtype = group[name].attrs["element_dtype"]
        assert [np.frombuffer(row, dtype).tolist() for row in group[name][:]] == expected
    with xr.open_dataset(tmp_path / "a.h5", engine="refshard") as ds:
        row = ds.ragged.values[0]
        assert np.frombuffer(row, ds.ragged.attrs["element_dtype"]).tolist() == [1, 2]
        assert [np.frombuffer(row, "S3").tolist() for row in ds.texts.values] == [[], [b"ab", b"c"]]
    assert "is not vlen-utf8" in RefShardFileSystem(str(tmp_path / "a.h5"), zarr_format=3).left_whole["ragged"]


def test_datasets_without_a_dataspace_keep_attributes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, dtype in {"number": np.dtype("<f4"), "text": TEXT}.items():
            file[name] = h5py.Empty(dtype)
            file[name].attrs["encoding-type"] = "null"
    fs, arrays = open_arrays(tmp_path / "a.h5")
    assert {name: array[...].shape for name, array in arrays.items()} == {"number": (0,), "text": (0,)}
    assert json.loads(fs.cat("text/.zattrs"))["encoding-type"] == "null"


def test_many_references_to_a_long_path_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        path = "/".join(["n" * 250] * 12)
        target = file.create_group(path)
        file.create_dataset("d", (100_000,), REFERENCE, data=np.array([target.ref] * 100_000, REFERENCE))
    with pytest.raises(RefShardError, match="paths of its references"):
        RefShardFileSystem(str(tmp_path / "a.h5")).cat("d/0")


@pytest.mark.skipif(IS_ZARR_2, reason="zarr 2 lists groups by name")
@pytest.mark.parametrize("track", [True, False])
def test_arrays_have_the_tracked_order_or_are_sorted_by_name(track: bool, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", track_order=track) as file:
        for name in ("z", "b", "g/y", "a"):
            file[name] = np.arange(2)
    fs = RefShardFileSystem(str(tmp_path / "a.h5"))
    names = list(json.loads(fs.cat(".zmetadata"))["metadata"])
    arrays = [name.removesuffix("/.zarray") for name in names if name.endswith("/.zarray")]
    assert arrays == (["z", "b", "g/y", "a"] if track else ["a", "b", "g/y", "z"])
