"""Tiles are decoded from their own tile parts, at every resolution level; other tile parts are errors."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from refshard_fs.errors import DamagedIndex
from tests.support.jp2_files import encode, encode_tiles, join_components, make_jp2_file, make_smooth_values
from tests.support.shards_in_memory import ROOT, Files


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("bands", [1, 2])
def test_edge_tiles_are_padded(dtype: str, bands: int) -> None:
    values = make_smooth_values(200, 150, bands, dtype=dtype)
    files = Files({ROOT: encode_tiles(values if bands > 1 else values[..., 0])})
    keyspace = files.open()
    key = "0/0.1.1" if bands > 1 else "0/1.1"
    tile = np.frombuffer(files.read(keyspace, key) or b"", f"<{dtype}").reshape(bands, 128, 128)
    np.testing.assert_array_equal(tile[:, :72, :22], np.moveaxis(values[128:, 128:], 2, 0))
    assert not tile[:, 72:].any()
    assert not tile[..., 22:].any()


def test_tile_part_of_another_tile_is_an_error() -> None:
    data = encode_tiles(make_smooth_values(200, 300), tlm=0x60)
    at = data.index(b"\xff\x90\x00\x0a\x00\x01")
    for place, number, reason in ((5, 3, "tile 3"), (10, 1, "found part 1"), (11, 2, "part 0 of tile 1, which has 2")):
        changed = bytearray(data)
        changed[at + place] = number
        files = Files({ROOT: bytes(changed)})
        keyspace = files.open()
        assert files.read(keyspace, "0/0.0")
        with pytest.raises((DamagedIndex, ValueError), match=reason):
            files.read(keyspace, "0/0.1")


def test_tile_without_a_tile_part_is_an_error() -> None:
    data = encode_tiles(make_smooth_values(200, 300))
    at = data.index(b"\xff\x90\x00\x0a\x00\x05")
    files = Files({ROOT: make_jp2_file(data[:at] + b"\xff\xd9")})
    keyspace = files.open()
    assert files.read(keyspace, "0/1.1")
    with pytest.raises(DamagedIndex, match="expected a tile part of tile 5"):
        files.read(keyspace, "0/1.2")


def test_tile_whose_coding_takes_too_much_memory_is_refused() -> None:
    data = encode_tiles(make_smooth_values(100, 100))
    at = data.index(b"\xff\x90\x00\x0a")
    style = data[data.index(b"\xff\x52") :][:14]
    style = style[:3] + b"\x0e\x01" + style[5:6] + b"\xff\xff" + style[8:] + b"\0\x11"
    (size,) = struct.unpack_from(">I", data, at + 6)
    changed = data[: at + 6] + struct.pack(">I", size + len(style)) + data[at + 10 : at + 12] + style + data[at + 12 :]
    files = Files({ROOT: changed})
    with pytest.raises((DamagedIndex, ValueError), match="expected at most"):
        files.read(files.open(), "0/0.0")


def test_tile_with_more_tile_parts_than_stated_is_read() -> None:
    data = encode_tiles(make_smooth_values(100, 100))
    # The first header states only one part, as old encoders do.
    more = struct.pack(">HHHIBB", 0xFF90, 10, 0, 14, 1, 1) + b"\xff\x93"
    files = Files({ROOT: data[:-2] + more + data[-2:]})
    tile = np.frombuffer(files.read(files.open(), "0/0.0") or b"", "<u2").reshape(100, 100)
    np.testing.assert_array_equal(tile, make_smooth_values(100, 100))


def test_coding_in_a_tile_part_overrides_the_main_header() -> None:
    values = make_smooth_values(100, 100)
    data = encode_tiles(values)
    at = data.index(b"\xff\x90\x00\x0a")
    style = data[data.index(b"\xff\x52") :][:14]
    component = b"\xff\x53\x00\x09\x00\x00" + style[9:]
    (size,) = struct.unpack_from(">I", data, at + 6)
    for segment, is_read in ((component, True), (style, True), (style[:5] + b"\4" + style[6:], False)):
        head = data[: at + 6] + struct.pack(">I", size + len(segment)) + data[at + 10 : at + 12]
        files = Files({ROOT: head + segment + data[at + 12 :]})
        keyspace = files.open()
        assert files.read(keyspace, "0/0.0") == values.tobytes()
        if is_read:
            plain = Files({ROOT: data})
            assert files.read(keyspace, "1/0.0") == plain.read(plain.open(), "1/0.0")
        else:
            with pytest.raises((DamagedIndex, ValueError), match="another order"):
                files.read(keyspace, "1/0.0")


def test_components_of_different_depths_are_read() -> None:
    rng = np.random.default_rng(1)
    parts = [(rng.integers(0, 1 << bits, (50, 40), "u2" if bits > 8 else "u1"), bits) for bits in (1, 8, 13)]
    files = Files({ROOT: join_components([(values, bits, (1, 1)) for values, bits in parts])})
    found = np.frombuffer(files.read(files.open(), "0/0.0.0") or b"", "<u2").reshape(3, 50, 40)
    np.testing.assert_array_equal(found, np.stack([values.astype("u2") for values, _ in parts]))


def test_components_with_and_without_signs_are_read() -> None:
    rng = np.random.default_rng(2)
    signed, unsigned = rng.integers(-4096, 4096, (50, 40), "i2"), rng.integers(0, 1 << 16, (50, 40), "u2")
    files = Files({ROOT: join_components([(signed, 13, (1, 1)), (unsigned, 16, (1, 1))])})
    found = np.frombuffer(files.read(files.open(), "0/0.0.0") or b"", "<i4").reshape(2, 50, 40)
    np.testing.assert_array_equal(found, np.stack([signed.astype("i4"), unsigned.astype("i4")]))


@pytest.mark.parametrize("steps", [(2, 1), (4, 4), (13, 3)])
def test_images_with_wide_steps_between_samples_are_read(steps: tuple[int, int]) -> None:
    values = make_smooth_values(45, 38)
    data = encode(values, 2)
    at = data.index(b"\xff\x51") + 6
    across, down = 38 * steps[0], 45 * steps[1]
    data = data.replace(b"\x0f\x01\x01", bytes([15, *steps]), 1)
    corners = (across - steps[0] + 1, down, 0, 0, across, down, 0, 0)
    files = Files({ROOT: data[:at] + struct.pack(">8I", *corners) + data[at + 32 :]})
    plain = Files({ROOT: encode(values, 2)})
    keyspace, expected = files.open(), plain.open()
    for level in range(3):
        assert files.read(keyspace, f"{level}/0.0") == plain.read(expected, f"{level}/0.0")
