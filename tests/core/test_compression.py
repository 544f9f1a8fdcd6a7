"""The decoded size of a chunk is checked before decoding, and is at most the size in its metadata."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import struct
import sys
import zlib
from typing import Any

import numcodecs
import numpy as np
import pytest

import refshard_fs
from refshard_fs.core import compression
from refshard_fs.core.compression import (
    MOST,
    add_up,
    add_up_rows,
    check_chunk,
    decompress,
    import_zstd,
    unpack_bits,
    unshuffle,
)
from refshard_fs.core.zarrmeta import ArrayMeta, array_meta
from tests.support.memory import check_peak

pytestmark = pytest.mark.case(id="P27")

ZEROS = bytes(4 << 20)
DATA = np.arange(4, dtype="<i8")


def meta_of(compressor: Any = None, filters: Any = None, **more: Any) -> ArrayMeta:
    doc = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i8", "order": "C", "fill_value": 0}
    meta = array_meta({**doc, "compressor": compressor, "filters": filters, **more}, "x")
    assert meta is not None
    return meta


def v3_of(codecs: list[Any], data_type: str = "int64") -> ArrayMeta:
    grid = {"name": "regular", "configuration": {"chunk_shape": [4]}}
    encoding = {"name": "default", "configuration": {"separator": "/"}}
    doc = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": data_type, "chunk_grid": grid}
    meta = array_meta({**doc, "chunk_key_encoding": encoding, "fill_value": 0, "codecs": codecs}, "x")
    assert meta is not None
    return meta


CODECS = ["gzip", "zlib", "bz2", "lzma", "zstd", "lz4", "blosc"]


@pytest.mark.parametrize("name", CODECS)
def test_chunk_that_decodes_to_more_than_declared_is_refused(name: str) -> None:
    meta, codec = meta_of({"id": name}), numcodecs.get_codec({"id": name})
    check_chunk(meta, bytes(codec.encode(DATA)))
    with pytest.raises(ValueError, match=r"decode to too many bytes: expected at most|its header states"):
        check_chunk(meta, bytes(codec.encode(ZEROS)))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("gzip", gzip.compress(ZEROS)),
        ("zstd", bytes(numcodecs.Zstd().encode(ZEROS))),
        ("blosc", bytes(numcodecs.Blosc().encode(ZEROS))),
    ],
)
def test_v3_chunk_that_decodes_to_more_than_declared_is_refused(name: str, data: bytes) -> None:
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    with pytest.raises(ValueError, match=r"decode to too many bytes: expected at most|its header states"):
        check_chunk(v3_of([little, {"name": name, "configuration": {}}]), data)
    with pytest.raises(ValueError, match=r"decode to too many bytes: expected at most|its header states"):
        check_chunk(v3_of([little, {"name": name}, "crc32c"]), data + bytes(4))


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b", zlib.compress(b"x"), b"x" * 20])
@pytest.mark.parametrize("name", CODECS)
def test_check_of_damaged_chunk_raises_only_value_errors(name: str, data: bytes) -> None:
    try:
        check_chunk(meta_of({"id": name}), data)
    except ValueError as e:
        assert str(e) or name in ("bz2", "lzma")


@pytest.mark.parametrize("name", ["vlen-utf8", "vlen-bytes"])
def test_more_texts_than_chunk_elements_are_refused(name: str) -> None:
    codec = {"id": name}
    texts = np.array(["a", "bb", "", "ü"], object)
    right = bytes(numcodecs.VLenUTF8().encode(texts))
    wrong = struct.pack("<I", 2**29) + right[4:]
    for compressor, encode in (
        (None, bytes),
        ({"id": "zstd"}, numcodecs.Zstd().encode),
        ({"id": "gzip"}, gzip.compress),
    ):
        meta = meta_of(compressor, [codec], dtype="|O", fill_value="")
        check_chunk(meta, bytes(encode(right)))
        with pytest.raises(ValueError, match="elements"):
            check_chunk(meta, bytes(encode(wrong)))
    with pytest.raises(ValueError, match="elements"):
        check_chunk(v3_of([{"name": "vlen-utf8"}], "string"), wrong)


def test_chunk_larger_than_the_limit_is_refused() -> None:
    for more in ({"chunks": [MOST]}, {"dtype": "<U100000000", "fill_value": ""}):
        with pytest.raises(ValueError, match="bytes: expected at most"):
            check_chunk(meta_of(**more), b"x")


def test_check_and_concat_refuse_chunk_that_decodes_to_more() -> None:
    data = gzip.compress(bytes(64 << 20))
    meta = json.dumps(dict(meta_of({"id": "gzip"}).raw))
    refs = {".zgroup": '{"zarr_format": 2}', "t/.zarray": meta, "t/.zattrs": '{"_ARRAY_DIMENSIONS": ["t"]}'}
    encoded = "base64:" + base64.b64encode(data).decode()
    report = refshard_fs.check(refshard_fs.RefShardFileSystem({**refs, "t/0": encoded}), "full")
    assert [finding.kind for finding in report.findings] == ["undecodable"]
    with pytest.raises(ValueError, match="decode to too many bytes: expected at most"):
        refshard_fs.concat([{**refs, "t/0": encoded}] * 2, dim="t")


def test_check_reports_chunks_too_large_to_decode() -> None:
    meta = json.dumps(dict(meta_of(chunks=[2 * MOST], shape=[2 * MOST]).raw))
    refs = {".zgroup": '{"zarr_format": 2}', "t/.zarray": meta, "t/0": "x"}
    report = refshard_fs.check(refshard_fs.RefShardFileSystem(refs), "full")
    assert [(finding.severity, finding.kind) for finding in report.findings] == [("warning", "not-decoded")]


@pytest.mark.parametrize(
    ("name", "compress"),
    [("gzip", gzip.compress), ("bz2", bz2.compress), ("lzma", lzma.compress), ("zstd", numcodecs.Zstd().encode)],
)
def test_size_and_number_of_a_chunks_streams_are_limited(name: str, compress: Any) -> None:
    codec = {"id": name}
    little = numcodecs.Zstd().encode if name == "zstd" else compress
    check_chunk(meta_of(codec), bytes(little(DATA.tobytes())) + bytes(8))
    if name == "zstd":  # the first frame does not state its size
        packer = import_zstd().ZstdCompressor()
        first, rest = packer.compress(b"12345678") + packer.flush(), bytes(compress(ZEROS))
    else:
        first, rest = compress(b"12345678"), compress(ZEROS)
    with pytest.raises(ValueError, match="decode to too many bytes: expected at most"):
        check_chunk(meta_of(codec), first + rest)
    with pytest.raises(ValueError, match="at most 64 compressed streams"):
        check_chunk(meta_of(codec), first * 65)


@pytest.mark.parametrize(
    "make", [zlib.compress, bz2.compress, lzma.compress, lambda data: bytes(numcodecs.Zstd().encode(data))]
)
def test_decompress_makes_no_second_copy_of_the_result(make: Any) -> None:
    size = 32 << 20
    data = make(bytes(size))
    stream = {"x": zlib.decompressobj, "B": bz2.BZ2Decompressor, "\xfd": lzma.LZMADecompressor}.get(
        chr(data[0]), import_zstd().ZstdDecompressor
    )()
    with check_peak(size * 3 // 2):
        assert len(decompress(stream, data, size)) == size


@pytest.mark.parametrize("bits", [*range(1, 34), 40, 48, 63, 64])
@pytest.mark.parametrize("by", ["imagecodecs", "numpy"])
def test_bits_are_unpacked_with_and_without_imagecodecs(bits: int, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "numpy":
        monkeypatch.setattr("refshard_fs.core.compression._find_unpacker", lambda bits, dtype: None)
        monkeypatch.setattr("refshard_fs.core.compression._UNPACKED", 64)
    rng = np.random.default_rng(bits)
    for count in (1, 7, 8, 9, 1000):
        numbers = rng.integers(0, 1 << bits, count, dtype="u8")
        text = "".join(f"{number:0{bits}b}" for number in numbers.tolist())
        data = int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8))
        assert np.array_equal(unpack_bits(data + b"more", bits, count), numbers)
        with pytest.raises(ValueError, match=f"{count} values of {bits} bits"):
            unpack_bits(data[:-1], bits, count)


@pytest.mark.parametrize("is_installed", [True, False])
def test_add_up_sums_in_place(is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_installed:
        monkeypatch.setitem(sys.modules, "imagecodecs", None)
    numbers = np.array([7, 1 << 62, 1 << 62, -3, 0, 5])
    expected = np.cumsum(numbers[1:])  # sums wrap
    add_up(numbers[1:])
    assert numbers.tolist() == [7, *expected]


@pytest.mark.parametrize("has_imagecodecs", [True, False])
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
def test_add_up_rows_equals_cumsum_along_each_row(
    dtype: str, has_imagecodecs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = np.random.default_rng(1).integers(0, 255, (4, 7, 3)).astype(dtype) << (np.dtype(dtype).itemsize * 8 - 8)
    expected = np.cumsum(steps, axis=1, dtype=dtype)
    if has_imagecodecs:
        pytest.importorskip("imagecodecs")
    else:
        monkeypatch.setitem(sys.modules, "imagecodecs", None)
    steps.flags.writeable = False
    assert (add_up_rows(steps) == expected).all()


def test_imagecodecs_is_loaded_after_many_rows_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imagecodecs")
    monkeypatch.setattr(compression, "_by_numpy", [])
    monkeypatch.setattr(compression, "BY_NUMPY", 20)
    monkeypatch.delitem(sys.modules, "imagecodecs")
    steps = np.ones((2, 3, 2), "u1")
    for is_loaded in (False, False, True):
        assert (add_up_rows(steps)[:, :, 0] == [1, 2, 3]).all()
        assert ("imagecodecs" in sys.modules) is is_loaded


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16, 100])
@pytest.mark.parametrize("count", [0, 1, 999])
def test_unshuffled_bytes_are_those_of_numcodecs(size: int, count: int) -> None:
    data = np.random.default_rng(size).bytes(size * count)
    assert unshuffle(numcodecs.Shuffle(size).encode(data), size).tobytes() == data


def test_unshuffle_of_a_huge_element_does_not_visit_its_bytes() -> None:
    """A file may claim elements of any size; a loop over four billion columns would take an hour."""
    assert unshuffle(b"", (1 << 32) - 1).tobytes() == b""


def test_unshuffle_refuses_incomplete_elements() -> None:
    with pytest.raises(ValueError, match="reshape"):
        unshuffle(bytes(7), 4)
