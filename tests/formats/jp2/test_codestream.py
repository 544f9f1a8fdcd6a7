"""Main headers of JPEG 2000: tiles at every resolution level, and numbers that contradict each other."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest

from refshard_fs.errors import RefShardError
from refshard_fs.formats.jp2.codestream import Size, parse_header
from tests.support.jp2_files import encode, encode_tiles, make_smooth_values
from tests.support.shards_in_memory import ROOT, Files

ONE = b"\x07\x01\x01"


def test_tiles_have_places_and_sizes_at_several_resolutions() -> None:
    size = Size(0, (1005, 700), (5, 0), (256, 256), (5, 0), ONE)
    assert size.tiles == (4, 3)
    assert [size.compute_shape(level) for level in (0, 1, 3)] == [(700, 1000), (350, 500), (88, 125)]
    assert [size.choose_chunks(level) for level in (0, 3, 9)] == [(256, 256), (32, 32), None]
    tile = size.select_tile(7, 3)
    assert (tile.start, tile.stop, tile.tiles) == ((97, 32), (126, 64), (1, 1))
    assert size._replace(start=(9, 0)).choose_chunks(0) is None, "the first tile is narrower"
    assert size._replace(tile=(2000, 2000), start=(9, 1)).choose_chunks(2) == (174, 249)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (struct.pack(">I", 300), struct.pack(">I", 0), "its start before its end"),
        (struct.pack(">II", 300, 200), struct.pack(">II", 1 << 31, 1 << 31), "tiles: expected at most 65535"),
        (b"\xff\x52", b"\xff\x5c", "0 segments COD"),
        (b"\xff\x52\x00\x0c\x00\x00", b"\xff\x52\x00\x0c\x00\x07", "order 7 of packets"),
        (b"\x00\x01\x0f\x01\x01", b"\x00\x02\x0f\x01\x01", "segment SIZ has 41 bytes for 2 components"),
        (b"\xff\x52\x00\x0c", b"\xff\x52\x00\x0d", "expected a marker segment"),
    ],
)
def test_header_with_impossible_numbers_is_refused(old: bytes, new: bytes, reason: str) -> None:
    data = encode_tiles(make_smooth_values(200, 300))
    assert old in data
    with pytest.raises(RefShardError, match=reason):
        Files({ROOT: data.replace(old, new, 1)}).open()


def test_tile_that_takes_too_much_memory_is_refused() -> None:
    data = encode(np.zeros((64, 64), "u1"))
    large = struct.pack(">II", 1 << 15, 1 << 15)
    for old, new in (
        (struct.pack(">II", 64, 64), large),
        (b"\xff\x52\x00\x0c\x00\x00\x00\x01", b"\xff\x52\x00\x0e\x01\x00\xff\xff"),
    ):
        assert old in data
        changed = data.replace(old, new)
        if new[-1:] == b"\xff":  # 65535 layers, in precincts of two by two samples
            at = changed.index(new) + len(new)
            changed = changed[: at + 6] + b"\x00\x11" + changed[at + 6 :]
        with pytest.raises(RefShardError, match="expected at most"):
            Files({ROOT: changed}).open()


def test_tile_of_too_many_empty_packets_is_refused() -> None:
    """The decoder takes 50 ns for each packet: a minute for a tile in a file of 256 kB that states many layers."""
    data = encode(np.zeros((64, 64), "u1"), levels=5)
    at = data.index(b"\xff\x52") + 6  # in the segment COD, with the number of layers in 2 bytes
    files = [data[:at] + layers.to_bytes(2) + data[at + 2 :] for layers in (40_000, 0xFFFF)]
    deep = [file[: at + 3] + b"\x0a" + file[at + 4 :] for file in files]
    for file in (*files, deep[0]):
        assert Files({ROOT: file}).open().grids
    with pytest.raises(RefShardError, match=r"costs as much as 92274688 bytes.* in 65535 layers\): expected at most"):
        Files({ROOT: deep[1]}).open()


def test_packets_not_by_resolution_need_a_skipping_decoder() -> None:
    data = encode(make_smooth_values(64, 64), levels=3)
    at = data.index(b"\xff\x52")
    for order, layers, levels in ((0, 1, 3), (1, 5, 3), (2, 5, 3), (0, 2, 0), (3, 1, 0), (4, 1, 0)):
        header = parse_header(data[: at + 5] + struct.pack(">BH", order, layers) + data[at + 8 :], 0)
        assert header.count_levels(has_skipping_decoder=False)[0] == levels
        assert header.count_levels(has_skipping_decoder=True) == (3, "")
    far = header.size._replace(start=(4, 4), first_tile=(4, 4))
    moved = msgspec.structs.replace(header, size=far).count_levels(has_skipping_decoder=True)
    assert moved[0] == 2, moved


def test_lower_resolutions_of_tiles_with_odd_sides_are_not_shown() -> None:
    header = parse_header(encode(make_smooth_values(64, 64), levels=3), 0)
    one, several = header.size._replace(stop=(5, 5), tile=(5, 5)), header.size._replace(stop=(20, 20), tile=(3, 3))
    assert msgspec.structs.replace(header, size=one).count_levels(has_skipping_decoder=True) == (3, "")
    levels, reason = msgspec.structs.replace(header, size=several).count_levels(has_skipping_decoder=True)
    assert (levels, "cannot be divided by 4" in reason) == (1, True)


def test_marker_without_a_segment_is_skipped() -> None:
    data = encode(make_smooth_values(64, 64))
    at = data.index(b"\xff\x52")
    assert parse_header(data[:at] + b"\xff\x30" + data[at:], 0).segments == parse_header(data, 0).segments
