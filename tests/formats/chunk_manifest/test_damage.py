"""Truncated chunk manifests and forged numbers in them give errors; checksums detect flipped bits."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardError, RefShardFileSystem
from tests.support.chunk_manifests import make_metadata, open_source

TARGET = bytes(range(64))
MANIFEST = {
    "0": {"path": "target", "offset": 8, "length": 2},
    "1": {"path": "target", "offset": 30, "length": 2, "checksum": "crc32:" + "0" * 8},
    "2": {"data": "ab"},
    "3": {},
}
RIGHT = {"0": b"\x08\x09", "2": b"ab"}


def make_source(folder: Path, manifest: bytes, document: bytes | None = None) -> RefShardFileSystem:
    folder.mkdir(exist_ok=True)
    (folder / "target").write_bytes(TARGET)
    (folder / "manifest.json").write_bytes(manifest)
    (folder / "zarr.json").write_bytes(json.dumps(make_metadata((8,), (2,))).encode() if document is None else document)
    fs = open_source(str(folder), retries=0)
    fs.invalidate_cache()  # the file is written again so soon that its time may not change
    return fs


def read(fs: RefShardFileSystem, number: str) -> bytes | str:
    try:
        return bytes(fs.cat_file(f"c/{number}"))
    except FileNotFoundError:
        return "missing"
    except (RefShardError, OSError):
        return "error"


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_truncated_manifest_gives_only_errors(step: int, tmp_path: Path) -> None:
    whole = json.dumps(MANIFEST).encode()
    for length in range(0, len(whole), step):
        fs = make_source(tmp_path / "a", whole[:length])
        assert {read(fs, number) for number in "0123"} == {"error"}, length


@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.slow)])
def test_truncated_inline_manifest_gives_no_chunk(step: int, tmp_path: Path) -> None:
    whole = json.dumps(make_metadata((8,), (2,), MANIFEST)).encode()
    assert read(make_source(tmp_path / "a", b"{}", whole), "0") == RIGHT["0"]
    for length in range(1, len(whole), step):
        fs = make_source(tmp_path / "a", b"{}", whole[:length])
        assert {read(fs, number) for number in "0123"} <= {"error", "missing"}, length
        with pytest.raises((ValueError, RefShardError)):  # the array cannot be opened, so its chunks are not filled
            json.loads(fs.cat_file("zarr.json"))


NUMBERS = [
    -(2**63),
    -1,
    0,
    1,
    63,
    64,
    65,
    2**31,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    2**70,
    1e300,
    0.5,
    True,
    None,
    "8",
]


@pytest.mark.parametrize("field", ["offset", "length"])
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_offsets_and_lengths_give_the_right_bytes_or_an_error(field: str, number: Any, tmp_path: Path) -> None:
    entry = {"path": "target", "offset": 8, "length": 2, field: number}
    got = read(make_source(tmp_path / "a", json.dumps({"0": entry}).encode()), "0")
    is_valid = type(number) is int and number >= 0
    offset, length = (number, 2) if field == "offset" else (8, number)
    if is_valid and offset + length <= len(TARGET):
        assert got == TARGET[offset : offset + length]
    elif number is None and got != "error":  # null is like an absent field
        assert got == (TARGET[:2] if field == "offset" else TARGET[8:])
    else:
        assert got == "error"


def test_checksum_detects_a_flipped_bit_in_the_target(tmp_path: Path) -> None:
    entry = {"path": "target", "offset": 8, "length": 16, "checksum": f"crc32:{zlib.crc32(TARGET[8:24]):08x}"}
    manifest = json.dumps({"0": entry}).encode()
    fs = make_source(tmp_path / "a", manifest)
    assert read(fs, "0") == TARGET[8:24]
    for bit in range(64, 192, 9):
        damaged = bytearray(TARGET)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "a" / "target").write_bytes(damaged)
        fs.invalidate_cache()
        assert read(fs, "0") == "error"


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_flipped_bit_in_a_checked_entry_gives_no_wrong_bytes(step: int, tmp_path: Path) -> None:
    """If the flipped bit is in the name of the field "checksum", wrong bytes are not noticed."""
    entry = {"path": "target", "offset": 8, "length": 16, "checksum": f"crc32:{zlib.crc32(TARGET[8:24]):08x}"}
    whole = json.dumps({"0": entry}).encode()
    for bit in range(0, len(whole) * 8, step):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        got = read(make_source(tmp_path / "a", bytes(damaged)), "0")
        if got == "missing":
            assert b'"0"' not in damaged, bit  # the flipped bit made it the entry of another chunk
        elif got != "error":
            assert got == TARGET[8:24] or b'"checksum"' not in damaged, bit
