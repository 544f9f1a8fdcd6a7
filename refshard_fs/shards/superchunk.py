"""Where the frames of a bloscpack file lie: by its table of offsets, or from frame to frame where it has none.

What is learnt is kept: offsets a piece of the table at a time, the way from frame to frame as far as it was walked.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.model import Entry, Load, Steps
from refshard_fs.shards.blosc import BODY, FrameHeader, FrameIndex, parse
from refshard_fs.shards.bloscpack_header import Header

__all__ = ["Located", "OffsetsIndex", "Superchunk", "WalkIndex"]

PIECE: Final = 4096  # offsets read at a time
WINDOW: Final = 1 << 16  # bytes read at a time on a long way from frame to frame, where frames are small
FEW: Final = 8  # frames that are walked from header to header, so that nothing else is read


class Located(NamedTuple):
    """A frame's place in the file, and what it says of itself."""

    offset: int
    header: FrameHeader


class OffsetsIndex(msgspec.Struct, frozen=True):
    """Decodes a piece of the table of offsets."""

    def decode(self, data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.frombuffer(data, "<i8")


class WalkIndex(msgspec.Struct, frozen=True):
    """Decodes the headers of up to ``most`` frames that follow one another, each with a digest of ``tail`` bytes."""

    most: int
    tail: int

    def decode(self, data: bytes) -> tuple[FrameHeader, ...]:
        headers = [parse(data)]
        position = headers[0].stored + self.tail
        while len(headers) < self.most and position + BODY <= len(data):
            try:
                header = parse(data[position : position + BODY])
            except ValueError:
                break  # those before it are sound; whoever wants it is told
            headers.append(header)
            position += header.stored + self.tail
        return tuple(headers)


class Superchunk:
    """The frames of ``base``, a file of ``size`` bytes whose table of offsets, or first frame, is at ``table``."""

    def __init__(self, url: str, base: Entry, size: int, header: Header, table: int) -> None:
        self.url = url
        self.header = header
        self._base = base
        self._size = size
        self._table = table
        self._begin = table + header.slots * 8
        self._walked: dict[int, Located] = {}
        if self._begin > size:
            raise ManifestError(f"{url}: it is cut short: its offsets end at byte {self._begin}, the file at {size}")

    def part(self, offset: int, length: int) -> Entry:
        """Return bytes of the file."""
        return self._base.part(offset, length)

    def locate(self, first: int, last: int) -> Steps[list[Located]]:
        """Return frames ``[first, last)``; DamagedIndex, which names the field, where one cannot be there."""
        if not self.header.has_offsets:
            yield from self._walk(last)
            return [self._walked[number] for number in range(first, last)]
        offsets = yield from self._offsets(first, last)
        for number, offset in enumerate(offsets, first):
            self._check_offset(number, offset)
        headers = yield tuple(Load(self._base.part(offset, BODY), FrameIndex()) for offset in offsets)
        found = list(map(Located, offsets, headers))
        for number, located in enumerate(found, first):
            self._check(number, located)
        return found

    def _offsets(self, first: int, last: int) -> Steps[list[int]]:
        starts = range(first - first % PIECE, last, PIECE)
        loads = []
        for start in starts:
            length = min(PIECE, self.header.frames - start) * 8
            loads.append(Load(self._base.part(self._table + start * 8, length), OffsetsIndex()))
        pieces = yield tuple(loads)
        offsets = np.concatenate(pieces)[first - starts.start : last - starts.start]
        return [int(offset) for offset in offsets]

    def _walk(self, last: int) -> Steps[None]:
        while len(self._walked) < last:
            number = len(self._walked)
            offset, step = self._begin, 0
            if number:
                before = self._walked[number - 1]
                step = before.header.stored + self.header.digest.size
                offset = before.offset + step
            self._check_offset(number, offset)
            window = min(WINDOW if step * 4 <= WINDOW and last - number > FEW else BODY, self._size - offset)
            index = WalkIndex(self.header.frames - number, self.header.digest.size)
            headers = yield Load(self._base.part(offset, window), index)
            for header in headers:
                located = Located(offset, header)
                self._check(number, located)
                self._walked[number] = located
                offset += header.stored + self.header.digest.size
                number += 1

    def _check_offset(self, number: int, offset: int) -> None:
        if not self._begin <= offset <= self._size - BODY:
            reason = f"offset {offset} of chunk {number} is outside of bytes [{self._begin}, {self._size})"
            raise DamagedIndex("", self.url, reason)

    def _check(self, number: int, located: Located) -> None:
        offset, frame = located
        end = offset + frame.stored + self.header.digest.size
        if frame.length != self.header.length(number):
            due = self.header.length(number)
            raise DamagedIndex("", self.url, f"blosc nbytes {frame.length} of chunk {number}, where {due} are due")
        if end > self._size:
            reason = f"blosc ctbytes {frame.stored} of chunk {number}: it ends at byte {end}, the file at {self._size}"
            raise DamagedIndex("", self.url, reason)
