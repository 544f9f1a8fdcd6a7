"""Open JPEG 2000 files: tiles lie in the file and have a bounded size, or an error of this package is raised."""

from __future__ import annotations

from contextlib import nullcontext as set_up

import numpy as np

from refshard_fs.core.model import Packed
from refshard_fs.errors import RefShardError
from refshard_fs.formats.jp2.source import open_
from tests.fuzz.array_files import choose_chunks, open_file
from tests.support.jp2_files import (
    encode,
    encode_tiles,
    join_components,
    make_box,
    make_gml_box,
    make_jp2_file,
    make_smooth_values,
)

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    b"\xff\x51",
    b"\xff\x52\x00\x0c",
    b"\xff\x53\x00\x09",
    b"\xff\x55",
    b"\xff\x5f",
    b"\xff\x90\x00\x0a",
    b"\xff\x93",
    b"\xff\xd9",
    b"\0\0\0\x01jp2c",
    b"pclr",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
)
_LARGEST = 1 << 20  # bytes of a tile that is read


def make_seeds() -> list[bytes]:
    values = make_smooth_values(12, 14)
    small, colours = (make_smooth_values(*shape, dtype="u1") for shape in ((12, 14), (12, 14, 3)))
    tiled = make_smooth_values(20, 17, dtype="u1")
    place = make_gml_box("1 2", "0 1", "-1 0", "urn:ogc:def:crs:EPSG::4326")
    palette = make_box(b"jp2h", make_box(b"pclr", b"\0\2\3\7\7\7" + bytes(6)))
    halves = [(small, 8, (1, 1)), *((np.ascontiguousarray(small[:, ::2]), 8, (2, 1)) for _ in range(2))]
    return [
        encode(values, levels=3),
        encode(small, levels=0),
        encode(colours),
        make_jp2_file(encode(small), place, palette),
        make_jp2_file(encode_tiles(tiled, tlm=0x50, side=8), place),
        *(encode_tiles(tiled, tlm=form, side=8) for form in (0x00, 0x10, 0x60)),
        encode_tiles(tiled, is_open=True, side=16),
        encode_tiles(make_smooth_values(10, 20, 2, dtype="i2"), is_open=True),
        join_components(halves),
    ]


def check_input(data: bytes) -> None:
    found = open_file(open_, data)
    if found is None:
        return
    files, keys = found
    for key in choose_chunks(keys):
        try:
            entry = files.run(keys.lookup(key))
            if isinstance(entry, Packed):
                assert all(span.stop is not None and span.stop <= len(data) for span in entry.spans)
            if entry is not None and (entry.size or 0) <= _LARGEST:
                files.bytes(entry)
        except (RefShardError, ValueError):  # the engine adds the key to these errors
            pass
