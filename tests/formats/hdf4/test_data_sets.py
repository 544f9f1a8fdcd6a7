"""Data sets of HDF4: one that is damaged leaves the others."""

from __future__ import annotations

import pytest

from refshard_fs.errors import DamagedIndex
from tests.support.hdf4_files import hdf4_file
from tests.support.shards_in_memory import ROOT, Files


def test_a_damaged_data_set_leaves_the_others() -> None:
    data = hdf4_file("layouts")
    number_type = bytes([1, 6, 64, 1])  # that of doubles alone
    assert data.count(number_type) == 1
    keyspace = Files({ROOT: data.replace(number_type, bytes([1, 99, 64, 1]))}).open()
    assert "number type 99" in keyspace.reports["doubles"]
    assert "plain" in keyspace.grids


def test_names_that_are_repeated_are_bounded() -> None:
    data = bytearray(hdf4_file("old"))
    at = data.index((701).to_bytes(2, "big"), 10)  # the descriptor of the dimensions
    data[at + 4 : at + 8] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(DamagedIndex, match="cut short"):
        Files({ROOT: bytes(data)}).open()
