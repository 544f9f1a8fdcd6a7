"""Images whose tiles cannot be chunks are decoded as one chunk, at every resolution level."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from refshard_fs import ManifestError
from refshard_fs.errors import DamagedIndex
from refshard_fs.formats.jp2 import whole
from refshard_fs.formats.jp2.tiles import has_skipping_decoder
from tests.support.jp2_files import encode, encode_tiles, join_components, make_smooth_values
from tests.support.shards_in_memory import ROOT, Files


def test_image_whose_first_tiles_are_smaller_is_one_chunk() -> None:
    values = make_smooth_values(200, 250)
    files = Files({ROOT: encode_tiles(values, left=64)})
    keyspace = files.open()
    np.testing.assert_array_equal(np.frombuffer(files.read(keyspace, "0/0.0") or b"", "<u2").reshape(200, 250), values)
    if has_skipping_decoder():
        assert len(files.read(keyspace, "1/0.0") or b"") == 2 * 100 * 125


@pytest.mark.parametrize("down", [1, 2])
def test_subsampled_colours_become_rgb(down: int) -> None:
    luma = make_smooth_values(40, 60, dtype="u1")
    blue, red = np.full((40 // down, 30), 90, "u1"), np.full((40 // down, 30), 200, "u1")
    stream = join_components([(luma, 8, (1, 1)), (blue, 8, (2, down)), (red, 8, (2, down))])
    files = Files({ROOT: stream})
    found = np.frombuffer(files.read(files.open(), "0/0.0.0") or b"", "u1").reshape(3, 40, 60)
    factors = (1.402 * 72, -0.344 * -38 - 0.714 * 72, 1.772 * -38)
    expected = [np.clip(luma + factor, 0, 255) for factor in factors]
    assert np.abs(found - np.stack(expected)).max() <= 2  # libraries round differently


def test_level_whose_tiles_cannot_be_chunks_is_one_chunk() -> None:
    if not has_skipping_decoder():
        pytest.skip("this imagecodecs cannot skip resolutions")
    data = encode(make_smooth_values(64, 64), 3)
    at = data.index(b"\xff\x51") + 6
    odd = struct.pack(">8I", 64, 64, 0, 0, 63, 64, 0, 0)  # the second tile, of one column, is missing
    files = Files({ROOT: data[:at] + odd + data[at + 32 :]})
    keyspace = files.open()
    assert b'"chunks":[64,63]' in (files.read(keyspace, "0/.zarray") or b"").replace(b" ", b"")
    assert b'"chunks":[32,32]' in (files.read(keyspace, "1/.zarray") or b"").replace(b" ", b"")


def test_images_that_take_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LARGEST", 1 << 10)
    with pytest.raises(ManifestError, match="decoding it whole takes 100000 bytes: expected at most 1024"):
        Files({ROOT: encode_tiles(make_smooth_values(200, 250), left=64)}).open()
    monkeypatch.undo()
    data = encode_tiles(make_smooth_values(200, 250), left=64)
    at = data.index(b"\xff\x90\x00\x0a\x00\x01")
    style = data[data.index(b"\xff\x52") :][:14]
    style = style[:3] + b"\x0e\x01" + style[5:6] + b"\xff\xff" + style[8:] + b"\0\x11"
    (size,) = struct.unpack_from(">I", data, at + 6)
    changed = data[: at + 6] + struct.pack(">I", size + len(style)) + data[at + 10 : at + 12] + style + data[at + 12 :]
    files = Files({ROOT: changed})
    with pytest.raises((DamagedIndex, ValueError), match="expected at most"):
        files.read(files.open(), "0/0.0")


def test_damaged_tile_part_is_an_error() -> None:
    data = encode_tiles(make_smooth_values(200, 250), left=64)
    at = data.index(b"\xff\x90\x00\x0a\x00\x01")
    for changed in (data[:at] + b"\0" * 12 + data[at + 12 :], data[: at + 13]):
        files = Files({ROOT: changed})
        with pytest.raises((DamagedIndex, ValueError), match="tile part"):
            files.read(files.open(), "0/0.0")
