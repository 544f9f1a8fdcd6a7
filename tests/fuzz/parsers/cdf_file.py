"""Open CDF files: values lie in the file and have a bounded size, or an error of this package is raised."""

from __future__ import annotations

from contextlib import nullcontext as set_up

import numpy as np

from refshard_fs.core.array_group import MOST_FILL
from refshard_fs.core.model import Packed
from refshard_fs.errors import RefShardError
from refshard_fs.formats.cdf.source import open_
from tests.fuzz.array_files import choose_chunks, open_file
from tests.support.cdf_writer import EPOCH, GZIP, RLE, TT2000, Variable, Writer, compress_file, read_real_file

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    *(bytes([0, 0, 0, kind]) for kind in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 21, 31, 32, 33, 51)),
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x10\x00\x00\x00",
    b"DEPEND_0",
    b"DEPEND_1",
    b"LABL_PTR_1",
    b"FILLVAL",
    b"\0\xff\0\xff",
)
_LARGEST = 1 << 20  # bytes of a chunk that is read


def _written(version: int, *, is_row_major: bool) -> bytes:
    values = np.arange(24, dtype="i4").reshape(4, 2, 3)
    to_time = {"DEPEND_0": "t"}
    variables = {
        "t": Variable(np.arange(4) * 6e13, {"VALIDMIN": 6e13}, EPOCH, compression=GZIP),
        "u": Variable(np.arange(4), to_time, TT2000),
        "x": Variable(np.arange(3, dtype="f4"), varies=False),
        "v": Variable(
            values, {**to_time, "DEPEND_2": "x", "FILLVAL": np.int32(5)}, runs=[(0, 0), (2, 2), (3, 3)], tree=2
        ),
        "w": Variable(values, to_time, compression=RLE, runs=[(1, 1), (2, 2)], sparse=2, pad=b"\0\0\0\1"),
        "l": Variable(np.array([b"a", b"b", b"c"]), varies=False, is_z=False),
    }
    return Writer(version, is_row_major=is_row_major).write(variables, {"A": ["one", "two"]}, rank=(3,))


def make_seeds() -> list[bytes]:
    return [
        _written(3, is_row_major=True),
        _written(2, is_row_major=False),
        read_real_file(3),
        compress_file(_written(3, is_row_major=True), RLE),
    ]


def check_input(data: bytes) -> None:
    found = open_file(open_, data)
    if found is None:
        return
    files, keys = found
    for key in choose_chunks(keys):
        try:
            entry = files.run(keys.lookup(key))
        except (RefShardError, ValueError):
            continue
        if entry is None:
            continue
        assert (entry.size or 0) <= 2 * MOST_FILL
        if isinstance(entry, Packed):
            assert all(span.stop is not None and span.stop <= len(data) for span in entry.spans)
        if (entry.size or 0) <= _LARGEST:
            try:
                files.bytes(entry)
            except ValueError:
                continue
