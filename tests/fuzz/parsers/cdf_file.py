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


_VALUES = np.arange(24, dtype="i4").reshape(4, 2, 3)
_TO_TIME = {"DEPEND_0": "t"}
# Few variables a file, so that most changes hit a structure.
_FILES: tuple[dict[str, Variable], ...] = (
    {
        "t": Variable(np.arange(4) * 6e13, {"VALIDMIN": 6e13}, EPOCH, compression=GZIP),
        "x": Variable(np.arange(3, dtype="f4"), varies=False),
        "v": Variable(_VALUES, {**_TO_TIME, "DEPEND_2": "x"}, runs=[(0, 0), (1, 2), (3, 3)], tree=2),
    },
    {"u": Variable(np.arange(4), {"FILLVAL": np.int64(5)}, TT2000), "c": Variable(np.arange(4) + 1j)},
    {"w": Variable(_VALUES, compression=RLE, runs=[(1, 1), (2, 2)], sparse=2, pad=b"\0\0\0\1")},
    {"v": Variable(_VALUES, {"FILLVAL": np.int32(5)}, runs=[(2, 3)], sparse=1, compression=GZIP)},
    {"l": Variable(np.array([b"a", b"b", b"c"]), {"UNITS": "m"}, varies=False, is_z=False)},
)


def make_seeds() -> list[bytes]:
    made = [
        Writer(version, is_row_major=is_row_major).write(variables, {"A": ["one", "two"]}, rank=(3,))
        for variables in _FILES
        for version, is_row_major in ((3, True), (2, False))
    ]
    return [*made, *(compress_file(made[8], compression) for compression in (RLE, GZIP)), read_real_file(2)]


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
