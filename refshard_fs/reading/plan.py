"""Plan reads: the ranges that a request needs, and the requests that fetch many ranges. No I/O here.

`plan_read` returns the ranges of a request, its spans, and `ReadPlan.assemble` makes the bytes of the request from the
bytes of the spans. `coalesce` and `split_block` compute the blocks that serve n spans, in a time of n log n; no byte is
in two blocks. `immediate` carries out plans in the calling thread, and `engine` on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy.typing as npt

from refshard_fs.core.model import Entry, Packed, Span, decodes_arrays
from refshard_fs.core.zarrmeta import METADATA_NAMES
from refshard_fs.errors import sanitize_cause
from refshard_fs.reading.failures import make_read_error
from refshard_fs.targets.failures import NOT_FOUND

KIB = 1024
MIB = 1024 * KIB

DOCUMENTS = tuple(sorted(METADATA_NAMES))
SMALL = 16 * KIB  # bytes: decoding a smaller chunk takes less time than starting a thread
PARTS = 1 << 14  # the most requests for one range: a manifest may state any length


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request for the slice ``[start:end]`` of ``key``."""

    key: str
    start: int | None = None
    end: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all bytes of the key are requested."""
        return self.start is None and self.end is None


class ReadPlan(msgspec.Struct, frozen=True):
    """The plan of one request: read the spans of ``window``, assemble their bytes, then apply the slice ``cut``.

    Errors name ``key``; if it is None, they are raised unchanged. An object of unknown size may have at most ``most``
    bytes.
    """

    key: str | None
    window: Entry
    most: int | None = None
    cut: slice | None = None

    def assemble(self, parts: Sequence[bytes | BaseException]) -> bytes:
        """Return the bytes of the request, given the bytes or the error of each span.

        FileNotFoundError if the key does not exist.
        """
        if type(self.window) is Span and self.cut is None and isinstance(parts[0], bytes):
            return parts[0]  # the usual case
        read: list[bytes | None] = []
        for span, part in zip(self.window.spans, parts, strict=True):
            if not isinstance(part, BaseException):
                read.append(part)
            elif span.optional and span is not self.window and isinstance(part, NOT_FOUND):
                read.append(None)
            else:
                self._raise(span, part)
        try:
            data = self.window.finish(read)
        except Exception as e:  # noqa: BLE001  # codecs raise any error for damaged bytes
            self._raise(self.window, e)
        if data is None:
            raise FileNotFoundError(self.key)
        return data if self.cut is None else data[self.cut]

    def _raise(self, entry: Entry, error: BaseException) -> NoReturn:
        if self.key is None or not isinstance(error, Exception):
            raise error
        if entry is not self.window and isinstance(entry, Span):  # if this part is missing, the key still exists
            entry = msgspec.structs.replace(entry, optional=False)
        raise make_read_error(self.key, entry, error) from sanitize_cause(error)


def plan_read(request: Request, entry: Entry, most: int | None) -> ReadPlan | None:
    """Return the plan of ``request``, whose key has the ``entry``; None if this needs the unknown size of an object.

    Documents may have at most ``most`` bytes.
    """
    key = request.key
    window = entry
    if not request.is_whole:
        try:
            window = entry.take_window(request.start, request.end)
        except ValueError as e:
            if isinstance(entry, Span):
                return None
            raise make_read_error(key, entry, e) from sanitize_cause(e)
    return ReadPlan(key, window, most if key.endswith(DOCUMENTS) else None)


class UnmadeBytes(msgspec.Struct, frozen=True):
    """The bytes of a key's ranges before they are assembled."""

    plan: ReadPlan
    parts: Sequence[bytes | BaseException]

    def make(self) -> bytes:
        """Assemble the bytes of the key; errors name the key."""
        return self.plan.assemble(self.parts)

    def array(self) -> tuple[npt.NDArray[Any], Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] | None:
        """Return the stored values of a chunk and the function that converts them; None if only `make` can be used.

        ValueError if the bytes are damaged.
        """
        window = self.plan.window
        if not isinstance(window, Packed) or not decodes_arrays(window.recipe):
            return None
        if window.start is not None or window.stop is not None or self.plan.cut is not None:
            return None
        raw = window.join_raw([part for part in self.parts if isinstance(part, bytes)]) if self.is_complete else None
        return None if raw is None else (window.recipe.decode(raw), window.recipe.convert)

    @property
    def is_complete(self) -> bool:
        """Whether all ranges were read."""
        return all(isinstance(part, bytes) for part in self.parts)

    @property
    def is_small(self) -> bool:
        """Whether making the bytes takes less time than starting a thread."""
        return max(self.size, getattr(self.plan.window, "made", None) or 0) < SMALL

    @property
    def size(self) -> int:
        """The number of bytes that were read."""
        return sum(len(part) for part in self.parts if isinstance(part, bytes))


