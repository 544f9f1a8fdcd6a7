"""Chunk indexes are read once and in few rounds; a damaged index is an error."""

from __future__ import annotations

import io
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from numcodecs.checksum32 import jenkins_lookup3

from refshard_fs import DamagedIndex, NotListable, RefShardFileSystem
from refshard_fs.core.model import Inline
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.formats.hdf5.chunk_index import ChunkSpace, make_index
from refshard_fs.formats.hdf5.file import MetadataFile, Sizes
from refshard_fs.source.collect import collect_steps
from tests.servers.http import RangeServer
from tests.support.hdf5_files import STEPS, count_sent_bytes
from tests.support.shards_in_memory import Files

xr = pytest.importorskip("xarray")


def test_pages_without_a_bitmap_are_damage(tmp_path: Path) -> None:
    """A damaged header may count pages without a bitmap. Their chunks would look missing, and be filled."""
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("d", data=np.arange(100), chunks=(1,), maxshape=(None,))
    data = bytearray(path.read_bytes())
    header = data.index(b"EAHD")
    data[header + 11] = 1  # pages of two elements, also in the data blocks of the index block, which has no bitmap
    data[header + 68 : header + 72] = jenkins_lookup3(bytes(data[header : header + 68]), 0).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(DamagedIndex, match="a data block with pages: expected no pages"):
        RefShardFileSystem(str(path)).cat_file("d/50")


def test_fixed_array_of_too_few_elements_is_damage(tmp_path: Path) -> None:
    """A damaged header may count fewer elements than chunks. The other chunks would look missing, and be filled."""
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("d", data=np.arange(100), chunks=(1,))
    data = bytearray(path.read_bytes())
    header = data.index(b"FAHD")
    data[header + 8] = 50  # the number of elements
    data[header + 24 : header + 28] = jenkins_lookup3(bytes(data[header : header + 24]), 0).to_bytes(4, "little")
    block = data.index(b"FADB") + 14
    sum_at = block + 8 * 50
    data[sum_at : sum_at + 4] = jenkins_lookup3(bytes(data[block - 14 : sum_at]), 0).to_bytes(4, "little")
    path.write_bytes(data)
    fs = RefShardFileSystem(str(path))
    for key in ("d/20", "d/80"):
        with pytest.raises(DamagedIndex, match="50 elements: expected at least 100, one for each chunk"):
            fs.cat_file(key)


@pytest.mark.parametrize("kind", ["implicit", "fixed array"])
def test_fixed_size_index_of_an_unlimited_dataset_is_refused(kind: str) -> None:
    space = ChunkSpace(Sizes(), 1000, (1, 1), (3, 3), (3, None), 1, False)
    with pytest.raises(ValueError, match=f"kind '{kind}': expected a kind that fits"):
        make_index(MetadataFile(Inline(bytes(1000)), 1000, b""), space, kind, 100, (0,))


