"""What is read of an HDF5 file when it is opened: pages of its metadata, and the fields in them. No I/O here.

Addresses in the file count from its base address, the end of the user block.
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

PAGE: Final = 4096  # bytes that are read together at least: most object headers are shorter, and lie beside others
FIRST: Final = 4 * PAGE  # bytes around each place that are read in the first round; each further one reads 4 times more
AROUND: Final = 1 << 20  # bytes that a round reads beyond what it needs, at most: they take less time than a round
KEPT: Final = 4 << 20  # bytes of pages that are kept for an open file, for what they tell of its chunks
PARSED: Final = 64  # datatypes, and dataspaces, that are kept: many objects of a file have the same
MOST: Final = 64 << 20  # bytes of one structure, unless it is an index of chunks or holds the texts of a chunk
# Bytes of all structures together: some are read several times, or more of them than they have; but in a file whose
# structures overlap, each might be as large as the file.
TIMES_READ: Final = 16  # the file's size,
LEAST_READ: Final = 4 << 20  # and these bytes


class UnreadableFile(ManifestError):
    """A file as a whole cannot be read: not only one of its objects, which would be left out."""


class Sizes(msgspec.Struct, frozen=True):
    """How many bytes the file's addresses and lengths have: 2, 4 or 8."""

    address: int = 8
    length: int = 8

    def block(self, form: str) -> int:
        """Return the bytes of a block with a signature, a version, the fields of ``form`` and a checksum."""
        try:
            return 9 + struct.calcsize(self.plain(form))
        except struct.error:
            raise ValueError(f"a structure of the fields {form} is larger than any file") from None

    def plain(self, form: str) -> str:
        """Return ``form`` as `struct` has it: P in it stands for an address, and N for a length."""
        return "<" + form.replace("P", _CODES[self.address]).replace("N", _CODES[self.length])


_CODES: Final = {2: "H", 4: "I", 8: "Q"}


class _Layout(NamedTuple):
    """Fields that lie one after the other; ``addresses`` are the ranges of those that are addresses."""

    parts: struct.Struct
    addresses: list[slice]


