"""Write sharded arrays by the specifications, without code of this package, and open them by zarr."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Zlib

from refshard_fs import RefShardFileSystem

IS_ZARR_2 = zarr.__version__.startswith("2.")
ONES = 2**64 - 1

Coords = tuple[int, ...]


def open_source(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


def open_array(fo: Any, path: str = "", **options: Any) -> Any:
    """Open the array at ``path`` of a source of this package by zarr 2 or 3."""
    if IS_ZARR_2:
        return zarr.open_array(open_source(fo, **options).get_mapper(path), mode="r")
    store = zarr.storage.FsspecStore(open_source(fo, asynchronous=True, **options), path=path)
    return zarr.open_array(store, mode="r")


def split_chunks(
    data: np.ndarray[Any, Any], chunk_shape: Sequence[int], fill: Any
) -> dict[Coords, np.ndarray[Any, Any]]:
    """Return chunks by coordinates, with padded edge chunks, and without chunks that contain only ``fill``."""
    counts = [-(-s // c) for s, c in zip(data.shape, chunk_shape, strict=True)]
    out = {}
    for coords in itertools.product(*map(range, counts)):
        chunk = np.full(tuple(chunk_shape), fill, data.dtype)
        part = data[tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, chunk_shape, strict=True))]
        chunk[tuple(map(slice, part.shape))] = part
        if not (chunk == fill).all():
            out[coords] = chunk
    return out


def make_prototype_shards(
    chunks: Mapping[Coords, bytes],
    shards: Sequence[int],
    *,
    big_endian: bool = False,
    pack: Callable[[dict[int, bytes], int], bytes] | None = None,
) -> dict[Coords, bytes]:
    """Return shards of zarr-python PR 876 by coordinates: chunks in random order with gaps, and then the index."""
    count = math.prod(shards)
    slots: dict[Coords, dict[int, bytes]] = {}
    for coords, data in chunks.items():
        shard = tuple(i // n for i, n in zip(coords, shards, strict=True))
        slot = 0
        for i, n in zip(coords, shards, strict=True):
            slot = slot * n + i % n
        slots.setdefault(shard, {})[slot] = data
    if pack is None:

        def pack(held: dict[int, bytes], count: int) -> bytes:
            return make_indexed_shard(held, count, big_endian=big_endian)

    return {shard: pack(held, count) for shard, held in slots.items()}


def make_indexed_shard(held: dict[int, bytes], count: int, *, big_endian: bool = False) -> bytes:
    order = list(held)
    random.Random(len(order)).shuffle(order)
    payload = b""
    pairs = [(0, 0) if big_endian else (ONES, ONES)] * count
    for slot in order:
        payload += b"\xaa" * (slot % 3)
        pairs[slot] = len(payload), len(held[slot])
        payload += held[slot]
    return payload + np.array(pairs, ">u8" if big_endian else "<u8").tobytes()


def write_prototype(
    folder: Path,
    data: np.ndarray[Any, Any],
    chunks: Sequence[int],
    shards: Sequence[int],
    *,
    fill: Any = 0,
    compressor: Any = None,
    separator: str | None = None,
    big_endian: bool = False,
    shard_format: str = "indexed",
    pack: Callable[[dict[int, bytes], int], bytes] | None = None,
    shards_key: str = "shards",
) -> None:
    """Write ``data`` as a sharded zarr v2 array of the prototype."""
    meta: dict[str, Any] = {
        "zarr_format": 2,
        "shape": list(data.shape),
        "chunks": list(chunks),
        "dtype": data.dtype.str,
        "compressor": None if compressor is None else compressor.get_config(),
        "filters": None,
        "fill_value": fill,
        "order": "C",
        shards_key: list(shards),
        "shard_format": shard_format,
    }
    if separator is not None:
        meta["dimension_separator"] = separator
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".zarray").write_text(json.dumps(meta, indent=4))
    encode = compressor.encode if compressor is not None else bytes
    encoded = {k: encode(np.ascontiguousarray(v).tobytes()) for k, v in split_chunks(data, chunks, fill).items()}
    for shard, content in make_prototype_shards(encoded, shards, big_endian=big_endian, pack=pack).items():
        file = folder / ((separator or ".").join(map(str, shard)) if shard else "0")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def make_sparse(shape: Sequence[int], fill: int = 0, dtype: str = "<i4") -> np.ndarray[Any, Any]:
    """Return data with ``fill`` in the first half along each dimension."""
    data = np.random.default_rng(7).integers(1, 1000, tuple(shape)).astype(dtype)
    data[tuple(slice(0, n // 2) for n in shape)] = fill
    return data


ZLIB = Zlib(1)
