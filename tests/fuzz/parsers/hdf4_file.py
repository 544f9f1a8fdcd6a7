"""Open HDF4 files: values lie in the file and have a bounded size, or an error of this package is raised."""

from __future__ import annotations

import struct
from contextlib import nullcontext as set_up

import numpy as np

from refshard_fs.core.model import Packed
from refshard_fs.errors import RefShardError
from refshard_fs.formats.hdf4.coding import MOST_DECODED
from refshard_fs.formats.hdf4.source import open_
from tests.fuzz.array_files import choose_chunks, open_file
from tests.support.hdf4_files import make_hdf4_file, make_vdata, read_hdf4_file, spread_elements

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    b"\x07\xad",
    b"\x07\xaa",
    b"\x07\xab",
    b"\x42\xbe",
    b"\x40\x3d",
    b"\0\x01",
    b"\0\x02",
    b"\0\x03",
    b"\0\x05",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"Var0.0",
    b"DimVal0.1",
    b"XDim=2000000000\n",
    b"OBJECT=",
    b"\x01\x2c",
    b"\x01\x2e",
)
_LARGEST = 1 << 20  # bytes of a chunk that is read


def make_seeds() -> list[bytes]:
    return [
        *(spread_elements(read_hdf4_file(name), 0) for name in ("old", "layouts", "grids", "swath")),
        _images_and_tables(),
    ]


def _images_and_tables() -> bytes:
    kind = np.dtype([("x", ">f4"), ("y", "S3"), ("z", ">i2", (2,))])
    shape = struct.pack(">iiHHhhHH", 5, 4, 106, 1, 3, 2, 0, 0)
    return make_hdf4_file(
        {
            (106, 1): bytes([1, 21, 8, 0]),
            (1962, 2): make_vdata("T", kind, 9),
            (1963, 2): bytes(9 * kind.itemsize),
            (1962, 3): make_vdata("U", kind, 9, "", 1),
            (1963, 3): bytes(9 * kind.itemsize),
            (306, 2): struct.pack(">6H", 300, 2, 302, 2, 301, 2),
            (300, 2): shape,
            (301, 2): bytes(768),
            (302, 2): bytes(60),
        }
    )


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
        assert (entry.size or 0) <= MOST_DECODED
        if isinstance(entry, Packed):
            assert all(span.stop is not None and span.stop <= len(data) for span in entry.spans)
        if (entry.size or 0) <= _LARGEST:
            try:
                files.bytes(entry)
            except ValueError:
                continue