@lru_cache(256)
def _layout(form: str, sizes: Sizes) -> _Layout:
    addresses: list[slice] = []
    at = 0
    for digits, code in re.findall(r"(\d*)([a-zA-Z?])", form):
        count = 0 if code == "x" else 1 if code == "s" else int(digits or 1)
        if code == "P":
            addresses.append(slice(at, at + count))
        at += count
    return _Layout(struct.Struct(sizes.plain(form)), addresses)


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
            where = f"its {len(self.data)} bytes end before a field of {count} at {self.at}"
            raise ValueError(f"a structure is cut short: {where}")
        found = self.data[self.at : end]
        self.at = end
        return found

    def uint(self, count: int) -> int:
        """Return the next ``count`` bytes as a number."""
        return int.from_bytes(self.take(count), "little")

    def unpack(self, form: str) -> tuple[Any, ...]:
        """Return the fields that ``form`` names, as `struct` does: P is an address (None if undefined), N a length."""
        parts, addresses = _layout(form, self.sizes)
        found = parts.unpack(self.take(parts.size))
        if not addresses:
            return found
        values: list[Any] = list(found)
        undefined = (1 << 8 * self.sizes.address) - 1
        for place in addresses:
            values[place] = [None if value == undefined else value for value in values[place]]
        return tuple(values)

    def address(self) -> int | None:
        """Return an address; None for the undefined one, all of whose bits are set."""
        raw = self.take(self.sizes.address)
        return None if raw == b"\xff" * len(raw) else int.from_bytes(raw, "little")

    def text_at(self, at: int) -> str:
        """Return the text that begins at ``at``."""
        self.at = at
        return self.text()

    def text(self) -> str:
        """Return a text that ends with a NUL."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ValueError("a name does not end")
        return self.take(end + 1 - self.at)[:-1].decode("utf-8", "surrogateescape")

    def expect(self, signature: bytes, version: int | None = None) -> None:
        """Take a signature, and the version that follows it; ValueError where they are others."""
        found = self.take(len(signature))
        if found != signature:
            raise ValueError(f"{found!r} where the signature {signature!r} is due")
        if version is not None:
            number = self.uint(1)
            if number != version:
                raise ValueError(f"{signature.decode()} of version {number}; version {version} is known")


def unpack_block(data: bytes, sizes: Sizes, signature: bytes, form: str) -> tuple[Any, ...]:
    """Return the fields of a block of `Sizes.block` bytes, whose version is 0; its checksum is verified."""
    fields = Fields(data, sizes)
    fields.expect(signature, 0)
    found = fields.unpack(form)
    verified(data[: fields.at + 4], f"a structure {signature.decode()}")
    return found


def verified(data: bytes, what: str) -> bytes:
    """Return ``data`` without the checksum at its end; ValueError where that is not theirs."""
    from numcodecs.checksum32 import jenkins_lookup3  # slow to import

    body = data[:-4]
    stored = int.from_bytes(data[-4:], "little")
    computed = jenkins_lookup3(body, 0)
    if len(data) < 4 or computed != stored:
        raise ValueError(f"the checksum of {what} is {computed:#010x}, not {stored:#010x} as written: it is damaged")
    return body


class MetadataFile:
    """One file while it is opened, and what was read of it: pages of its metadata, each once, whoever needs it.

    A structure leads to the next, and each takes a round of requests. So every round reads more around what it needs
    than the one before: metadata tend to lie together.
    """

    def __init__(self, source: Span | Inline, size: int, head: bytes) -> None:
        """``head`` are the first bytes of ``source``, which has ``size`` bytes in all."""
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
        """Return the fields of a structure."""
        return Fields(data, self.sizes)

    def room(self, address: int) -> int:
        """Return how many bytes of the file begin at ``address``; none beyond its end."""
        return max(self.size - self.base - address, 0)

    def read(self, address: int, length: int, what: str) -> Steps[bytes]:
        """Return ``length`` bytes at ``address``; ValueError, which names ``what`` is there, beyond the file's end."""
        entry = self.metadata(address, length, what)
        if isinstance(entry, Inline):
            self._count(length)
            return entry.data
        if length > MOST:
            raise ValueError(f"{what} at {address} has {length} bytes, more than metadata may have")
        data: bytes = yield Load(entry, Raw())
        return data

    def peek(self, address: int, least: int, most: int, what: str) -> Steps[bytes]:
        """Return at least ``least`` bytes, and up to ``most`` where the file has them."""
        return (yield from self.read(address, max(least, min(most, self.room(address))), what))

    def load(self, address: int, length: int, what: str, parse: Callable[..., object], *arguments: Hashable) -> Load:
        """Return the need of a structure, which ``parse`` makes of its bytes and the ``arguments``."""
        return Load(self.metadata(address, length, what), Parsed(parse, arguments))

    def metadata(self, address: int, length: int, what: str) -> Span | Inline:
        """Return where metadata lie; they themselves, if they were read before."""
        known = self._known(self.base + address, self.base + address + length)
        if known is not None:
            return Inline(known)
        found = self.part(address, length, what)
        return msgspec.structs.replace(found, apart=True) if isinstance(found, Span) else found

    def known(self, entry: Entry) -> Entry:
        """Return ``entry`` as its bytes, if they were read before."""
        data = self._known(entry.start, entry.stop or 0) if isinstance(entry, Span) else None
        return entry if data is None else Inline(data)

    def _data(self, entry: Entry) -> bytes:
        found = self.known(entry)
        assert isinstance(found, Inline)
        return found.data

    def expect(self, address: int | None, length: int) -> None:
        """Have bytes that will be needed soon read with what is needed now; those that are not there do not matter."""
        if address is not None and length <= self.room(address):
            self._expected.append((self.base + address, self.base + address + length))

    def part(self, address: int, length: int, what: str) -> Span | Inline:
        """Return where ``length`` bytes at ``address`` lie; ValueError, which names ``what`` is there, if beyond."""
        if length > self.room(address):
            raise ValueError(f"{what} at {address} has {length} bytes, beyond the end of the file of {self.size}")
        found = self.source.part(self.base + address, length)
        assert isinstance(found, Span | Inline)
        return found

    def run(self, steps: Steps[A]) -> Steps[A]:
        """Return what ``steps`` return, which `read` this file: what they need in a round is read as pages.

        A structure that cannot be parsed is answered with its error: other objects do not need it.
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
            parsed: dict[Load, Any] = {}  # many objects need one collection of texts in the same round
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
        """Count bytes of a structure; UnreadableFile where the file cannot have so many."""
        self._taken += length
        if self._taken > TIMES_READ * self.size + LEAST_READ:
            raise UnreadableFile(f"structures of {self._taken} bytes together overlap in a file of {self.size}")

    def forget(self) -> None:
        """Let go of the pages of a file that has been opened, if they are many; others tell of its chunks as well."""
        if len(self._pages) * PAGE > KEPT:
            self._pages = {}

    def _known(self, start: int, stop: int) -> bytes | None:
        """Return bytes of the file, if they were read."""
        if stop <= len(self._head):
            return self._head[start:stop]
        first, last = start // PAGE, -(-stop // PAGE)
        pages = [self._pages.get(number) for number in range(first, last)] if self._pages else [None]
        there = [page for page in pages if page is not None]
        if len(there) < len(pages):
            return None
        return b"".join(there)[start - first * PAGE : stop - first * PAGE]

    def _fetch(self, places: Sequence[tuple[int, int]]) -> Steps[None]:
        """Read all pages of ``places`` and, if there are any to be read, others around them and those expected."""
        missing = {n for start, stop in places for n in range(start // PAGE, -(-stop // PAGE))} - self._pages.keys()
        if not missing:
            return
        expected, self._expected = self._expected, []
        for start, stop in expected:
            if self._known(start, stop) is None and len(missing) * PAGE + stop - start <= AROUND:
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
