"""The values in one chunk, where numpy and numcodecs are enough to know them. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numcodecs
import numpy as np
import numpy.typing as npt

from refshard_fs.encodings import check_blosc, undecodable, unsafe
from refshard_fs.manifests.plain_values import dtype_of
from refshard_fs.zarrmeta import ArrayMeta

__all__ = ["decode_chunk"]

# Make objects, as many as four bytes say, and no numbers.
_OBJECTS: Final = frozenset(["categorize", "json2", "msgpack2", "vlen-array", "vlen-bytes", "vlen-utf8"])


def decode_chunk(meta: ArrayMeta, data: bytes) -> npt.NDArray[Any] | None:
    """Return the values of a chunk, in its shape; None where its codecs or type are not known here.

    ValueError where the bytes are damaged.
    """
    dtype = dtype_of(meta)
    if dtype is None or meta.chunks is None or undecodable(meta, "") or unsafe(meta):
        return None
    pipeline = _version_2(meta.raw) if meta.zarr_format == 2 else _version_3(meta.raw)
    if pipeline is None:
        return None
    codecs, order = pipeline
    if order is not None:
        dtype = dtype.newbyteorder("<" if order == "little" else ">")
    decoded: Any = data
    try:
        for codec in codecs:
            if codec.codec_id == "blosc":
                check_blosc(bytes(decoded))
            decoded = codec.decode(decoded)
        flat = np.frombuffer(np.ascontiguousarray(decoded).view(np.uint8), dtype)
    except Exception as e:  # numcodecs' codecs raise what they like
        raise ValueError(f"a chunk cannot be decoded: {e}") from e
    if flat.size != math.prod(meta.chunks):
        raise ValueError(f"a chunk has {flat.size} elements, and chunks are of {meta.chunks}")
    return flat.reshape(meta.chunks, order=meta.order)


def _version_2(doc: Mapping[str, Any]) -> tuple[list[Any], None] | None:
    if "shards" in doc:
        return None
    configured = [*([doc["compressor"]] if doc.get("compressor") else []), *reversed(doc.get("filters") or [])]
    if any(codec.get("id") in _OBJECTS for codec in configured if codec is not None):
        return None
    try:
        return [numcodecs.get_codec(dict(codec)) for codec in configured], None
    except (ValueError, TypeError, KeyError):
        return None


def _version_3(doc: Mapping[str, Any]) -> tuple[list[Any], str | None] | None:
    order: str | None = None
    codecs: list[Any] = []
    for codec in doc.get("codecs") or []:
        match codec:
            case {"name": "bytes", "configuration": {"endian": "little" | "big" as endian}}:
                order = endian
            case "bytes" | {"name": "bytes"}:  # of elements of one byte
                order = "little"
            case {"name": "gzip" | "zstd" as name}:  # whatever the level
                codecs.append(numcodecs.get_codec({"id": name}))
            case {"name": "blosc"}:
                codecs.append(numcodecs.get_codec({"id": "blosc"}))
            case _:
                return None
    return list(reversed(codecs)), order
