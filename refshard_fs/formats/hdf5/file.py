"""The metadata of an HDF5 file: read its pages while it is opened, and parse the fields in them. No I/O here.

All addresses in the file count from its base address, which is where the user block ends.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from refshard_fs.core.model import Entry, Inline, Load, Parsed, Raw, Span, Steps
from refshard_fs.errors import ManifestError

A = TypeVar("A")

PAGE: Final = 4096  # bytes of a page, the unit of reading: most object headers are shorter, and lie next to others
FIRST: Final = 4 * PAGE  # bytes around each address in the first round; each further round reads 4 times more
AROUND: Final = 1 << 20  # most bytes that a round reads beyond its needs: they cost less time than another round
KEPT: Final = 4 << 20  # bytes of pages that an open file keeps, for the chunk indexes in them
PARSED: Final = 64  # size of the caches of datatypes and of dataspaces: many objects of a file share one
MOST: Final = 64 << 20  # bytes of one structure, except chunk indexes and collections of the global heap
# The bytes of all structures together are bounded: a structure may be read several times, but if structures overlap,
# each could be as large as the file.
TIMES_READ: Final = 16  # times the size of the file,
LEAST_READ: Final = 4 << 20  # plus this number of bytes


class UnreadableFile(ManifestError):
    """The file cannot be read at all. Other errors concern one object, which is left out."""


class Sizes(msgspec.Struct, frozen=True):
    """The sizes of addresses and lengths in a file, in bytes: 2, 4 or 8."""

    address: int = 8
    length: int = 8

    def block(self, form: str) -> int:
        """Return the size of a block: a signature, a version, the fields of ``form`` and a checksum."""
        try:
            return 9 + struct.calcsize(self.plain(form))
        except struct.error:
            raise ValueError(f"a structure with the fields {form} is larger than any file") from None

    def plain(self, form: str) -> str:
        """Convert ``form`` to a format of `struct`: P stands for an address, N for a length."""
        return "<" + form.replace("P", _CODES[self.address]).replace("N", _CODES[self.length])


_CODES: Final = {2: "H", 4: "I", 8: "Q"}


class _Layout(NamedTuple):
    """The format of consecutive fields; ``addresses`` are the positions of the fields that are addresses."""

    parts: struct.Struct
    addresses: list[slice]


@lru_cache(256)
def _make_layout(form: str, sizes: Sizes) -> _Layout:
    addresses: list[slice] = []
    at = 0
    for digits, code in re.findall(r"(\d*)([a-zA-Z?])", form):
        count = 0 if code == "x" else 1 if code == "s" else int(digits or 1)
        if code == "P":
            addresses.append(slice(at, at + count))
        at += count
    return _Layout(struct.Struct(sizes.plain(form)), addresses)


class Fields:
    """A cursor over the fields of one structure. Raises ValueError where the structure ends too early."""

    __slots__ = ("at", "data", "sizes")

    def __init__(self, data: bytes, sizes: Sizes, at: int = 0) -> None:
        self.data = data
        self.sizes = sizes
        self.at = at

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            where = f"it has {len(self.data)} bytes, and a field of {count} bytes begins at {self.at}"
            raise ValueError(f"a structure is cut short: {where}")
        found = self.data[self.at : end]
        self.at = end
        return found

    def uint(self, count: int) -> int:
        """Return the next ``count`` bytes as an unsigned integer."""
        return int.from_bytes(self.take(count), "little")

    def unpack(self, form: str) -> tuple[Any, ...]:
        """Return the next fields, as `struct` does. In ``form``, P is an address (None: undefined), N a length."""
        parts, addresses = _make_layout(form, self.sizes)
        found = parts.unpack(self.take(parts.size))
        if not addresses:
            return found
        values: list[Any] = list(found)
        undefined = (1 << 8 * self.sizes.address) - 1
        for place in addresses:
            values[place] = [None if value == undefined else value for value in values[place]]
        return tuple(values)

    def address(self) -> int | None:
        """Return the next address; None for the undefined address, whose bits are all set."""
        raw = self.take(self.sizes.address)
        return None if raw == b"\xff" * len(raw) else int.from_bytes(raw, "little")

    def text_at(self, at: int) -> str:
        """Return the text that begins at ``at``."""
        self.at = at
        return self.text()

    def text(self) -> str:
        """Return the next text, up to a NUL."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ValueError("a name has no NUL at its end")
        return self.take(end + 1 - self.at)[:-1].decode("utf-8", "surrogateescape")

    def expect(self, signature: bytes, version: int | None = None) -> None:
        """Skip a signature, and a version after it. Raise ValueError if they differ from the expected ones."""
        found = self.take(len(signature))
        if found != signature:
            raise ValueError(f"expected the signature {signature!r}, found {found!r}")
        if version is not None:
            number = self.uint(1)
            if number != version:
                raise ValueError(f"{signature.decode()} of version {number} is not supported: expected {version}")


