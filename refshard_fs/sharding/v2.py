"""Recognise sharded arrays of the prototype for zarr v2 (zarr-python PR 876), also with v3 metadata. No I/O here.

- ``"shard_format": "indexed"``: each shard ends with an index of (offset, length) pairs, little-endian, all ones for
  a missing chunk. Earlier versions of the prototype wrote them big-endian, with a length of 0 for a missing chunk.
  Files do not state which version wrote them: ``shard_options={"endian": "big"}`` selects the earlier versions.
- ``"morton_order"``, the first version: slots of one size, and a mask of the slots that hold a chunk. In spite of the
  name, the first dimension varies fastest; ``shard_options={"slots": "morton"}`` is for shards in Morton order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.sharding import packing
from refshard_fs.sharding.index import NONE, Buffer, Level, Misfit, Offsets, OffsetsLevel, count_slots
from refshard_fs.sharding.layout import Equal, Nest, ShardFormat, ShardLayout, Unsharded

Order = Literal["fortran", "morton"]


class MaskLevel(msgspec.Struct, frozen=True, cache_hash=True):
    """An index with a bit for each slot of ``slot`` bytes: a big-endian number, whose lowest bit is the first slot's.

    ``lengths`` are the numbers of slots along each dimension; ``order`` is the order of the slots in the shard.
    """

    lengths: tuple[int, ...]
    slot: int
    order: Order

    at_end = True
    trailer = 0

    @property
    def length(self) -> int:
        return -(-math.prod(self.lengths) // 8)

    def table(self, data: bytes, size: int | None) -> Offsets:
        expected = math.prod(self.lengths) * self.slot + self.length
        if size is not None and size != expected:
            raise ValueError(f"expected {expected} bytes of slots and mask, found {size}")
        ranks = _compute_ranks(self.lengths, self.order)
        written = np.unpackbits(np.frombuffer(data, np.uint8)[::-1], bitorder="little")[ranks]
        pairs = np.stack([ranks * np.uint64(self.slot), np.full_like(ranks, self.slot)], axis=1)
        pairs[written == 0] = NONE
        return Offsets(pairs)

    def pack(self, chunks: Sequence[tuple[int, Sequence[Buffer]]]) -> list[Buffer]:
        ranks = _compute_ranks(self.lengths, self.order)
        parts: list[Sequence[Buffer]] = [(bytes(self.slot),)] * len(ranks)
        mask = 0
        for slot, payload in chunks:
            length = sum(map(len, payload))
            if length != self.slot:
                raise Misfit(f"expected a chunk of {self.slot} bytes, the size of a slot, got {length}")
            mask |= 1 << int(ranks[slot])
            parts[int(ranks[slot])] = payload
        return [*chain.from_iterable(parts), mask.to_bytes(self.length, "big")]


@lru_cache(maxsize=64)
def _compute_ranks(lengths: tuple[int, ...], order: Order) -> npt.NDArray[np.uint64]:
    """Return the position of each slot in the shard, counted in slots; slots are in C order."""
    if order == "fortran":
        return np.arange(math.prod(lengths), dtype=np.uint64).reshape(lengths, order="F").ravel()
    return packing.compute_ranks(lengths).astype(np.uint64)


def unshard(doc: Mapping[str, Any], options: Mapping[str, Any]) -> Unsharded | None:
    """Return the array with metadata ``doc`` as an array of inner chunks; None if it is not of this format."""
    match doc:
        case {"zarr_format": 2, "shards": shards} if shards is not None:
            kind = doc.get("shard_format", "indexed")
        case {"zarr_format": 3, "storage_transformers": [{"configuration": {"chunks_per_shard": shards}}]}:
            kind = "indexed"
        case {"zarr_format": 3, "storage_transformers": [*several]} if any(map(_is_sharding, several)):
            return Unsharded(None, doc, zarrmeta.find_transformer_problem(doc))
        case _:
            return None
    shown = {k: v for k, v in doc.items() if k not in ("shards", "shard_format", "storage_transformers")}
    meta = zarrmeta.array_meta(shown, "its metadata")
    if meta is None or meta.grid is None or meta.chunks is None:
        found = " and ".join(zarrmeta.shorten(doc.get(name)) for name in ("chunk_grid", "chunk_key_encoding"))
        return Unsharded(None, doc, f"expected a known chunk_grid and chunk_key_encoding, found {found}")
    if not isinstance(kind, str) or kind not in ("indexed", "morton_order"):
        return Unsharded(None, doc, f"its shard_format is {str(kind)[:100]!r}: expected 'indexed' or 'morton_order'")
    lengths = _parse_lengths(shards, len(meta.shape), pad=meta.zarr_format == 3)
    count_slots(lengths)
    level: Level
    if kind == "morton_order":
        if doc.get("compressor") is not None or doc.get("filters"):
            expected = "expected chunks without a compressor and filters in slots of one size"
            return Unsharded(None, doc, f"its chunks are compressed: {expected}")
        slot = math.prod(meta.chunks) * _find_itemsize(meta.dtype)
        if slot * math.prod(lengths) >= zarrmeta.COUNTABLE:
            slots = f"its shards have {math.prod(lengths)} slots of {slot} bytes"
            raise ValueError(f"{slots}: expected fewer than 2**63 bytes in a shard")
        level = MaskLevel(lengths, slot, options.get("slots", "fortran"))
    elif options.get("endian") == "big":
        level = OffsetsLevel(math.prod(lengths), big_endian=True, absent="no length")
    else:
        level = OffsetsLevel(math.prod(lengths))
    nest = Nest((1,) * len(lengths), tuple(range(len(lengths))), lambda _: level)
    grid = msgspec.structs.replace(meta.grid, shards=lengths)
    return Unsharded(ShardLayout(grid, tuple(map(Equal, lengths)), [nest]), shown)


def _is_sharding(transformer: object) -> bool:
    match transformer:
        case {"configuration": {"chunks_per_shard": _}}:
            return True
    return False


def _parse_lengths(shards: object, ndim: int, *, pad: bool) -> tuple[int, ...]:
    """Return the chunks per shard along each dimension; with ``pad`` (the v3 transformer), missing numbers are 1."""
    lengths = shards if isinstance(shards, list) else [shards if pad else 0]
    if pad:
        lengths = lengths + [1] * (ndim - len(lengths)) if ndim else []
    if len(lengths) != ndim or not all(type(n) is int and 0 < n < 2**63 for n in lengths):
        raise ValueError(f"expected {ndim} positive integers as chunks per shard, found {str(shards)[:100]}")
    return tuple(lengths)


def _find_itemsize(spelled: str) -> int:
    try:
        dtype = np.dtype(spelled)
    except (TypeError, ValueError, SyntaxError) as e:  # SyntaxError: numpy parses some texts as fields
        raise ValueError(f"its dtype is {spelled[:100]!r}: expected a dtype of numpy for slots of equal size") from e
    if dtype.hasobject:
        raise ValueError(f"its dtype is {spelled[:100]!r}: expected a fixed size of elements for slots of equal size")
    return dtype.itemsize


SHARD_FORMAT = ShardFormat(
    name="indexed_v2",
    marks=(b'"shards"', b"chunks_per_shard"),
    unshard=unshard,
    options={"endian": ("little", "big"), "slots": ("fortran", "morton")},
)
