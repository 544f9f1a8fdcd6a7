"""Locate chunks in shards of the format ``neuroglancer_uint64_sharded_v1``, and parse their indexes. No I/O here."""

from __future__ import annotations

import zlib
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from refshard_fs.core.compression import decompress
from refshard_fs.sharding.index import BEYOND, MAX_INDEX, PAIR

# The low half of MurmurHash3_x86_128 of a 64-bit integer, by which neuroglancer distributes chunks over shards.
_MASK = 0xFFFFFFFF
_KEYS = (0x239B961B, 0xAB0E9789, 0x38B34AE5)
_LENGTH = 8  # bytes of the number that is hashed


def hash_murmur3(number: Any) -> Any:
    """Hash the eight bytes of ``number`` (an int, or each item of an array) with seed 0; return the low 64 bits."""
    low, high = number & _MASK, number >> 32
    low_word = _rotate(low * _KEYS[0] & _MASK, 15) * _KEYS[1] & _MASK
    high_word = _rotate(high * _KEYS[1] & _MASK, 16) * _KEYS[2] & _MASK
    state = [low_word ^ _LENGTH, high_word ^ _LENGTH, _LENGTH, _LENGTH]
    state = _add_up([_mix(word) for word in _add_up(state)])
    return state[0] | state[1] << 32


def _rotate(word: Any, bits: int) -> Any:
    return (word << bits | word >> 32 - bits) & _MASK


def _add_up(state: list[Any]) -> list[Any]:
    total = sum(state) & _MASK
    return [total, *((word + total) & _MASK for word in state[1:])]


def _mix(word: Any) -> Any:
    word = word ^ word >> 16
    word = word * 0x85EBCA6B & _MASK
    word = word ^ word >> 13
    word = word * 0xC2B2AE35 & _MASK
    return word ^ word >> 16


_UNKNOWN = int(BEYOND)  # used as the size of a shard before the size is known
_BLOCK_SIZE = 4096  # minishards whose positions are read together: 64 KiB
_GZIP = 31  # zlib's number for a gzip stream with any window

Encoding = Literal["raw", "gzip"]


class Sharding(msgspec.Struct, frozen=True):
    """The distribution of chunk ids over shards and minishards. The fields have the names of the specification."""

    preshift_bits: Annotated[int, Meta(ge=0, le=63)]
    hash: Literal["identity", "murmurhash3_x86_128"]
    minishard_bits: Annotated[int, Meta(ge=0, le=32)]
    shard_bits: Annotated[int, Meta(ge=0, le=64)]
    minishard_index_encoding: Encoding = "raw"
    data_encoding: Encoding = "raw"

    def __post_init__(self) -> None:
        if self.minishard_bits + self.shard_bits > 64:
            bits = self.minishard_bits + self.shard_bits
            raise ValueError(f"minishard_bits and shard_bits are {bits} together: expected at most 64")

    @property
    def table_size(self) -> int:
        """The size in bytes of the table at the start of each shard. Offsets in a shard count from the table's end."""
        return PAIR << self.minishard_bits

    def find_shard(self, chunk: Any) -> tuple[Any, Any]:
        """Return (shard, minishard) of the chunk with the id ``chunk``, or of each id in an array of uint64."""
        hashed = chunk >> self.preshift_bits
        if self.hash == "murmurhash3_x86_128":
            hashed = hash_murmur3(hashed)
        minishard = hashed & (1 << self.minishard_bits) - 1
        return hashed >> self.minishard_bits & (1 << self.shard_bits) - 1, minishard

    def name_shard(self, shard: int) -> str:
        """Return the name of a shard's file without ``.shard``."""
        return f"{shard:0{-(-self.shard_bits // 4)}x}"

    def parse_shard_name(self, name: str, suffix: str = "shard") -> int | None:
        """Return the number of the shard whose file with this ``suffix`` has this ``name``; None for other files."""
        stem, _, actual_suffix = name.partition(".")
        if actual_suffix != suffix or not 0 < len(stem) <= 16 or not set(stem) <= set("0123456789abcdef"):
            return None
        number = int(stem, 16)
        return number if number >> self.shard_bits == 0 and self.name_shard(number) == stem else None

    def find_block(self, minishard: int) -> range:
        """Return the range of minishards whose positions are read together with the position of ``minishard``."""
        start = minishard // _BLOCK_SIZE * _BLOCK_SIZE
        return range(start, min(start + _BLOCK_SIZE, 1 << self.minishard_bits))


