"""Decode and encode chunks with numpy and numcodecs. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from refshard_fs.core.compression import (
    COLUMNS,
    check_blosc,
    check_chunk,
    decompress_unsized,
    find_chunk_limits,
    unshuffle,
)
from refshard_fs.core.dtypes import find_decoded_type, find_text_codec
from refshard_fs.core.libdeflate import try_gzip, try_zlib
from refshard_fs.core.version_3 import ON_BYTES
from refshard_fs.core.zarrmeta import ArrayMeta, codecs_of, find_decoding_problem, find_safety_problem

_KEEP_SIZE: Final = frozenset(["shuffle", "fletcher32"])  # codecs that decode to no more bytes than they are given
_NUMCODECS: Final = frozenset(f"numcodecs.{name}" for name in ON_BYTES)  # zarr 3's names of the codecs of NetCDF-4


# Codecs that decode to objects, not numbers. Four bytes of a chunk can claim any number of objects.
_OBJECTS: Final = frozenset(["categorize", "json2", "msgpack2", "vlen-array", "vlen-bytes", "vlen-utf8"])
_TEXTS: Final = ("vlen-bytes", "vlen-utf8")


class ChunkDecoder:
    """Decode the chunks of one array with numpy and numcodecs. Thread-safe."""

    def __init__(self, meta: ArrayMeta, dtype: np.dtype[Any], codecs: Sequence[Any]) -> None:
        self._meta = meta
        self.dtype = dtype  # of the values
        self._codecs = codecs
        # Whether only the first codec may make more bytes: then limiting its result suffices, without `check_chunk`.
        self._first_limits = all(codec.codec_id in _KEEP_SIZE for codec in codecs[1:])

    @cached_property
    def _limits(self) -> tuple[int, int]:
        return find_chunk_limits(self._meta)

    @classmethod
    def of(cls, meta: ArrayMeta) -> ChunkDecoder | None:
        """Return the decoder of an array's chunks; None if numpy and numcodecs do not have its codecs or its type."""
        dtype = find_decoded_type(meta)
        if dtype is None or meta.chunks is None or find_decoding_problem(meta, "") or find_safety_problem(meta):
            return None
        pipeline = (
            _make_codecs_of_version_2(meta.raw) if meta.zarr_format == 2 else _make_codecs_of_version_3(meta.raw, dtype)
        )
        if pipeline is None:
            return None
        codecs, order = pipeline
        return cls(meta, dtype if order is None else dtype.newbyteorder("<" if order == "little" else ">"), codecs)

    @property
    def is_plain(self) -> bool:
        """Whether a chunk is stored uncompressed, in C order."""
        return not self._codecs and self._meta.order == "C" and self.dtype.kind != "O"

    def decode(self, data: bytes) -> npt.NDArray[Any]:
        """Return the values of a chunk, in the shape of chunks. ValueError if the bytes are damaged."""
        meta, codecs = self._meta, self._codecs
        chunks = meta.chunks or ()
        decoded: Any = data
        try:
            first = self._inflate(data) if codecs else None
            if first is None:
                check_chunk(meta, data)
            else:
                codecs, decoded = codecs[1:], first
            for codec in codecs:
                if codec.codec_id == "blosc":
                    check_blosc(bytes(decoded))
                decoded = codec.decode(decoded)
            if self.dtype.kind == "O":
                flat = np.asarray(decoded, object)
            elif isinstance(decoded, bytes | bytearray):  # numpy would copy them to make an array of texts
                flat = np.frombuffer(decoded, self.dtype)
            else:
                flat = np.frombuffer(np.ascontiguousarray(decoded).view(np.uint8), self.dtype)
        except Exception as e:  # codecs of numcodecs may raise any error
            raise ValueError(f"a chunk cannot be decoded: {e}") from e
        if flat.size != math.prod(chunks):
            raise ValueError(f"a chunk has {flat.size} elements: expected {math.prod(chunks)}, the shape {chunks}")
        return flat.reshape(chunks, order=meta.order)

    def _inflate(self, data: bytes) -> bytes | bytearray | None:
        """Decode the first codec of a chunk, if the decoder can stop at the size of a chunk; else return None.

        Then `check_chunk` checks the chunk first, which means to decode it twice if it does not state its size.
        """
        if not self._first_limits:
            return None
        count, most = self._limits
        kind, expected = self._codecs[0].codec_id, min(count * self.dtype.itemsize, most)
        first = try_zlib(data, expected) if kind == "zlib" else try_gzip(data, expected) if kind == "gzip" else None
        return decompress_unsized(kind, data, most) if first is None else first


def decode_chunk(meta: ArrayMeta, data: bytes) -> npt.NDArray[Any] | None:
    """Return the values of a chunk, in the shape of chunks; None if this module does not decode its codecs or type.

    ValueError if the bytes are damaged.
    """
    decoder = ChunkDecoder.of(meta)
    return None if decoder is None else decoder.decode(data)


def describe_codecs(meta: ArrayMeta) -> str:
    """Return the error text for an array whose chunks this module cannot decode or encode."""
    found = f"its data type is {meta.dtype}, and its codecs are {', '.join(codecs_of(meta)) or 'none'}"
    return f"{found}: expected a type and codecs that numpy and numcodecs can decode"


