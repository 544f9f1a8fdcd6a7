"""Data sets of HDF4: a damaged data set does not hide the others."""

from __future__ import annotations

import re
import struct

import pytest

from refshard_fs.errors import ManifestError, RefShardError
from refshard_fs.formats.hdf4.elements import Tag
from tests.support.files_of_arrays import read_all_bytes
from tests.support.hdf4_files import list_descriptors, read_hdf4_file
from tests.support.shards_in_memory import ROOT, Files


def test_damaged_data_set_does_not_hide_the_others() -> None:
    data = read_hdf4_file("layouts")
    number_type = bytes([1, 6, 64, 1])  # 6 is the type of "doubles" only
    assert data.count(number_type) == 1
    whole = Files({ROOT: data}).open()
    keyspace = Files({ROOT: data.replace(number_type, bytes([1, 99, 64, 1]))}).open()
    assert "number type has the code 99" in keyspace.reports["doubles"]
    assert set(keyspace.grids) == set(whole.grids) - {"doubles"}


def test_damaged_descriptor_is_an_error_a_report_or_harmless() -> None:
    """A damaged descriptor could hide a data set, a scale or a dimension without a report."""
    data = read_hdf4_file("layouts")
    whole = Files({ROOT: data}).open()
    # Descriptors of Vdatas and Vgroups.
    descriptors = [match.start() for match in re.finditer(b"\7[\xaa\xad]..\0{2}..\0{2}", data, re.DOTALL)]
    for start in descriptors:
        damaged = data[: start + 1] + b"\xac" + data[start + 2 :]
        try:
            keyspace = Files({ROOT: damaged}).open()
        except ManifestError:
            continue
        if keyspace.reports == whole.reports:
            assert keyspace.grids == whole.grids, start


def test_damaged_tag_of_a_member_is_reported_or_harmless() -> None:
    """A damaged tag could hide a data set, or the values of one, without a report."""
    data = read_hdf4_file("layouts")
    files = Files({ROOT: data})
    whole = files.open()
    descriptors = {match.start() for match in re.finditer(rb"[\0\2\7]...\0{2}..\0{2}", data, re.DOTALL)}
    members = [match.start() for match in re.finditer(b"\7\xad|\2\xbe", data) if match.start() not in descriptors]
    assert len(members) > 10
    reported = 0
    for start in members:
        damaged = Files({ROOT: data[: start + 1] + bytes([data[start + 1] ^ 0x40]) + data[start + 2 :]})
        try:
            keyspace = damaged.open()
        except ManifestError:
            continue
        reported += keyspace.reports != whole.reports
        if keyspace.reports == whole.reports:
            assert keyspace.grids == whole.grids, start
            for path in whole.grids:
                key = f"{path}/.zarray"
                assert damaged.read(keyspace, key) == files.read(whole, key), start
    assert reported > 10


def test_dimensions_beyond_the_file_end_are_an_error() -> None:
    data = bytearray(read_hdf4_file("old"))
    start = data.index((701).to_bytes(2, "big"), 10)  # the descriptor of the dimensions
    data[start + 4 : start + 8] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(ManifestError, match="cut short"):
        Files({ROOT: bytes(data)}).open()


def test_unwritten_compressed_values_are_the_fill_value() -> None:
    header = struct.pack(">HHi", 3, 0, 480)  # 480 bytes: 120 numbers of four bytes
    data = read_hdf4_file("layouts")
    assert data.count(header) == 1
    files = Files({ROOT: data.replace(header, struct.pack(">HHi", 3, 0, 0))})
    assert files.read(files.open(), "deflated/0.0") == struct.pack(">i", -2147483647) * 120


def test_data_set_of_texts_with_a_valid_range_is_shown() -> None:
    keyspace = Files({ROOT: read_hdf4_file("old").replace(bytes([1, 22, 16, 1]), bytes([1, 4, 8, 1]))}).open()
    assert "Data-Set-2" in keyspace.grids


def test_truncated_scales_are_left_out() -> None:
    data = read_hdf4_file("old")
    start = data.index((703).to_bytes(2, "big"), 10)  # the descriptor of the scales
    keyspace = Files({ROOT: data[: start + 8] + (1).to_bytes(4, "big") + data[start + 12 :]}).open()
    assert list(keyspace.grids) == ["Data-Set-2"]


def test_data_sets_with_equal_names_get_unique_names() -> None:
    data = read_hdf4_file("layouts")
    keyspace = Files({ROOT: data.replace(b"\0\4runs", b"\0\4last")}).open()
    assert {"last", "last_2"} <= set(keyspace.grids)


def test_attribute_beyond_file_end_is_reported_for_its_data_set() -> None:
    data = bytearray(read_hdf4_file("layouts"))
    row = re.search(b"\x07\xab.{6}\0\0\0\x01", data, re.DOTALL)  # the values of an attribute of one letter: the units
    assert row is not None
    data[row.start() + 4 : row.start() + 8] = (1 << 30).to_bytes(4, "big")
    keyspace = Files({ROOT: bytes(data)}).open()
    assert "cut short" in keyspace.reports["plain"]
    assert set(keyspace.reports) == {"plain", "huffman", "outside"}


def test_damaged_list_of_an_old_data_set_is_an_error() -> None:
    """A damaged tag once showed a data set of fill values, or hid the scales of its dimensions."""
    data = read_hdf4_file("old")
    whole = read_all_bytes(data)
    [(start, length)] = [(start, length) for tag, _, start, length in list_descriptors(data) if tag == Tag.DATA_GROUP]
    for position in range(start, start + length):
        for bit in (0, 3, 7):
            damaged = data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]
            with pytest.raises(ManifestError, match="Data-Set-2: it lists .*: expected one such element, found"):
                Files({ROOT: damaged}).open()
    for number in range(len(list_descriptors(data))):
        at = 10 + 12 * number + 1
        damaged = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
        try:
            found = Files({ROOT: damaged}).open()
        except RefShardError:
            continue
        assert found.reports or read_all_bytes(damaged) == whole
