"""Chunks that are made of blosc frames as they lie: checked against their digest, or cut, padded and framed anew."""

from __future__ import annotations

import msgspec

from refshard_fs.model import Entry, Inline, Packed, Span
from refshard_fs.shards.blosc import BODY, decode, plain_frame
from refshard_fs.shards.checksums import CHECKSUMS

__all__ = ["Piece", "Refilled", "Verified", "made"]


class Verified(msgspec.Struct, frozen=True):
    """The frame of ``stored`` bytes, once the digest behind it (`CHECKSUMS`) proves right."""

    checksum: int
    stored: int

    def make(self, raw: bytes) -> bytes:
        CHECKSUMS[self.checksum].verify(memoryview(raw)[: self.stored], raw[self.stored :])
        return raw[: self.stored]

    @property
    def made(self) -> int:
        """Bytes of what is made."""
        return self.stored


class Piece(msgspec.Struct, frozen=True):
    """A frame of ``stored`` bytes at ``offset``, which holds ``length`` bytes."""

    offset: int
    stored: int
    length: int


class Refilled(msgspec.Struct, frozen=True):
    """A plain frame of ``size`` bytes: those from ``skip`` on that ``pieces`` hold, at most ``size``, then zeros.

    With a ``checksum``, the digest behind each piece must be right.
    """

    pieces: tuple[Piece, ...]
    size: int
    typesize: int
    skip: int = 0
    checksum: int = 0

    def make(self, raw: bytes) -> bytes:
        parts: list[bytes] = []
        begin, missing = self.skip, self.size
        checksum = CHECKSUMS[self.checksum]
        for piece in self.pieces:
            end = piece.offset + piece.stored
            frame = raw[piece.offset : end]
            checksum.verify(frame, raw[end : end + checksum.size])
            part = decode(frame, piece.length)[begin : begin + missing]
            parts.append(part)
            begin = 0
            missing -= len(part)
        return plain_frame(parts, self.size, self.typesize)

    @property
    def made(self) -> int:
        """Bytes of what is made."""
        return self.size + BODY


def made(source: Entry, recipe: Verified | Refilled, cuts: tuple[tuple[int, int], ...] = ()) -> Entry:
    """Return the entry of what ``recipe`` makes of ``source``, or of ``cuts`` of it, (offset, length) pairs, joined."""
    match source:
        case Span():
            return Packed(source, recipe, recipe.made, cuts=cuts)
        case Inline(data) if cuts:
            return Inline(recipe.make(b"".join(data[offset : offset + length] for offset, length in cuts)))
        case Inline(data):
            return Inline(recipe.make(data))
        case Packed():
            raise TypeError("frames lie in an object or in memory, they are not made")
