"""Join files whose lengths are not multiples of their chunks, or differ in chunks: months, leap years."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli import main
from tests.servers.s3 import SeaweedServer
from tests.support.uneven_files import CUTS, MONTHS, open_by_xarray, open_expected, write_month, write_year

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent


@pytest.mark.parametrize(
    ("name", "compression"),
    [*((name, None) for name in CUTS), ("chunks that leave a rest", "gzip")],
)
def test_cube_of_months_has_xarrays_values(tmp_path: Path, name: str, compression: str | None) -> None:
    storage = {} if compression is None else {"compression": compression, "shuffle": True}
    files = write_year(tmp_path, CUTS[name], **storage)
    cube = refshard_fs.concat(files, "time", lazy=True)
    cube.save(str(tmp_path / "cube.refshard"))
    found = open_by_xarray(str(tmp_path / "cube.refshard"))
    xr.testing.assert_equal(found, open_expected(files))
    report = refshard_fs.check(RefShardFileSystem(cube), "full")
    assert not report.has_errors, report.findings


@pytest.mark.parametrize("chunks", [{"time": 1}, {"time": 7, "x": 3}, {"time": 500}])
def test_chunks_argument_sets_chunk_length(tmp_path: Path, chunks: dict[str, int]) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"])
    cube = refshard_fs.concat(files, "time", lazy=True, chunks=chunks)
    found = open_by_xarray(cube)
    shown = dict(zip(("time", "y", "x"), found["v"].encoding["chunks"], strict=True))
    assert chunks.items() <= shown.items()
    xr.testing.assert_equal(found, open_expected(files))


def test_matching_chunk_borders_keep_references(tmp_path: Path) -> None:
    files = [write_month(tmp_path / f"{i}.nc", 4 * i, 4, (2, 3, 4)) for i in range(2)]
    fs = RefShardFileSystem(refshard_fs.concat(files, "time", lazy=True))
    assert fs.resolve("v/3.0.0") == RefShardFileSystem(files[1]).resolve("v/1.0.0")
    assert b'"chunks"' not in refshard_fs.concat(files, "time", lazy=True, chunks={"time": 2}).content


def test_append_changes_chunks_to_the_commonest_shape(tmp_path: Path) -> None:
    parts = [(0, 3, (1, 3, 4)), (3, 1, (1, 3, 4)), (4, 6, (2, 3, 4))]
    files = [write_month(tmp_path / f"{i}.nc", *part) for i, part in enumerate(parts)]
    cube = str(tmp_path / "cube.refshard")
    refshard_fs.concat(files[:2], "time", lazy=True).save(cube)
    refshard_fs.append(cube, files[2], "time")
    found = open_by_xarray(cube)
    assert found["v"].encoding["chunks"] == (2, 3, 4)
    xr.testing.assert_equal(found, open_expected(files))


def test_file_with_other_chunks_and_packing_is_converted(tmp_path: Path) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"])
    with h5py.File(files[1], "a") as file:
        packed = (file["v"][:] * 2).astype(">i4")
        del file["v"]
        v = file.create_dataset("v", data=packed, chunks=(5, 2, 2), compression="gzip")
        v.attrs["scale_factor"] = 0.5
        for axis, name in enumerate(("time", "y", "x")):
            v.dims[axis].attach_scale(file[name])
    xr.testing.assert_equal(open_by_xarray(refshard_fs.concat(files, "time", lazy=True)), open_expected(files))


def test_missing_chunks_have_the_fill_value_of_their_file(tmp_path: Path) -> None:
    files = write_year(tmp_path, CUTS["chunks that leave a rest"][:2])
    fills = -1.0, -2.0
    for number, (file, fill) in enumerate(zip(files, fills, strict=True)):
        with h5py.File(file, "a") as opened:
            del opened["v"]
            shape = (MONTHS[number], 3, 4)
            v = opened.create_dataset("v", shape, "<f4", chunks=(10, 3, 4), fillvalue=fill)
            v.attrs["_FillValue"] = np.float32(fill)
            v[12:15] = 7.0
            for axis, name in enumerate(("time", "y", "x")):
                v.dims[axis].attach_scale(opened[name])
    xr.testing.assert_equal(open_by_xarray(refshard_fs.concat(files, "time", lazy=True)), open_expected(files))


def test_error_of_concat_proposes_lazy(tmp_path: Path) -> None:
    for number, (cut, said) in enumerate(
        ((CUTS["a chunk a month"], "'v' has the chunks"), (CUTS["chunks that leave a rest"], "not a multiple"))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ManifestError, match=f"(?s){said}.*lazy=True"):
            refshard_fs.concat(write_year(folder, cut), "time")


def test_text_arrays_are_recut(tmp_path: Path) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"][:2])
    for file in files:
        with h5py.File(file, "a") as opened:
            days = len(opened["time"])
            names = opened.create_dataset(
                "names", data=[f"day {n}" for n in range(days)], dtype=h5py.string_dtype(), chunks=(days,)
            )
            names.dims[0].attach_scale(opened["time"])
    found = open_by_xarray(refshard_fs.concat(files, "time", lazy=True))["names"]
    assert found.values.tolist() == [f"day {n}" for months in MONTHS[:2] for n in range(months)]


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ({"v": [1 << 20, 1 << 10, 4]}, "expected chunks of at most"),
        ({"v": [2, 2]}, "cannot be shown in chunks"),
        ({"v": [0, 3, 4]}, "at least 1 element of 'v'"),
        ({"y": [3]}, "only arrays in axes as members of chunks, got 'y'"),
    ],
)
def test_invalid_chunks_in_a_document_are_refused(tmp_path: Path, chunks: Any, said: str) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"][:2])
    document = {"refshard": "concat", "dim": "time", "axes": {"v": 0}, "chunks": chunks}
    document["sets"] = [[file, days] for file, days in zip(files, MONTHS, strict=False)]
    with pytest.raises(ManifestError, match=said):
        RefShardFileSystem(json.loads(json.dumps(document))).cat_file("v/0.0.0")


def test_concat_command_takes_lengths_of_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"][:2])
    for name, options in (("a", ["--subchunks", "time=1"]), ("b", ["--lazy", "--chunks", "time=20"])):
        url = str(tmp_path / f"{name}.json")
        assert main(["concat", *files, "-o", url, "--dim", "time", *options]) == 0
        xr.testing.assert_equal(open_by_xarray(url), open_expected(files))
    with pytest.raises(SystemExit):
        main(["concat", *files, "-o", url, "--dim", "time", "--chunks", "time"])
    assert "NAME=N" in capsys.readouterr().err


def test_chunks_of_several_lengths_stay_references(tmp_path: Path) -> None:
    files = write_year(tmp_path, [(31, 3, 4), (29, 3, 4), (31, 3, 4), (15, 3, 4)], compression="gzip")
    with pytest.raises(ManifestError, match="chunk_grid"):
        refshard_fs.concat(files, "time", zarr_format=3)
    made = refshard_fs.concat(files, "time", zarr_format=3, grid="rectilinear")
    fs = RefShardFileSystem(made)
    edges = json.loads(fs.cat_file("v/zarr.json"))["chunk_grid"]["configuration"]["chunk_shapes"]
    assert edges == [[[31, 1], [29, 1], [31, 1], [15, 2]], 3, 4]
    last = RefShardFileSystem(files[3], zarr_format=3)
    keys = sorted(key for key in made.references if key.startswith("v/c"))
    assert len(keys) == 5
    assert fs.cat_file(keys[-1]) == last.cat_file(sorted(last.find("v"))[1])
    with pytest.raises(TypeError, match="lazy=True"):
        refshard_fs.concat(files, "time", grid="rectilinear", lazy=True)
    with pytest.raises(ManifestError, match="'v' has the chunks"):  # of version 2
        refshard_fs.concat(files, "time", grid="rectilinear")


def test_zarr_reads_chunks_of_several_lengths(tmp_path: Path) -> None:
    v3 = pytest.importorskip("zarr.core.metadata.v3")
    if not hasattr(v3, "RectilinearChunkGridMetadata"):
        pytest.skip("this zarr has no rectilinear grids")
    files = write_year(tmp_path, [(31, 3, 4), (29, 3, 4), (31, 3, 4), (20, 3, 4)])
    made = refshard_fs.concat(files, "time", zarr_format=3, grid="rectilinear")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        store = zarr.storage.FsspecStore(RefShardFileSystem(made, asynchronous=True))
        found = zarr.open_group(store, mode="r")["v"]
        np.testing.assert_array_equal(found[:], open_expected(files)["v"].values)
        np.testing.assert_array_equal(found[30:62, 1], open_expected(files)["v"].values[30:62, 1])


needs_zarr_3 = pytest.mark.skipif(zarr.__version__.startswith("2"), reason="zarr 2 writes version 2 alone")


def write_sparse(folder: Path, number: int, values: Sequence[float], fill: float, dtype: str = "<f4") -> str:
    """Write a store with two steps in each chunk, without the chunks that have only the fill value."""
    store = str(folder / f"{number}.zarr")
    root = zarr.open_group(store, mode="w", zarr_format=3)
    time = root.create_array("time", shape=(4,), dtype="i4", dimension_names=["time"])
    time[:] = np.arange(4 * number + 1, 4 * number + 5)
    options: Any = {"chunks": (2,), "fill_value": fill, "compressors": None, "config": {"write_empty_chunks": False}}
    root.create_array("v", shape=(4,), dtype=dtype, dimension_names=["time"], **options)[:] = values
    return store


# The second store, and the chunk length of the cube. The fill value of the first store is NaN.
SPARSE: dict[str, tuple[float, str, int]] = {
    "sections that are ranges": (np.nan, "<f4", 3),
    "sections of another fill value": (0, "<f4", 3),
    "sections of another type": (0, "<i2", 3),
    "one section in each chunk": (0, "<f4", 1),
    "recoded": (0, "<f4", 2),
}


@needs_zarr_3
@pytest.mark.parametrize(("name", "is_remote"), [*((name, False) for name in SPARSE), (next(iter(SPARSE)), True)])
def test_missing_chunk_of_a_store_is_shown_as_its_fill_value(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, is_remote: bool
) -> None:
    """A chunk joined from chunks of two stores was once missing as a whole if one store lacked its chunk."""
    fill, dtype, chunk = SPARSE[name]
    stores = [
        write_sparse(tmp_path, 0, [0, 1, np.nan, np.nan], np.nan),
        write_sparse(tmp_path, 1, [fill, fill, 6, 7], fill, dtype),
    ]
    assert [len(list(Path(store, "v", "c").iterdir())) for store in stores] == [1, 1]
    options: dict[str, Any] = {}
    if is_remote:
        server: SeaweedServer = request.getfixturevalue("s3_server")
        server.create_bucket("sparse")
        for file in filter(Path.is_file, tmp_path.rglob("*.zarr/**/*")):
            server.put(f"sparse/{name}/{file.relative_to(tmp_path)}", file.read_bytes())
        stores = [f"s3://sparse/{name}/{i}.zarr" for i in range(2)]
        options = {"remote_protocol": "s3", "remote_options": server.storage_options, "allow": "any"}
        options["target_options"] = server.storage_options
    cube = refshard_fs.concat(stores, "time", lazy=True, chunks={"time": chunk}, **options)
    fs = RefShardFileSystem(cube, skip_instance_cache=True, asynchronous=True, **options)
    found = zarr.open_array(zarr.storage.FsspecStore(fs, path="v"), mode="r")[:]
    np.testing.assert_array_equal(found, [0, 1, np.nan, np.nan, fill, fill, 6, 7])
    for mode in ("head", "full"):
        report = refshard_fs.check(RefShardFileSystem(cube, **options), mode)
        assert not report.findings


@needs_zarr_3
@pytest.mark.parametrize("version", [2, 3])
def test_missing_chunk_of_another_fill_value_is_saved(tmp_path: Path, version: int) -> None:
    """If the fill values of a store and the cube differ, the cube makes the chunks that the store lacks. Once, it did
    not list them, so `save` left them out.
    """
    stores = []
    for number, fill in enumerate([7.0, 0.0]):
        stores.append(str(tmp_path / f"{number}.zarr"))
        root = zarr.open_group(stores[-1], mode="w", zarr_format=3)
        root.create_array("time", shape=(4,), dtype="i4", dimension_names=["time"])[:] = np.arange(4) + 4 * number
        options: Any = {"chunks": (2, 1), "config": {"write_empty_chunks": False}, "fill_value": fill}
        options |= {"chunk_key_encoding": {"name": "default" if version == 3 else "v2", "separator": "/"}}
        v = root.create_array("v", shape=(4, 2), dtype="f4", dimension_names=["time", "x"], **options)
        v[0, 0] = 5
    cube = refshard_fs.concat(stores, "time", lazy=True)
    fs = RefShardFileSystem(cube)
    begin = "v/c" if version == 3 else "v"
    assert sorted(key for key in fs.find("v") if "json" not in key) == [
        f"{begin}/{at}" for at in ("0/0", "2/0", "2/1", "3/0", "3/1")
    ]
    assert list(fs.ls(f"{begin}/3", detail=False)) == [f"{begin}/3/0", f"{begin}/3/1"]
    assert fs.isdir(f"{begin}/3")
    assert fs.exists(f"{begin}/3/1")
    fs.save(str(tmp_path / "saved.json"))
    for fo in (cube, str(tmp_path / "saved.json")):
        shown = RefShardFileSystem(fo, asynchronous=True, skip_instance_cache=True)
        found = zarr.open_array(zarr.storage.FsspecStore(shown, path="v"), mode="r")[:]
        expected = np.concatenate([np.full((4, 2), 7), np.zeros((4, 2))])
        expected[[0, 4], 0] = 5
        np.testing.assert_array_equal(found, expected)


@needs_zarr_3
def test_missing_target_is_not_a_missing_chunk(tmp_path: Path) -> None:
    store, moved = write_sparse(tmp_path, 0, [0, 1, 2, 3], 0), write_sparse(tmp_path, 1, [4, 5, 6, 7], 0)
    RefShardFileSystem(moved).save(str(tmp_path / "refs.json"))
    cube = refshard_fs.concat([store, str(tmp_path / "refs.json")], "time", lazy=True, chunks={"time": 3})
    Path(moved, "v", "c", "0").unlink()
    with pytest.raises(refshard_fs.ReferenceNotReachable, match="1.zarr"):
        RefShardFileSystem(cube).cat_file("v/c/1")


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_error_of_a_joined_chunk_names_the_missing_file(
    tmp_path: Path, compression: str | None, s3_server: SeaweedServer
) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"][:2], compression=compression)
    s3_server.create_bucket("neighbours")
    for i, file in enumerate(files):
        s3_server.put(f"neighbours/{compression}/{i}.nc", Path(file).read_bytes())
    options: dict[str, Any] = {"target_options": s3_server.storage_options, "remote_options": s3_server.storage_options}
    remote = [f"s3://neighbours/{compression}/{i}.nc" for i in range(2)]
    joined = refshard_fs.concat(remote, "time", lazy=True, chunks={"time": 30}, remote_protocol="s3", **options)
    joined = pickle.loads(pickle.dumps(joined))  # without the first bytes of the files, which were read to join them
    cubes = [
        RefShardFileSystem(refshard_fs.concat(files, "time", lazy=True, chunks={"time": 30})),
        RefShardFileSystem(joined, remote_protocol="s3", **options),
    ]
    for fs in cubes:
        fs.cat_file("v/1.0.0")
    Path(files[1]).unlink()
    s3_server.delete(f"neighbours/{compression}/1.nc")
    for fs in cubes:
        with pytest.raises(refshard_fs.ReferenceNotReachable, match=r"bytes at \S+/1\.nc \["):
            fs.cat_file("v/1.0.0")


def test_error_names_the_damaged_file(tmp_path: Path) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"][:2], compression="gzip")
    (span,) = RefShardFileSystem(files[1]).plan(["v/0.0.0"])
    with open(files[1], "r+b") as file:
        file.seek(span.start)
        file.write(bytes(20))
    fs = RefShardFileSystem(refshard_fs.concat(files, "time", lazy=True, chunks={"time": 30}))
    with pytest.raises(refshard_fs.ReferenceNotReachable, match=r"'v' of the set \S+1\.nc.*cannot be decoded"):
        fs.cat_file("v/1.0.0")


def test_coordinates_of_all_groups_are_recut(tmp_path: Path) -> None:
    """Each group has a ``time``; the document has only the values of the first one."""
    files = []
    for number, days in enumerate((1, 2, 5, 1)):
        files.append(str(tmp_path / f"{number}.nc"))
        for group, mode in (("", "w"), ("g", "a"), ("g/h", "a")):
            time = np.arange(days) + 10 * number
            ds = xr.Dataset({"v": ("time", time * 2.0)}, {"time": ("time", time, {"units": "days since 2024-01-01"})})
            how: dict[str, Any] = {"engine": "h5netcdf", "unlimited_dims": ["time"], "group": group or None}
            ds.to_netcdf(files[-1], mode=mode, encoding={name: {"chunksizes": (2,)} for name in ds.variables}, **how)
    cube = refshard_fs.concat(files, "time", lazy=True)
    for group in ("", "g", "g/h"):
        found = xr.open_dataset(cube, engine=RefShardBackend, group=group or None).load()
        each = [xr.open_dataset(file, engine="h5netcdf", group=group or None).load() for file in files]
        xr.testing.assert_equal(found, xr.concat(each, "time"))
