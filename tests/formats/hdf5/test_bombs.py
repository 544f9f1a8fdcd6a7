"""Small files that claim much: each is refused, or opens with little memory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from refshard_fs.core.array_group import UNWRITTEN
from refshard_fs.core.format import HEAD, OpenOptions, Probe
from refshard_fs.core.model import Facts, Inline
from refshard_fs.errors import NotListable, RefShardError
from refshard_fs.formats.hdf5.file import LEAST_READ, TIMES_READ, MetadataFile
from refshard_fs.formats.hdf5.source import open_
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.tools.info import summarise
from tests.fuzz.array_files import opened
from tests.support.hdf5_messages import in_memory
from tests.support.memory import taking
from tests.support.shards_in_memory import ROOT, Files


def file_of(fill: Callable[[h5py.File], object]) -> bytes:
    with in_memory() as file:
        fill(file)
        file.flush()
        return bytes(file.id.get_file_image())


def test_names_in_a_local_heap_that_overlap_are_refused() -> None:
    """Each of many entries would be as long as the heap."""

    def fill(file: h5py.File) -> None:
        for number in range(8):
            file[f"{number}" + "n" * 1000] = h5py.SoftLink("x")

    data = bytearray(file_of(fill))
    for at in [at for at in range(len(data)) if data.startswith(b"SNOD", at)]:
        (count,) = struct.unpack_from("<H", data, at + 6)
        for entry in range(count):
            data[at + 8 + 40 * entry : at + 16 + 40 * entry] = struct.pack("<Q", 8)
            data[at + 32 + 40 * entry : at + 36 + 40 * entry] = struct.pack("<I", 8)
    assert opened(open_, bytes(data)) is None


def test_paths_longer_than_keys_are_reported_before_many_are_made() -> None:
    def fill(file: h5py.File) -> None:
        group = file.create_group("n" * 60_000)
        for number in range(100):
            group[f"d{number}"] = h5py.SoftLink("/x")

    data = file_of(fill)
    with taking(4 << 20):
        found = opened(open_, data)
    assert found is not None
    assert list(map(len, found[1].reports)) == [4096]


def test_many_groups_that_have_the_same_links_are_refused() -> None:
    """The links of each would be kept, before any path is made."""

    def fill(file: h5py.File) -> None:
        for number in range(150):
            file.create_group(f"g{number:03}")

    data = bytearray(file_of(fill))
    tables = [at for at in range(0, len(data), 8) if data[at : at + 8] == struct.pack("<HHI", 0x11, 16, 0)]
    for at in tables:
        data[at + 8 : at + 24] = data[tables[0] + 8 : tables[0] + 24]  # those of the root
    whole = Inline(bytes(data))
    with pytest.raises(RefShardError, match="more than .* paths"):
        Files({ROOT: whole.data}).run(open_(Probe(ROOT, Facts(len(data)), whole.data[:HEAD]), OpenOptions()))


def test_structures_that_overlap_are_not_read_for_ever() -> None:
    file = MetadataFile(Inline(bytes(1 << 20)), 1 << 20, b"")
    for _ in range(TIMES_READ + LEAST_READ // (1 << 20)):
        list(file.read(0, 1 << 20, "a heap"))
    with pytest.raises(ValueError, match="overlap"):
        list(file.read(0, 1 << 20, "a heap"))


def test_chunks_that_were_never_written_are_not_listed_by_the_million(tmp_path: Path) -> None:
    """Their fill value is not one that zarr is told: each would be listed, and made."""
    ours = UNWRITTEN + 17

    def fill(file: h5py.File) -> None:
        file.create_dataset("plain", data=np.arange(5))
        file.create_dataset("sparse", (ours,), "i4", chunks=(1,), fillvalue=7)[3] = 5

    path = tmp_path / "sparse.h5"
    path.write_bytes(file_of(fill))
    fs = RefShardFileSystem(str(path))
    with taking(8 << 20):
        found = {array.name: (array.present, array.possible) for array in summarise(fs).arrays}
    assert found == {"plain": (1, 1), "sparse": (None, ours)}
    assert fs.cat("sparse/3") == struct.pack("<i", 5)
    assert fs.cat(f"sparse/{ours - 1}") == struct.pack("<i", 7)
    with pytest.raises(NotListable, match=f"{ours} chunks, of which 1 were written, are too many to list"):
        fs.ls("sparse")
