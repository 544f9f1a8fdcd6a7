"""Parse the directory of a ZIP into columns: names, sizes, and the location of each member's bytes. No I/O here.

PKWARE's APPNOTE 6.3.10, section 4.3.12. A member's bytes follow its local header, and the directory does not give the
length of this header. Often the length is certain without reading it: if no bytes are left between a member and the
next, the member's bytes end where the next begins. If bytes are left, they may be the header's extra field: if the
extra field in the directory predicts exactly this length, it is certain, too. Otherwise the local header must be read.
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

from refshard_fs.core.compression import decompress, zstd
from refshard_fs.core.keys import MOST_STEPS, is_key, normalise
from refshard_fs.errors import ManifestError
from refshard_fs.formats.zip import END

# The end of a ZIP: the location of its directory, and the number of members. No I/O here.  PKWARE's APPNOTE 6.3.10,
# sections 4.3.14 to 4.3.16. An error is raised if a record contradicts the file, or if two records fit (one may hide in
# the comment of the other).


TAIL = 65 * 1024 + 512  # bytes: the longest comment, the end record, and the zip64 records before it
MAX_DIRECTORY = 1 << 30  # bytes; a longer directory is forged and is never read
SMALLEST_ENTRY = 46

_DISKS = "it spans several disks, which is not supported: join its parts first"
_LOCATOR, _END64 = b"PK\6\7", b"PK\6\6"
_END_SIZE, _LOCATOR_SIZE, _END64_HEAD = 22, 20, 12
_END_FIELDS, _LOCATOR_FIELDS, _END64_FIELDS = struct.Struct("<4H2LH"), struct.Struct("<LQL"), struct.Struct("<2H2L4Q")


class End(msgspec.Struct, frozen=True):
    """The content of an end record.

    The directory is the bytes ``[start, start + size)`` of the file. ``shift`` bytes lie before the archive: add them
    to the offsets in it. The number of members is stored modulo ``modulo``.
    """

    entries: int
    start: int
    size: int
    shift: int
    modulo: int


def read_end(tail: bytes, size: int | None) -> tuple[End, int]:
    """Return the end record in ``tail``, the last bytes of a file, and the position of ``tail`` in the file.

    Without the file's ``size``, the archive is assumed to begin at the first byte. Raises ValueError if there is no
    valid record, or more than one.
    """
    found: list[tuple[End, int]] = []
    reason = "it has no end record: it is cut short or not a ZIP"
    at = tail.rfind(END)
    while at >= 0:
        if len(tail) - at >= _END_SIZE:
            try:
                found.append(_parse_end(tail, at, size))
            except ValueError as e:
                reason = str(e)
        at = tail.rfind(END, 0, at)
    if not found:
        raise ValueError(reason)
    if len(found) > 1:
        raise ValueError("it has two valid end records, one in the comment of the other")
    return found[0]


def _parse_end(tail: bytes, at: int, size: int | None) -> tuple[End, int]:
    *found, comment = _END_FIELDS.unpack_from(tail, at + 4)
    left = len(tail) - at - _END_SIZE
    if comment != left:
        raise ValueError(f"its end record announces a comment of {comment} bytes: {left} follow")
    stop, modulo, record = at, 1 << 16, None
    if at >= _LOCATOR_SIZE and tail.startswith(_LOCATOR, at - _LOCATOR_SIZE):
        stop, record, found = _parse_end64(tail, at - _LOCATOR_SIZE, found)
        modulo = 1 << 64
    disk, first_disk, here, entries, length, offset = found
    if disk or first_disk or here != entries:
        raise ValueError(_DISKS)
    if length > MAX_DIRECTORY or (modulo > 1 << 16 and length < entries * SMALLEST_ENTRY):
        raise ValueError(
            f"its end record has {entries} members in {length} bytes: expected at most {MAX_DIRECTORY} bytes"
        )
    begin = offset + length - stop if size is None else size - len(tail)
    start = begin + stop - length
    shift = start - offset
    if begin < 0 or start < 0 or shift < 0:
        raise ValueError(
            f"its end record announces a directory of {length} bytes at {offset}, but it ends elsewhere: "
            "bytes of the file are lost"
        )
    if record is not None and record + shift != begin + stop:
        raise ValueError(f"its zip64 end record is not at {record}, as its locator says")
    if length and start >= begin and not tail.startswith(b"PK\1\2", start - begin):
        raise ValueError(f"expected its directory at byte {start}, as its end record says, found other bytes")
    return End(entries, start, length, shift, modulo), begin


def _parse_end64(tail: bytes, locator: int, short: list[int]) -> tuple[int, int, list[int]]:
    """Find the zip64 end record before the ``locator``. Return its start in ``tail``, its announced offset, its fields.

    The fields are the same as in the end record (``short``), with room for larger numbers.
    """
    disk, offset, disks = _LOCATOR_FIELDS.unpack_from(tail, locator + 4)
    if disk or disks > 1:
        raise ValueError(_DISKS)
    at = tail.rfind(_END64, 0, locator)
    while at >= 0 and at + _END64_HEAD + int.from_bytes(tail[at + 4 : at + _END64_HEAD], "little") != locator:
        at = tail.rfind(_END64, 0, at)
    if at < 0:
        raise ValueError("its zip64 locator has no zip64 end record before it")
    if locator - at < _END64_HEAD + _END64_FIELDS.size:
        raise ValueError("its zip64 end record is too short")
    _, _, *found = _END64_FIELDS.unpack_from(tail, at + _END64_HEAD)
    limits = (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2
    if any(other not in (limit, value) for value, other, limit in zip(found, short, limits, strict=True)):
        raise ValueError("its zip64 end record contradicts its end record")
    return at, offset, found


# Many names in byte order, as one run of bytes and the end of each: found by bisection, without an object for each.


_AFTER_SLASH = b"0"  # the byte after "/": names that begin with "a/" come before "a0"


class SortedNames:
    """Distinct UTF-8 names without NUL in byte order; the place of a name is its number in that order."""

    def __init__(self, names: Sequence[bytes]) -> None:
        ends = np.zeros(len(names) + 1, np.uint64)
        ends[1:] = np.cumsum(list(map(len, names)))
        self._blob = b"".join(names)
        self._ends = ends.data  # a memoryview gives Python ints
        self.nbytes = len(self._blob) + ends.nbytes

    @classmethod
    def sort(cls, names: Sequence[bytes]) -> tuple[SortedNames, list[int], set[bytes]]:
        """Sort ``names``. Return them, their old positions, and repeated names; the last of equal names stays."""
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
        """Return the place of ``name``, or None if it is missing."""
        place = bisect_left(self, name)
        return place if place < len(self) and self[place] == name else None

    def below(self, directory: bytes) -> range:
        """Return the places of the names that begin with ``directory``, which is empty or ends with a slash."""
        if not directory:
            return range(len(self))
        first = bisect_left(self, directory)
        return range(first, bisect_left(self, directory[:-1] + _AFTER_SLASH, first))

    def children(self, directory: bytes) -> Iterator[tuple[bytes, int | None]]:
        """Yield name and place of each child of ``directory``; a subdirectory has no place."""
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

    If ``head`` is 0, the local header must be read first. The member, with a descriptor that may follow it, ends before
    ``limit``. The other fields are copied from the directory.
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
    """The members of an archive, in order of name; ``withheld`` are keys whose names could lead out of a folder."""

    names: SortedNames
    rows: npt.NDArray[np.void]
    withheld: dict[str, str]

    @property
    def nbytes(self) -> int:
        return self.names.nbytes + self.rows.nbytes


def parse_directory(data: bytes, where: str, end: End) -> Members:
    """Parse the directory ``data`` of the archive at ``where``, as ``end`` announces it."""
    try:
        return _parse_members(data, end)
    except ValueError as e:
        raise ManifestError(f"the ZIP at {where} is damaged: {e}") from e


def parse_tail(data: bytes, where: str, size: int | None) -> Members | End:
    """Parse the last bytes of the archive at ``where``; return only its `End` if the directory begins before them.

    ``size`` is the size of the archive, if known.
    """
    try:
        end, begin = read_end(data, len(data) if size is None and len(data) < TAIL else size)
    except ValueError as e:
        raise ManifestError(f"the ZIP at {where} cannot be opened: {e}") from e
    if end.start < begin:
        return end
    return parse_directory(data[end.start - begin : end.start - begin + end.size], where, end)


def _parse_members(data: bytes, end: End) -> Members:
    entries, names = _walk_entries(data)
    if len(entries) % end.modulo != end.entries:
        raise ValueError(f"its directory lists {len(entries)} members: its end record announces {end.entries}")
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
    has_extra = np.flatnonzero((slack > 0) & (rows["extra"] > 0))  # without it, the local header must be read
    starts = entries[has_extra].astype(np.int64) + SMALLEST_ENTRY + rows["name"][has_extra]
    stops = starts + rows["extra"][has_extra]
    extras = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    proven[has_extra] = slack[has_extra] == list(map(_predict_local_extra, extras, wide[has_extra].tolist()))
    proven &= (rows["flags"] & _DESCRIPTOR) == 0
    if not end.shift:  # with a shift, bytes may also have been inserted between members
        members["head"] = np.where(proven, HEADER + rows["name"].astype(np.uint64) + slack, 0)
    withheld = _find_odd_names(names)
    at = np.array([i for i in range(len(names)) if i not in withheld] if withheld else range(len(names)), np.intp)
    found, order, repeated = SortedNames.sort([names[i] for i in at] if withheld else names)
    for i in at if repeated else ():
        if names[i] in repeated:
            members["head"][i] = 0  # the local header has to confirm the name
    return Members(found, members[at[order]], {normalise(name): name for name in withheld.values()})


def _walk_entries(data: bytes) -> tuple[_UInt64s, list[bytes]]:
    """Return the position and the name of each entry."""
    entries, names = array("Q"), list[bytes]()
    at = 0
    while at < len(data):
        if data[at : at + 4] != _SIGNATURE or len(data) - at < SMALLEST_ENTRY:
            raise ValueError(f"after {len(entries)} members, its directory continues with {data[at : at + 4]!r}")
        name_length, extra, comment = _LENGTHS.unpack_from(data, at + 28)
        stop = at + SMALLEST_ENTRY + name_length
        name = data[at + SMALLEST_ENTRY : stop]
        if not name.isascii() or (extra and _UNICODE_MARK in data[stop : stop + extra]):
            name = _decode_name(name, data[at + 8 : at + 10], data[stop : stop + extra])
        names.append(name.partition(b"\0")[0])  # like zipfile, cut it at a NUL
        entries.append(at)
        at = stop + extra + comment
    if at > len(data):
        raise ValueError("its directory ends within an entry")
    if b"" in names:
        raise ValueError("a member has no name")
    return np.array(entries, np.uint64), names


def _decode_name(name: bytes, flags: bytes, extra: bytes) -> bytes:
    if int.from_bytes(flags, "little") & _UTF8:
        name.decode()  # UnicodeDecodeError is a ValueError
        return name
    unicode = _find_field(extra, _UNICODE_PATH)
    if unicode[:1] == b"\1" and unicode[1:5] == zlib.crc32(name).to_bytes(4, "little"):
        unicode[5:].decode()
        if unicode[5:]:
            return unicode[5:]
    return name.decode("cp437").encode()


def split_extra(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, content) of each field of an extra field; an incomplete rest has the kind -1."""
    at = 0
    while at < len(extra):
        kind, length = _FIELD.unpack_from(extra, at) if at + 4 <= len(extra) else (-1, 0)
        stop = at + 4 + length
        if stop > len(extra):
            kind, at = -1, at - 4
        yield kind, extra[at + 4 : stop]
        at = stop


