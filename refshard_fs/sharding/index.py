"""The index of (offset, length) pairs, 16 bytes a chunk, that sharded arrays of zarr v2 and v3 share. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import checksums as crc32c
from refshard_fs.sharding.layout import MAX_INDEX, Buffer, Misfit

PAIR = 16  # bytes of two numbers
_NONE = 2**64 - 1
BEYOND = np.uint64(2**63)  # no file is so long
_LAST = np.uint64(2**63 - 1)  # ends of ranges are less than 2**63, everywhere


class Offsets:
    """Offset and length of each slot, as read; ``pairs`` is ``uint64[slots, 2]``."""

    __slots__ = ("_absent", "pairs")

    def __init__(self, pairs: npt.NDArray[np.uint64], absent: Literal["ones", "no length"]) -> None:
        self.pairs = pairs
        self._absent = 0 if absent == "no length" else _NONE

    @property
    def nbytes(self) -> int:
        return self.pairs.nbytes

    def locate(self, slot: int) -> tuple[int, int] | None:
        offset, length = self.pairs[slot].tolist()
        return None if length == self._absent else (offset, length)

    def present(self) -> list[int]:
        found: list[int] = np.flatnonzero(self.pairs[:, 1] != np.uint64(self._absent)).tolist()
        return found


class OffsetsLevel(msgspec.Struct, frozen=True, cache_hash=True):
    """``slots`` pairs of unsigned 64-bit numbers, then their CRC-32C if ``checked``.

    A chunk that is missing has a pair of all ones, or (``absent="no length"``) a length of 0.
    """

    slots: int
    at_end: bool = True
    checked: bool = False
    big_endian: bool = False
    absent: Literal["ones", "no length"] = "ones"
    trailer: int = 0

    @property
    def length(self) -> int:
        return PAIR * self.slots + (crc32c.LENGTH if self.checked else 0)

    def table(self, data: bytes, size: int | None) -> Offsets:
        stop = PAIR * self.slots
        if self.checked:
            stored, found = int.from_bytes(data[stop:], "little"), crc32c.crc32c(data[:stop])
            if stored != found:
                raise ValueError(f"the checksum of its index is {found:08x}, where {stored:08x} is stored")
        pairs = np.frombuffer(data[:stop], ">u8" if self.big_endian else "<u8").reshape(-1, 2)
        pairs = pairs.astype(np.uint64, copy=False)
        self._check(pairs, size)
        return Offsets(pairs, self.absent)

    def pack(self, chunks: Sequence[tuple[int, Sequence[Buffer]]]) -> list[Buffer]:
        none = 0 if self.absent == "no length" else _NONE
        pairs = np.full((self.slots, 2), none, ">u8" if self.big_endian else "<u8")
        offset = 0 if self.at_end else self.length
        body: list[Buffer] = []
        for slot, parts in chunks:
            length = sum(map(len, parts))
            if length == none:
                raise Misfit("a chunk of no bytes cannot be told from a missing one in an index of this kind")
            pairs[slot] = offset, length
            offset += length
            body += parts
        index = pairs.tobytes()
        if self.checked:
            index += crc32c.crc32c(index).to_bytes(crc32c.LENGTH, "little")
        return [*body, index] if self.at_end else [index, *body]

    def _check(self, pairs: npt.NDArray[np.uint64], size: int | None) -> None:
        offsets, lengths = pairs[:, 0], pairs[:, 1]
        if self.absent == "no length":
            present = lengths != 0
        else:
            present = lengths != _NONE
            half = present ^ (offsets != _NONE)
            if half.any():
                raise ValueError(f"slot {int(half.argmax())} of its index is half empty")
        # Where a chunk may lie: not in the index, not past the end. Chunks of no bytes lie nowhere.
        first = 0 if self.at_end else self.length
        last = _LAST if size is None else np.uint64(max(size - (self.length if self.at_end else 0), 0))
        wrong = present & ((offsets > last) | (lengths > last) | (lengths > last - np.minimum(offsets, last)))
        if first:
            wrong |= present & (lengths > 0) & (offsets < first)
        if wrong.any():
            slot = int(wrong.argmax())
            offset, length = pairs[slot].tolist()
            room = f"[{first}, {'...' if size is None else int(last)})"
            raise ValueError(f"slot {slot} of its index says [{offset}, {offset + length}), outside of {room}")


def slots_of(lengths: tuple[int, ...]) -> int:
    """Return the number of slots of a shard of ``lengths`` chunks; ValueError where no index could be that long."""
    slots = math.prod(lengths)
    if slots < 1 or slots * PAIR > MAX_INDEX:
        raise ValueError(
            f"a shard of {'×'.join(map(str, lengths))} chunks would need an index of over {MAX_INDEX} bytes"
        )
    return slots
