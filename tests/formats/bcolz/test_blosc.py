"""Blosc frames are decoded and checked: the result is the bytes that were written, or an error."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import blosc

from refshard_fs import ManifestError, ReferenceNotReachable, RefShardError, RefShardFileSystem
from refshard_fs.formats.bcolz.blosc import CHECKSUMS
from tests.support.blosc_samples import read_sample
from tests.support.blosc_sources import PLAIN, TABLE, VALUES, decode_file, make_numpy_metadata, pack_values, put
from tests.support.shards_in_memory import ROOT, Files

pytestmark = pytest.mark.usefixtures("large_files")


@pytest.mark.parametrize("checksum", range(9))
@pytest.mark.parametrize("offsets", [True, False])
def test_checksums_are_verified_on_request(checksum: int, offsets: bool) -> None:
    values = np.random.default_rng(checksum).integers(0, 255, 2500, dtype="u1")
    data = pack_values(values, 1000, checksum=checksum, offsets=offsets)
    assert decode_file(data) == decode_file(data, verify=True) == values.tobytes()
    files = Files({ROOT: data[:-200] + bytes([data[-200] ^ 1]) + data[-199:]})  # a flipped bit in the last frame
    assert files.read(files.open(), "data/2")
    keyspace = files.open(verify=True)
    if checksum:
        with pytest.raises(ValueError, match=f"{CHECKSUMS[checksum].name} checksum"):
            files.read(keyspace, "data/2")
    assert files.read(keyspace, "data/1")


def test_wrong_checksum_is_not_a_missing_chunk(tmp_path: Any) -> None:
    data = bytearray(read_sample("nd_crc32.blp").path.read_bytes())
    frame = read_sample("nd_crc32.blp").expected["header"]["chunks"][1]
    data[frame["offset"] + 300] ^= 4
    (tmp_path / "x.blp").write_bytes(data)
    fs = RefShardFileSystem(fo=str(tmp_path / "x.blp"), verify=True)
    with pytest.raises(ReferenceNotReachable, match="'data/1'.*crc32 checksum"):
        fs.cat_file("data/1")
    reading = pytest.importorskip("tests.support.zarr_reading")
    with pytest.raises(ReferenceNotReachable, match="crc32 checksum"):
        reading.open_group(fs)["data"][:]


def test_small_frames_are_read_together() -> None:
    small = pack_values(np.arange(20_000, dtype="<i2"), 20, offsets=False, checksum=1)
    files = Files({ROOT: small})
    keyspace = files.open()
    assert blosc.decompress(files.read(keyspace, "data/1999")) == np.arange(19990, 20000, dtype="<i2").tobytes()
    assert len(files.wanted) < 6
    noise = np.random.default_rng(1).integers(0, 2**62, 100_000)
    large = pack_values(noise, 80_000, offsets=False, checksum=1)
    files = Files({ROOT: large})
    keyspace = files.open()
    files.wanted.clear()
    assert blosc.decompress(files.read(keyspace, "data/9")) == noise[90_000:].tobytes()
    assert [stop - start for _, start, stop in files.wanted] == [16] * 9 + [80_016]
    files.wanted.clear()
    assert blosc.decompress(files.read(keyspace, "data/4")) == noise[40_000:50_000].tobytes()
    assert len(files.wanted) == 1  # the places of frames are known


@pytest.mark.parametrize(
    ("position", "new", "field"),
    [
        (5, b"\x07", "options"), (6, b"\x09", "checksum"), (8, struct.pack("<i", -1), "chunk_size"),
        (8, struct.pack("<i", 0), "last_chunk"), (8, struct.pack("<i", 2**31 - 1), "chunk_size"),
        (12, struct.pack("<i", -1), "last_chunk"), (12, struct.pack("<i", 8001), "last_chunk"),
        (12, struct.pack("<i", 0), "last_chunk"), (12, struct.pack("<i", 3999), "shape"),
        (16, struct.pack("<q", -1), "nchunks"), (16, struct.pack("<q", 2**62), "nchunks"),
        (16, struct.pack("<q", 2), "shape"), (16, struct.pack("<q", 0), "shape"),
        (24, struct.pack("<q", -1), "max_app_chunks"), (24, struct.pack("<q", 2**62), "max_app_chunks"),
        (32, b"YAML", "magic"), (40, b"\1", "options"), (41, b"\x09", "checksum"), (42, b"\2", "codec"),
        (44, struct.pack("<I", 2**31), "meta_size"), (44, struct.pack("<I", 3), "meta_size"),
        (48, struct.pack("<I", 1), "max_meta_size"), (48, struct.pack("<I", 2**32 - 1), "max_meta_size"),
        (52, struct.pack("<I", 2**32 - 1), "meta_comp_size"), (52, struct.pack("<I", 10), "checksum"),
        (70, b"\xff", "adler32 checksum"), (TABLE - 1, b"\xff", "adler32 checksum"),
    ],
)  # fmt: skip
def test_forged_header_error_names_the_field(position: int, new: bytes, field: str) -> None:
    with pytest.raises(ManifestError, match=field):
        Files({ROOT: put(position, new)}).open()


@given(st.integers(32, len(PLAIN) * 8 - 1), st.booleans())
def test_flipped_bit_gives_an_error_or_the_values_if_verified(bit: int, has_no_offsets: bool) -> None:
    data = (
        pack_values(VALUES, 8000, checksum=4, offsets=False, metadata=make_numpy_metadata(VALUES))
        if has_no_offsets
        else PLAIN
    )
    damaged = bytearray(data)
    damaged[bit // 8 % len(data)] ^= 1 << bit % 8
    try:
        actual = decode_file(bytes(damaged), verify=True)
    except (RefShardError, ValueError):
        return
    assert actual == VALUES.tobytes()
