"""Compressed documents are decompressed from parts of any size, with a limit; damage raises an error."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable

import pytest
from numcodecs.zstd import Zstd

from refshard_fs.core import compression as inflate
from refshard_fs.core.compression import DamagedStream, Inflate, is_compressed

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: bytes(Zstd().encode(data)),
}
TEXT = b"".join(b'"key-%d":["s3://bucket/file",%d,%d],' % (i, i * 7919, i) for i in range(5000))


@pytest.fixture(params=COMPRESS)
def compress(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    return COMPRESS[request.param]


def inflate_pieces(data: bytes, piece: int = 1 << 20) -> list[bytes]:
    stream = Inflate(data)
    out = [bytes(part) for start in range(0, len(data), piece) for part in stream.feed(data[start : start + piece])]
    return out + list(map(bytes, stream.feed(b"", is_last=True)))


@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
def test_stream_is_inflated_from_small_and_large_pieces(compress: Callable[[bytes], bytes], piece: int) -> None:
    data = compress(TEXT)
    assert is_compressed(data)
    assert b"".join(inflate_pieces(data, piece)) == TEXT


@pytest.mark.parametrize("cut", [7, 30, 500, -1])
def test_stream_cut_short_is_an_error(compress: Callable[[bytes], bytes], cut: int) -> None:
    with pytest.raises(DamagedStream):
        inflate_pieces(compress(TEXT)[:cut])


def test_flipped_bytes_raise_only_damaged_stream(compress: Callable[[bytes], bytes]) -> None:
    data = compress(TEXT)
    for at in range(8, len(data), max(1, len(data) // 60)):
        harmed = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        try:
            inflate_pieces(harmed)
        except DamagedStream:
            pass


@pytest.mark.parametrize("name", COMPRESS)
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_consecutive_streams_are_one_document(name: str, piece: int) -> None:
    text = TEXT[:20_000]
    data = COMPRESS[name](text[:100]) + COMPRESS[name](text[100:])
    assert b"".join(inflate_pieces(data, piece)) == text
    assert b"".join(inflate_pieces(data + bytes(8), piece)) == text
    with pytest.raises(DamagedStream):
        inflate_pieces(data + b"something else", piece)


@pytest.mark.parametrize("name", COMPRESS)
def test_output_comes_in_parts_of_bounded_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "STEP", 10_000)
    parts = inflate_pieces(COMPRESS[name](bytes(1_000_000)))
    assert sum(map(len, parts)) == 1_000_000
    assert max(map(len, parts)) <= 10_000


def test_uncompressed_document_is_returned_unchanged() -> None:
    assert list(Inflate(b'{"a":"b"}').feed(b'{"a":"b"}')) == [b'{"a":"b"}']
    assert not is_compressed(b"")