def _find_field(extra: bytes, wanted: int) -> bytes:
    return next((content for kind, content in split_extra(extra) if kind == wanted), b"")


def _widen(data: bytes, entries: _UInt64s, rows: npt.NDArray[np.void], members: npt.NDArray[np.void]) -> None:
    """Replace numbers that do not fit into the entries by those in zip64 extra fields."""
    columns = (members["size"], members["stored"], members["local"])
    full = np.stack([column == 0xFFFFFFFF for column in columns])
    for i in np.flatnonzero(full.any(axis=0) | (rows["disk"] == 0xFFFF)).tolist():
        start = int(entries[i]) + SMALLEST_ENTRY + int(rows["name"][i])
        field = _find_field(data[start : start + int(rows["extra"][i])], _ZIP64)
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
    """Set the start of the next member or the directory as limit. Return the number of unexplained bytes before it."""
    local, stored = members["local"], members["stored"]
    order = np.argsort(local, kind="stable")
    limit = np.empty_like(local)
    limit[order] = np.append(local[order][1:], np.uint64(end.start))
    need = np.uint64(HEADER) + names.astype(np.uint64) + stored
    wrong = (local > end.start) | (stored > end.start) | (need > limit - np.minimum(local, limit))
    if wrong.any():
        raise ValueError(f"member {int(wrong.argmax()) + 1} of its directory overlaps the next one or the directory")
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


