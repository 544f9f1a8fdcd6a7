"""ZIP archives as a source: every member is a key. No I/O here.

A stored member is a range of the archive, in which other formats find their own ranges. Its local header is read only
if the directory does not prove the header's length. A compressed member is decompressed whole, and its length and
CRC-32 are checked. Keys are the names of members, including a common top folder.
"""

from __future__ import annotations

import struct

import msgspec

from refshard_fs.core.array_group import make_entry
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Inline, Listed, Load, Parsed, Span, Steps
from refshard_fs.errors import ManifestError, ReferenceNotReachable
from refshard_fs.formats.zip import MEMBER
from refshard_fs.formats.zip.directory import (
    HEADER,
    METHODS,
    OTHERS,
    STORED,
    TAIL,
    End,
    Member,
    Members,
    decompress_member,
    parse_directory,
    parse_tail,
    split_extra,
)

_FIELDS = struct.Struct("<2H4x3L2H")
_ENCRYPTED, _DESCRIPTOR = 1, 8
_SHORTEST_DESCRIPTOR = 12
_MOST_EXTRA = 512
_LONGEST = 2 * 0xFFFF  # bytes of a local header's name and extra field together


class LocalHeader(msgspec.Struct, frozen=True):
    """Decodes a local header, and compares all of it with the directory's entry of the member.

    ``name`` is the member's name; it is empty if the name is not ASCII, because headers may encode it differently.
    ``room`` is the number of bytes that are left for an extra field and for a descriptor after the member.
    """

    method: int
    stored: int
    size: int
    crc: int
    name: bytes
    room: int

    @property
    def length(self) -> int:
        """Number of bytes to read: the header and, in most cases, all of its extra field."""
        return HEADER + len(self.name) + min(self.room, _MOST_EXTRA)

    def decode(self, data: bytes) -> int:
        """Return the offset of the member's bytes from the start of the header."""
        if len(data) < self.length or not data.startswith(MEMBER):
            raise ValueError(f"a local header begins with {data[:4]!r}: expected {MEMBER!r}")
        flags, method, crc, stored, size, name, extra = _FIELDS.unpack_from(data, 6)
        same = method == self.method and not flags & _ENCRYPTED
        start, end = HEADER + name, HEADER + name + extra
        if self.name:
            same = same and data[HEADER:start].partition(b"\0")[0] == self.name
            same = same and extra <= self.room - (_SHORTEST_DESCRIPTOR if flags & _DESCRIPTOR else 0)
        if not flags & _DESCRIPTOR:
            numbers = ((stored, self.stored), (size, self.size))
            same = same and crc == self.crc and all(number in (0xFFFFFFFF, known) for number, known in numbers)
        if not same or (end <= len(data) and not _is_extra(data[start:end])):
            raise ValueError("a local header contradicts the archive's directory")
        return int(end)


def _is_extra(extra: bytes) -> bool:
    """Whether an extra field consists of whole fields, with zeros as padding after them."""
    return not any(kind < 0 and any(content) for kind, content in split_extra(extra))


def make_local_header(key: str, member: Member) -> LocalHeader:
    """Make the decoder of the local header of the member ``key``."""
    name = key.encode()
    room = member.limit - member.local - HEADER - len(name) - member.stored
    return LocalHeader(
        member.method, member.stored, member.size, member.crc, name if key.isascii() else b"", max(room, 0)
    )


class Decompressor(msgspec.Struct, frozen=True):
    """Decompresses a member from its local header and all bytes up to the next member."""

    header: LocalHeader

    def make(self, raw: bytes) -> bytes:
        start = self.header.decode(raw)
        if start + self.header.stored > len(raw):
            raise ValueError("by its local header, the member overlaps the next one")
        header = self.header
        return decompress_member(header.method, raw[start : start + header.stored], header.size, header.crc)


class ZipKeySpace(KeySpace):
    """The members of the archive ``source`` at ``url``. Names such as ``../x`` are not among the keys."""

    def __init__(self, url: str, source: Span | Inline, members: Members) -> None:
        self.url = url
        self._source = source
        self._members = members

    def member(self, key: str) -> Member | None:
        """Return the directory's entry of the member ``key``; None if there is none."""
        members = self._members
        place = members.names.find(key.encode("utf-8", "surrogatepass"))
        if place is not None:
            return Member(*members.rows[place].item())
        if key in members.withheld:
            raise ManifestError(
                f"the ZIP at {self.url} has the member {members.withheld[key]!r}, which is not a path below its root: "
                f"it cannot be read as the key {key!r}"
            )
        return None

    def lookup(self, key: str) -> Steps[Entry | None]:
        member = self.member(key)
        if member is None:
            return None
        start, limit, head, stored, size, _, method, is_encrypted = member
        if is_encrypted:
            raise ReferenceNotReachable(key, self.url, "it is encrypted, which is not supported")
        if method != STORED and method not in METHODS:
            named = OTHERS.get(method, "a method of number")
            raise ReferenceNotReachable(key, self.url, f"its compression is not supported: {named} ({method})")
        if not size:
            return Inline(b"")
        header = make_local_header(key, member)
        if method != STORED:
            longest = min(limit - start, HEADER + _LONGEST + stored)
            return make_entry(self._source.part(start, longest), Decompressor(header), size, self.url)
        if isinstance(self._source, Inline):  # the comparison costs no request
            try:
                head = header.decode(self._source.part(start, header.length).data)
            except ValueError as e:
                raise ReferenceNotReachable(key, self.url, str(e)) from e
        elif not head:
            head = yield Load(self._source.part(start, header.length), header)
        if start + head + stored > limit:
            raise ReferenceNotReachable(key, self.url, "by its local header, it overlaps the next member")
        return self._source.part(start + head, stored)

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        yield from ()
        directory = _find_directory_prefix(prefix)
        sizes = self._members.rows["size"]
        found = [
            Listed(name.decode(), None if place is None else int(sizes[place]), place is None)
            for name, place in self._members.names.children(directory)
        ]
        if not found and prefix and not self._members.names.below(directory):
            return None
        return sorted(found, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        return not prefix or bool(self._members.names.below(_find_directory_prefix(prefix)))


def _find_directory_prefix(prefix: str) -> bytes:
    return f"{prefix}/".encode("utf-8", "surrogatepass") if prefix else b""


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a ZIP archive."""
    if probe.is_directory:
        raise ManifestError(f"{probe.url} is a directory: expected a ZIP file")
    facts = probe.facts or Facts(None)
    size = facts.size
    source = Span(probe.url, 0, size, pin=facts.pin)
    whole = Inline(probe.head) if size is not None and size == len(probe.head) else source
    tail = whole.window(-TAIL) if size is None or size > TAIL else whole
    found: Members | End = yield Load(tail, Parsed(parse_tail, (probe.url, size)))
    match found:
        case End(start=start, size=length) as end:
            members: Members = yield Load(whole.part(start, length), Parsed(parse_directory, (probe.url, end)))
        case _:
            members = found
    return ZipKeySpace(probe.url, whole if probe.is_in_memory else source, members)
