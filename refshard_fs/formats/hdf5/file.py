"""What is read of an HDF5 file when it is opened: pages of its metadata, and the fields in them. No I/O here.

Addresses in the file count from its base address, the end of the user block.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from refshard_fs.core.model import Inline, Load, Raw, Span, Steps, together

A = TypeVar("A")
B = TypeVar("B")

PAGE: Final = 4096  # bytes that are read together: most object headers are shorter, and lie beside others
MOST_PAGES_AT_ONCE: Final = 1 << 14  # that one structure may take: 64 MiB


class Sizes(msgspec.Struct, frozen=True):
    """How many bytes the file's addresses and lengths have."""

    address: int = 8
    length: int = 8


class Fields:
    """The fields of one structure, taken one after the other; ValueError where they end too soon."""

    __slots__ = ("at", "data", "sizes")

    def __init__(self, data: bytes, sizes: Sizes, at: int = 0) -> None:
        self.data = data
        self.sizes = sizes
        self.at = at

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise ValueError(f"a structure of {len(self.data)} bytes ends before its field of {count} at {self.at}")
        found = self.data[self.at : end]
        self.at = end
        return found

    def uint(self, count: int) -> int:
        """Return the next ``count`` bytes as a number."""
        return int.from_bytes(self.take(count), "little")

    def address(self) -> int | None:
        """Return an address; None for the undefined one, all of whose bits are set."""
        raw = self.take(self.sizes.address)
        return None if raw == b"\xff" * len(raw) else int.from_bytes(raw, "little")

    def length(self) -> int:
        """Return the length of something in the file."""
        return self.uint(self.sizes.length)

    def rest(self) -> bytes:
        """Return all that is left."""
        return self.take(len(self.data) - self.at)

    def left(self) -> int:
        """Return how many bytes are left."""
        return len(self.data) - self.at

    def expect(self, signature: bytes, version: int | None = None) -> None:
        """Take a signature, and the version that follows it; ValueError where they are others."""
        found = self.take(len(signature))
        if found != signature:
            raise ValueError(f"{found!r} where the signature {signature!r} is due")
        if version is not None:
            number = self.uint(1)
            if number != version:
                raise ValueError(f"{signature.decode()} of version {number}; version {version} is known")


def verified(data: bytes, what: str) -> bytes:
    """Return ``data`` without the checksum at its end; ValueError where that is not theirs."""
    from numcodecs.checksum32 import jenkins_lookup3  # slow to import

    body = data[:-4]
    said = int.from_bytes(data[-4:], "little")
    found = jenkins_lookup3(body, 0)
    if len(data) < 4 or found != said:
        raise ValueError(f"the checksum of {what} is {found:#010x}, not {said:#010x} as written: it is damaged")
    return body


def both(first: Steps[A], second: Steps[B]) -> Steps[tuple[A, B]]:
    """Return what two look-ups return that are made together."""
    many: list[Steps[Any]] = [first, second]
    one, other = yield from together(many)
    return one, other


class MetadataFile:
    """The pages of one file that were read while it is opened. Each is read once, whoever needs it."""

    def __init__(self, source: Span | Inline, size: int, head: bytes) -> None:
        """``head`` are the first bytes of ``source``, which has ``size`` bytes in all."""
        self.source = source
        self.size = size
        self.base = 0
        self.sizes = Sizes()
        self._pages: dict[int, bytes] = {}
        if isinstance(source, Inline):
            head = source.data
        self._head = head
        self._head_pages = len(head) // PAGE if len(head) < size else -(-size // PAGE)

    def fields(self, data: bytes) -> Fields:
        """Return the fields of a structure."""
        return Fields(data, self.sizes)

    def room(self, address: int) -> int:
        """Return how many bytes of the file begin at ``address``; none beyond its end."""
        return max(self.size - self.base - address, 0)

    def read(self, address: int, length: int, what: str) -> Steps[bytes]:
        """Return ``length`` bytes at ``address``; ValueError, which names ``what`` is there, beyond the file's end."""
        if length > self.room(address):
            raise ValueError(f"{what} at {address} has {length} bytes, beyond the end of the file of {self.size}")
        start = self.base + address
        first, last = start // PAGE, -(-(start + length) // PAGE)
        if last - first > MOST_PAGES_AT_ONCE:
            raise ValueError(f"{what} at {address} has {length} bytes, more than metadata may have")
        yield from self._load(first, last)
        joined = b"".join([self._page(number) for number in range(first, last)])
        return joined[start - first * PAGE : start - first * PAGE + length]

    def peek(self, address: int, least: int, most: int, what: str) -> Steps[bytes]:
        """Return at least ``least`` bytes, and up to ``most`` where the file has them."""
        return (yield from self.read(address, max(least, min(most, self.room(address))), what))

    def forget(self) -> None:
        """Let go of all pages but the head: the file has been opened."""
        self._pages = {}

    def metadata(self, address: int, length: int, what: str) -> Span | Inline:
        """Return where metadata lie that are read later: those in the file's head are known."""
        stop = self.base + address + length
        if stop <= len(self._head):
            return Inline(self._head[stop - length : stop])
        found = self.part(address, length, what)
        return msgspec.structs.replace(found, apart=True) if isinstance(found, Span) else found

    def part(self, address: int, length: int, what: str) -> Span | Inline:
        """Return where ``length`` bytes at ``address`` lie, without reading them."""
        if length > self.room(address):
            raise ValueError(f"{what} at {address} has {length} bytes, beyond the end of the file of {self.size}")
        found = self.source.part(self.base + address, length)
        assert isinstance(found, Span | Inline)
        return found

    def _page(self, number: int) -> bytes:
        if number < self._head_pages:
            return self._head[number * PAGE : (number + 1) * PAGE]
        return self._pages[number]

    def _load(self, first: int, last: int) -> Steps[None]:
        """Read the pages ``[first, last)`` that are not known yet: each run of them in one piece."""
        missing = [n for n in range(max(first, self._head_pages), last) if n not in self._pages]
        if not missing:
            return
        runs: list[list[int]] = []
        for number in missing:
            if runs and runs[-1][1] == number:
                runs[-1][1] = number + 1
            else:
                runs.append([number, number + 1])
        loads = tuple(Load(self.source.part(a * PAGE, min(b * PAGE, self.size) - a * PAGE), Raw()) for a, b in runs)
        for (a, b), data in zip(runs, (yield loads), strict=True):
            for number in range(a, b):
                self._pages[number] = data[(number - a) * PAGE : (number - a + 1) * PAGE]
