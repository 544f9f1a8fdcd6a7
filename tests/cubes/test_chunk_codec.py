"""Decode and encode chunks with numpy and numcodecs."""

from __future__ import annotations

from typing import Any

import numcodecs
import numpy as np
import pytest

from refshard_fs.core.compression import import_zstd
from refshard_fs.core.zarrmeta import array_meta
from refshard_fs.cubes.chunk_codec import ChunkDecoder
from refshard_fs.cubes.recoding import make_recoding
from refshard_fs.cubes.recutting import check_recut
from refshard_fs.errors import ManifestError
from tests.support.memory import check_peak

xr = pytest.importorskip("xarray")
netCDF4 = pytest.importorskip("netCDF4")
pytest.importorskip("zarr")


@pytest.mark.case(id="P32")
def test_oversized_chunks_are_refused_before_decoding() -> None:
    """Comparing the encodings of two small sets once took 16 GB of memory."""

    def make_facts(compressor: object) -> Any:
        document = {"zarr_format": 2, "shape": [2**31], "chunks": [2**31], "dtype": "<f8", "compressor": compressor}
        return array_meta(document | {"fill_value": 0, "filters": None, "order": "C"}, "a")

    plain, packed = make_facts(None), make_facts({"id": "zlib", "level": 1})
    with check_peak(1 << 20):
        with pytest.raises(ManifestError, match="bytes: expected at most"):
            make_recoding("a", (plain, {}), (packed, {}), "one", "other")
        with pytest.raises(ManifestError, match="bytes: expected at most"):
            check_recut("a", packed, "other")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("stored", "shown", "bits"), [("i", "u", 8), ("u", "i", 8), ("i", "u", 16), ("i", "u", 32)])
def test_signed_becomes_unsigned_and_back_as_in_numcodecs(order: str, stored: str, shown: str, bits: int) -> None:
    offset = (1 if shown == "u" else -1) << bits - 1
    dtypes = {"dtype": f"{order}{shown}{bits // 8}", "astype": f">{stored}{bits // 8}"}
    codec = {"id": "fixedscaleoffset", "offset": offset, "scale": 1, **dtypes}
    document = {"zarr_format": 2, "shape": [64], "chunks": [64], "dtype": dtypes["dtype"], "compressor": None}
    meta = array_meta(document | {"fill_value": 0, "filters": [codec], "order": "C"}, "a")
    assert meta is not None
    decoder = ChunkDecoder.of(meta)
    assert decoder is not None
    data = bytes(range(256))[: 64 * bits // 8]
    assert decoder.decode(data).tolist() == numcodecs.get_codec(codec).decode(data).tolist()


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}


@pytest.mark.parametrize("codecs", [[], [GZIP], [GZIP, LITTLE], [LITTLE, LITTLE], ["bytes"], [{"name": "bytes"}]])
def test_codecs_missing_or_in_a_wrong_order_are_not_decoded(codecs: list[Any]) -> None:
    """Version 3 needs one codec from an array to bytes, before codecs of bytes, and the byte order of numbers."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
    }
    meta, valid = (array_meta({**document, "codecs": each}, "a") for each in (codecs, [LITTLE, GZIP]))
    assert meta is not None
    assert valid is not None
    assert ChunkDecoder.of(meta) is None
    assert ChunkDecoder.of(valid) is not None


def test_chunk_without_a_stated_size_is_decompressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """GDAL writes such frames. An earlier check of their size decompressed them a second time."""
    document = {"zarr_format": 2, "shape": [1000], "chunks": [1000], "dtype": "<i4", "compressor": {"id": "zstd"}}
    meta = array_meta(document | {"fill_value": 0, "filters": None, "order": "C"}, "a")
    assert meta is not None
    decoder = ChunkDecoder.of(meta)
    assert decoder is not None
    monkeypatch.setattr("numcodecs.zstd.Zstd.decode", lambda *args: pytest.fail("the chunk is decompressed again"))
    values = np.arange(1000, dtype="<i4")
    stream = import_zstd().ZstdCompressor()
    frame = stream.compress(values.tobytes()) + stream.flush()
    assert import_zstd().get_frame_info(frame).decompressed_size is None
    assert (decoder.decode(frame) == values).all()
    for damaged in (frame[:-1], frame + b"x", frame[: len(frame) // 2]):
        with pytest.raises(ValueError, match="cannot be decoded"):
            decoder.decode(damaged)
