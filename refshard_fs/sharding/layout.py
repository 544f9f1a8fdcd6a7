"""The one interface of shard formats: where an array's inner chunks lie, and its metadata as if they lay alone.

A `ShardFormat` recognises an array's metadata and answers with a `ShardLayout`: the grid of
inner chunks, which shard holds a chunk, and the indexes to go through inside of it. Third
parties register one through the entry point group ``refshard.shards``. No I/O here.
"""

from __future__ import annotations

import importlib
import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import checksums as crc32c
from refshard_fs.core.format import plugins
from refshard_fs.core.keys import ChunkGrid

Buffer: TypeAlias = bytes | memoryview

MAX_INDEX = 256 << 20  # bytes; a longer index is taken for a forged one and never asked for


class Misfit(ValueError):
    """A payload that cannot lie in a shard of its kind."""


class Table(Protocol):
    """The decoded index of one shard, ``nbytes`` heavy; shared by threads."""

    @property
    def nbytes(self) -> int: ...

    def locate(self, slot: int) -> tuple[int, int] | None:
        """Return (offset, length) in the shard of the chunk in ``slot``; None if there is none."""

    def present(self) -> Sequence[int]:
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
        """Return the table held by ``data`` (``length`` bytes), of a shard of ``size`` bytes if that is known.

        The trailer is not counted in ``size``. Raises ValueError where anything contradicts.
        """

    def pack(self, chunks: Sequence[tuple[int, Sequence[Buffer]]]) -> list[Buffer]:
        """Return the bytes of a shard of ``chunks`` (slot and payload, in the order to lie in), but for its trailer.

        Raises Misfit where a payload cannot lie in such a shard.
        """


class TableIndex(msgspec.Struct, frozen=True, cache_hash=True):
    """How the index of ``shard``, a key of ``array``, is decoded, for one view and no other.

    Shards may be written anew between two openings of a source, and nothing in an index tells;
    while a source is open, whoever reads a replaced target notices. ``size`` is the shard's,
    less the trailer. Of a shard that reaches from byte ``first`` of an object to its end, that
    may be known only when the index has been read: `sized` tells. ``cut`` bytes of trailer
    were read after the index, or (None) the whole shard was.
    """

    level: Level
    shard: str
    array: str
    view: int
    size: int | None = None
    cut: int | None = 0
    first: int = 0

    def sized(self, object_size: int) -> TableIndex:
        """Return this index of a shard in an object of ``object_size`` bytes."""
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
                there = len(data) if size is None else min(size + cut, len(data))
                raise ValueError(f"there are {there} bytes where its index takes {length + cut}")
            return self.level.table(data[:length], size)
        except ValueError as e:
            raise ValueError(f"shard {self.shard!r} of array {self.array!r}: {e}") from e


class Step(msgspec.Struct, frozen=True, gc=False):
    """One step down inside a shard: the slot of a chunk (or of a shard in the shard) in an index."""

    level: Level
    slot: int


class Cut(Protocol):
    """How shards cut one dimension; all counts are in inner chunks."""

    def shard(self, chunk: int) -> tuple[int, int, int]:
        """Return the number of the shard that holds ``chunk``, the chunk's place in it, and the shard's length."""

    def chunks(self, shard: int) -> range:
        """Return the chunks that shard number ``shard`` has room for."""


class Equal(msgspec.Struct, frozen=True):
    """Shards of ``length`` chunks each."""

    length: int

    def shard(self, chunk: int) -> tuple[int, int, int]:
        number, place = divmod(chunk, self.length)
        return number, place, self.length

    def chunks(self, shard: int) -> range:
        return range(shard * self.length, (shard + 1) * self.length)


class Ragged(msgspec.Struct, frozen=True):
    """Shards that end at ``ends``, ascending, each the first chunk past a shard."""

    ends: tuple[int, ...]

    def shard(self, chunk: int) -> tuple[int, int, int]:
        number = bisect_right(self.ends, chunk)
        first = self.ends[number - 1] if number else 0
        return number, chunk - first, self.ends[number] - first

    def chunks(self, shard: int) -> range:
        if not 0 <= shard < len(self.ends):
            return range(0)
        return range(self.ends[shard - 1] if shard else 0, self.ends[shard])


class ShardLayout(Protocol):
    """Where the inner chunks of one array lie. Shards are keyed like the chunks are, by their own coordinates."""

    @property
    def grid(self) -> ChunkGrid:
        """The grid of inner chunks; ``shards`` only where all shards have one size, and as the ``cuts`` have it."""

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """How shards cut each dimension."""

    def steps(self, places: Sequence[int], lengths: Sequence[int]) -> Sequence[Step]:
        """Return the way to the chunk at ``places`` in a shard of ``lengths`` chunks, outermost index first."""

    def rewrite(
        self, lengths: Sequence[int], old: Buffer | None, changes: Mapping[tuple[int, ...], Buffer | None]
    ) -> list[Buffer] | None:
        """Return the parts of the shard ``old`` (None: there is none) of ``lengths`` chunks after ``changes``.

        Those are payloads by place; None leaves a chunk out. A shard without chunks is None. Raises
        ValueError where the old shard is damaged, and the subclass Misfit where a payload cannot lie in such a shard.
        """


class Unsharded(NamedTuple):
    """An array seen as its inner chunks; without a layout it is passed on as it stands, for ``reason``.

    ``document`` is the array's metadata to be shown. With both a layout and a reason, inner
    chunks are themselves shards that cannot be opened further.
    """

    layout: ShardLayout | None
    document: Mapping[str, Any]
    reason: str | None = None


class ShardFormat(msgspec.Struct, frozen=True):
    """One way to pack chunks into shards.

    ``unshard`` takes an array's metadata and the user's ``shard_options`` and returns None if
    the array is not of this format; ValueError where its metadata contradicts itself. It is
    only asked about documents in which one of ``marks`` occurs. ``options`` are the names of
    the options that it takes, with their possible values, the default first.
    """

    name: str
    marks: tuple[bytes, ...]
    unshard: Callable[[Mapping[str, Any], Mapping[str, Any]], Unsharded | None]
    options: Mapping[str, tuple[Any, ...]] = {}


# The modules of this package that have a SHARD_FORMAT.
OWN_FORMATS = ("refshard_fs.sharding.v2", "refshard_fs.sharding.sharding_indexed")


@cache
def shard_formats() -> tuple[ShardFormat, ...]:
    """Return this package's shard formats, and those of the entry point group ``refshard.shards``."""
    found: dict[str, ShardFormat] = {}
    for name in OWN_FORMATS:
        known: ShardFormat = importlib.import_module(name).SHARD_FORMAT
        found[known.name] = known
    for known in plugins("refshard.shards"):
        found[known.name] = known
    return tuple(found.values())


def check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError unless ``options`` are options of known shard formats, with values that they take."""
    if not options:
        return
    known = {name: values for shard_format in shard_formats() for name, values in shard_format.options.items()}
    for name, value in options.items():
        if name not in known or value not in known[name]:
            choices = "; ".join(f"{n}: {' or '.join(map(repr, v))}" for n, v in sorted(known.items()))
            raise TypeError(f"shard_options has {name}={value!r}; there are {choices}")


# ----------------------------------------------------------------------------------------------------
# The index of (offset, length) pairs, 16 bytes a chunk, that sharded arrays of zarr v2 and v3 share. No I/O here.


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