@lru_cache(1 << 10)  # members that are written within a second have equal extra fields
def _predict_local_extra(extra: bytes, is_wide: bool) -> int:
    """Predict the length of a local header's extra field from the directory's ``extra``; -1 if that is impossible.

    Possible for Info-ZIP's fields: times (the local field has all times that its flags announce) and owners (both are
    equal). A zip64 field is in the local header if a size needs it (``is_wide``).
    """
    total = 0
    for kind, content in split_extra(extra):
        if kind == _UNIX_TIMES and content:
            total += 5 + 4 * (content[0] & 7).bit_count()
        elif kind == _UNIX_OWNER:
            total += 4 + len(content)
        elif kind == _ZIP64:
            total += 20 if is_wide else 0
        else:
            return -1
    return total


def _find_odd_names(names: Sequence[bytes]) -> dict[int, str]:
    """Return the names that are absolute, contain "..", or are not separated by single slashes."""
    if not _ODD.search(b"\0".join([b"", *names, b""])) and max(map(len, names), default=0) < 2 * MOST_STEPS:
        return {}
    odd = {
        i: name.decode()
        for i, name in enumerate(names)
        if _ODD.search(b"\0" + name + b"\0") or (len(name) >= 2 * MOST_STEPS and not is_key(name.decode().strip("/")))
    }
    if len(odd) > _MOST_WITHHELD:
        raise ValueError(
            "many of its names are absolute, contain '..', are too long, or have backslashes or doubled slashes"
        )
    return odd


