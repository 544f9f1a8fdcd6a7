"""Heaps and B-trees: overlapping names and records of a wrong size are damage; an empty node is not."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import pytest
from numcodecs.checksum32 import jenkins_lookup3

from refshard_fs import DamagedIndex, RefShardFileSystem
from refshard_fs.formats.hdf5.source import open_
from tests.fuzz.array_files import open_file
from tests.support.files_of_arrays import read_all_bytes
from tests.support.hdf5_files import WRITERS
from tests.support.hdf5_messages import make_file, open_in_memory
from tests.support.shards_in_memory import ROOT, Files


def test_overlapping_names_in_a_local_heap_are_refused() -> None:
    """If names of a file may overlap, each of many names can be as long as the heap."""

    def fill(file: h5py.File) -> None:
        for number in range(8):
            file[f"{number}" + "n" * 1000] = h5py.SoftLink("x")

    data = bytearray(make_file(fill))
    for position in [position for position in range(len(data)) if data.startswith(b"SNOD", position)]:
        (count,) = struct.unpack_from("<H", data, position + 6)
        for entry in range(count):
            data[position + 8 + 40 * entry : position + 16 + 40 * entry] = struct.pack("<Q", 8)
            data[position + 32 + 40 * entry : position + 36 + 40 * entry] = struct.pack("<I", 8)
    assert open_file(open_, bytes(data)) is None


def test_b_tree_node_without_children_is_an_empty_group(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    WRITERS["scaled earliest plain"](path)
    data = bytearray(path.read_bytes())
    node = data.index(b"TREE\0")
    data[node + 5 : node + 8] = b"\1\0\0"  # a node of level 1 with no entries
    assert read_all_bytes(bytes(data)) == {}


def test_b_tree_records_of_a_wrong_size_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(10):
            file.attrs[str(number)] = number
    data = bytearray(path.read_bytes())
    head = data.index(b"BTHD")
    data[head + 10 : head + 12] = b"\x05\0"  # bytes of a record
    for signature, size in ((b"BTHD", 38), (b"BTLF", 4 + 2 + 5 * 10 + 4)):
        start = data.index(signature)
        end = start + size - 4
        data[end : end + 4] = jenkins_lookup3(bytes(data[start:end]), 0).to_bytes(4, "little")
    path.write_bytes(data)
    assert "attributes have 5 bytes: expected 17" in RefShardFileSystem(str(path)).left_whole["attributes of '/'"]


def test_checksum_of_a_heap_block_is_verified() -> None:
    """A damaged name in a block of a fractal heap once became the name of an array."""

    def fill(file: h5py.File) -> None:
        for number in range(300):
            file[f"name_{number:04}"] = number

    with open_in_memory("latest") as file:
        fill(file)
        file.flush()
        data = bytearray(file.id.get_file_image())
    files = Files({ROOT: bytes(data)})
    assert len(files.open().grids) == 300
    blocks = [position for position in range(len(data)) if data.startswith(b"FHDB", position)]
    assert len(blocks) > 4
    data[data.index(b"name_0007") + 1] ^= 1
    with pytest.raises(DamagedIndex, match="a block of a fractal heap is damaged: its checksum is"):
        Files({ROOT: bytes(data)}).open()
