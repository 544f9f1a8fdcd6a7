"""ZIP archives as a source: every member is a key. No I/O here.

A stored member is a range of the archive, in which further formats find their ranges in turn;
its local header is read only where the directory does not prove how long that is. A compressed
member is inflated whole, and its length and CRC-32 are checked. Members keep their names:
where everything lies in one folder, so do the keys.
"""

from __future__ import annotations

import struct

import msgspec

from refshard_fs.core.array_group import made
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
    fields_of,
    parse_directory,
    parse_tail,
    plain,
)

_FIELDS = struct.Struct("<2H4x3L2H")
_ENCRYPTED, _DESCRIPTOR = 1, 8
_SHORTEST_DESCRIPTOR = 12
_MOST_EXTRA = 512
_LONGEST = 2 * 0xFFFF  # bytes of a local header's name and extra field together


class LocalHeader(msgspec.Struct, frozen=True):
    """How a local header is read, and whole against what the directory says of its member.

    ``name`` is that of the member, or empty where it is not in ASCII: headers may encode it otherwise.
    ``room`` is how many bytes there are for an extra field and whatever follows the member.
    """

    method: int
    stored: int
    size: int
    crc: int
    name: bytes
    room: int

    @property
    def length(self) -> int:
        """Bytes to be read: the header and, mostly, all of its extra field."""
        return HEADER + len(self.name) + min(self.room, _MOST_EXTRA)

    def decode(self, data: bytes) -> int:
        """Return how many bytes lie between the header's beginning and that of the member's bytes."""
        if len(data) < self.length or not data.startswith(MEMBER):
            raise ValueError(f"a local header begins with {data[:4]!r}")
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
    """Whether an extra field is made of whole fields, and of zeros that align what follows it."""
    return not any(kind < 0 and any(content) for kind, content in fields_of(extra))


def local_header(key: str, member: Member) -> LocalHeader:
    """Return how the local header of the member ``key`` is read and compared."""
    name = key.encode()
    room = member.limit - member.local - HEADER - len(name) - member.stored
    return LocalHeader(
        member.method, member.stored, member.size, member.crc, name if key.isascii() else b"", max(room, 0)
    )


class Inflated(msgspec.Struct, frozen=True):
    """The bytes of a compressed member, made from its local header and all that follows up to the next member."""

    header: LocalHeader

    def make(self, raw: bytes) -> bytes:
        start = self.header.decode(raw)
        if start + self.header.stored > len(raw):
            raise ValueError("a local header pushes its member into the next one")
        header = self.header
        return plain(header.method, raw[start : start + header.stored], header.size, header.crc)


class ZipKeySpace(KeySpace):
    """The members of the archive ``source`` at ``url``. Those with names such as ``../x`` are not among the keys."""

    def __init__(self, url: str, source: Span | Inline, members: Members) -> None:
        self.url = url
        self._source = source
        self._members = members

    def member(self, key: str) -> Member | None:
        """Return what the directory says of the member ``key``; None if there is none."""
        members = self._members
        place = members.names.find(key.encode("utf-8", "surrogatepass"))
        if place is not None:
            return Member(*members.rows[place].item())
        if key in members.withheld:
            raise ManifestError(
                f"the ZIP at {self.url} has {members.withheld[key]!r}, which is no path below its root: "
                f"it is not taken for the key {key!r}"
            )
        return None

    def lookup(self, key: str) -> Steps[Entry | None]:
        member = self.member(key)
        if member is None:
            return None
        start, limit, head, stored, size, _, method, is_encrypted = member
        if is_encrypted:
            raise ReferenceNotReachable(key, self.url, "it is encrypted, which is not read here")
        if method != STORED and method not in METHODS:
            named = OTHERS.get(method, "a method of number")
            raise ReferenceNotReachable(key, self.url, f"it is compressed by {named} ({method}), not read here")
        if not size:
            return Inline(b"")
        header = local_header(key, member)
        if method != STORED:
            longest = min(limit - start, HEADER + _LONGEST + stored)
            return made(self._source.part(start, longest), Inflated(header), size, self.url)
        if isinstance(self._source, Inline):  # it costs no request to compare the two
            try:
                head = header.decode(self._source.part(start, header.length).data)
            except ValueError as e:
                raise ReferenceNotReachable(key, self.url, str(e)) from e
        elif not head:
            head = yield Load(self._source.part(start, header.length), header)
        if start + head + stored > limit:
            raise ReferenceNotReachable(key, self.url, "its local header pushes it into the next member")
        return self._source.part(start + head, stored)

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        yield from ()
        directory = _directory(prefix)
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
        return not prefix or bool(self._members.names.below(_directory(prefix)))


def _directory(prefix: str) -> bytes:
    return f"{prefix}/".encode("utf-8", "surrogatepass") if prefix else b""


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a ZIP."""
    if probe.is_directory:
        raise ManifestError(f"{probe.url} is a directory, and no ZIP")
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
