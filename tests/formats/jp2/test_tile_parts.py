"""Tile parts are located by tables or by their chain, in few rounds, even if other bytes look like headers."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Span
from refshard_fs.formats.jp2 import tile_parts
from refshard_fs.formats.jp2.tile_parts import TilePart, TileParts, TilePartScan, find_tile_parts, parse_lengths
from tests.support.jp2_files import make_table
from tests.support.shards_in_memory import ROOT, Files

MARK = b"\xff\x90\x00\x0a"


def make_chain(sizes: list[int], filled: bytes = b"") -> tuple[bytes, list[int]]:
    """Return tile parts of ``sizes`` bytes, one for each tile, which contain ``filled``; and their positions."""
    parts = [
        TilePart(tile, size, 0, 1).encode() + b"\xff\x93" + filled + bytes(size - 14 - len(filled))
        for tile, size in enumerate(sizes)
    ]
    return b"".join(parts) + b"\xff\xd9", [sum(sizes[:tile]) for tile in range(len(sizes))]


def find_parts(data: bytes, tiles: int) -> tuple[TileParts, Files]:
    files = Files({ROOT: data})
    file = FileBytes(ROOT, Span(ROOT, 0, len(data)), len(data), b"")
    return files.run(find_tile_parts(file, 0, len(data), tiles)), files


@pytest.mark.parametrize("filled", [b"", MARK + bytes(20), TilePart(3, 999, 0, 1).encode() * 3])
def test_long_chain_is_read_from_several_places(monkeypatch: pytest.MonkeyPatch, filled: bytes) -> None:
    monkeypatch.setattr(tile_parts, "NEAR", 1 << 6)
    monkeypatch.setattr(tile_parts, "SEARCHED", 1 << 9)
    sizes = np.random.default_rng(0).integers(3000, 9000, 121).tolist()
    data, starts = make_chain(sizes, filled)
    found, files = find_parts(data, len(sizes))
    assert found.starts.tolist() == starts
    assert found.sizes.tolist() == sizes
    assert files.rounds < 50
    assert sum(stop - start for _, start, stop in files.wanted) < len(data) / 3


def test_short_tile_parts_are_read_together() -> None:
    data, starts = make_chain([3000] * 300)
    found, files = find_parts(data, 300)
    assert (files.rounds, found.starts.tolist()) == (1, starts)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (MARK + b"\0\2", MARK + b"\0\7", "tile 7 .*a tile below 4"),
        (MARK + b"\0\2", b"\0" * 6, "expected the header of a tile part"),
        (MARK + b"\0\2" + struct.pack(">I", 40), MARK + b"\0\2" + struct.pack(">I", 13), "13 bytes"),
        (MARK + b"\0\2" + struct.pack(">I", 40), MARK + b"\0\2" + struct.pack(">I", 400), "cut short"),
    ],
)
def test_damaged_chain_is_an_error(old: bytes, new: bytes, reason: str) -> None:
    data, _ = make_chain([40] * 4)
    with pytest.raises(ValueError, match=reason):
        find_parts(data.replace(old, new), 4)


@pytest.mark.parametrize("form", [0, 0x10, 0x20, 0x40, 0x50, 0x60])
def test_tables_of_lengths_are_parsed_in_every_form(form: int) -> None:
    sizes = [40, 50, 60]
    table = make_table(form, list(enumerate(sizes)))
    found = parse_lengths([table], 100, 252, 3)
    assert found is not None
    assert [found.select_tile(tile) for tile in range(4)] == [[(100, 40)], [(140, 50)], [(190, 60)], []]
    for stop, tiles in ((249, 3), (270, 3), (252, 2)):
        assert parse_lengths([table], 100, stop, tiles) is None, "it does not describe these bytes"
    assert parse_lengths([table[:-1]], 100, 252, 3) is None
    assert parse_lengths([], 100, 252, 3) is None


def test_tables_and_tile_parts_out_of_order_are_read() -> None:
    first, second = make_table(0x60, [(1, 40), (0, 50)]), make_table(0x60, [(1, 60), (0, 20)])
    second = second[:4] + b"\1" + second[5:]
    found = parse_lengths([second, first], 0, 172, 2)
    assert found is not None
    assert found.select_tile(1) == [(0, 40), (90, 60)]
    scan = TilePartScan(b"", 172, 0, 172, 2)
    again = scan.unpack(memoryview(b"".join(scan.pack(found))))
    assert again.select_tile(0) == found.select_tile(0) == [(40, 50), (150, 20)]
    assert math.isclose(again.nbytes, 96)
