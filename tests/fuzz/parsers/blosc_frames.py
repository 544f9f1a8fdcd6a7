"""Parse and decode Blosc frames: frames lie in the input and decode to the expected length, or raise ValueError."""

from __future__ import annotations

from contextlib import nullcontext as set_up

import numcodecs

from refshard_fs.formats.bcolz import blosc
from refshard_fs.formats.bcolz.blosc import ReframeRecipe, StoredFrame
from refshard_fs.formats.bcolz.bloscpack import parse_frames

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (b"\2\1", b"\2\1\2\1", b"\xff\xff\xff\x7f")
_LENGTH = 400


def make_seeds() -> list[bytes]:
    data = bytes(range(100)) * (_LENGTH // 100)
    kinds = [(codec, shuffle) for codec in ("blosclz", "lz4", "zlib", "zstd") for shuffle in (0, 1, 2)]
    found = [bytes(numcodecs.Blosc(codec, 5, shuffle).encode(data)) for codec, shuffle in kinds]
    found.append(blosc.make_plain_frame([data], _LENGTH, 4))
    return [*found, found[0] + found[5]]


def check_input(data: bytes) -> None:
    try:
        header = blosc.parse_frame_header(data)
    except ValueError:
        return
    frames = parse_frames(data, 8, 0)
    assert frames[0] == header
    assert sum(frame.stored_size for frame in frames[:-1]) <= len(data)
    frame = data[: header.stored_size]
    if header.length > 1 << 20:
        return
    try:
        assert len(blosc.decode_frame(frame, header.length)) == header.length
        recipe = ReframeRecipe((StoredFrame(0, header.stored_size, header.length),), header.length + 8, 1)
        assert blosc.parse_frame_header(recipe.make(frame)).length == header.length + 8
    except ValueError:
        pass
