"""Virtual datasets of the same file and of other files equal those of h5py; unsupported mappings are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.files_of_arrays import read_all_bytes
from tests.support.hdf5_comparison import find_arrays

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


def test_unsupported_virtual_datasets_are_reported(tmp_path: Path) -> None:
    write_files(tmp_path, "latest", "chunked")
    outside = tmp_path.parent / f"{tmp_path.name}.h5"
    with h5py.File(outside, "w") as file:
        file["data"] = VALUES
    path = tmp_path / "refused.h5"

    def write_virtual(name: str, shape: tuple[int, ...], place: Any, source: Any, dtype: str = "<i8") -> None:
        layout = h5py.VirtualLayout(shape, dtype)
        layout[place] = source
        file.create_virtual_dataset(name, layout)

    def make_source(name: str = "source0.h5", dataset: str = "group/data", shape: tuple[int, ...] = (6, 8)) -> Any:
        return h5py.VirtualSource(name, dataset, shape=shape)

    with h5py.File(path, "w", libver="latest") as file:
        file["seen"] = np.arange(5)
        write_virtual("shifted", (7, 8), slice(1, 7), make_source())
        write_virtual("strided", (6, 4), slice(None), make_source()[:, ::2])
        write_virtual("typed", (6, 8), slice(None), make_source(), "<f4")
        write_virtual("missing", (6, 8), slice(None), make_source("nowhere.h5"))
        write_virtual("nameless", (6, 8), slice(None), make_source("source0.h5", "nothing"))
        write_virtual("above", (6, 8), slice(None), make_source(f"../{outside.name}", "data"))
        write_virtual("absolute", (6, 8), slice(None), make_source(str(outside), "data"))
        write_virtual("remote", (6, 8), slice(None), make_source("http://127.0.0.1:9/a.h5", "data"))
    with h5py.File(path, "a", libver="latest") as file:
        write_virtual("circle", (6, 8), slice(None), make_source("refused.h5", "typed"))
    fs = RefShardFileSystem(str(path))
    reasons = {
        "shifted": "expected whole chunks", "strided": "stride of 2", "typed": "datatype", "missing": "'nowhere.h5'",
        "nameless": "that can be shown", "above": "directory", "absolute": "directory", "remote": "directory",
        "circle": "that can be shown",
    }  # fmt: skip
    for name, reason in reasons.items():
        assert reason in fs.left_whole[name], name
    assert fs.cat("seen/0") == np.arange(5).tobytes()


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
