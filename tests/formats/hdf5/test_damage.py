"""Files that are cut short or have bits flipped: errors of ours, or values that are there; never others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.files_of_arrays import all_bytes, check_damage
from tests.formats.hdf5 import corpus, netcdf_files

WRITERS = corpus.WRITERS | netcdf_files.WRITERS
NAMES = [
    "chunked earliest fixed shuffle gzip fletcher32",
    "chunked latest growing in all gzip",
    "chunked v110 extensible lzf",
    "typed latest chunked",
    "grouped latest False 40",
    "attributed latest True 7",
    "scaled earliest masked",
    "netcdf4 NETCDF4 shuffle ('time',)",
]


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_errors_of_ours_or_values_that_are_there(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    WRITERS[name](path)
    check_damage(path.read_bytes(), NAMES.index(name), times=20)


def test_the_b_tree_of_a_group_ends_where_a_node_has_no_children(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    WRITERS["scaled earliest plain"](path)
    data = bytearray(path.read_bytes())
    node = data.index(b"TREE\0")
    data[node + 5 : node + 8] = b"\1\0\0"  # a node of level 1 with no entries
    assert all_bytes(bytes(data)) == {}