class _SignChange:
    """Decode as numcodecs' FixedScaleOffset does where it only makes signed integers unsigned, or the reverse.

    FITS stores unsigned integers in this way. Flipping the sign bit takes a quarter of the time of numcodecs,
    which computes with floating-point numbers.
    """

    codec_id = "fixedscaleoffset"

    def __init__(self, codec: Any) -> None:
        self._codec = codec

    @classmethod
    def can_replace(cls, codec: Any) -> bool:
        """Return whether this class decodes as ``codec`` does."""
        if codec.codec_id != cls.codec_id:
            return False
        shown, stored = codec.dtype, codec.astype
        kinds = {"iu": 1, "ui": -1}  # of the stored and the shown type; the sign of the offset
        sign = kinds.get(stored.kind + shown.kind)
        # numcodecs computes with float64, which does not hold all 64-bit integers.
        is_alike = stored.itemsize == shown.itemsize < 8
        return bool(sign and is_alike and codec.scale == 1 and codec.offset == sign << 8 * stored.itemsize - 1)

    def decode(self, data: Any) -> npt.NDArray[Any]:
        shown, stored = self._codec.dtype, self._codec.astype
        unsigned = f"u{stored.itemsize}"
        values = np.frombuffer(data, stored).astype(stored.newbyteorder("=")).view(unsigned)
        values ^= np.array(1 << 8 * stored.itemsize - 1, unsigned)
        converted: npt.NDArray[Any] = values.view(shown.newbyteorder("=")).astype(shown, copy=False)
        return converted

    def encode(self, data: Any) -> Any:
        return self._codec.encode(data)


class _Shuffle:
    """Decode as numcodecs' Shuffle does, in less time for elements of 2 to 16 bytes."""

    codec_id = "shuffle"

    def __init__(self, codec: Any) -> None:
        self._codec = codec

    @classmethod
    def can_replace(cls, codec: Any) -> bool:
        """Return whether this class decodes as ``codec`` does."""
        return bool(codec.codec_id == cls.codec_id and 2 <= codec.elementsize <= COLUMNS)

    def decode(self, data: Any) -> npt.NDArray[np.uint8]:
        return unshuffle(data, self._codec.elementsize)

    def encode(self, data: Any) -> Any:
        return self._codec.encode(data)


def _make_codec(config: dict[str, Any]) -> Any:
    import numcodecs  # slow to import, and only needed if this package decodes chunks

    codec = numcodecs.get_codec(config)
    return next((kind(codec) for kind in (_SignChange, _Shuffle) if kind.can_replace(codec)), codec)


def _make_codecs_of_version_2(doc: Mapping[str, Any]) -> tuple[list[Any], None] | None:
    if "shards" in doc:
        return None
    configured = [*([doc["compressor"]] if doc.get("compressor") else []), *reversed(doc.get("filters") or [])]
    ids = [codec.get("id") for codec in configured if codec is not None]
    if doc.get("dtype") == "|O" and ids[-1:] and ids[-1] in _TEXTS:
        ids.pop()
    if not _OBJECTS.isdisjoint(ids):
        return None
    try:
        return [_make_codec(dict(codec)) for codec in configured], None
    except (ValueError, TypeError, KeyError):
        return None


def _make_codecs_of_version_3(doc: Mapping[str, Any], dtype: np.dtype[Any]) -> tuple[list[Any], str | None] | None:
    order: str | None = None
    codecs: list[Any] = []
    is_of_bytes = dtype.kind in "SV" or dtype.itemsize == 1  # elements without a byte order
    for codec in doc.get("codecs") or []:
        match codec:
            case {"name": "bytes", "configuration": {"endian": "little" | "big" as endian}} if order is None:
                order = endian
            case {"name": str(name)} | str(name) if name in _TEXTS and order is None:
                order = "little"
                codecs.append(_make_codec({"id": name}))
            case "bytes" | {"name": "bytes"} if order is None and is_of_bytes:
                order = "little"
            case {"name": "gzip" | "zstd" as name} if order is not None:  # the level makes no difference to decoding
                codecs.append(_make_codec({"id": name}))
            case {"name": "blosc"} if order is not None:
                codecs.append(_make_codec({"id": "blosc"}))
            case {"name": str(name), "configuration": dict(members)} if order and name in _NUMCODECS:
                try:
                    codecs.append(_make_codec({**members, "id": name.removeprefix("numcodecs.")}))
                except (ValueError, TypeError, KeyError):
                    return None
            case _:
                return None
    return None if order is None else (list(reversed(codecs)), order)


def make_blank_chunk(meta: ArrayMeta, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values of a chunk of zeros, or of empty texts."""
    blank = {"vlen-utf8": "", "vlen-bytes": b""}.get(find_text_codec(meta) or "", 0)
    return np.full(meta.chunks or (), blank, dtype)


def encode_chunk(meta: ArrayMeta, values: npt.NDArray[Any]) -> bytes:
    """Return the bytes of a chunk with ``values`` of the right shape and type; ValueError if they cannot be encoded."""
    pipeline = (
        _make_codecs_of_version_2(meta.raw)
        if meta.zarr_format == 2
        else _make_codecs_of_version_3(meta.raw, values.dtype)
    )
    if pipeline is None:
        raise ValueError(describe_codecs(meta))
    codecs, order = pipeline
    if order is not None:
        values = values.astype(values.dtype.newbyteorder("<" if order == "little" else ">"))
    flat = values.reshape(-1, order=meta.order)
    encoded: Any = np.ascontiguousarray(flat)
    try:
        for codec in reversed(codecs):
            encoded = codec.encode(encoded)
    except Exception as e:  # codecs of numcodecs may raise any error
        raise ValueError(f"a chunk cannot be encoded: {e}") from e
    return encoded.tobytes() if isinstance(encoded, np.ndarray) else bytes(encoded)