def unpack_block(data: bytes, sizes: Sizes, signature: bytes, form: str) -> tuple[Any, ...]:
    """Return the fields of a block of `Sizes.block` bytes and of version 0. Verify its checksum."""
    fields = Fields(data, sizes)
    fields.expect(signature, 0)
    found = fields.unpack(form)
    verify_checksum(data[: fields.at + 4], f"a structure {signature.decode()}")
    return found


def verify_checksum(data: bytes, what: str) -> bytes:
    """Return ``data`` without the checksum at its end. Raise ValueError if the checksum differs."""
    from numcodecs.checksum32 import jenkins_lookup3  # slow to import

    body = data[:-4]
    stored = int.from_bytes(data[-4:], "little")
    computed = jenkins_lookup3(body, 0)
    if len(data) < 4 or computed != stored:
        raise ValueError(f"{what} is damaged: its checksum is {computed:#010x}, expected {stored:#010x}")
    return body


class MetadataFile:
    """The metadata of one file while it is opened: pages, each read once.

    Structures point to further structures, and following a pointer takes a round of requests. Metadata tend to lie
    together. So each round reads more bytes around its addresses than the round before.
    """

    def __init__(self, source: Span | Inline, size: int, head: bytes) -> None:
        """Take a file of ``size`` bytes at ``source``; ``head`` are its first bytes."""
        self.source = source
        self.size = size
        self.base = 0
        self.sizes = Sizes()
        self._head = source.data if isinstance(source, Inline) else head
        self._pages: dict[int, bytes] = {}
        self._expected: list[tuple[int, int]] = []
        self._rounds = 0
        self._taken = 0

    def fields(self, data: bytes) -> Fields:
        """Make a cursor over the fields of a structure."""
        return Fields(data, self.sizes)

    def room(self, address: int) -> int:
        """Return the number of bytes from ``address`` to the end of the file, at least 0."""
        return max(self.size - self.base - address, 0)

    def read(self, address: int, length: int, what: str) -> Steps[bytes]:
        """Read ``length`` bytes at ``address``. Raise ValueError, which contains ``what``, if the file ends before."""
        entry = self.metadata(address, length, what)
        if isinstance(entry, Inline):
            self._count(length)
            return entry.data
        if length > MOST:
            raise ValueError(f"{what} at {address} has {length} bytes: metadata may have at most {MOST}")
        data: bytes = yield Load(entry, Raw())
        return data

    def peek(self, address: int, least: int, most: int, what: str) -> Steps[bytes]:
        """Read at least ``least`` bytes, and up to ``most`` if the file has them."""
        return (yield from self.read(address, max(least, min(most, self.room(address))), what))

    def load(self, address: int, length: int, what: str, parse: Callable[..., object], *arguments: Hashable) -> Load:
        """Make the need for a structure, which ``parse(data, *arguments)`` decodes."""
        return Load(self.metadata(address, length, what), Parsed(parse, arguments))

    def metadata(self, address: int, length: int, what: str) -> Span | Inline:
        """Return the span of metadata, or the bytes if they were read before."""
        known = self._get_read(self.base + address, self.base + address + length)
        if known is not None:
            return Inline(known)
        found = self.part(address, length, what)
        return msgspec.structs.replace(found, apart=True) if isinstance(found, Span) else found

    def use_read(self, entry: Entry) -> Entry:
        """Return the bytes of ``entry`` if they were read before, otherwise ``entry``."""
        data = self._get_read(entry.start, entry.stop or 0) if isinstance(entry, Span) else None
        return entry if data is None else Inline(data)

    def _data(self, entry: Entry) -> bytes:
        found = self.use_read(entry)
        assert isinstance(found, Inline)
        return found.data

    def expect(self, address: int | None, length: int) -> None:
        """Read these bytes together with the next round: they will be needed soon. Ignore invalid addresses."""
        if address is not None and length <= self.room(address):
            self._expected.append((self.base + address, self.base + address + length))

    def part(self, address: int, length: int, what: str) -> Span | Inline:
        """Return the span of ``length`` bytes at ``address``. Raise ValueError if the file ends before."""
        if length > self.room(address):
            raise ValueError(f"{what} of {length} bytes at {address} ends beyond the end of the file of {self.size}")
        found = self.source.part(self.base + address, length)
        assert isinstance(found, Span | Inline)
        return found

    def run(self, steps: Steps[A]) -> Steps[A]:
        """Run ``steps`` and return their result. Read whole pages for the needs of each round.

        If a structure cannot be parsed, the answer is its error: other objects do not need the structure.
        """
        answer: Any = None
        while True:
            try:
                need: Any = steps.send(answer)
            except StopIteration as done:
                found: A = done.value
                return found
            needs: tuple[Load, ...] = need if isinstance(need, tuple) else (need,)
            self._count(sum(load.entry.size or 0 for load in needs))
            spans = [load.entry for load in needs if isinstance(load.entry, Span)]
            yield from self._fetch([(span.start, span.stop or 0) for span in spans])
            parsed: dict[Load, Any] = {}  # in one round, many objects may need the same collection
            for load in needs:
                if isinstance(load.index, Parsed) and load not in parsed:
                    try:
                        parsed[load] = load.index.decode(self._data(load.entry))
                    except ValueError as e:
                        parsed[load] = e
            answers = tuple(
                [parsed[load] if isinstance(load.index, Parsed) else self._data(load.entry) for load in needs]
            )
            answer = answers if isinstance(need, tuple) else answers[0]

    def _count(self, length: int) -> None:
        """Count bytes of structures. Raise UnreadableFile if there are more than the file can hold."""
        self._taken += length
        if self._taken > TIMES_READ * self.size + LEAST_READ:
            raise UnreadableFile(f"its structures overlap: {self._taken} bytes together, in a file of {self.size}")

    def forget(self) -> None:
        """Drop the pages of an open file if they are many: chunk indexes can be read again."""
        if len(self._pages) * PAGE > KEPT:
            self._pages = {}

    def _get_read(self, start: int, stop: int) -> bytes | None:
        """Return bytes of the file if they were read before."""
        if stop <= len(self._head):
            return self._head[start:stop]
        first, last = start // PAGE, -(-stop // PAGE)
        pages = [self._pages.get(number) for number in range(first, last)] if self._pages else [None]
        there = [page for page in pages if page is not None]
        if len(there) < len(pages):
            return None
        return b"".join(there)[start - first * PAGE : stop - first * PAGE]

    def _fetch(self, places: Sequence[tuple[int, int]]) -> Steps[None]:
        """Read the missing pages of ``places``, pages around them, and the pages of the expected bytes."""
        missing = {n for start, stop in places for n in range(start // PAGE, -(-stop // PAGE))} - self._pages.keys()
        if not missing:
            return
        expected, self._expected = self._expected, []
        for start, stop in expected:
            if self._get_read(start, stop) is None and len(missing) * PAGE + stop - start <= AROUND:
                missing |= set(range(start // PAGE, -(-stop // PAGE))) - self._pages.keys()
        width = min(FIRST << 2 * self._rounds, AROUND) // PAGE
        self._rounds += 1
        blocks = {number // width for number in missing}
        while width > 1 and len(blocks) * width * PAGE > AROUND:
            width //= 2
            blocks = {number // width for number in missing}
        end = -(-self.size // PAGE)
        around = {n for block in blocks for n in range(block * width, min((block + 1) * width, end))}
        runs: list[list[int]] = []
        for number in sorted(around - self._pages.keys()):
            if runs and runs[-1][1] == number:
                runs[-1][1] = number + 1
            else:
                runs.append([number, number + 1])
        loads = [Load(self.source.part(a * PAGE, min(b * PAGE, self.size) - a * PAGE), Raw()) for a, b in runs]
        read: Sequence[bytes] = yield tuple(loads)
        for (first, last), data in zip(runs, read, strict=True):
            for number in range(first, last):
                self._pages[number] = data[(number - first) * PAGE : (number - first + 1) * PAGE]