# Compression methods: each member is decompressed to the size in the directory. No I/O here.
#
# PKWARE's APPNOTE 6.3.10, sections 4.4.5 and 5.8.


STORED: Final = 0
XZ_MEMORY: Final = 1 << 28  # most bytes of a dictionary of xz
_LZMA_HEAD: Final = struct.Struct("<2xHBL")  # the first two bytes are the version of the writer's library
_LZMA_PROPERTIES: Final = 5  # bytes: one for three small numbers, four for the dictionary's size
_SMALLEST_DICTIONARY: Final = 4096
_MOST_PROPERTIES: Final = 9 * 5 * 5


class Method(NamedTuple):
    """A compression method."""

    name: str
    open: Callable[[bytes, int], tuple[Any, bytes]]  # compressed bytes and size -> a decompressor and its input
    most: int  # approximate largest ratio of decompressed to compressed bytes: a larger one is forged


def _open_lzma(raw: bytes, size: int) -> tuple[Any, bytes]:
    if len(raw) < _LZMA_HEAD.size:
        raise ValueError("its LZMA header is cut short")
    length, packed, dictionary = _LZMA_HEAD.unpack_from(raw)
    if length != _LZMA_PROPERTIES or packed >= _MOST_PROPERTIES:
        raise ValueError("its LZMA header has invalid properties")
    rest, lc = divmod(packed, 9)
    pb, lp = divmod(rest, 5)
    # A member refers to its own earlier bytes only, so its size is enough for the dictionary.
    room = max(min(dictionary, size), _SMALLEST_DICTIONARY)
    filters = [{"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": room}]
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters), raw[_LZMA_HEAD.size :]


def _open_zstd(raw: bytes, size: int) -> tuple[Any, bytes]:
    return zstd().ZstdDecompressor(), raw


METHODS: Final = {
    8: Method("deflate", lambda raw, _: (zlib.decompressobj(-zlib.MAX_WBITS), raw), 1032),
    12: Method("bzip2", lambda raw, _: (bz2.BZ2Decompressor(), raw), 1 << 20),
    14: Method("LZMA", _open_lzma, 1 << 14),
    20: Method("Zstandard", _open_zstd, 1 << 16),  # its number before version 6.3.8
    93: Method("Zstandard", _open_zstd, 1 << 16),
    95: Method("XZ", lambda raw, _: (lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY), raw), 1 << 14),
}
# Methods that are not supported.
OTHERS: Final = {1: "shrink", 6: "implode", 9: "deflate64", 98: "PPMd"}


def decompress_member(number: int, raw: bytes, size: int, crc: int) -> bytes:
    """Decompress ``raw`` by the method ``number`` to ``size`` bytes. Raise ValueError if it is damaged."""
    method = METHODS[number]
    try:
        stream, data = method.open(raw, size)
        made = decompress(stream, data, size, has_end=number != 14)  # LZMA streams need not mark their end
    except ImportError as e:
        raise ValueError(f"it is compressed with {method.name}, for which a package is missing: {e}") from e
    except ValueError as e:
        raise ValueError(f"{method.name}: {e}") from e
    if len(made) != size or stream.unused_data:
        raise ValueError(f"its bytes do not decompress to {size} bytes, as the directory announces")
    if zlib.crc32(made) != crc:
        raise ValueError(f"its CRC-32 is {zlib.crc32(made):08x}: expected {crc:08x}")
    return made
