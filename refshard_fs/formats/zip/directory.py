"""The directory of a ZIP as columns: names, sizes, and where the bytes of each member lie. No I/O here.

PKWARE's APPNOTE 6.3.10, section 4.3.12. A member's bytes follow a local header whose length
the directory does not give. It is proven all the same where nothing is left between one member
and the next: then the bytes are the last before the next member. What is left may be an extra
field of the local header; where it is just as long as the extra field in the directory says
that it is, that is a proof too. Otherwise the local header has to be read.
"""

from __future__ import annotations

import bz2
import lzma
import re
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import compress, islice
from operator import eq
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.compression import decompressed, zstd
from refshard_fs.core.keys import MOST_STEPS, is_key, normalise
from refshard_fs.errors import ManifestError
from refshard_fs.formats.zip import END

# ----------------------------------------------------------------------------------------------------
# The end of a ZIP: where its directory lies, and how many members it lists. No I/O here.
#
# PKWARE's APPNOTE 6.3.10, sections 4.3.14 to 4.3.16. A record that contradicts the file, or two
# that both fit (one may hide in the comment), are errors: no guess is made.


TAIL = 65 * 1024 + 512  # bytes: the longest comment, its record, and the zip64 records before it
MAX_DIRECTORY = 1 << 30  # bytes; a longer directory is taken for a forged one and never asked for
SMALLEST_ENTRY = 46

_DISKS = "it spans several disks, which is not read here: join its parts first"
_LOCATOR, _END64 = b"PK\6\7", b"PK\6\6"
_END_SIZE, _LOCATOR_SIZE, _END64_HEAD = 22, 20, 12
_END_FIELDS, _LOCATOR_FIELDS, _END64_FIELDS = struct.Struct("<4H2LH"), struct.Struct("<LQL"), struct.Struct("<2H2L4Q")


class End(msgspec.Struct, frozen=True):
    """What an end record says.

    The directory is bytes ``[start, start + size)`` of the file. ``shift`` bytes stand before the
    archive: they are to be added to the offsets that it gives. ``modulo`` is what a count is cut to.
    """

    entries: int
    start: int
    size: int
    shift: int
    modulo: int


def read_end(tail: bytes, size: int | None) -> tuple[End, int]:
    """Return the end record in ``tail``, the last bytes of a file, and where in the file they begin.

    Without the file's ``size``, an archive is taken to begin at its first byte. Raises ValueError
    where there is no record, more than one, or one that cannot be true.
    """
    found: list[tuple[End, int]] = []
    reason = "it has no end record: it is cut short, or no ZIP"
    at = tail.rfind(END)
    while at >= 0:
        if len(tail) - at >= _END_SIZE:
            try:
                found.append(_end(tail, at, size))
            except ValueError as e:
                reason = str(e)
        at = tail.rfind(END, 0, at)
    if not found:
        raise ValueError(reason)
    if len(found) > 1:
        raise ValueError("it has two end records that both fit, one in the other's comment")
    return found[0]


def _end(tail: bytes, at: int, size: int | None) -> tuple[End, int]:
    *found, comment = _END_FIELDS.unpack_from(tail, at + 4)
    left = len(tail) - at - _END_SIZE
    if comment != left:
        raise ValueError(f"its end record is followed by {left} bytes, where a comment of {comment} is promised")
    stop, modulo, record = at, 1 << 16, None
    if at >= _LOCATOR_SIZE and tail.startswith(_LOCATOR, at - _LOCATOR_SIZE):
        stop, record, found = _end64(tail, at - _LOCATOR_SIZE, found)
        modulo = 1 << 64
    disk, first_disk, here, entries, length, offset = found
    if disk or first_disk or here != entries:
        raise ValueError(_DISKS)
    if length > MAX_DIRECTORY or (modulo > 1 << 16 and length < entries * SMALLEST_ENTRY):
        raise ValueError(f"its end record promises {entries} members in a directory of {length} bytes")
    begin = offset + length - stop if size is None else size - len(tail)
    start = begin + stop - length
    shift = start - offset
    if begin < 0 or start < 0 or shift < 0:
        raise ValueError(
            f"its end record puts a directory of {length} bytes at {offset}, which is not where it ends: "
            "the file has lost bytes"
        )
    if record is not None and record + shift != begin + stop:
        raise ValueError(f"its zip64 end record is not at {record}, where its locator puts it")
    if length and start >= begin and not tail.startswith(b"PK\1\2", start - begin):
        raise ValueError(f"at {start}, where its end record puts it, is no directory")
    return End(entries, start, length, shift, modulo), begin


