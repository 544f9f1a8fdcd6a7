"""Records of CDF files: damage ends in an error, and never in a loop."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from refshard_fs import DamagedIndex, RefShardError
from refshard_fs.core.model import Inline
from refshard_fs.formats.cdf.records import Records
from tests.support.cdf_writer import Variable, Writer
from tests.support.shards_in_memory import ROOT, Files

TWO = {"a": Variable(np.arange(4, dtype="i4"), {"UNITS": "m"}), "b": Variable(np.arange(4, dtype="i4"), {"UNITS": "s"})}


def find_descriptor(data: bytes, name: bytes) -> int:
    """Return the offset of a variable's descriptor in a file of version 3."""
    return data.index(b"\0" + name.ljust(256, b"\0")) - 83


def open_damaged(data: bytes) -> str:
    """Open a damaged file, which must raise an error. Return the text of the error."""
    with pytest.raises(RefShardError) as caught:
        Files({ROOT: data}).open()
    return str(caught.value)


def test_circular_lists_are_refused() -> None:
    data = bytearray(Writer().write(TWO))
    struct.pack_into(">q", data, find_descriptor(data, b"b") + 12, find_descriptor(data, b"a"))
    assert " twice: expected each record once" in open_damaged(bytes(data))


def test_circular_indexes_are_refused() -> None:
    data = bytearray(Writer().write(TWO))
    (index,) = struct.unpack_from(">q", data, find_descriptor(data, b"a") + 28)
    for field, value, reason in ((12, index, " twice: expected each record once"), (28 + 3 * 8, index, "levels")):
        damaged = bytearray(data)
        struct.pack_into(">q", damaged, index + field, value)
        files = Files({ROOT: bytes(damaged)})
        keyspace = files.open()
        with pytest.raises(DamagedIndex, match=reason):
            files.run(keyspace.lookup("a/0"))


def test_record_of_an_impossible_size_is_refused() -> None:
    data = bytearray(Writer().write(TWO))
    for value in (0, 1 << 60, -5):
        struct.pack_into(">q", data, find_descriptor(data, b"a"), value)
        assert "damaged" in open_damaged(bytes(data))


def test_variables_in_separate_files_are_refused() -> None:
    data = bytearray(Writer().write(TWO))
    data[8 + 12 + 8 + 12 + 3] = 1  # the flags of the CDR
    assert "lie in separate files" in open_damaged(bytes(data))


def test_reading_many_places_keeps_few_pages_in_memory() -> None:
    size = 4 << 20
    data = bytes(range(256)) * (size // 256)
    records = Records("x", Inline(data), size, data[:100], 3)
    files = Files({})
    assert files.run(records.read(1 << 20, 10)) == data[:10]
    records.is_opened = True
    for offset in range(0, size, 1 << 16):
        assert files.run(records.read(offset + 5, 300)) == data[5:305]
    assert len(records._pages) < 40
    with pytest.raises(DamagedIndex, match="cut short"):
        files.run(records.read(size - 2, 3))
