"""Groups and datasets are read level by level, through links; a damaged object does not hide others."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardError, RefShardFileSystem
from refshard_fs.cli import main
from refshard_fs.core.format import HEAD, OpenOptions, Probe
from refshard_fs.core.model import Facts, Inline
from refshard_fs.formats.hdf5.source import open_
from tests.fuzz.array_files import open_file
from tests.support.hdf5_messages import make_file, open_in_memory
from tests.support.memory import check_peak
from tests.support.shards_in_memory import ROOT, Files

h5py = pytest.importorskip("h5py")
xr = pytest.importorskip("xarray")


@pytest.mark.parametrize(("libver", "most_rounds"), [("latest", 9), ("earliest", 6)])
def test_many_groups_and_variables_are_opened_in_few_rounds(libver: str, most_rounds: int, tmp_path: Path) -> None:
    path = tmp_path / "groups.h5"
    with h5py.File(path, "w", libver=libver, track_order=libver == "latest") as file:
        for group in range(4):
            for name in range(25):
                file[f"group{group}/variable{name}"] = np.full(3000, name, "f8")
                for attribute in range(12):
                    file[f"group{group}/variable{name}"].attrs[f"attribute{attribute}"] = f"text {attribute} of {name}"
    files = Files.of(path)
    keyspace = files.open()
    assert files.rounds <= most_rounds
    assert b"text 11 of 24" in (files.read(keyspace, "group3/variable24/.zattrs") or b"")
    whole = Files.of(path)
    whole.open(head=path.stat().st_size)
    assert whole.rounds == 1
    with pytest.raises(ValueError, match="head=100"):
        RefShardFileSystem(str(path), head=100)


def test_links_within_the_file_are_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "links.h5"
    with h5py.File(path, "w") as file:
        file["group/values"] = np.arange(5)
        file["soft"] = h5py.SoftLink("/group/values")
        file["soft_group"] = h5py.SoftLink("group")
        file["chain"] = h5py.SoftLink("/soft_group/values")
        file["hard"] = file["group/values"]
        file["group/loop"] = file["group"]
        file["group/up"] = h5py.SoftLink("/")
        file["nowhere"] = h5py.SoftLink("/nothing")
        file["outside"] = h5py.ExternalLink("other.h5", "/x")
    fs = RefShardFileSystem(str(path))
    expected = np.arange(5).tobytes()
    for name in ("group/values", "soft", "soft_group/values", "chain", "hard"):
        assert fs.cat_file(f"{name}/0") == expected, name
    reports: dict[str, Any] = dict(fs.left_whole)
    assert set(reports) == {f"{name}/{link}" for name in ("group", "soft_group") for link in ("loop", "up")} | {
        "nowhere",
        "outside",
    }
    assert "/x in other.h5" in reports["outside"]
    assert main(["check", str(path)]) == 0
    assert "outside: it is not shown: it is an external link" in capsys.readouterr().out


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_damaged_object_leaves_other_objects_readable(libver: str) -> None:
    """If a byte of an object's header is wrong, a report names the lost object, and its keys raise errors."""
    with open_in_memory(libver=libver) as file:
        file["a"] = np.arange(3, dtype="<i4")
        dataset = file.create_dataset("odd", data=np.arange(4.0), chunks=(2,), compression="gzip", maxshape=(None,))
        dataset.attrs["note"] = "text"
        dataset.attrs["units"] = np.array(["m"], h5py.string_dtype())
        group = file.create_group("group")
        group["inner"] = np.arange(5)
        group.attrs["n"] = np.arange(2)
        file["z"] = np.arange(3, dtype="<i4")
        file.flush()
        data = bytes(file.id.get_file_image())
        headers = [h5py.h5o.get_info(file[name].id) for name in ("odd", "group", "group/inner")]
    for header in headers:
        for position in range(header.addr, header.addr + header.hdr.space.total, 5):
            damaged = bytearray(data)
            damaged[position] ^= 0xFF
            files = Files({ROOT: bytes(damaged)})
            keyspace = files.open()
            for name in ("a", "z"):
                assert files.read(keyspace, f"{name}/0") == np.arange(3, dtype="<i4").tobytes(), position
            # With 4 grids, the damage renamed an object.
            for path in {"odd", "group/inner"} - set(keyspace.grids) if len(keyspace.grids) < 4 else ():
                with pytest.raises(ManifestError, match="is not shown"):
                    files.read(keyspace, f"{path}/0")


def test_unreadable_links_of_a_group_are_reported() -> None:
    with open_in_memory() as file:
        file["good"] = 1
        file.create_group("group")["inner"] = np.arange(5)
        file.flush()
        data = bytes(file.id.get_file_image())
    position = data.rindex(b"SNOD")
    files = Files({ROOT: data[:position] + b"X" + data[position + 1 :]})
    keyspace = files.open()
    assert set(keyspace.grids) == {"good"}
    assert "some of its members cannot be found" in keyspace.reports["group"]
    assert files.read(keyspace, "group/.zgroup")
    assert files.read(keyspace, "group/zarr.json") is None
    with pytest.raises(ManifestError, match="members"):
        files.read(keyspace, "group/inner/0")


def test_too_long_paths_are_reported_in_little_memory() -> None:
    def fill(file: h5py.File) -> None:
        group = file.create_group("n" * 60_000)
        for number in range(100):
            group[f"d{number}"] = h5py.SoftLink("/x")

    data = make_file(fill)
    with check_peak(4 << 20):
        result = open_file(open_, data)
    assert result is not None
    assert list(map(len, result[1].reports)) == [4096]


def test_many_groups_with_shared_links_are_refused() -> None:
    """Links are counted when they are read: the links of all groups take memory before any path is made of them."""

    def fill(file: h5py.File) -> None:
        for number in range(150):
            file.create_group(f"g{number:03}")

    data = bytearray(make_file(fill))
    tables = [
        position
        for position in range(0, len(data), 8)
        if data[position : position + 8] == struct.pack("<HHI", 0x11, 16, 0)
    ]
    addresses = data[tables[0] + 8 : tables[0] + 24]  # of the root group's symbol table
    for position in tables:
        data[position + 8 : position + 24] = addresses
    whole = Inline(bytes(data))
    with pytest.raises(RefShardError, match="links or more"):
        Files({ROOT: whole.data}).run(open_(Probe(ROOT, Facts(len(data)), whole.data[:HEAD]), OpenOptions()))