def _end64(tail: bytes, locator: int, short: list[int]) -> tuple[int, int, list[int]]:
    """Return where in ``tail`` the zip64 record that ends at ``locator`` begins, where that says so, and its fields.

    Those are the ``short`` ones of the end record, with room for larger numbers.
    """
    disk, offset, disks = _LOCATOR_FIELDS.unpack_from(tail, locator + 4)
    if disk or disks > 1:
        raise ValueError(_DISKS)
    at = tail.rfind(_END64, 0, locator)
    while at >= 0 and at + _END64_HEAD + int.from_bytes(tail[at + 4 : at + _END64_HEAD], "little") != locator:
        at = tail.rfind(_END64, 0, at)
    if at < 0:
        raise ValueError("its zip64 locator does not follow a zip64 end record")
    if locator - at < _END64_HEAD + _END64_FIELDS.size:
        raise ValueError("its zip64 end record is too short")
    _, _, *found = _END64_FIELDS.unpack_from(tail, at + _END64_HEAD)
    limits = (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2
    if any(other not in (limit, value) for value, other, limit in zip(found, short, limits, strict=True)):
        raise ValueError("its two end records contradict one another")
    return at, offset, found


# ----------------------------------------------------------------------------------------------------
# Many names in byte order, as one blob and where each ends: found by bisection, without an object for each.


_AFTER_SLASH = b"0"  # the byte that follows "/": what begins with "a/" ends before "a0"


class SortedNames:
    """Distinct UTF-8 names without NUL, ascending by their bytes; a name's place is its number in that order."""

    def __init__(self, names: Sequence[bytes]) -> None:
        ends = np.zeros(len(names) + 1, np.uint64)
        ends[1:] = np.cumsum(list(map(len, names)))
        self._blob = b"".join(names)
        self._ends = ends.data  # a memoryview gives Python ints
        self.nbytes = len(self._blob) + ends.nbytes

    @classmethod
    def sort(cls, names: Sequence[bytes]) -> tuple[SortedNames, list[int], set[bytes]]:
        """Return ``names`` sorted, which of them each place has, and which come more than once: the last one stays."""
        order = sorted(range(len(names)), key=names.__getitem__)
        ordered = list(map(names.__getitem__, order))
        repeated = set(compress(ordered, map(eq, ordered, islice(ordered, 1, None))))
        if repeated:
            last = dict(zip(ordered, order, strict=True))
            ordered, order = list(last), list(last.values())
        return cls(ordered), order, repeated

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> bytes:
        return self._blob[self._ends[place] : self._ends[place + 1]]

    def find(self, name: bytes) -> int | None:
        """Return the place of ``name``, or None if it is not among these."""
        place = bisect_left(self, name)
        return place if place < len(self) and self[place] == name else None

    def below(self, directory: bytes) -> range:
        """Return the places of what begins with ``directory``, which is empty or ends with a slash."""
        if not directory:
            return range(len(self))
        first = bisect_left(self, directory)
        return range(first, bisect_left(self, directory[:-1] + _AFTER_SLASH, first))

    def children(self, directory: bytes) -> Iterator[tuple[bytes, int | None]]:
        """Yield name and place of what lies directly below ``directory``; a directory has no place."""
        places = self.below(directory)
        place, stop, cut = places.start, places.stop, len(directory)
        while place < stop:
            head, slash, _ = self[place][cut:].partition(b"/")
            if head:
                yield head, None if slash else place
            place = bisect_left(self, directory + head + _AFTER_SLASH, place, stop) if slash else place + 1


HEADER = 30  # bytes of a local header, without its name and extra field

_ENTRY = np.dtype("<u4,<u4,<u2,<u2,<u4,<u4,<u4,<u4,<u2,<u2,<u2,<u2,V6,<u4")
_ENTRY.names = (
    *("signature", "versions", "flags", "method", "time", "crc", "stored", "size"),
    *("name", "extra", "comment", "disk", "attributes", "local"),
)
_LENGTHS, _FIELD = struct.Struct("<3H"), struct.Struct("<2H")
_SIGNATURE = b"PK\1\2"
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 1, 8, 0x800
_STRONG = 0x40 | 0x2000
_ODD = re.compile(rb"\\|\0/|//|(?<=[/\0])\.{1,2}(?=[/\0])")
_MOST_WITHHELD = 1000
_ZIP64, _UNIX_TIMES, _UNIX_OWNER, _UNICODE_PATH = 0x0001, 0x5455, 0x7875, 0x7075
_UNICODE_MARK = struct.pack("<H", _UNICODE_PATH)

_UInt64s = npt.NDArray[np.uint64]


class Member(NamedTuple):
    """One member of an archive: its local header begins at ``local`` and is ``head`` bytes long.

    A ``head`` of 0 means that the local header has to be read first. The member, and a descriptor that may follow it,
    ends before ``limit``. The other fields are as the archive's directory has them.
    """

    local: int
    limit: int
    head: int
    stored: int
    size: int
    crc: int
    method: int
    encrypted: bool


_MEMBER = np.dtype([*zip(Member._fields, ("u8", "u8", "u4", "u8", "u8", "u4", "u2", "?"), strict=True)])


class Members(NamedTuple):
    """The members of an archive, in the order of their names; ``withheld`` are keys that could lead out of a folder."""

    names: SortedNames
    rows: npt.NDArray[np.void]
    withheld: dict[str, str]

    @property
    def nbytes(self) -> int:
        return self.names.nbytes + self.rows.nbytes


def parse_directory(data: bytes, where: str, end: End) -> Members:
    """Return the members of the archive at ``where``, whose directory is ``data``, as ``end`` tells."""
    try:
        return _members(data, end)
    except ValueError as e:
        raise ManifestError(f"the ZIP at {where} is damaged: {e}") from e


def parse_tail(data: bytes, where: str, size: int | None) -> Members | End:
    """Return the members of the archive at ``where`` from its last bytes; only its `End` if its directory lies before.

    The archive has ``size`` bytes, if that is known.
    """
    try:
        end, begin = read_end(data, len(data) if size is None and len(data) < TAIL else size)
    except ValueError as e:
        raise ManifestError(f"the ZIP at {where} cannot be opened: {e}") from e
    if end.start < begin:
        return end
    return parse_directory(data[end.start - begin : end.start - begin + end.size], where, end)


def _members(data: bytes, end: End) -> Members:
    entries, names = _walk(data)
    if len(entries) % end.modulo != end.entries:
        raise ValueError(f"its directory lists {len(entries)} members, where {end.entries} are promised")
    rows = np.empty(0, _ENTRY)
    if len(entries):
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), _ENTRY.itemsize)
        rows = np.ascontiguousarray(windows[entries]).view(_ENTRY)[:, 0]
    members = np.zeros(len(rows), _MEMBER)
    for field in ("stored", "size", "local", "crc", "method"):
        members[field] = rows[field]
    _widen(data, entries, rows, members)
    members["local"] += np.uint64(end.shift)
    members["encrypted"] = (rows["flags"] & (_ENCRYPTED | _STRONG)) != 0
    slack = _set_limits(members, rows["name"], end)
    _check_sizes(members)
    proven = slack == 0
    wide = (rows["stored"] == 0xFFFFFFFF) | (rows["size"] == 0xFFFFFFFF)
    has_extra = np.flatnonzero((slack > 0) & (rows["extra"] > 0))  # of the others, the local header has to be read
    starts = entries[has_extra].astype(np.int64) + SMALLEST_ENTRY + rows["name"][has_extra]
    stops = starts + rows["extra"][has_extra]
    extras = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    proven[has_extra] = slack[has_extra] == list(map(_local_extra, extras, wide[has_extra].tolist()))
    proven &= (rows["flags"] & _DESCRIPTOR) == 0
    if not end.shift:  # what stands before the archive may as well have been put into it
        members["head"] = np.where(proven, HEADER + rows["name"].astype(np.uint64) + slack, 0)
    withheld = _withheld(names)
    at = np.array([i for i in range(len(names)) if i not in withheld] if withheld else range(len(names)), np.intp)
    found, order, repeated = SortedNames.sort([names[i] for i in at] if withheld else names)
    for i in at if repeated else ():
        if names[i] in repeated:
            members["head"][i] = 0  # only the local header tells whether that is its name
    return Members(found, members[at[order]], {normalise(name): name for name in withheld.values()})