class ShardIndex(msgspec.Struct, frozen=True):
    """Decode a part of the table at the start of a shard: the ranges of the indexes of minishards.

    The result is ``uint64[minishards, 2]``: starts and ends, which count from the end of the table. ``table_size`` is
    the size of the whole table in bytes, ``room`` the largest possible number of bytes after the table.
    """

    table_size: int = 0
    room: int = _UNKNOWN

    def with_size(self, object_size: int) -> ShardIndex:
        """Return this index for a shard of ``object_size`` bytes."""
        return ShardIndex(self.table_size, max(object_size - self.table_size, 0))

    def decode(self, data: bytes) -> npt.NDArray[np.uint64]:
        pairs = np.frombuffer(data, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)
        wrong = (pairs[:, 0] > pairs[:, 1]) | (pairs[:, 1] >= BEYOND)
        if wrong.any():
            start, stop = pairs[int(wrong.argmax())].tolist()
            raise ValueError(
                f"a minishard has its index at [{start}, {stop}): expected an end of at least the start, below {BEYOND}"
            )
        wrong = (pairs[:, 0] < pairs[:, 1]) & (pairs[:, 1] > np.uint64(self.room))
        if wrong.any():
            stop = pairs[int(wrong.argmax()), 1]
            raise ValueError(f"the index of a minishard ends at byte {stop}: expected at most {self.room}")
        return pairs


class Minishard(NamedTuple):
    """The chunks of a minishard, sorted by id. ``starts`` count from the end of the shard's table, in bytes."""

    ids: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.starts.nbytes + self.sizes.nbytes

    def locate(self, chunk: int) -> tuple[int, int] | None:
        """Return (start, size) of the chunk with this id; None if it is not in the minishard."""
        row = int(self.ids.searchsorted(np.uint64(chunk)))
        if row == len(self.ids) or int(self.ids[row]) != chunk:
            return None
        return int(self.starts[row]), int(self.sizes[row])


class MinishardIndex(msgspec.Struct, frozen=True):
    """Decode the index of a minishard, which has at most ``most_chunks`` chunks.

    ``[start, stop)`` is the range of the index in bytes, counted from the end of the shard's table. This table has
    ``table_size`` bytes. ``room`` is the largest possible number of bytes after the table.
    """

    encoding: Encoding
    most_chunks: int
    table_size: int = 0
    start: int = 0
    stop: int = 0
    room: int = _UNKNOWN

    def with_size(self, object_size: int) -> MinishardIndex:
        """Return this index for a shard of ``object_size`` bytes."""
        return msgspec.structs.replace(self, room=max(object_size - self.table_size, 0))

    def decode(self, data: bytes) -> Minishard:
        if self.encoding == "gzip":
            data = decompress_gzip(data, min(24 * self.most_chunks, MAX_INDEX), exact=False)
        if len(data) % 24 or len(data) > 24 * self.most_chunks:
            raise ValueError(
                f"a minishard's index has {len(data)} bytes: expected 24 for each of up to {self.most_chunks} chunks"
            )
        deltas, gaps, sizes = np.frombuffer(data, "<u8").astype(np.uint64, copy=False).reshape(3, -1)
        ids = np.cumsum(deltas, dtype=np.uint64)
        stops = np.cumsum(gaps + sizes, dtype=np.uint64)
        starts = stops - sizes
        previous_stops = np.concatenate([np.zeros(min(len(stops), 1), np.uint64), stops[:-1]])
        # A sum that overflows 64 bits is smaller than its terms.
        wrong = (gaps >= BEYOND) | (sizes >= BEYOND) | (starts < previous_stops) | (stops < starts) | (stops >= BEYOND)
        if wrong.any():
            row = int(wrong.argmax())
            found = f"a minishard's index has a chunk of {sizes[row]} bytes, {gaps[row]} after the chunk before it"
            raise ValueError(f"{found}: expected an end below {BEYOND}")
        wrong = (sizes > 0) & ((stops > np.uint64(self.room)) | ((starts < self.stop) & (stops > self.start)))
        if wrong.any():
            row = int(wrong.argmax())
            found_range = f"[{starts[row]}, {stops[row]})"
            reason = f"expected a range before byte {self.room}, outside the index of its minishard"
            raise ValueError(f"chunk {ids[row]} lies at {found_range} after the shard index: {reason}")
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        is_repeated = ids[1:] == ids[:-1]
        if is_repeated.any():
            raise ValueError(f"a minishard's index lists chunk {ids[is_repeated.argmax()]} twice: expected it once")
        return Minishard(ids, starts[order], sizes[order])


def decompress_gzip(data: bytes, size: int, *, exact: bool) -> bytes:
    """Decompress a gzip stream. Raise ValueError if it has more than ``size`` bytes, or fewer if ``exact``."""
    out = decompress(zlib.decompressobj(_GZIP), data, size)
    if exact and len(out) != size:
        raise ValueError(f"its gzip stream decompresses to {len(out)} bytes: expected {size}")
    return out
