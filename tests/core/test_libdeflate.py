"""libdeflate gives the bytes and the errors of zlib and gzip."""

from __future__ import annotations

import gzip
import pickle
import warnings
import zlib
from typing import Any

import numcodecs
import numpy as np
import pytest

from refshard_fs.core import libdeflate
from refshard_fs.core.libdeflate import accelerate_codec, try_gzip, try_zlib
from refshard_fs.core.zarrmeta import array_meta
from refshard_fs.cubes.chunk_codec import decode_chunk
from refshard_fs.formats.hdf5 import filters
from tests.support.shard_writers import IS_ZARR_2

pytest.importorskip("deflate")
RAW = np.cumsum(np.random.default_rng(0).integers(-3, 4, 4096)).astype("<i2").tobytes()
CODECS = {"zlib": numcodecs.Zlib(4), "gzip": numcodecs.GZip(4)}
BOTH = pytest.mark.parametrize("kind", CODECS)


@BOTH
@pytest.mark.parametrize("expected", [0, 1, len(RAW) - 1, len(RAW), len(RAW) + 1, 1 << 40])
@pytest.mark.parametrize("data", [RAW, b""], ids=["full", "empty"])
def test_accelerated_codec_decodes_to_the_original_bytes(kind: str, expected: int, data: bytes) -> None:
    stored = CODECS[kind].encode(np.frombuffer(data, "u1"))
    codec = accelerate_codec(CODECS[kind], expected)
    for _ in range(2):  # the second call expects the size that the first one found
        assert bytes(codec.decode(stored)) == data
    out = np.empty(len(data), "u1")
    codec.decode(stored, out)
    assert out.tobytes() == data


@BOTH
def test_damaged_streams_are_refused_as_by_zlib(kind: str) -> None:
    stored = bytes(CODECS[kind].encode(RAW))
    codec = accelerate_codec(CODECS[kind], len(RAW))
    flipped = bytearray(stored)
    flipped[-3] ^= 1
    for damaged in (stored[:-1], stored[: len(stored) // 2], bytes(flipped), b"\0" + stored[1:]):
        with pytest.raises((zlib.error, EOFError, OSError)) as slow:
            CODECS[kind].decode(damaged)
        with pytest.raises(slow.type):
            codec.decode(damaged)


def test_both_members_of_a_gzip_stream_are_read() -> None:
    first, second = RAW[:1000], RAW[1000:]
    stored = gzip.compress(first) + gzip.compress(second)
    assert try_gzip(stored, len(first)) is None
    assert accelerate_codec(CODECS["gzip"], len(first)).decode(stored) == RAW


@BOTH
def test_accelerated_codec_keeps_config_pickle_and_encoding(kind: str) -> None:
    codec = accelerate_codec(CODECS[kind], len(RAW))
    assert codec.get_config() == CODECS[kind].get_config()
    assert type(pickle.loads(pickle.dumps(codec))) is type(CODECS[kind])
    assert codec.encode(RAW) == CODECS[kind].encode(RAW) or kind == "gzip"  # gzip stores the time
    assert accelerate_codec(numcodecs.Blosc(), 1).codec_id == "blosc"


def test_missing_libdeflate_leaves_codecs_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libdeflate, "_import_library", lambda: None)
    assert try_zlib(zlib.compress(RAW), len(RAW)) is None
    assert accelerate_codec(CODECS["zlib"], len(RAW)) is CODECS["zlib"]
    assert filters._DECODERS[filters.DEFLATE](zlib.compress(RAW), (), len(RAW)) == RAW


@pytest.mark.skipif(IS_ZARR_2, reason="zarr 2 has no codec pipelines")
@pytest.mark.parametrize(("zarr_format", "kind"), [(2, "zlib"), (2, "gzip"), (3, "zlib"), (3, "gzip")])
def test_zarr_decodes_by_libdeflate(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, zarr_format: int, kind: str
) -> None:
    import zarr

    values = np.arange(4096, dtype="<i2").reshape(4, 1024)
    stored: Any = CODECS[kind]
    if zarr_format == 3:
        stored = {"name": "gzip" if kind == "gzip" else "numcodecs.zlib", "configuration": {"level": 4}}
    path = str(tmp_path / "a.zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # numcodecs' codecs are not in the specification of version 3
        made = zarr.create_array(
            path, shape=values.shape, chunks=(1, 1024), dtype="<i2", zarr_format=zarr_format, compressors=stored
        )
        made[...] = values
    library, sizes = libdeflate._import_library(), []

    class Counting:
        DeflateError = library.DeflateError

        @staticmethod
        def zlib_decompress(data: Any, size: int) -> Any:
            sizes.append(size)
            return library.zlib_decompress(data, size)

        @staticmethod
        def gzip_decompress(data: Any, size: int) -> Any:
            sizes.append(size)
            return library.gzip_decompress(data, size)

    monkeypatch.setattr(libdeflate, "_import_library", lambda: Counting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        array = zarr.open_array(f"refshard::{path}", mode="r")
        np.testing.assert_array_equal(array[...], values)
        again = pickle.loads(pickle.dumps(array))
    assert sizes == [2048] * 4
    np.testing.assert_array_equal(again[...], values)


def test_bomb_in_two_zlib_streams_is_refused() -> None:
    document = {"zarr_format": 2, "shape": [4], "chunks": [1 << 16], "dtype": "|u1", "order": "C", "fill_value": 0}
    document |= {"filters": [{"id": "zlib", "level": 9}], "compressor": {"id": "zlib", "level": 9}}
    meta = array_meta(document, "a")
    assert meta is not None
    # The inner stream is smaller than a chunk, but decompresses to more.
    bomb = zlib.compress(zlib.compress(bytes(1 << 22)))
    with pytest.raises(ValueError, match="decode to too many bytes: expected at most"):
        decode_chunk(meta, bomb)
