"""Decode and write the indexes of shards: offset and length of the chunk in each slot. No I/O here.

A kind of index implements the protocols `Level` (encoding) and `Table` (decoded index). `OffsetsLevel` is the index of
zarr v3 and of the prototype for v2: for each slot 16 bytes, an offset and a length.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import checksums as crc32c

Buffer: TypeAlias = bytes | memoryview

MAX_INDEX = 256 << 20  # bytes: the longest index; forged metadata could otherwise make a reader allocate any size
PAIR = 16  # bytes of an offset and a length
BEYOND = np.uint64(2**63)  # bytes: all files are shorter
NONE = 2**64 - 1  # the offset and the length of a missing chunk
_LAST = np.uint64(2**63 - 1)  # the largest end of a range


class Misfit(ValueError):
    """A chunk cannot be stored in a shard of this kind."""


class Table(Protocol):
    """The decoded index of one shard; it takes ``nbytes`` bytes of memory, and threads share it."""

    @property
    def nbytes(self) -> int: ...

    def locate(self, slot: int) -> tuple[int, int] | None:
        """Return (offset, length) of the chunk in ``slot``; None if it is missing."""

    def list_present(self) -> Sequence[int]:
        """Return the slots that hold a chunk, ascending."""


class Level(Protocol, Hashable):
    """One kind of index: ``length`` bytes, at the start of a shard or before its last ``trailer`` bytes."""

    @property
    def length(self) -> int: ...

    @property
    def at_end(self) -> bool: ...

    @property
    def trailer(self) -> int: ...

    def table(self, data: bytes, size: int | None) -> Table:
        """Decode ``data`` (``length`` bytes); raise ValueError if these are invalid.

        ``size`` is the size of the shard without its trailer, if it is known.
        """

    def pack(self, chunks: Sequence[tuple[int, Sequence[Buffer]]]) -> list[Buffer]:
        """Return the parts of a shard, without the trailer: the index and the ``chunks`` (slot and bytes).

        The chunks keep this order, unless the index fixes the place of each slot. Raises Misfit if a chunk cannot be
        stored in such a shard.
        """


class TableIndex(msgspec.Struct, frozen=True, cache_hash=True):
    """The decoder of the index of ``shard``, a key of ``array``.

    ``view`` is the number of the view that needs the index: a shard may be rewritten before the source is opened again,
    and then the new view must not use the index of the old shard. ``size`` is the size of the shard without the
    trailer. If the shard reaches from byte ``first`` of an object to the object's end, this size may be unknown before
    the index is read: then `with_size` sets it. ``cut`` is the number of trailer bytes that are read together with the
    index, and cut off; None if the whole shard is read.
    """

    level: Level
    shard: str
    array: str
    view: int
    size: int | None = None
    cut: int | None = 0
    first: int = 0

    def with_size(self, object_size: int) -> TableIndex:
        """Return this decoder with the size of a shard that ends at the end of an object of ``object_size`` bytes."""
        if self.size is not None:
            return self
        return msgspec.structs.replace(self, size=max(object_size - self.first - self.level.trailer, 0))

    def decode(self, data: bytes) -> Table:
        length = self.level.length
        size, cut = self.size, self.cut
        try:
            if cut is None:
                size = len(data) - self.level.trailer
                data = data[max(size - length, 0) : max(size, 0)] if self.level.at_end else data[:length]
                cut = 0
            if len(data) != length + cut or (size is not None and size < length):
                available = len(data) if size is None else min(size + cut, len(data))
                raise ValueError(f"expected an index of {length + cut} bytes, found {available} bytes")
            return self.level.table(data[:length], size)
        except ValueError as e:
            raise ValueError(f"shard {self.shard!r} of array {self.array!r}: {e}") from e


class Offsets:
    """A table of the offset and the length of each slot: ``pairs`` is ``uint64[slots, 2]``."""

    __slots__ = ("_absent", "nbytes", "pairs")

    def __init__(self, pairs: npt.NDArray[np.uint64], absent: int = NONE) -> None:
        self.pairs = pairs
        self.nbytes = pairs.nbytes
        self._absent = absent  # the length of a missing chunk

    def locate(self, slot: int) -> tuple[int, int] | None:
        offset, length = self.pairs[slot].tolist()
        return None if length == self._absent else (offset, length)

    def list_present(self) -> list[int]:
        found: list[int] = np.flatnonzero(self.pairs[:, 1] != np.uint64(self._absent)).tolist()
        return found


class OffsetsLevel(msgspec.Struct, frozen=True, cache_hash=True):
    """An index of ``slots`` pairs of unsigned 64-bit numbers, followed by their CRC-32C if ``checked``.

    The pair of a missing chunk has all bits set, or (``absent="no length"``) a length of 0.
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

    @property
    def _absent_length(self) -> int:
        return NONE if self.absent == "ones" else 0

    def table(self, data: bytes, size: int | None) -> Offsets:
        stop = PAIR * self.slots
        if self.checked:
            stored, found = int.from_bytes(data[stop:], "little"), crc32c.crc32c(data[:stop])
            if stored != found:
                raise ValueError(f"expected the checksum {stored:08x} of its index, found {found:08x}")
        pairs = np.frombuffer(data[:stop], ">u8" if self.big_endian else "<u8").reshape(-1, 2)
        pairs = pairs.astype(np.uint64, copy=False)
        self._check(pairs, size)
        return Offsets(pairs, self._absent_length)

    def pack(self, chunks: Sequence[tuple[int, Sequence[Buffer]]]) -> list[Buffer]:
        pairs = np.full((self.slots, 2), self._absent_length, ">u8" if self.big_endian else "<u8")
        offset = 0 if self.at_end else self.length
        body: list[Buffer] = []
        for slot, parts in chunks:
            length = sum(map(len, parts))
            if length == self._absent_length:
                raise Misfit("expected a chunk of at least 1 byte: in this kind of index, length 0 means missing")
            pairs[slot] = offset, length
            offset += length
            body += parts
        index = pairs.tobytes()
        if self.checked:
            index += crc32c.crc32c(index).to_bytes(crc32c.LENGTH, "little")
        return [*body, index] if self.at_end else [index, *body]

    def _check(self, pairs: npt.NDArray[np.uint64], size: int | None) -> None:
        offsets, lengths = pairs[:, 0], pairs[:, 1]
        present = lengths != np.uint64(self._absent_length)
        half_empty = present ^ (offsets != NONE)
        if self.absent == "ones" and half_empty.any():
            raise ValueError(
                f"slot {int(half_empty.argmax())} of its index is half empty: expected both or neither of offset and "
                "length to be all ones"
            )
        # A chunk must not overlap the index, nor exceed the end of the shard. An empty chunk may lie within an index
        # at the start.
        first = 0 if self.at_end else self.length
        last = _LAST if size is None else np.uint64(max(size - (self.length if self.at_end else 0), 0))
        wrong = present & ((offsets > last) | (lengths > last) | (lengths > last - np.minimum(offsets, last)))
        wrong |= present & (lengths > 0) & (offsets < first)
        if wrong.any():
            slot = int(wrong.argmax())
            offset, length = pairs[slot].tolist()
            room = f"[{first}, {'...' if size is None else int(last)})"
            raise ValueError(
                f"slot {slot} of its index has [{offset}, {offset + length}): expected a range within {room}"
            )


def count_slots(lengths: tuple[int, ...]) -> int:
    """Return the number of slots of a shard of ``lengths`` chunks; ValueError if it has none, or too many."""
    slots = math.prod(lengths)
    if slots < 1 or slots * PAIR > MAX_INDEX:
        chunks = "×".join(map(str, lengths))
        raise ValueError(
            f"expected an index of at most {MAX_INDEX} bytes for one chunk or more, got {chunks} chunks in a shard, "
            f"which take {slots * PAIR}"
        )
    return slots