class Limits(msgspec.Struct, frozen=True):
    """The limits for merging ranges to requests, in bytes.

    Ranges are merged over gaps of at most ``gap`` (negative: never), to requests of at most ``block``, or a quarter
    more, if the rest would be a short request, which costs almost as much as a long one. A longer range becomes several
    requests of about ``block``, but of 1 MiB at least, so that the speed of one connection does not limit it. Over gaps
    of at most ``far``, ranges are merged if at least a third of the request is needed.
    """

    gap: int = 16 * KIB
    block: int = 1 * MIB
    far: int = -1

    @property
    def dense(self) -> Limits:
        """The limits for ranges that lie together and are usually read together."""
        return Limits(self.gap, 16 * self.block, 32 * self.gap)

    @property
    def apart(self) -> Limits:
        """The limits for ranges that are merged only if they touch."""
        return Limits(min(self.gap, 0), self.block)


class Block(NamedTuple):
    """Bytes ``[start, stop)``, and the positions of the ranges that lie in them."""

    start: int
    stop: int
    members: tuple[int, ...]


class PlannedRequest(NamedTuple):
    """A request that a read would send, and the keys that it serves; ``stop=None`` is the end of the target."""

    url: str
    start: int
    stop: int | None
    keys: tuple[str, ...]


def coalesce(ranges: Sequence[tuple[int, int]], limits: Limits) -> list[Block]:
    """Merge ``ranges`` of one target to blocks, in ascending order.

    Ranges that overlap are always in the same block, so that no byte is fetched twice.
    """
    blocks: list[Block] = []
    first = last = -1
    wanted = 0
    members: list[int] = []
    gap, far, most = limits.gap, limits.far, limits.block
    for i in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[i]
        if members and (
            start < last
            or (start - last <= gap and max(stop, last) - first <= most)
            or (start - last <= far and max(stop, last) - first <= min(most, 3 * (wanted + stop - start)))
        ):
            if stop > last:
                wanted += stop - max(start, last)
                last = stop
            members.append(i)
            continue
        if members:
            _append(blocks, Block(first, last, tuple(members)), limits)
        first, last, members, wanted = start, stop, [i], stop - start
    if members:
        _append(blocks, Block(first, last, tuple(members)), limits)
    return blocks


def _append(blocks: list[Block], block: Block, limits: Limits) -> None:
    """Append ``block``, or merge it into the last block if it is short and near that block's end."""
    more = limits.block // 4
    if blocks and block.stop - block.start <= more:
        before = blocks[-1]
        if block.start - before.stop <= limits.gap and block.stop - before.start <= limits.block + more:
            blocks[-1] = Block(before.start, block.stop, before.members + block.members)
            return
    blocks.append(block)


def leave_out(start: int, stop: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of ``[start, stop)`` that lie in none of ``ranges``, in ascending order.

    >>> leave_out(0, 10, [(6, 7), (-1, 2), (6, 8)])
    [(2, 6), (8, 10)]
    """
    found = []
    for first, last in sorted(ranges):
        if start < min(first, stop):
            found.append((start, min(first, stop)))
        start = max(start, last)
    return [*found, (start, stop)] if start < stop else found


def plan_requests(url: str, wanted: Sequence[tuple[str, int, int | None]], limits: Limits) -> list[PlannedRequest]:
    """Return the requests to one target that fetch ``wanted``: keys and their ranges."""
    known = [(key, start, stop) for key, start, stop in wanted if stop is not None]
    out = [PlannedRequest(url, start, None, (key,)) for key, start, stop in wanted if stop is None]
    for block in coalesce([(start, stop) for _, start, stop in known], limits):
        for first, last in split_block(block.start, block.stop, limits):
            served = (known[i] for i in block.members)
            keys = [key for key, start, stop in served if start < last and (stop > first or start == stop == first)]
            out.append(PlannedRequest(url, first, last, tuple(dict.fromkeys(keys))))
    return out


def split_block(start: int, stop: int, limits: Limits) -> list[tuple[int, int]]:
    """Split a block into equal parts of about ``limits.block`` bytes, but of 1 MiB at least."""
    size = stop - start
    count = min(max(round(size / max(limits.block, MIB)), 1), PARTS)
    cuts = [start + size * i // count for i in range(count)] + [stop]
    return list(pairwise(cuts))
