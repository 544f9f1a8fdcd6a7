"""Virtual datasets of the same file and of other files equal those of h5py; unsupported mappings are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.formats.hdf5.filters import FilterRecipe
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import read_all_bytes
from tests.support.hdf5_comparison import find_arrays, open_arrays
from tests.support.virtual_datasets import FILL, write_growing_virtual_datasets, write_random_virtual_datasets

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

VALUES = np.arange(6 * 8, dtype="<i8").reshape(6, 8)
KINDS: dict[str, dict[str, Any]] = {
    "chunked": {"chunks": (2, 4)},
    "encoded": {"chunks": (2, 4), "compression": "gzip", "shuffle": True},
    "packed": {"chunks": (2, 4), "scaleoffset": 0},
    "contiguous": {},
}


def write_files(folder: Path, libver: str, kind: str, name: str = "whole.h5") -> Path:
    """Write three source files, and a file with virtual datasets of their values. Return its path."""
    for number in range(3):
        with h5py.File(folder / f"source{number}.h5", "w", libver=libver) as file:
            file["group/data"] = 0
            del file["group/data"]
            file.create_dataset("group/data", data=VALUES + 100 * number, **KINDS[kind])
            partly = file.create_dataset("partly", (6, 8), "<i8", fillvalue=7, **KINDS[kind])
            if number == 1:
                partly[:2] = 5
    with h5py.File(folder / name, "w", libver=libver) as file:
        for dataset in ("group/data", "partly"):
            stack, cat = h5py.VirtualLayout((4, 6, 8), "<i8"), h5py.VirtualLayout((18, 8), "<i8")
            for number in range(3):
                source = h5py.VirtualSource(f"source{number}.h5", dataset, shape=(6, 8))
                stack[number], cat[6 * number : 6 * number + 6] = source, source
            file.create_virtual_dataset(f"stack of {dataset}", stack, fillvalue=-1)
            file.create_virtual_dataset(f"cat of {dataset}", cat)
        twice = h5py.VirtualLayout((12, 8), "<i8")
        twice[:6] = twice[6:] = h5py.VirtualSource("source2.h5", "group/data", shape=(6, 8))
        file.create_virtual_dataset("twice", twice)
        own = file.create_dataset("own", data=VALUES, chunks=(6, 4), compression="gzip")
        layout = h5py.VirtualLayout((12, 4), "<i8")
        layout[:6], layout[6:] = h5py.VirtualSource(own)[:, 4:], h5py.VirtualSource(own)[:, :4]
        file.create_virtual_dataset("folded", layout)
    return folder / name


def compare_arrays(fs: RefShardFileSystem, path: Path) -> int:
    """Compare the values of all arrays with those of h5py. Return the number of arrays."""
    actual = find_arrays(zarr.open_group(fs.get_mapper(""), mode="r"))
    with h5py.File(path) as expected:
        for name, array in actual.items():
            np.testing.assert_array_equal(np.asarray(array[...]), expected[name][...], name)
            listed = {key.rpartition("/")[2] for key in fs.ls(name, detail=False)} - {".zarray", ".zattrs"}
            assert all(fs.exists(f"{name}/{key}") for key in listed)
    return len(actual)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("kind", KINDS)
def test_virtual_datasets_equal_h5py(kind: str, libver: str, tmp_path: Path) -> None:
    path = write_files(tmp_path, libver, kind)
    fs = RefShardFileSystem(str(path))
    assert dict(fs.left_whole) == {}
    assert compare_arrays(fs, path) == 7


def test_sources_beside_an_http_file_are_read(http_server: RangeServer, tmp_path: Path) -> None:
    path = write_files(tmp_path, "latest", "encoded")
    for file in tmp_path.glob("*.h5"):
        http_server.put(f"/data/{file.name}", file.read_bytes())
    url = http_server.put("/data/whole.h5", path.read_bytes())
    assert compare_arrays(RefShardFileSystem(url), path) == 7
    RefShardFileSystem(str(path)).save(str(tmp_path / "refs.json"))
    assert compare_arrays(RefShardFileSystem(str(tmp_path / "refs.json")), path) == 7


def write_unaligned(path: Path, libver: str, kind: str, dtype: str) -> None:
    """Write virtual datasets whose mappings do not consist of whole chunks, or whose sources differ."""
    fill: Any = np.array(7).astype(dtype)[()]
    layered = {"chunks": (1, 4, 3)} if KINDS[kind] else {}
    with h5py.File(path, "w", libver=libver) as file:
        data = file.create_dataset("data", data=VALUES.astype(dtype), **KINDS[kind])
        other = file.create_dataset("other", data=VALUES.astype(dtype), chunks=(3, 8), compression="lzf")
        partly = file.create_dataset("partly", (2, 6, 8), dtype, fillvalue=fill, **layered)
        if kind != "contiguous":
            partly[1, :3] = VALUES[:3].astype(dtype)
        gaps, layers = h5py.VirtualLayout((14, 9), dtype), h5py.VirtualLayout((3, 8), dtype)
        gaps[1:7, 1:], gaps[8:14, :8] = h5py.VirtualSource(data), h5py.VirtualSource(other)
        gaps[6:9, 2:5] = h5py.VirtualSource(data)[3:6, 1:4]
        layers[0], layers[1] = h5py.VirtualSource(data)[5, :], h5py.VirtualSource(partly)[1, 2, :]
        layers[2, 3] = h5py.VirtualSource(partly)[1, 0, 7]
        for name, layout in {"gaps": gaps, "layers": layers}.items():
            file.create_virtual_dataset(name, layout, fillvalue=fill)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("kind", ["chunked", "encoded", "contiguous"])
@pytest.mark.parametrize("dtype", ["<i8", ">f4", "S2"])
def test_mappings_of_parts_of_chunks_equal_h5py(tmp_path: Path, libver: str, kind: str, dtype: str) -> None:
    write_unaligned(tmp_path / "a.h5", libver, kind, dtype)
    fs = RefShardFileSystem(str(tmp_path / "a.h5"))
    assert compare_arrays(fs, tmp_path / "a.h5") == 5
    assert not fs.left_whole


@pytest.mark.parametrize("libver", ["earliest", "latest"])  # "earliest": selections are lists of blocks
@pytest.mark.parametrize("chunks", [None, (1, 8), (4, 3)])
def test_mappings_with_strides_equal_h5py(tmp_path: Path, chunks: tuple[int, int] | None, libver: str) -> None:
    interleaved, steps = h5py.VirtualLayout((24, 8), "<i8"), h5py.VirtualLayout((9, 8), "<i8")
    lists = h5py.VirtualLayout((20, 8), "<i8")
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        for number in range(4):
            data = file.create_dataset(f"data{number}", data=VALUES + 100 * number, chunks=chunks)
            interleaved[number::4] = h5py.VirtualSource(data)
        steps[::3, ::2] = h5py.VirtualSource(file["data0"])[1:4, 4:]
        steps[1:7, 1:8:3] = h5py.VirtualSource(file["data1"])[:, 2:7:2]
        lists[[0, 3, 4, 9, 11, 12]] = h5py.VirtualSource(file["data2"])
        file.create_virtual_dataset("interleaved", interleaved)
        file.create_virtual_dataset("steps", steps, fillvalue=-1)
        file.create_virtual_dataset("lists", lists)
    fs = RefShardFileSystem(str(tmp_path / "a.h5"))
    assert compare_arrays(fs, tmp_path / "a.h5") == 7
    chunk = json.loads(fs.cat("interleaved/.zarray"))["chunks"]
    assert chunk == ([1, 8] if chunks == (1, 8) else [24, 8])
    assert json.loads(fs.cat("lists/.zarray"))["chunks"] == ([1, 8] if chunks == (1, 8) else [20, 8])


def test_joined_chunk_decodes_each_source_chunk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, values = h5py.VirtualLayout((40, 8), "<i8"), np.arange(160).reshape(20, 8)
    with h5py.File(tmp_path / "own.h5", "w", libver="latest") as file:
        for number in range(2):
            data = file.create_dataset(f"a{number}", data=values + number, chunks=(10, 8), compression="gzip")
            layout[number::2] = h5py.VirtualSource(data)
        file.create_virtual_dataset("interleaved", layout)
    decode, decoded = FilterRecipe.decode_elements, []

    def decode_and_count(recipe: FilterRecipe, raw: bytes) -> bytes:
        decoded.append(raw)
        return decode(recipe, raw)

    monkeypatch.setattr(FilterRecipe, "decode_elements", decode_and_count)
    data = RefShardFileSystem(str(tmp_path / "own.h5")).cat_file("interleaved/0.0")
    np.testing.assert_array_equal(np.frombuffer(data, "<i8").reshape(20, 2, 8), np.stack([values, values + 1], axis=1))
    assert len(decoded) == 4


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_stride_of_many_blocks_takes_one_section(tmp_path: Path, libver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, values = h5py.VirtualLayout((1 << 14,), "|u1"), np.arange(1 << 13).astype("|u1")
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        layout[::2] = h5py.VirtualSource(file.create_dataset("data", data=values))
        file.create_virtual_dataset("many", layout)
    monkeypatch.setattr("refshard_fs.formats.hdf5.virtual.MOST_SECTIONS", 1)
    shown = np.frombuffer(RefShardFileSystem(str(tmp_path / "a.h5")).cat("many/0"), "|u1").reshape(-1, 2)
    np.testing.assert_array_equal(shown, np.stack([values, np.zeros_like(values)], axis=1))


@pytest.mark.parametrize("seed", range(40))
def test_random_virtual_datasets_equal_h5py(tmp_path: Path, seed: int) -> None:
    path = write_random_virtual_datasets(tmp_path, np.random.default_rng(seed))
    fs, arrays = open_arrays(path)
    with h5py.File(path) as file:
        for name in file:
            if name in arrays:
                expected = np.full(file[name].shape, FILL, file[name].dtype)
                file[name].read_direct(expected)  # h5py leaves elements without a source as they are
                np.testing.assert_array_equal(arrays[name][...], expected, f"{seed}: {name}")
            else:
                assert "without loss" in fs.left_whole[name] or "that can be shown" in fs.left_whole[name]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_growing_virtual_datasets_equal_h5py(tmp_path: Path, libver: str) -> None:
    path = write_growing_virtual_datasets(tmp_path, libver)
    fs, arrays = open_arrays(path)
    assert dict(fs.left_whole) == {}
    with h5py.File(path) as file:
        for name in file:
            np.testing.assert_array_equal(arrays[name][...], file[name][...], name)
    with h5py.File(tmp_path / "piece4.h5", "w", libver=libver) as file:
        file["data"] = np.arange(12, dtype="<i4").reshape(3, 4)
    assert open_arrays(path)[1]["files"][...].shape == (15, 4)


def test_chain_of_growing_datasets_has_extents_of_today(tmp_path: Path) -> None:
    """h5py takes the extent with which the middle dataset was written, unless the dataset is open."""
    grows = h5py.h5s.UNLIMITED
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("c0", data=np.arange(7), maxshape=(None,))
        for number in range(20):
            layout = h5py.VirtualLayout((1,), "<i8", maxshape=(None,))
            layout[:grows] = h5py.VirtualSource(file[f"c{number}"])[:grows]
            file.create_virtual_dataset(f"c{number + 1}", layout)
    fs, arrays = open_arrays(tmp_path / "a.h5")
    assert all(arrays[f"c{number}"][...].tolist() == list(range(7)) for number in range(17))
    assert all("a chain of at most 16 virtual datasets" in fs.left_whole[f"c{number}"] for number in range(17, 21))


def test_virtual_dataset_of_no_elements_is_shown(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((0, 8), "<i8")
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        layout[:] = h5py.VirtualSource(file.create_dataset("data", (0, 8), "<i8", maxshape=(None, 8), chunks=(2, 4)))
        file.create_virtual_dataset("none", layout)
    assert compare_arrays(RefShardFileSystem(str(tmp_path / "a.h5")), tmp_path / "a.h5") == 2


def test_elements_beyond_a_source_are_filled(tmp_path: Path) -> None:
    """h5py leaves these elements uninitialised."""
    layout = h5py.VirtualLayout((9, 8), "<i8")
    layout[1:8] = h5py.VirtualSource(".", "data", shape=(8, 8))[1:8]
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["data"] = VALUES
        file.create_virtual_dataset("short", layout, fillvalue=-1)
    short = zarr.open_group(RefShardFileSystem(str(tmp_path / "a.h5")).get_mapper(""), mode="r")["short"][...]
    np.testing.assert_array_equal(short, np.pad(VALUES[1:], ((1, 3), (0, 0)), constant_values=-1))


def test_too_many_parts_of_chunks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_unaligned(tmp_path / "a.h5", "latest", "chunked", "<i8")
    monkeypatch.setattr("refshard_fs.formats.hdf5.virtual.MOST_SECTIONS", 3)
    fs = RefShardFileSystem(str(tmp_path / "a.h5"))
    assert len(fs.cat("data/0.0")) == 64
    with pytest.raises(Exception, match="'gaps': chunk 0 is joined from more than 3 parts .* expected at most 3"):
        fs.cat("gaps/0.0")


def write_virtual(
    file: Any, name: str, source: tuple[str, str], dtype: str = "<i8", shape: tuple[int, ...] = (6, 8)
) -> None:
    """Write a virtual dataset of the values of one source, which has the names of file and dataset."""
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(*source, shape=shape)
    file.create_virtual_dataset(name, layout, fillvalue=9)


def test_unsupported_virtual_datasets_are_reported(tmp_path: Path) -> None:
    write_files(tmp_path, "latest", "chunked")
    outside = tmp_path.parent / f"{tmp_path.name}.h5"
    with h5py.File(outside, "w") as file:
        file["data"] = VALUES
    path = tmp_path / "refused.h5"
    (tmp_path / "text.h5").write_text("no HDF5 file")
    with h5py.File(path, "w", libver="latest") as file:
        file["seen"] = np.arange(5)
        write_virtual(file, "typed", ("source0.h5", "group/data"), "<f4")
        write_virtual(file, "text", ("text.h5", "data"))
        write_virtual(file, "group", ("source0.h5", "group"))
        write_virtual(file, "below", ("source0.h5", "partly/data"))
        write_virtual(file, "no group", (".", "nothing/data"))
        write_virtual(file, "above", (f"../{outside.name}", "data"))
        write_virtual(file, "absolute", (str(outside), "data"))
        write_virtual(file, "remote", ("http://127.0.0.1:9/a.h5", "data"))
        write_virtual(file, "circle", (".", "circle"))
    with h5py.File(path, "a", libver="latest") as file:
        write_virtual(file, "refers to refused", ("refused.h5", "typed"))
    fs = RefShardFileSystem(str(path))
    reasons = {
        "typed": "found integer (int64)",
        "text": "'text.h5' cannot be opened", "group": "that can be shown", "below": "a group at 'partly'",
        "no group": "a group at 'nothing'",
        "above": "directory", "absolute": "directory", "remote": "directory",
        "circle": "no circle", "refers to refused": "that can be shown",
    }  # fmt: skip
    for name, reason in reasons.items():
        assert reason in fs.left_whole[name], name
    assert fs.cat("seen/0") == np.arange(5).tobytes()


def test_absolute_path_into_the_folder_is_read(http_server: RangeServer, tmp_path: Path) -> None:
    """On a server, a file is beside the file that names it by the path that it had when it was written."""
    (tmp_path / "sub").mkdir()
    for name in ("source.h5", "sub/source.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["data"] = VALUES + len(name)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_virtual(file, "beside", (str(tmp_path / "source.h5"), "data"))
        write_virtual(file, "below", (str(tmp_path / "sub" / "source.h5"), "data"))
    assert compare_arrays(RefShardFileSystem(str(tmp_path / "a.h5")), tmp_path / "a.h5") == 2
    for name in ("a.h5", "source.h5"):
        url = http_server.put(f"/data/{name}", (tmp_path / name).read_bytes())
    fs = RefShardFileSystem(url.replace("source", "a"))
    np.testing.assert_array_equal(find_arrays(zarr.open_group(fs.get_mapper(""), mode="r"))["beside"][...], VALUES + 9)


def test_source_behind_an_external_link_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "far.h5", "w") as file:
        file["group/data"] = VALUES
    with h5py.File(tmp_path / "near.h5", "w") as file:
        file["link"] = h5py.ExternalLink("far.h5", "group")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_virtual(file, "virtual", ("near.h5", "link/data"))
    assert compare_arrays(RefShardFileSystem(str(tmp_path / "a.h5")), tmp_path / "a.h5") == 1


def test_growing_source_of_other_rank_is_reported(tmp_path: Path) -> None:
    grows = h5py.h5s.UNLIMITED
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.arange(5)
        layout = h5py.VirtualLayout((2, 3), "<i8", maxshape=(2, None))
        layout[:, :grows] = h5py.VirtualSource(".", "data", shape=(2, 3), maxshape=(2, None))[:, :grows]
        file.create_virtual_dataset("virtual", layout)
    assert "grows along axis 1" in RefShardFileSystem(str(tmp_path / "a.h5")).left_whole["virtual"]


def test_source_that_does_not_exist_is_filled(http_server: RangeServer, tmp_path: Path) -> None:
    write_files(tmp_path, "latest", "chunked")
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        write_virtual(file, "no file", ("nowhere.h5", "data"))
        write_virtual(file, "no dataset", ("source0.h5", "group/none"))
        write_virtual(file, "none here", (".", "nothing"))
    assert compare_arrays(RefShardFileSystem(str(tmp_path / "a.h5")), tmp_path / "a.h5") == 3
    for name in ("a.h5", "source0.h5"):
        url = http_server.put(f"/data/{name}", (tmp_path / name).read_bytes()).replace("source0", "a")
    assert compare_arrays(RefShardFileSystem(url), tmp_path / "a.h5") == 3
    http_server.fault(503, "/data/nowhere.h5")
    fs = RefShardFileSystem(url)
    assert "'nowhere.h5' cannot be opened" in fs.left_whole["no file"]
    assert set(fs.left_whole) == {"no file"}


def test_listing_chunks_of_joined_chunks_reads_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=VALUES.astype("<i2"), chunks=(4, 3), compression="gzip")
        write_virtual(file, "joined", (".", "data"))
        write_virtual(file, "outer", (".", "joined"))
    fs, decode, decoded = RefShardFileSystem(str(tmp_path / "a.h5")), FilterRecipe.decode_elements, []

    def decode_and_count(recipe: FilterRecipe, raw: bytes) -> bytes:
        decoded.append(raw)
        return decode(recipe, raw)

    monkeypatch.setattr(FilterRecipe, "decode_elements", decode_and_count)
    assert "outer/0.0" in fs.ls("outer", detail=False)
    assert not decoded
    assert compare_arrays(fs, tmp_path / "a.h5") == 3


@pytest.mark.parametrize("dtype", ["<i4", ">i8", "<f8"])
def test_sources_of_smaller_types_are_converted(tmp_path: Path, dtype: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=VALUES.astype(">i2"), chunks=(4, 3), compression="gzip")
        file.create_dataset("none", (6, 8), "|u1", fillvalue=200)
        for name in ("data", "none"):
            write_virtual(file, f"virtual {name}", (".", name), dtype)
        write_virtual(file, "twice", (".", "virtual data"), "<f8")
    fs = RefShardFileSystem(str(tmp_path / "a.h5"))
    assert compare_arrays(fs, tmp_path / "a.h5") == (5 if dtype != ">i8" else 4)


def test_damaged_mappings_raise_only_refshard_errors(tmp_path: Path) -> None:
    path = write_files(tmp_path, "latest", "chunked")
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(3)
    position = data.index(b"source0.h5")
    for _ in range(60):
        changed = bytearray(data)
        changed[position - 16 + int(rng.integers(0, 200))] ^= int(rng.integers(1, 256))
        try:
            read_all_bytes(bytes(changed))
        except Exception as e:  # an error of another package fails the test
            assert type(e).__module__.startswith("refshard_fs"), e