def _walk(data: bytes) -> tuple[_UInt64s, list[bytes]]:
    """Return where each entry begins, and its name."""
    entries, names = array("Q"), list[bytes]()
    at = 0
    while at < len(data):
        if data[at : at + 4] != _SIGNATURE or len(data) - at < SMALLEST_ENTRY:
            raise ValueError(f"after {len(entries)} members its directory goes on with {data[at : at + 4]!r}")
        name_length, extra, comment = _LENGTHS.unpack_from(data, at + 28)
        stop = at + SMALLEST_ENTRY + name_length
        name = data[at + SMALLEST_ENTRY : stop]
        if not name.isascii() or (extra and _UNICODE_MARK in data[stop : stop + extra]):
            name = _in_utf8(name, data[at + 8 : at + 10], data[stop : stop + extra])
        names.append(name.partition(b"\0")[0])  # as zipfile cuts it
        entries.append(at)
        at = stop + extra + comment
    if at > len(data):
        raise ValueError("its directory ends within an entry")
    if b"" in names:
        raise ValueError("a member has no name")
    return np.array(entries, np.uint64), names


def _in_utf8(name: bytes, flags: bytes, extra: bytes) -> bytes:
    if int.from_bytes(flags, "little") & _UTF8:
        name.decode()  # UnicodeDecodeError is a ValueError
        return name
    unicode = _field(extra, _UNICODE_PATH)
    if unicode[:1] == b"\1" and unicode[1:5] == zlib.crc32(name).to_bytes(4, "little"):
        unicode[5:].decode()
        if unicode[5:]:
            return unicode[5:]
    return name.decode("cp437").encode()


