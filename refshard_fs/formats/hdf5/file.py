"""Read the metadata of an HDF5 file in pages while it is opened, and parse the fields in them. No I/O here.

Addresses in a file count from its base address, which is the end of the user block.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from refshard_fs.core.model import Entry, Inline, Load, ParsedIndex, Raw, Span, Steps
from refshard_fs.errors import ManifestError

A = TypeVar("A")

PAGE: Final = 4096  # bytes of a page, the unit of reading: most object headers are shorter, and lie side by side
FIRST: Final = 4 * PAGE  # bytes around each address in the first round; each further round reads 4 times as many
# Bytes: a round reads pages around its needs only up to this total. Reading so many takes less time than another round.
AROUND: Final = 1 << 20
# If a round has more than `MANY_RUNS` runs of pages, gaps of at most `FAR` bytes between runs are read, too: a gap
# takes a millisecond at 60 MB/s, and another request takes this time on the CPU.
MANY_RUNS: Final = 16
FAR: Final = 64 << 10
# Bytes: if the pages of an opened file take more, they are not kept in memory. Chunk indexes may lie in them.
PAGE_CACHE: Final = 4 << 20
PARSE_CACHE: Final = 64  # number of parsed datatypes, and of dataspaces, in memory: many objects have the same
# Bytes of one structure, except chunk indexes and collections of the global heap: a damaged length may be any number.
MOST_METADATA: Final = 64 << 20
# The bytes of all structures together are bounded: a structure may be read several times, but if structures overlap,
# each could be as large as the file.
TIMES_READ: Final = 16  # times the size of the file,
FREE_READ: Final = 4 << 20  # plus this number of bytes


class UnreadableFile(ManifestError):
    """An error that concerns the whole file. Other errors concern one object, which is left out."""


class Sizes(msgspec.Struct, frozen=True):
    """The sizes of addresses and lengths in a file, in bytes: 2, 4 or 8."""

    address: int = 8
    length: int = 8

    def measure_block(self, form: str) -> int:
        """Return the size in bytes of a block: a signature, a version, the fields of ``form`` and a checksum."""
        try:
            return 9 + struct.calcsize(self.convert_to_struct_format(form))
        except struct.error:
            raise ValueError(
                "a structure in it has 2**63 bytes or more: expected at most the bytes of the file"
            ) from None

    def convert_to_struct_format(self, form: str) -> str:
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
    position = 0
    for digits, code in re.findall(r"(\d*)([a-zA-Z?])", form):
        count = 0 if code == "x" else 1 if code == "s" else int(digits or 1)
        if code == "P":
            addresses.append(slice(position, position + count))
        position += count
    return _Layout(struct.Struct(sizes.convert_to_struct_format(form)), addresses)


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
            expected = f"expected a field of {count} bytes at {self.at}, found {len(self.data)} bytes in all"
            raise ValueError(f"a structure is cut short: {expected}")
        data = self.data[self.at : end]
        self.at = end
        return data

    def read_uint(self, count: int) -> int:
        """Return the next ``count`` bytes as an unsigned integer."""
        return int.from_bytes(self.take(count), "little")

    def unpack(self, form: str) -> tuple[Any, ...]:
        """Return the next fields, as `struct` does. In ``form``, P is an address (None: undefined), N a length."""
        layout, addresses = _make_layout(form, self.sizes)
        values = layout.unpack(self.take(layout.size))
        if not addresses:
            return values
        fields: list[Any] = list(values)
        undefined = (1 << 8 * self.sizes.address) - 1
        for position in addresses:
            fields[position] = [None if value == undefined else value for value in fields[position]]
        return tuple(fields)

    def read_address(self) -> int | None:
        """Return the next address; None for the undefined address, whose bits are all set."""
        raw = self.take(self.sizes.address)
        return None if raw == b"\xff" * len(raw) else int.from_bytes(raw, "little")

    def read_text_at(self, at: int) -> str:
        """Return the text that begins at ``at``."""
        self.at = at
        return self.read_text()

    def read_text(self) -> str:
        """Return the next text, up to a NUL."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ValueError(
                f"a name at byte {self.at} of a structure of {len(self.data)} bytes: expected a NUL at its end"
            )
        return self.take(end + 1 - self.at)[:-1].decode("utf-8", "surrogateescape")

    def expect(self, signature: bytes, version: int | None = None) -> None:
        """Skip a signature, and a version after it. Raise ValueError if they differ from the expected ones."""
        prefix = self.take(len(signature))
        if prefix != signature:
            raise ValueError(f"expected the signature {signature!r}, found {prefix!r}")
        if version is not None:
            number = self.read_uint(1)
            if number != version:
                raise ValueError(f"{signature.decode()} of version {number} is not supported: expected {version}")


