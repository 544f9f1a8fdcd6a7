"""Open JPEG 2000 files: tiles lie in the file and have a bounded size, or an error of this package is raised."""

from __future__ import annotations

from contextlib import nullcontext as set_up

from refshard_fs.core.model import Packed
from refshard_fs.errors import RefShardError
from refshard_fs.formats.jp2.source import open_
from tests.fuzz.array_files import choose_chunks, open_file
from tests.support.jp2_files import encode, encode_tiles, make_box, make_gml_box, make_jp2_file, make_smooth_values

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
    values = make_smooth_values(40, 50)
    place = make_gml_box("1 2", "0 1", "-1 0", "urn:ogc:def:crs:EPSG::4326")
    palette = make_box(b"jp2h", make_box(b"pclr", b"\0\2\3\7\7\7" + bytes(6)))
    return [
        encode(values, levels=3),
        make_jp2_file(encode_tiles(make_smooth_values(140, 150, dtype="u1"), tlm=0x50), place, palette),
        encode_tiles(make_smooth_values(10, 20, 2, dtype="i2"), is_open=True),
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
