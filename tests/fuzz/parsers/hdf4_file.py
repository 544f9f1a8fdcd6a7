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
from tests.support.hdf4_files import (
    extract_data_set,
    make_hdf4_file,
    make_vdata,
    make_vgroup,
    read_hdf4_file,
    shorten_metadata,
    spread_elements,
)

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
    layouts = read_hdf4_file("layouts")
    return [
        *(extract_data_set(layouts, name) for name in _LAYOUTS),
        spread_elements(read_hdf4_file("old"), 0),
        *(shorten_metadata(read_hdf4_file(name)) for name in ("grids", "swath")),
        *_make_tables(),
        *(_make_image(compression, tag, data) for compression, tag, data in _IMAGES),
        _make_compressed(struct.pack(">HIIIBB", 5, 64, 64, 12 | 0x10000, 16, 8), _SZIPPED),
    ]


_LAYOUTS = ("plain", "lat", "texts", "deflated", "runs", "chunks", "deflated_chunks", "chunks_of_runs", "bits",
            "sparse", "never", "huffman", "outside", "little", "records", "last")  # fmt: skip
# The tag of the compression, the tag of the image, and its bytes: none, runs, blocks of two colours.
_IMAGES = ((0, 302, bytes(60)), (11, 303, b"\x87\1" * 14), (12, 303, b"\x0f\xf0\1\2" * 6))
_SZIPPED = b"\1\0\0\0\x80" + bytes(128)  # stored without compression


def _make_tables() -> list[bytes]:
    kind = np.dtype([("x", ">f4"), ("y", "S3"), ("z", ">i2", (2,))])
    return [
        make_hdf4_file({(1962, 2): make_vdata("T", kind, 9, "", order), (1963, 2): bytes(9 * kind.itemsize)})
        for order in (0, 1)
    ]


def _make_image(compression: int, tag: int, data: bytes) -> bytes:
    bands, rows, columns = (3, 4, 5) if not compression else (1, 4, 24)
    shape = struct.pack(">iiHHhhHH", columns, rows, 106, 1, bands, 2, compression, 0)
    members = {(300, 2): shape, (tag, 2): data, (301, 2): bytes(range(24))}
    group = make_vgroup("a", "RI0.0", list(members))
    return make_hdf4_file({(106, 1): bytes([1, 21, 8, 0]), (1965, 3): group, **members})


def _make_compressed(coding: bytes, data: bytes) -> bytes:
    """Return a file with a data set of 64 integers that is compressed."""
    header = struct.pack(">HHiHH", 3, 0, 128, 6, 0) + coding
    dimensions = struct.pack(">HiHHHH", 1, 64, 106, 1, 106, 1)
    group = struct.pack(">6H", 701, 2, 702, 2, 106, 1)
    values = {(0x4000 | 702, 2): header, (40, 6): data}
    return make_hdf4_file({(106, 1): bytes([1, 22, 16, 4]), (720, 1): group, (701, 2): dimensions, **values})


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