def unpack_block(data: bytes, sizes: Sizes, signature: bytes, form: str) -> tuple[Any, ...]:
    """Return the fields of a block of `Sizes.measure_block` bytes and of version 0. Verify its checksum."""
    fields = Fields(data, sizes)
    fields.expect(signature, 0)
    values = fields.unpack(form)
    verify_checksum(data[: fields.at + 4], f"a structure {signature.decode()}")
    return values


def verify_checksum(data: bytes, label: str) -> bytes:
    """Return ``data`` without the checksum at its end. Raise ValueError if the checksum differs."""
    from numcodecs.checksum32 import jenkins_lookup3  # slow to import

    body = data[:-4]
    expected = int.from_bytes(data[-4:], "little")
    computed = jenkins_lookup3(body, 0)
    if len(data) < 4 or computed != expected:
        raise ValueError(f"{label} is damaged: its checksum is {computed:#010x}, expected {expected:#010x}")
    return body


class MetadataFile:
    """The metadata of one file while it is opened: pages, each read once.

    Structures point to further structures, and following a pointer takes a round of requests. Metadata tend to lie
    together. So each round reads more bytes around its addresses than the round before, up to `AROUND` in all.
    """

    def __init__(self, source: Span | Inline, size: int, head: bytes) -> None:
        """Take a file of ``size`` bytes at ``source``; ``head`` are its first bytes."""
        self.source = source
        self.size = size
        self.base = 0
        self.sizes = Sizes()
        self._head = source.data if isinstance(source, Inline) else head
        self._pages: dict[int, bytes] = {}
        self._to_prefetch: list[tuple[int, int]] = []
        self._rounds = 0
        self._structure_bytes = 0  # the sum of the lengths of all structures that were read

    def make_fields(self, data: bytes) -> Fields:
        """Make a cursor over the fields of a structure."""
        return Fields(data, self.sizes)

    def count_bytes_after(self, address: int) -> int:
        """Return the number of bytes from ``address`` to the end of the file, at least 0."""
        return max(self.size - self.base - address, 0)

    def read(self, address: int, length: int, label: str) -> Steps[bytes]:
        """Read ``length`` bytes at ``address``. If the file is too short, raise a ValueError that names ``label``."""
        entry = self.locate_metadata(address, length, label)
        if isinstance(entry, Inline):
            self._count_bytes(length)
            return entry.data
        if length > MOST_METADATA:
            raise ValueError(f"{label} at {address} has {length} bytes: expected at most {MOST_METADATA}")
        data: bytes = yield Load(entry, Raw())
        return data

    def read_up_to(self, address: int, least: int, most: int, label: str) -> Steps[bytes]:
        """Read ``most`` bytes, or as many as the file has. Raise ValueError if these are fewer than ``least``."""
        return (yield from self.read(address, max(least, min(most, self.count_bytes_after(address))), label))

    def load(self, address: int, length: int, label: str, parse: Callable[..., object], *arguments: Hashable) -> Load:
        """Make the need for a structure of ``length`` bytes, which ``parse(data, *arguments)`` decodes."""
        return Load(self.locate_metadata(address, length, label), ParsedIndex(parse, arguments))

    def locate_metadata(self, address: int, length: int, label: str) -> Span | Inline:
        """Return the span of metadata, or the bytes if they were read before."""
        data = self._get_bytes(self.base + address, self.base + address + length)
        if data is not None:
            return Inline(data)
        span = self.locate(address, length, label)
        return msgspec.structs.replace(span, apart=True) if isinstance(span, Span) else span

    def get_if_read(self, entry: Entry) -> Entry:
        """Return the bytes of ``entry`` if they were read before, otherwise ``entry``."""
        data = self._get_bytes(entry.start, entry.stop or 0) if isinstance(entry, Span) else None
        return entry if data is None else Inline(data)

    def _get_data(self, entry: Entry) -> bytes:
        inline = self.get_if_read(entry)
        assert isinstance(inline, Inline)
        return inline.data

    def prefetch(self, address: int | None, length: int) -> None:
        """Read ``length`` bytes at ``address`` in the next round, for a later round. Ignore an invalid address."""
        if address is not None and length <= self.count_bytes_after(address):
            self._to_prefetch.append((self.base + address, self.base + address + length))

    def locate(self, address: int, length: int, label: str) -> Span | Inline:
        """Return the span of ``length`` bytes at ``address``. Raise ValueError if the file is too short."""
        if length > self.count_bytes_after(address):
            found = f"{label} has {length} bytes at {address}"
            raise ValueError(f"{found}: expected it to end within the {self.size} bytes of the file")
        part = self.source.part(self.base + address, length)
        assert isinstance(part, Span | Inline)
        return part

    def run(self, steps: Steps[A]) -> Steps[A]:
        """Run ``steps`` and return their result. Read whole pages for the needs of each round.

        If a structure cannot be parsed, the answer to its need is the ValueError: objects without this structure can
        still be read.
        """
        answer: Any = None
        while True:
            try:
                need: Any = steps.send(answer)
            except StopIteration as done:
                result: A = done.value
                return result
            needs: tuple[Load, ...] = need if isinstance(need, tuple) else (need,)
            self._count_bytes(sum(load.entry.size or 0 for load in needs))
            spans = [load.entry for load in needs if isinstance(load.entry, Span)]
            yield from self._fetch([(span.start, span.stop or 0) for span in spans])
            parsed: dict[Load, Any] = {}  # in one round, many objects may need the same collection
            for load in needs:
                if isinstance(load.index, ParsedIndex) and load not in parsed:
                    try:
                        parsed[load] = load.index.decode(self._get_data(load.entry))
                    except ValueError as e:
                        parsed[load] = e
            answers = tuple(
                [parsed[load] if isinstance(load.index, ParsedIndex) else self._get_data(load.entry) for load in needs]
            )
            answer = answers if isinstance(need, tuple) else answers[0]

    def _count_bytes(self, length: int) -> None:
        """Count bytes of structures. Raise UnreadableFile if there are more than the file can hold."""
        self._structure_bytes += length
        if self._structure_bytes > TIMES_READ * self.size + FREE_READ:
            most = TIMES_READ * self.size + FREE_READ
            found = f"its structures have {self._structure_bytes} bytes or more, so many overlap"
            raise UnreadableFile(f"{found}: expected at most {most} in a file of {self.size} bytes")

    def drop_pages(self) -> None:
        """Drop the pages of the opened file if they take more than `PAGE_CACHE`: chunk indexes can be read again."""
        if len(self._pages) * PAGE > PAGE_CACHE:
            self._pages = {}

    def _get_bytes(self, start: int, stop: int) -> bytes | None:
        """Return bytes of the file if they were read before, otherwise None."""
        if stop <= len(self._head):
            return self._head[start:stop]
        first_page, end_page = start // PAGE, -(-stop // PAGE)
        pages = [self._pages.get(number) for number in range(first_page, end_page)] if self._pages else [None]
        available = [page for page in pages if page is not None]
        if len(available) < len(pages):
            return None
        return b"".join(available)[start - first_page * PAGE : stop - first_page * PAGE]

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> Steps[None]:
        """Read the missing pages of ``ranges``, pages around them, and the bytes to prefetch."""
        missing = {
            number for start, stop in ranges for number in range(start // PAGE, -(-stop // PAGE))
        } - self._pages.keys()
        if not missing:
            return
        to_prefetch, self._to_prefetch = self._to_prefetch, []
        for start, stop in to_prefetch:
            if self._get_bytes(start, stop) is None and len(missing) * PAGE + stop - start <= AROUND:
                missing |= set(range(start // PAGE, -(-stop // PAGE))) - self._pages.keys()
        width = min(FIRST << 2 * self._rounds, AROUND) // PAGE
        self._rounds += 1
        blocks = {number // width for number in missing}
        while width > 1 and len(blocks) * width * PAGE > AROUND:
            width //= 2
            blocks = {number // width for number in missing}
        end = -(-self.size // PAGE)
        around = {number for block in blocks for number in range(block * width, min((block + 1) * width, end))}
        runs = _join_pages(sorted(around - self._pages.keys()))
        parts = [
            self.source.part(first_page * PAGE, min(end_page * PAGE, self.size) - first_page * PAGE)
            for first_page, end_page in runs
        ]
        parts = [msgspec.structs.replace(part, mixed=True) if isinstance(part, Span) else part for part in parts]
        answers: Sequence[bytes] = yield tuple([Load(part, Raw()) for part in parts])
        for (first_number, end_number), data in zip(runs, answers, strict=True):
            for number in range(first_number, end_number):
                self._pages[number] = data[(number - first_number) * PAGE : (number - first_number + 1) * PAGE]


def _join_pages(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Join ascending pages to runs of consecutive pages. Many runs are joined over gaps of at most `FAR` bytes."""
    for gap in (0, FAR // PAGE):
        runs: list[tuple[int, int]] = []
        for number in numbers:
            if runs and number - runs[-1][1] <= gap:
                runs[-1] = runs[-1][0], number + 1
            else:
                runs.append((number, number + 1))
        if len(runs) <= MANY_RUNS:
            break
    return runs
