"""CRC-32C gives the values of RFC 3720, and equals its bitwise definition for many lengths."""

from __future__ import annotations

import random

import pytest

from refshard_fs.core.checksums import crc32c


def bitwise(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_crc32c_has_the_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def test_crc32c_of_many_lengths_equals_its_bitwise_definition() -> None:
    source = random.Random(0).randbytes(700)
    for length in [*range(80), 255, 256, 257, 511, 699, 700]:
        assert crc32c(source[:length]) == bitwise(source[:length]), length
        assert crc32c(memoryview(bytearray(source))[7:length], 0x1234) == crc32c(source[7:length], 0x1234)


def test_crc32c_continues_from_an_earlier_checksum() -> None:
    data = random.Random(1).randbytes((1 << 20) + 13)
    whole = crc32c(data)
    for cut in (0, 1, 5, 1 << 20, len(data)):
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole
