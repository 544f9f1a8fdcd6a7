"""Open ZIP archives as sources: the names of members are keys. No I/O here.

A member that is stored without compression is a range of the archive. Its local header is read only if the directory
does not prove the length of the header, or if the archive is in memory. A compressed member is decompressed whole, and
its length and CRC-32 are checked. A folder that contains all members is a part of each key. Names such as ``../x`` are
not keys.
"""

from __future__ import annotations

import struct

import msgspec

from refshard_fs.core.array_group import make_entry
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import MOST_STEPS
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Inline, Listed, Load, ParsedIndex, Span, Steps
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
_ENCRYPTED, _DESCRIPTOR = 1, 8  # flags
_SHORTEST_DESCRIPTOR = 12  # bytes of the shortest descriptor
_MOST_EXTRA = 512  # bytes of an extra field that are read with a local header
_LONGEST = 2 * 0xFFFF  # the most bytes of name and extra field together


class LocalHeader(msgspec.Struct, frozen=True):
    """Decode a local header, and compare it with the entry of the member in the directory.

    ``stored`` is the size of the member in the archive, ``size`` its size after decompression. ``name`` is b"" if it is
    not ASCII: the local header may encode such names differently. ``room`` is the most bytes that the extra field of
    the header, and a descriptor after the member, can have together.
    """

    method: int
    stored: int
    size: int
    crc: int
    name: bytes
    room: int

    @property
    def length(self) -> int:
        """The number of bytes to read: the header and, in most cases, all of its extra field."""
        return HEADER + len(self.name) + min(self.room, _MOST_EXTRA)

    def decode(self, data: bytes) -> int:
        """Return the length of the header: the member's bytes follow it. ValueError if it contradicts the directory."""
        if not data.startswith(MEMBER):
            raise ValueError(f"a local header begins with {data[:4]!r}: expected {MEMBER!r}")
        if len(data) < self.length:
            raise ValueError(f"a local header is cut short: {len(data)} bytes, expected {self.length}")
        flags, method, crc, stored, size, name, extra = _FIELDS.unpack_from(data, 6)
        is_same = method == self.method and not flags & _ENCRYPTED
        start, end = HEADER + name, HEADER + name + extra
        if self.name:
            is_same = is_same and data[HEADER:start].partition(b"\0")[0] == self.name
            is_same = is_same and extra <= self.room - (_SHORTEST_DESCRIPTOR if flags & _DESCRIPTOR else 0)
        if not flags & _DESCRIPTOR:
            numbers = ((stored, self.stored), (size, self.size))
            is_same = is_same and crc == self.crc
            is_same = is_same and all(number in (0xFFFFFFFF, expected) for number, expected in numbers)
        if not is_same:
            found = [method, stored, size, crc, data[HEADER:start][:80], flags, extra]
            expected = [self.method, self.stored, self.size, self.crc, self.name[:80]]
            raise ValueError(
                f"a local header has the method, sizes, CRC-32, name, flags and extra bytes {found}: expected "
                f"{expected} of the directory, no flag {_ENCRYPTED}, and at most {self.room} extra bytes"
            )
        if end <= len(data) and not _is_valid_extra(data[start:end]):
            raise ValueError(f"a local header has the extra field {data[start:end][:40]!r}: expected whole fields")
        return int(end)


def _is_valid_extra(extra: bytes) -> bool:
    """Return whether an extra field consists of whole fields, with only zeros after them."""
    return not any(kind < 0 and any(content) for kind, content in split_extra(extra))


def make_local_header(key: str, member: Member) -> LocalHeader:
    """Make the decoder of a member's local header."""
    name = key.encode()
    room = member.limit - member.local - HEADER - len(name) - member.stored
    return LocalHeader(
        member.method, member.stored, member.size, member.crc, name if key.isascii() else b"", max(room, 0)
    )


class Decompressor(msgspec.Struct, frozen=True):
    """Recipe: decompress a member, from the bytes of its local header up to the next member."""

    header: LocalHeader

    def make(self, raw: bytes) -> bytes:
        start = self.header.decode(raw)
        if start + self.header.stored > len(raw):
            found = f"its local header has {start} bytes, and the member {self.header.stored}"
            raise ValueError(f"{found}: expected at most {len(raw)} bytes, up to the next member or the directory")
        header = self.header
        return decompress_member(header.method, raw[start : start + header.stored], header.size, header.crc)


class ZipKeySpace(KeySpace):
    """The members of the archive ``source`` at ``url``."""

    member_protocol = "zip"

    def __init__(self, url: str, source: Span | Inline, members: Members) -> None:
        self.url = url
        self._source = source
        self._members = members

    def find_member(self, key: str) -> Member | None:
        """Return the directory's entry of the member ``key``; None if it does not exist.

        Raises ManifestError if a member that is not shown has a name which some readers convert to this key.
        """
        members = self._members
        place = members.names.find(key.encode("utf-8", "surrogatepass"))
        if place is not None:
            return Member(*members.rows[place].item())
        if key in members.withheld:
            raise ManifestError(
                f"the ZIP at {self.url} has the member {members.withheld[key][:200]!r}: expected a relative path of at "
                f"most {MOST_STEPS} names, without '.', '..', backslashes and doubled slashes. Write the archive again "
                "with such a name"
            )
        return None

    def lookup(self, key: str) -> Steps[Entry | None]:
        member = self.find_member(key)
        if member is None:
            return None
        start, limit, head, stored, size, _, method, is_encrypted = member
        if is_encrypted:
            raise ReferenceNotReachable(key, self.url, "it is encrypted: write the archive without encryption")
        if method != STORED and method not in METHODS:
            name = OTHERS.get(method, "unknown method")
            known = ", ".join(map(str, (STORED, *METHODS)))
            reason = f"its compression is number {method} ({name}): expected one of {known}"
            raise ReferenceNotReachable(key, self.url, reason)
        if not size:
            return Inline(b"")
        header = make_local_header(key, member)
        if method != STORED:
            longest = min(limit - start, HEADER + _LONGEST + stored)
            return make_entry(self._source.part(start, longest), Decompressor(header), size, self.url)
        if isinstance(self._source, Inline):  # reading the header costs no request, so it is always compared
            try:
                head = header.decode(self._source.part(start, header.length).data)
            except ValueError as e:
                raise ReferenceNotReachable(key, self.url, str(e)) from e
        elif not head:
            head = yield Load(self._source.part(start, header.length), header)
        if start + head + stored > limit:
            raise ReferenceNotReachable(
                key,
                self.url,
                f"it ends at byte {start + head + stored}: expected at most {limit}, where the next member or the "
                "directory begins",
            )
        return self._source.part(start + head, stored)

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        yield from ()
        directory = _encode_directory(prefix)
        sizes = self._members.rows["size"]
        children = [
            Listed(name.decode(), None if place is None else int(sizes[place]), place is None)
            for name, place in self._members.names.list_children(directory)
        ]
        if not children and prefix and not self._members.names.find_below(directory):
            return None
        return sorted(children, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        yield from ()
        return not prefix or bool(self._members.names.find_below(_encode_directory(prefix)))


def _encode_directory(prefix: str) -> bytes:
    """Return the bytes with which the names of members in the directory ``prefix`` begin."""
    return f"{prefix}/".encode("utf-8", "surrogatepass") if prefix else b""


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a ZIP archive: read its last bytes, and its directory if they do not contain it."""
    if probe.is_directory:
        raise ManifestError(f"{probe.url} is a directory: expected a ZIP file")
    facts = probe.facts or Facts(None)
    size = facts.size
    source = Span(probe.url, 0, size, pin=facts.pin)
    whole = Inline(probe.head) if size is not None and size == len(probe.head) else source
    tail = whole.take_window(-TAIL) if size is None or size > TAIL else whole
    parsed: Members | End = yield Load(tail, ParsedIndex(parse_tail, (probe.url, size)))
    match parsed:
        case End(start=start, size=length) as end:
            members: Members = yield Load(whole.part(start, length), ParsedIndex(parse_directory, (probe.url, end)))
        case _:
            members = parsed
    return ZipKeySpace(probe.url, whole if probe.is_in_memory else source, members)
