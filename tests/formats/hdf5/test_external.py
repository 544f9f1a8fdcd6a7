"""External links and raw files may lead to files in the directory of their file or below it, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from refshard_fs import RefShardFileSystem
from refshard_fs.errors import ReferenceNotReachable
from refshard_fs.formats.hdf5 import external
from tests.servers.http import RangeServer
from tests.support.hdf5_comparison import check_file, open_arrays

VALUES = np.arange(30.0).reshape(5, 6)


def write_linked(folder: Path, libver: str = "earliest") -> Path:
    """Write master.h5 with links to part0.h5 and part1.h5, which both link to sub/deep.h5. Return its path."""
    (folder / "sub").mkdir()
    with h5py.File(folder / "sub" / "deep.h5", "w", libver=libver) as file:
        file["values"] = VALUES
    for number in range(2):
        with h5py.File(folder / f"part{number}.h5", "w", libver=libver) as file:
            file.create_dataset("entry/data", data=VALUES[: number + 2], chunks=(1, 6), compression="gzip")
            file["entry/names"] = ["a", "b"]
            file["entry"].attrs["NX_class"] = "NXentry"
            file["entry/soft"] = h5py.SoftLink("/entry/data")
            file["entry/deep"] = h5py.ExternalLink("sub/deep.h5", "/values")
            file["entry/self"] = file["entry/data"].ref
    with h5py.File(folder / "master.h5", "w", libver=libver) as file:
        file["own"] = VALUES
        for number in range(2):
            file[f"entry/data{number}"] = h5py.ExternalLink(f"part{number}.h5", "/entry/data")
        file["group"] = h5py.ExternalLink("./part1.h5", "entry")
        file["root"] = h5py.ExternalLink("part0.h5", "/")
        file["soft"] = h5py.SoftLink("/group/data")
    return folder / "master.h5"


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_linked_objects_equal_h5py(libver: str, tmp_path: Path) -> None:
    path = write_linked(tmp_path, libver)
    assert check_file(path) == 14
    fs = RefShardFileSystem(str(path))
    assert not fs.left_whole
    assert b"NXentry" in fs.cat("group/.zattrs")
    with xr.open_datatree(str(path), engine="refshard") as tree:  # raises if sizes of dimensions differ
        assert tree["entry/data1"].values.tolist() == VALUES[:3].tolist()
        assert tree["root/entry/self"].values == "/entry/data"  # the object's path in part0.h5


def test_linked_file_on_a_server_takes_two_requests_at_most(http_server: RangeServer, tmp_path: Path) -> None:
    path = write_linked(tmp_path)
    for file in tmp_path.rglob("*.h5"):
        http_server.put(f"/data/{file.relative_to(tmp_path)}", file.read_bytes())
    fs = RefShardFileSystem(f"{http_server.url}/data/{path.name}")
    assert np.frombuffer(fs.cat("own/0.0")).tolist() == VALUES.ravel().tolist()
    requested = [request.path for request in http_server.requests()]
    assert requested.count("/data/part1.h5") <= 2
    assert not fs.left_whole


def test_links_out_of_the_directory_are_reported(http_server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = 1
    url = http_server.put("/secret.h5", (tmp_path / "secret.h5").read_bytes())
    absolute = str(tmp_path / "secret.h5")
    names = ["../secret.h5", absolute, f"file://{absolute}", url, "in/../../secret.h5", "in::file:///x", "gone.h5"]
    with h5py.File(tmp_path / "in" / "a.h5", "w") as file:
        for number, name in enumerate(names):
            file[f"link{number}"] = h5py.ExternalLink(name, "/x")
            file.create_dataset(f"raw{number}", (2,), "<i4", external=[(name, 0, 8)])
        file["nothing"] = h5py.ExternalLink("a.h5", "/nowhere")
    for source in (str(tmp_path / "in" / "a.h5"), (tmp_path / "in" / "a.h5").read_bytes()):
        http_server.clear()
        fs = RefShardFileSystem(source)
        reported = set(fs.left_whole)
        assert reported >= {"nothing", *[f"link{n}" for n in range(len(names))], *[f"raw{n}" for n in range(6)]}
        assert not http_server.requests()
    assert "expected an object there" in RefShardFileSystem(str(tmp_path / "in" / "a.h5")).left_whole["nothing"]


def test_links_to_many_long_paths_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refshard_fs.formats.hdf5.source.MOST_TEXT", 40)
    fs = RefShardFileSystem(str(write_linked(tmp_path)))
    assert {name for name, why in fs.left_whole.items() if "expected at most 40" in why} == {"root", "group"}


def test_links_to_missing_groups_of_a_file_are_reported(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "large.h5", "w", libver="latest") as file:
        for number in range(2000):
            file.create_group(f"g{number}")
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for number in range(2000):
            file[f"l{number}"] = h5py.ExternalLink("large.h5", f"/g{number + 1000}")
    fs = RefShardFileSystem(str(tmp_path / "a.h5"))
    assert len(fs.left_whole) == 1000
    assert fs.isdir("l999")


def test_raw_files_have_the_values_of_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the HDF5 library looks for raw files in the working directory
    (tmp_path / "sub").mkdir()
    data = np.random.default_rng(0).bytes(4000)
    (tmp_path / "a.bin").write_bytes(data[:1000])
    (tmp_path / "sub" / "b.bin").write_bytes(data[1000:])
    unlimited = h5py.h5f.UNLIMITED
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("one", (10, 25), "<f4", external=[("a.bin", 0, unlimited)])
        file.create_dataset("offset", (10,), ">i2", external=[("a.bin", 17, 20)])
        file.create_dataset("two", (3, 100), "<f4", external=[("a.bin", 0, 1000), ("sub/b.bin", 40, unlimited)])
        file.create_dataset("three", (5,), "S3", external=[("a.bin", 0, 4), ("a.bin", 500, 1), ("sub/b.bin", 0, 10)])
        file.create_dataset("short", (60, 5), "<f4", external=[("a.bin", 0, 1200)])
    assert os.path.getsize("a.bin") == 1000
    fs, datasets = open_arrays(tmp_path / "a.h5")
    assert not fs.left_whole
    with h5py.File("a.h5") as file:
        for name in ("one", "offset", "two", "three"):
            assert datasets[name][...].tobytes() == file[name][...].tobytes(), name
    with pytest.raises(ReferenceNotReachable, match="1000"):
        fs.cat("short/0.0")


def test_raw_part_longer_than_its_file_is_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.arange(3 << 19, dtype="<f8").reshape(3, 1 << 19)  # in chunks of 4 MiB
    (tmp_path / "a.bin").write_bytes(values.tobytes()[:5_000_000])
    (tmp_path / "b.bin").write_bytes(values.tobytes()[5_000_000:])
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("d", values.shape, "<f8", external=[("a.bin", 0, 5_000_000), ("b.bin", 0, 1 << 30)])
    _, datasets = open_arrays(tmp_path / "a.h5")
    assert (datasets["d"][...] == values).all()


def test_linked_paths_are_found_in_the_order_of_the_file() -> None:
    paths = external.LinkedPaths(["", "b/z", "b", "b0", "b/a", "b/a/c", "a"])
    assert paths.find(external.ExternalLink("f", "/b/"), "p") == {
        "b/z": "p/z",
        "b": "p",
        "b/a": "p/a",
        "b/a/c": "p/a/c",
    }
    assert paths.find(external.ExternalLink("f", "./b/./a"), "p") == {"b/a": "p", "b/a/c": "p/c"}
    assert paths.find(external.ExternalLink("f", "/."), "p") == paths.find(external.ExternalLink("f", "/"), "p")
    assert list(paths.find(external.ExternalLink("f", "/"), "p").values()) == [
        "p",
        "p/b/z",
        "p/b",
        "p/b0",
        "p/b/a",
        "p/b/a/c",
        "p/a",
    ]
    assert paths.find(external.ExternalLink("f", "c"), "p") == {}


def test_names_outside_of_the_directory_are_refused() -> None:
    for name in ("a.h5", "./a.h5", "sub/a.h5"):
        external.check_file_is_beside(name)
    for name in ("", "/a", "..", "../a", "a//b", "a/../b", "s3://b/a", "C:\\a", "a?b", "a#b", "%2e%2e/a", "zip::a"):
        with pytest.raises(ValueError, match="expected a relative path"):
            external.check_file_is_beside(name)