def test_damaged_index_leaves_other_datasets_readable(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        for name in ("damaged", "whole"):
            file.create_dataset(name, data=np.arange(9), chunks=(3,))
            file[f"{name}_contiguous"] = np.arange(3)
    data = bytearray(path.read_bytes())
    tree = data.index(b"TREE\1")
    data[tree : tree + 4] = b"EERT"
    path.write_bytes(data)
    fs = RefShardFileSystem(str(path))
    assert fs.cat_file("whole/1") == np.arange(3, 6).tobytes()
    assert fs.cat_file("damaged_contiguous/0") == fs.cat_file("whole_contiguous/0") == np.arange(3).tobytes()
    with pytest.raises(DamagedIndex, match="'damaged/1'.*EERT"):
        fs.cat_file("damaged/1")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of four variables that was written step by step: blocks of its indexes lie between chunks."""
    path = tmp_path_factory.mktemp("hdf5") / "steps.nc"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        scales = {"time": STEPS, "lat": 30, "lon": 40}
        for name, size in scales.items():
            file.create_dataset(name, (size,), "f8", maxshape=(None,) if name == "time" else None)
            file[name].make_scale(name)
        file["time"].attrs["units"] = "hours since 2000-01-01"
        for name in "abcd":
            file.create_dataset(name, (0, 30, 40), "f4", maxshape=(None, 30, 40), chunks=(1, 30, 40))
            for axis, scale in enumerate(scales):
                file[name].dims[axis].attach_scale(file[scale])
        for step in range(STEPS):
            file["time"][step] = step
            for name in "abcd":
                file[name].resize(step + 1, 0)
                file[name][step] = rng.random((30, 40))
    return path


@pytest.fixture
def served(http_server: RangeServer, steps: Path) -> str:
    url = http_server.put("/steps.nc", steps.read_bytes())
    http_server.clear()
    return url


def test_nodes_of_the_index_are_read_once(served: str, http_server: RangeServer) -> None:
    fs = RefShardFileSystem(served)
    fs.ls("")
    http_server.clear()
    grid = [f"c/{step}.0.0" for step in range(STEPS)]
    spans = [fs.resolve(key)[1:] for key in grid]
    assert {stop - start for start, stop in spans} == {4800}
    nodes = [request.start for request in http_server.requests()]
    assert len(nodes) == len(set(nodes)) <= 8
    http_server.clear()
    fs.resolve("c/7.0.0")
    assert http_server.requests() == []


def test_whole_index_is_read_in_few_rounds(served: str, http_server: RangeServer, steps: Path, tmp_path: Path) -> None:
    RefShardFileSystem(served).save(str(tmp_path / "refs.json"))
    assert count_sent_bytes(http_server) < steps.stat().st_size / 30
    files = Files.of(steps)
    files.run(collect_steps(files.open()))
    assert files.rounds <= 8
    with xr.open_dataset(steps, engine="h5netcdf") as expected:
        found = xr.open_dataset(tmp_path / "refs.json", engine="refshard")
        xr.testing.assert_identical(found.load(), expected.load())


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_long_and_sparse_indexes_list_the_written_chunks(libver: str, tmp_path: Path) -> None:
    cases: dict[str, tuple[tuple[int, ...], tuple[int | None, ...], tuple[int, ...]]] = {
        "pages": ((5000,), (5000,), (1,)),
        "sparse_pages": ((50000,), (60000,), (2,)),
        "extensible": ((9000,), (None,), (1,)),
        "sparse_extensible": ((3_000_000,), (None,), (2,)),
        "second_grows": ((40, 1700, 30), (50, None, 33), (7, 3, 4)),
        "both_grow": ((300, 400), (None, None), (30, 4)),
        "shrunk": ((100, 100), (None, 200), (3, 7)),
    }
    rng = np.random.default_rng(1)
    path = tmp_path / "indexes.h5"
    written: dict[str, set[str]] = {}
    with h5py.File(path, "w", libver=libver) as file:
        for name, (shape, maxshape, chunks) in cases.items():
            dataset = file.create_dataset(name, shape, "i4", maxshape=maxshape, chunks=chunks)
            written_cells = [tuple(int(rng.integers(0, extent)) for extent in shape) for _ in range(60)]
            for cell in written_cells:
                dataset[cell] = 7
            if name in ("pages", "extensible"):
                dataset[:] = rng.integers(0, 100, shape)
                written_cells = [(cell,) for cell in range(shape[0])]
            extents = (50, 10) if name == "shrunk" else shape
            starts = [
                tuple(position // size * size for position, size in zip(cell, chunks, strict=True))
                for cell in written_cells
            ]
            starts = [
                start
                for start in starts
                if all(position < extent for position, extent in zip(start, extents, strict=True))
            ]
            written[name] = {
                ".".join(str(position // size) for position, size in zip(start, chunks, strict=True))
                for start in starts
            }
        file["shrunk"].resize((50, 10))
    fs = RefShardFileSystem(str(path))
    with h5py.File(path) as file:
        for name, (_, _, chunks) in cases.items():
            if zarr_major() == 2 and name == "sparse_extensible":
                with pytest.raises(NotListable, match=f"1500000 chunks .{len(written[name])} written"):
                    fs.ls(name)
                listed = written[name] | {"3", "1499999"}
            else:
                listed = {key.rpartition("/")[2] for key in fs.ls(name, detail=False)} - {".zarray", ".zattrs"}
            if zarr_major() == 2:  # it leaves missing chunks uninitialised, so all chunks are listed
                assert listed >= written[name], name
            else:
                assert listed == written[name], name
            for key in sorted(listed)[:: max(len(listed) // 100, 1)]:
                steps = zip(key.split("."), chunks, strict=True)
                expected = file[name][tuple(slice(int(coord) * size, (int(coord) + 1) * size) for coord, size in steps)]
                chunk = np.frombuffer(fs.cat_file(f"{name}/{key}"), "<i4").reshape(chunks)
                assert (chunk[tuple(map(slice, expected.shape))] == expected).all(), (name, key)


def test_removed_chunks_of_an_index_are_filled(tmp_path: Path) -> None:
    """After chunks are removed, the header of a fixed array counts more elements than the file has bytes."""
    path = tmp_path / "emptied.h5"
    with h5py.File(path, "w", libver="latest") as file:
        dataset = file.create_dataset("a", (69, 82), "u1", maxshape=(69, 82), chunks=(1, 1), fillvalue=54)
        dataset[60:, 60:] = 5
        dataset.resize((69, 42))
    fs = RefShardFileSystem(str(path))
    assert path.stat().st_size < 69 * 82
    assert fs.cat_file("a/68.41") == b"\x36"


def write_two_leaves() -> tuple[bytearray, int, int]:
    """Return a file with a dataset of 80 chunks, and the addresses of the two adjoining leaves of its index."""
    file = io.BytesIO()
    with h5py.File(file, "w") as file_object:
        file_object.create_dataset("a", data=np.arange(80 * 8000, dtype="i4"), chunks=(8000,))
    data = bytearray(file.getvalue())
    leaves = [found.start() for found in re.finditer(b"TREE\1\0", data)]
    assert len(leaves) == 2
    return data, leaves[0], leaves[1]


@pytest.mark.usefixtures("large_files")
def test_adjoining_blocks_are_read_in_one_request(http_server: RangeServer) -> None:
    data, first, second = write_two_leaves()
    fs = RefShardFileSystem(http_server.put("file.h5", data), zarr_format=2)
    fs.cat_file("a/0")
    requests = [(r.start, r.stop) for r in http_server.requests("/file.h5")]
    assert (first, 2 * second - first) in requests
    http_server.log.clear()
    assert np.frombuffer(fs.cat_file("a/79"), "i4")[-1] == 80 * 8000 - 1
    assert len(http_server.requests("/file.h5")) == 1  # the chunk


def test_few_pages_of_a_fixed_array_are_read_for_a_chunk(http_server: RangeServer) -> None:
    """A page of a fixed array has 8 KiB or more: reading many of them for one chunk would cost more than a request."""
    file = io.BytesIO()
    with h5py.File(file, "w", libver="latest") as file_object:
        file_object.create_dataset("a", data=np.arange(1_000_000, dtype="i4"), chunks=(50,), fletcher32=True)
    fs = RefShardFileSystem(http_server.put("file.h5", file.getvalue()), zarr_format=2)
    fs.cat_file("a/12000")
    pages = [r.stop - r.start for r in http_server.requests("/file.h5")][1:]
    assert sum(pages) < 65_536


@pytest.mark.parametrize("leaf", [0, 1])
@pytest.mark.parametrize("is_remote", [False, True])
def test_damaged_block_leaves_its_neighbour_readable(http_server: RangeServer, leaf: int, is_remote: bool) -> None:
    data, *leaves = write_two_leaves()
    data[leaves[leaf] : leaves[leaf] + 4] = b"XXXX"
    fs = RefShardFileSystem(http_server.put("file.h5", data) if is_remote else bytes(data), zarr_format=2)

    def is_right(number: int) -> bool:
        try:
            return bool(np.frombuffer(fs.cat_file(f"a/{number}"), "i4")[0] == 8000 * number)
        except DamagedIndex:
            return False

    assert is_right(0) != is_right(79)
    http_server.log.clear()
    assert is_right(1 if is_right(0) else 78)
    assert len(http_server.requests("/file.h5")) <= 2  # chunks alone: the damaged block is not requested again


def test_one_key_of_each_unread_index_block_is_listed() -> None:
    file = io.BytesIO()
    with h5py.File(file, "w") as file_object:
        file_object.create_dataset("a", data=np.arange(400, dtype="i2"), chunks=(1,))
    fs = RefShardFileSystem(file.getvalue(), zarr_format=2)
    keyspace = fs.source.open()
    assert fs.cat_file("a/100") == np.int16(100).tobytes()
    unread = [int(key.partition("/")[2]) for key in keyspace.list_keys_of_other_parts("a/100")]
    later_numbers = [number for number in unread if number > 100]
    assert len(later_numbers) >= 4
    assert unread == later_numbers + [number for number in unread if number < 100]
    fs.cat([f"a/{number}" for number in unread])
    assert list(keyspace.list_keys_of_other_parts("a/100")) == []