def fields_of(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of each field of an extra field; what is left over, or cut short, has the kind -1."""
    at = 0
    while at < len(extra):
        kind, length = _FIELD.unpack_from(extra, at) if at + 4 <= len(extra) else (-1, 0)
        stop = at + 4 + length
        if stop > len(extra):
            kind, at = -1, at - 4
        yield kind, extra[at + 4 : stop]
        at = stop


def _field(extra: bytes, wanted: int) -> bytes:
    return next((content for kind, content in fields_of(extra) if kind == wanted), b"")


def _widen(data: bytes, entries: _UInt64s, rows: npt.NDArray[np.void], members: npt.NDArray[np.void]) -> None:
    """Put the numbers of zip64 extra fields where the entries have no room for them."""
    columns = (members["size"], members["stored"], members["local"])
    full = np.stack([column == 0xFFFFFFFF for column in columns])
    for i in np.flatnonzero(full.any(axis=0) | (rows["disk"] == 0xFFFF)).tolist():
        start = int(entries[i]) + SMALLEST_ENTRY + int(rows["name"][i])
        field = _field(data[start : start + int(rows["extra"][i])], _ZIP64)
        wanted = [column for column, is_full in zip(columns, full[:, i].tolist(), strict=True) if is_full]
        disk = 4 * int(rows["disk"][i] == 0xFFFF)
        if len(field) < 8 * len(wanted) + disk:
            raise ValueError(f"the zip64 field of member {i + 1} is missing or too short")
        for column, number in zip(wanted, struct.unpack_from(f"<{len(wanted)}Q", field), strict=True):
            column[i] = number
        if any(field[8 * len(wanted) : 8 * len(wanted) + disk]):
            raise ValueError(_DISKS)
    if (rows["disk"] % 0xFFFF).any():
        raise ValueError(_DISKS)


def _set_limits(members: npt.NDArray[np.void], names: npt.NDArray[np.uint16], end: End) -> _UInt64s:
    """Note where the next member (or the directory) begins; return how many bytes before it are not accounted for."""
    local, stored = members["local"], members["stored"]
    order = np.argsort(local, kind="stable")
    limit = np.empty_like(local)
    limit[order] = np.append(local[order][1:], np.uint64(end.start))
    need = np.uint64(HEADER) + names.astype(np.uint64) + stored
    wrong = (local > end.start) | (stored > end.start) | (need > limit - np.minimum(local, limit))
    if wrong.any():
        raise ValueError(f"member {int(wrong.argmax()) + 1} of its directory reaches into the next one or beyond")
    members["limit"] = limit
    found: _UInt64s = limit - local - need
    return found


def _check_sizes(members: npt.NDArray[np.void]) -> None:
    method, stored, size, is_plain = members["method"], members["stored"], members["size"], ~members["encrypted"]
    wrong = (method == STORED) & is_plain & (stored != size)
    for number, known in METHODS.items():
        wrong |= (method == number) & (size // np.uint64(known.most) > stored)
    wrong |= (size == 0) & is_plain & (members["crc"] != 0)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(f"member {i + 1} of its directory cannot have {size[i]} bytes, stored in {stored[i]}")


@lru_cache(1 << 10)  # members that were written within a second have the same extra field
def _local_extra(extra: bytes, is_wide: bool) -> int:
    """Return how long the extra field of a local header is, as the directory's ``extra`` tells; -1 where it cannot.

    Info-ZIP's fields: of times (the local one has all that its flags name), and of owners (the same
    in both). A zip64 field is local only where sizes need one (``is_wide``).
    """
    total = 0
    for kind, content in fields_of(extra):
        if kind == _UNIX_TIMES and content:
            total += 5 + 4 * (content[0] & 7).bit_count()
        elif kind == _UNIX_OWNER:
            total += 4 + len(content)
        elif kind == _ZIP64:
            total += 20 if is_wide else 0
        else:
            return -1
    return total


def _withheld(names: Sequence[bytes]) -> dict[int, str]:
    """Return which names are absolute, climb, or are not spelled with slashes alone."""
    if not _ODD.search(b"\0".join([b"", *names, b""])) and max(map(len, names), default=0) < 2 * MOST_STEPS:
        return {}
    odd = {
        i: name.decode()
        for i, name in enumerate(names)
        if _ODD.search(b"\0" + name + b"\0") or (len(name) >= 2 * MOST_STEPS and not is_key(name.decode().strip("/")))
    }
    if len(odd) > _MOST_WITHHELD:
        raise ValueError(
            "many of its names are absolute, climb with '..', are too long, or have backslashes or doubled slashes"
        )
    return odd


# ----------------------------------------------------------------------------------------------------
# The methods that members are compressed by: each made plain, to the size that the directory promises. No I/O here.
#
# PKWARE's APPNOTE 6.3.10, sections 4.4.5 and 5.8.


STORED: Final = 0
XZ_MEMORY: Final = 1 << 28  # bytes that a dictionary of xz may take
_LZMA_HEAD: Final = struct.Struct("<2xHBL")  # after the version of the writer's library
_LZMA_PROPERTIES: Final = 5  # bytes: three small numbers in one byte, and the dictionary's size
_SMALLEST_DICTIONARY: Final = 4096
_MOST_PROPERTIES: Final = 9 * 5 * 5


class Method(NamedTuple):
    """How a member is made plain."""

    name: str
    open: Callable[[bytes, int], tuple[Any, bytes]]  # compressed bytes and size → a decompressor, and its input
    most: int  # bytes that it makes of one, at most, roughly: a directory that promises more is forged


def _lzma(raw: bytes, size: int) -> tuple[Any, bytes]:
    if len(raw) < _LZMA_HEAD.size:
        raise ValueError("its LZMA header is cut short")
    length, packed, dictionary = _LZMA_HEAD.unpack_from(raw)
    if length != _LZMA_PROPERTIES or packed >= _MOST_PROPERTIES:
        raise ValueError("its LZMA header has properties that there are none of")
    rest, lc = divmod(packed, 9)
    pb, lp = divmod(rest, 5)
    # Nothing in a member lies further back than it is long.
    room = max(min(dictionary, size), _SMALLEST_DICTIONARY)
    filters = [{"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": room}]
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters), raw[_LZMA_HEAD.size :]


def _zstd(raw: bytes, size: int) -> tuple[Any, bytes]:
    return zstd().ZstdDecompressor(), raw


METHODS: Final = {
    8: Method("deflate", lambda raw, _: (zlib.decompressobj(-zlib.MAX_WBITS), raw), 1032),
    12: Method("bzip2", lambda raw, _: (bz2.BZ2Decompressor(), raw), 1 << 20),
    14: Method("LZMA", _lzma, 1 << 14),
    20: Method("Zstandard", _zstd, 1 << 16),  # its number before version 6.3.8
    93: Method("Zstandard", _zstd, 1 << 16),
    95: Method("XZ", lambda raw, _: (lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY), raw), 1 << 14),
}
# Those that are not read.
OTHERS: Final = {1: "shrink", 6: "implode", 9: "deflate64", 98: "PPMd"}


def plain(number: int, raw: bytes, size: int, crc: int) -> bytes:
    """Return the ``size`` bytes that ``raw`` stands for by the method ``number``; ValueError where it does not."""
    method = METHODS[number]
    try:
        stream, data = method.open(raw, size)
        made = decompressed(stream, data, size, has_end=number != 14)  # which need not mark it
    except ImportError as e:
        raise ValueError(f"it is compressed by {method.name}, for which a package is missing: {e}") from e
    except ValueError as e:
        raise ValueError(f"{method.name}: {e}") from e
    if len(made) != size or stream.unused_data:
        raise ValueError(f"its bytes do not inflate to the {size} that the directory promises")
    if zlib.crc32(made) != crc:
        raise ValueError(f"its CRC-32 is {zlib.crc32(made):08x}, where {crc:08x} is stored")
    return made
