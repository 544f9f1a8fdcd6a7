"""Parse the directory of a ZIP to columns: names, sizes, and the place of each member's bytes. No I/O here.

Specification: PKWARE's APPNOTE 6.3.10, section 4.3.12. A member's bytes follow its local header, and the directory does
not state the length of this header. The length is certain if a header without an extra field, and the member's bytes,
fill all bytes up to the next member. It is also certain if bytes are left, and the member's extra field in the
directory predicts that the extra field in the local header has as many bytes. Otherwise the local header must be read.
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

from refshard_fs.core.compression import decompress, import_zstd
from refshard_fs.core.keys import MOST_STEPS, is_key, normalise
from refshard_fs.errors import ManifestError
from refshard_fs.formats.zip import END

# The end record of a ZIP locates its directory, and states the number of members. See sections 4.3.14 to 4.3.16. A
# record that contradicts the file is an error, and so are two valid records: one may hide in the comment of the other.


TAIL = 65 * 1024 + 512  # bytes: the longest comment, the end record, and the zip64 records before it
MAX_DIRECTORY = 1 << 30  # bytes: a longer directory is forged, and never read
SMALLEST_ENTRY = 46  # bytes of an entry, without its name, extra field and comment

_DISKS = "it spans several disks, which is not supported: join its parts first"
_LOCATOR, _END64 = b"PK\6\7", b"PK\6\6"
_END_SIZE, _LOCATOR_SIZE, _END64_HEAD = 22, 20, 12
_END_FIELDS, _LOCATOR_FIELDS, _END64_FIELDS = struct.Struct("<4H2LH"), struct.Struct("<LQL"), struct.Struct("<2H2L4Q")


class End(msgspec.Struct, frozen=True):
    """The content of an end record: the directory has ``size`` bytes from byte ``start`` of the file on.

    ``shift`` bytes lie before the archive; offsets in the archive do not count them. ``entries`` is the number of
    members modulo ``modulo``.
    """

    entries: int
    start: int
    size: int
    shift: int
    modulo: int


def read_end(tail: bytes, size: int | None) -> tuple[End, int]:
    """Return the end record in ``tail``, the last bytes of a file, and the position of ``tail`` in the file.

    If the ``size`` of the file is unknown, the archive is assumed to begin with the file. Raises ValueError if there is
    no valid record, or more than one.
    """
    records: list[tuple[End, int]] = []
    reason = (
        f"expected an end record in its last {len(tail)} bytes, found none: it is cut short, or another kind of file"
    )
    at = tail.rfind(END)
    while at >= 0:
        if len(tail) - at >= _END_SIZE:
            try:
                records.append(_parse_end(tail, at, size))
            except ValueError as e:
                reason = str(e)
        at = tail.rfind(END, 0, at)
    if not records:
        raise ValueError(reason)
    if len(records) > 1:
        raise ValueError(f"it has {len(records)} valid end records, one in the comment of another: expected one")
    return records[0]


def _parse_end(tail: bytes, at: int, size: int | None) -> tuple[End, int]:
    """Parse the end record at position ``at`` of ``tail``; ValueError if it contradicts the file."""
    *fields, comment = _END_FIELDS.unpack_from(tail, at + 4)
    left = len(tail) - at - _END_SIZE
    if comment != left:
        raise ValueError(
            f"its end record states a comment of {comment} bytes: expected {left}, up to the end of the file"
        )
    stop, modulo, record = at, 1 << 16, None
    if at >= _LOCATOR_SIZE and tail.startswith(_LOCATOR, at - _LOCATOR_SIZE):
        stop, record, fields = _parse_end64(tail, at - _LOCATOR_SIZE, fields)
        modulo = 1 << 64
    disk, first_disk, entries_on_disk, entries, length, offset = fields
    if disk or first_disk or entries_on_disk != entries:
        raise ValueError(_DISKS)
    if length > MAX_DIRECTORY or (modulo > 1 << 16 and length < entries * SMALLEST_ENTRY):
        raise ValueError(
            f"its end record states a directory of {entries} members in {length} bytes: expected at least "
            f"{SMALLEST_ENTRY} bytes for each, and at most {MAX_DIRECTORY} bytes"
        )
    begin = offset + length - stop if size is None else size - len(tail)
    start = begin + stop - length
    shift = start - offset
    if begin < 0 or start < 0 or shift < 0:
        raise ValueError(
            f"its end record states a directory of {length} bytes at byte {offset}: expected an end before the record. "
            "Bytes of the file are lost"
        )
    if record is not None and record + shift != begin + stop:
        raise ValueError(
            f"its zip64 end record is at byte {begin + stop}: expected byte {record + shift}, as its locator states"
        )
    if length and start >= begin and not tail.startswith(b"PK\1\2", start - begin):
        raise ValueError(f"expected its directory at byte {start}, as its end record states, found other bytes")
    return End(entries, start, length, shift, modulo), begin


def _parse_end64(tail: bytes, locator: int, short: list[int]) -> tuple[int, int, list[int]]:
    """Find the zip64 end record by its locator, at position ``locator`` of ``tail``.

    Return its position in ``tail``, its offset as the locator states it, and its fields: the same as in the end record
    (``short``), but with room for larger numbers.
    """
    disk, offset, disks = _LOCATOR_FIELDS.unpack_from(tail, locator + 4)
    if disk or disks > 1:
        raise ValueError(_DISKS)
    at = tail.rfind(_END64, 0, locator)
    while at >= 0 and at + _END64_HEAD + int.from_bytes(tail[at + 4 : at + _END64_HEAD], "little") != locator:
        at = tail.rfind(_END64, 0, at)
    if at < 0:
        raise ValueError("expected a zip64 end record before its zip64 locator, found none")
    if locator - at < _END64_HEAD + _END64_FIELDS.size:
        raise ValueError(f"its zip64 end record has {locator - at} bytes: expected {_END64_HEAD + _END64_FIELDS.size}")
    _, _, *fields = _END64_FIELDS.unpack_from(tail, at + _END64_HEAD)
    limits = (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2
    if any(other not in (limit, value) for value, other, limit in zip(fields, short, limits, strict=True)):
        raise ValueError(f"its zip64 end record has the numbers {fields}: expected {short}, as in its end record")
    return at, offset, fields


# Many names in byte order: one run of bytes, and the end of each name. Names are found by bisection. An object for each
# name would take several times the memory.


_AFTER_SLASH = b"0"  # the byte after "/": all names that begin with "a/" come before "a0"


class SortedNames:
    """Distinct names in byte order; the place of a name is its index. Names are UTF-8 without NUL."""

    def __init__(self, names: Sequence[bytes]) -> None:
        ends = np.zeros(len(names) + 1, np.uint64)
        ends[1:] = np.cumsum(list(map(len, names)))
        self._blob = b"".join(names)
        self._ends = ends.data  # a memoryview gives Python ints
        self.nbytes = len(self._blob) + ends.nbytes

    @classmethod
    def sort(cls, names: Sequence[bytes]) -> tuple[SortedNames, list[int], set[bytes]]:
        """Sort ``names``. Of equal names, only the last is kept.

        Return the sorted names, the index of each in ``names``, and the names that are repeated.
        """
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

    def find_below(self, directory: bytes) -> range:
        """Return the places of the names that begin with ``directory``, which is empty or ends with a slash."""
        if not directory:
            return range(len(self))
        first = bisect_left(self, directory)
        return range(first, bisect_left(self, directory[:-1] + _AFTER_SLASH, first))

    def list_children(self, directory: bytes) -> Iterator[tuple[bytes, int | None]]:
        """Yield name and place of each child of ``directory``; the place of a subdirectory is None."""
        places = self.find_below(directory)
        place, stop = places.start, places.stop
        while place < stop:
            head, slash, _ = self[place][len(directory) :].partition(b"/")
            if head:
                yield head, None if slash else place
            place = bisect_left(self, directory + head + _AFTER_SLASH, place, stop) if slash else place + 1


# The entries of the directory.


HEADER = 30  # bytes of a local header, without its name and extra field

_ENTRY = np.dtype("<u4,<u4,<u2,<u2,<u4,<u4,<u4,<u4,<u2,<u2,<u2,<u2,V6,<u4")
_ENTRY.names = (
    *("signature", "versions", "flags", "method", "time", "crc", "stored", "size"),
    *("name", "extra", "comment", "disk", "attributes", "local"),
)
_LENGTHS, _FIELD = struct.Struct("<3H"), struct.Struct("<2H")
_SIGNATURE = b"PK\1\2"
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 1, 8, 0x800
_STRONG = 0x40 | 0x2000  # flags of strong encryption
_ODD = re.compile(rb"\\|\0/|//|(?<=[/\0])\.{1,2}(?=[/\0])")  # in names with NUL before and after each
_MOST_WITHHELD = 1000  # the most names that are not keys: an archive with more is refused
_ZIP64, _UNIX_TIMES, _UNIX_OWNER, _UNICODE_PATH = 0x0001, 0x5455, 0x7875, 0x7075
_UNICODE_MARK = struct.pack("<H", _UNICODE_PATH)

_UInt64s = npt.NDArray[np.uint64]


class Member(NamedTuple):
    """A member of an archive: its local header begins at byte ``local``, and has ``head`` bytes.

    If ``head`` is 0, the length is unknown, and the local header must be read. The member, and a descriptor that may
    follow it, end at ``limit`` at the latest. The other fields come from the directory: ``stored`` is the size in the
    archive, ``size`` the size after decompression.
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
    """The members of an archive, sorted by name: their names, and their `Member` as ``rows``.

    ``withheld`` has the names of members that are not keys, such as ``../x`` or ``a//b``, by the key that other readers
    make of each name.
    """

    names: SortedNames
    rows: npt.NDArray[np.void]
    withheld: dict[str, str]

    @property
    def nbytes(self) -> int:
        return self.names.nbytes + self.rows.nbytes


def parse_directory(data: bytes, where: str, end: End) -> Members:
    """Parse the directory of an archive, which ``end`` describes. ManifestError, which names ``where``, if damaged."""
    try:
        return _parse_members(data, end)
    except ValueError as e:
        raise ManifestError(f"the ZIP at {where} is damaged: {e}") from e


def parse_tail(data: bytes, where: str, size: int | None) -> Members | End:
    """Parse the last bytes of an archive. Return its `End` if the directory begins before these bytes.

    ``size`` is the size of the archive, if known. Raises ManifestError, which names ``where``, if it is damaged.
    """
    try:
        end, begin = read_end(data, len(data) if size is None and len(data) < TAIL else size)
    except ValueError as e:
        raise ManifestError(f"the ZIP at {where} cannot be opened: {e}") from e
    if end.start < begin:
        return end
    return parse_directory(data[end.start - begin : end.start - begin + end.size], where, end)


def _parse_members(data: bytes, end: End) -> Members:
    """Parse the directory ``data``; ValueError if it is damaged."""
    entries, names = _parse_names(data)
    if len(entries) % end.modulo != end.entries:
        raise ValueError(
            f"its directory lists {len(entries)} members: expected {end.entries}, as its end record states"
        )
    rows = np.empty(0, _ENTRY)
    if len(entries):
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), _ENTRY.itemsize)
        rows = np.ascontiguousarray(windows[entries]).view(_ENTRY)[:, 0]
    members = np.zeros(len(rows), _MEMBER)
    for field in ("stored", "size", "local", "crc", "method"):
        members[field] = rows[field]
    _apply_zip64(data, entries, rows, members)
    members["local"] += np.uint64(end.shift)
    members["encrypted"] = (rows["flags"] & (_ENCRYPTED | _STRONG)) != 0
    slack = _set_limits(members, rows["name"], end)
    _check_sizes(members)
    is_certain = slack == 0
    is_wide = (rows["stored"] == 0xFFFFFFFF) | (rows["size"] == 0xFFFFFFFF)
    has_extra = np.flatnonzero((slack > 0) & (rows["extra"] > 0))
    starts = entries[has_extra].astype(np.int64) + SMALLEST_ENTRY + rows["name"][has_extra]
    stops = starts + rows["extra"][has_extra]
    extras = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    is_certain[has_extra] = slack[has_extra] == list(map(_predict_local_extra, extras, is_wide[has_extra].tolist()))
    is_certain &= (rows["flags"] & _DESCRIPTOR) == 0
    if not end.shift:  # where bytes were inserted before the archive, others may have been inserted between members
        members["head"] = np.where(is_certain, HEADER + rows["name"].astype(np.uint64) + slack, 0)
    withheld = _find_odd_names(names)
    shown = [index for index in range(len(names)) if index not in withheld] if withheld else range(len(names))
    indexes = np.array(shown, np.intp)
    sorted_names, order, repeated = SortedNames.sort([names[index] for index in indexes] if withheld else names)
    for index in indexes if repeated else ():
        if names[index] in repeated:
            members["head"][index] = 0  # the local header has to confirm the name
    return Members(sorted_names, members[indexes[order]], {normalise(name): name for name in withheld.values()})


def _parse_names(data: bytes) -> tuple[_UInt64s, list[bytes]]:
    """Return the position and the name of each entry; ValueError if the entries are damaged."""
    entries, names = array("Q"), list[bytes]()
    at = 0
    while at < len(data):
        if data[at : at + 4] != _SIGNATURE or len(data) - at < SMALLEST_ENTRY:
            raise ValueError(
                f"after {len(entries)} members, its directory continues with {data[at : at + 4]!r} and "
                f"{len(data) - at} bytes in all: expected {_SIGNATURE!r} and at least {SMALLEST_ENTRY} bytes"
            )
        name_length, extra, comment = _LENGTHS.unpack_from(data, at + 28)
        stop = at + SMALLEST_ENTRY + name_length
        name = data[at + SMALLEST_ENTRY : stop]
        if not name.isascii() or (extra and _UNICODE_MARK in data[stop : stop + extra]):
            name = _decode_name(name, data[at + 8 : at + 10], data[stop : stop + extra])
        names.append(name.partition(b"\0")[0])  # zipfile cuts names at NUL, too
        entries.append(at)
        at = stop + extra + comment
    if at > len(data):
        raise ValueError(
            f"the last entry of its directory ends at byte {at}: expected {len(data)}, the directory's end"
        )
    if b"" in names:
        raise ValueError("a member has an empty name: expected a name")
    return np.array(entries, np.uint64), names


def _decode_name(name: bytes, flags: bytes, extra: bytes) -> bytes:
    """Return a name in UTF-8: by the flag for UTF-8, by the extra field with a Unicode path, or by code page 437."""
    if int.from_bytes(flags, "little") & _UTF8:
        _check_utf8(name)
        return name
    unicode = _find_field(extra, _UNICODE_PATH)
    if unicode[:1] == b"\1" and unicode[1:5] == zlib.crc32(name).to_bytes(4, "little"):
        _check_utf8(unicode[5:])
        if unicode[5:]:
            return unicode[5:]
    return name.decode("cp437").encode()


def _check_utf8(name: bytes) -> None:
    try:
        name.decode()
    except UnicodeDecodeError as e:
        raise ValueError(
            f"a member has the name {name[:100]!r}: expected UTF-8, as its flags in the directory state"
        ) from e


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
    """Return the content of the field of the kind ``wanted``; b"" if there is none."""
    return next((content for kind, content in split_extra(extra) if kind == wanted), b"")


def _apply_zip64(data: bytes, entries: _UInt64s, rows: npt.NDArray[np.void], members: npt.NDArray[np.void]) -> None:
    """Set the numbers of ``members`` that do not fit into 32 bits from zip64 extra fields."""
    columns = (members["size"], members["stored"], members["local"])
    is_full = np.stack([column == 0xFFFFFFFF for column in columns])
    for index in np.flatnonzero(is_full.any(axis=0) | (rows["disk"] == 0xFFFF)).tolist():
        start = int(entries[index]) + SMALLEST_ENTRY + int(rows["name"][index])
        field = _find_field(data[start : start + int(rows["extra"][index])], _ZIP64)
        wide = [column for column, full in zip(columns, is_full[:, index].tolist(), strict=True) if full]
        disk = 4 * int(rows["disk"][index] == 0xFFFF)
        if len(field) < 8 * len(wide) + disk:
            raise ValueError(
                f"the zip64 field of member {index + 1} has {len(field)} bytes: expected {8 * len(wide) + disk}"
            )
        for column, number in zip(wide, struct.unpack_from(f"<{len(wide)}Q", field), strict=True):
            column[index] = number
        if any(field[8 * len(wide) : 8 * len(wide) + disk]):
            raise ValueError(_DISKS)
    if (rows["disk"] % 0xFFFF).any():
        raise ValueError(_DISKS)


def _set_limits(members: npt.NDArray[np.void], names: npt.NDArray[np.uint16], end: End) -> _UInt64s:
    """Set ``limit`` of each member: the start of the next member, or of the directory.

    Return how many bytes before ``limit`` belong neither to the member nor to the shortest possible local header.
    """
    local, stored = members["local"], members["stored"]
    order = np.argsort(local, kind="stable")
    limit = np.empty_like(local)
    limit[order] = np.append(local[order][1:], np.uint64(end.start))
    least = np.uint64(HEADER) + names.astype(np.uint64) + stored
    is_wrong = (local > end.start) | (stored > end.start) | (least > limit - np.minimum(local, limit))
    if is_wrong.any():
        index = int(is_wrong.argmax())
        found = f"member {index + 1} of its directory has {stored[index]} bytes and a header at byte {local[index]}"
        raise ValueError(
            f"{found}: expected an end up to byte {limit[index]}, where the next member or the directory begins"
        )
    members["limit"] = limit
    slack: _UInt64s = limit - local - least
    return slack


def _describe_sizes(method: int, stored: int) -> str:
    """Return the possible sizes of a member that has ``stored`` bytes in the archive."""
    known = METHODS.get(method)
    return f"{stored} bytes" if known is None else f"less than {(stored + 1) * known.most} bytes after {known.name}"


def _check_sizes(members: npt.NDArray[np.void]) -> None:
    """Raise ValueError if a member cannot have its size after decompression, or is empty and has a checksum."""
    method, stored, size, is_plain = members["method"], members["stored"], members["size"], ~members["encrypted"]
    is_wrong = (method == STORED) & is_plain & (stored != size)
    for number, known in METHODS.items():
        is_wrong |= (method == number) & (size // np.uint64(known.most) > stored)
    if is_wrong.any():
        index = int(is_wrong.argmax())
        raise ValueError(
            f"member {index + 1} of its directory has {size[index]} bytes, stored in {stored[index]} bytes: expected "
            f"{_describe_sizes(int(method[index]), int(stored[index]))}"
        )
    has_checksum = (size == 0) & is_plain & (members["crc"] != 0)
    if has_checksum.any():
        index = int(has_checksum.argmax())
        raise ValueError(
            f"member {index + 1} of its directory is empty, but has the CRC-32 {members['crc'][index]:08x}: expected 0"
        )


@lru_cache(1 << 10)  # members that are written within a second have equal extra fields
def _predict_local_extra(extra: bytes, is_wide: bool) -> int:
    """Predict the length of the extra field in a local header from the one in the directory; -1 if that is impossible.

    It is possible for the fields of Info-ZIP: the local field of times has all times that the flags state, and fields
    of owners are equal. A local header has a zip64 field if a size needs it (``is_wide``).
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
    """Return by index the names that are not valid keys: absolute ones, long ones, or such as ``./x`` or ``a//b``."""
    if not _ODD.search(b"\0".join([b"", *names, b""])) and max(map(len, names), default=0) < 2 * MOST_STEPS:
        return {}
    odd = {
        index: name.decode()
        for index, name in enumerate(names)
        if _ODD.search(b"\0" + name + b"\0") or (len(name) >= 2 * MOST_STEPS and not is_key(name.decode().strip("/")))
    }
    if len(odd) > _MOST_WITHHELD:
        raise ValueError(
            f"{len(odd)} of its names are not valid keys (absolute, too long, or with '.', '..', backslashes or "
            f"doubled slashes): expected at most {_MOST_WITHHELD} such names"
        )
    return odd


# Compression methods: a member is decompressed to the size in the directory. See sections 4.4.5 and 5.8.


STORED: Final = 0  # the method of members without compression
XZ_MEMORY: Final = 1 << 28  # the most bytes that decompressing xz may take
_LZMA_HEAD: Final = struct.Struct("<2xHBL")  # after two bytes with the version of the writer's library
_LZMA_PROPERTIES: Final = 5  # bytes: one for three small numbers, four for the size of the dictionary
_SMALLEST_DICTIONARY: Final = 4096  # bytes
_MOST_PROPERTIES: Final = 9 * 5 * 5  # the three small numbers are lc < 9, lp < 5 and pb < 5


class Method(NamedTuple):
    """A compression method."""

    name: str
    open: Callable[[bytes, int], tuple[Any, bytes]]  # compressed bytes and size → a decompressor and its input
    most: int  # the largest ratio of decompressed to compressed bytes, about; a member with a larger ratio is forged


def _open_lzma(raw: bytes, size: int) -> tuple[Any, bytes]:
    if len(raw) < _LZMA_HEAD.size:
        raise ValueError(f"its LZMA header is cut short: it has {len(raw)} bytes, expected {_LZMA_HEAD.size}")
    length, properties, dictionary = _LZMA_HEAD.unpack_from(raw)
    if length != _LZMA_PROPERTIES or properties >= _MOST_PROPERTIES:
        raise ValueError(
            f"its LZMA header has properties {properties} in {length} bytes: expected properties below "
            f"{_MOST_PROPERTIES} in {_LZMA_PROPERTIES} bytes"
        )
    rest, lc = divmod(properties, 9)
    pb, lp = divmod(rest, 5)
    # A member refers to its own earlier bytes only, so a dictionary of its size is enough.
    dictionary = max(min(dictionary, size), _SMALLEST_DICTIONARY)
    filters = [{"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": dictionary}]
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters), raw[_LZMA_HEAD.size :]


def _open_zstd(raw: bytes, size: int) -> tuple[Any, bytes]:
    return import_zstd().ZstdDecompressor(), raw


METHODS: Final = {
    8: Method("deflate", lambda raw, _: (zlib.decompressobj(-zlib.MAX_WBITS), raw), 1032),
    12: Method("bzip2", lambda raw, _: (bz2.BZ2Decompressor(), raw), 1 << 20),
    14: Method("LZMA", _open_lzma, 1 << 14),
    20: Method("Zstandard", _open_zstd, 1 << 16),  # the number before version 6.3.8 of the APPNOTE
    93: Method("Zstandard", _open_zstd, 1 << 16),
    95: Method("XZ", lambda raw, _: (lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY), raw), 1 << 14),
}
# Names of methods that are not supported, for errors.
OTHERS: Final = {1: "shrink", 6: "implode", 9: "deflate64", 98: "PPMd"}


def decompress_member(number: int, raw: bytes, size: int, crc: int) -> bytes:
    """Decompress ``raw`` by the method ``number`` to ``size`` bytes with the CRC-32 ``crc``; ValueError if damaged."""
    method = METHODS[number]
    try:
        stream, compressed = method.open(raw, size)
        data = decompress(stream, compressed, size, has_end=number != 14)  # LZMA streams need not mark their end
    except ImportError as e:
        raise ValueError(f"it is compressed with {method.name}, for which a package is missing: {e}") from e
    except ValueError as e:
        raise ValueError(f"{method.name}: {e}") from e
    if len(data) != size or stream.unused_data:
        raise ValueError(
            f"it decompresses to {len(data)} bytes, and {len(stream.unused_data)} bytes follow: expected {size} bytes, "
            "as in the directory, and none after them"
        )
    if zlib.crc32(data) != crc:
        raise ValueError(f"its CRC-32 is {zlib.crc32(data):08x}: expected {crc:08x}")
    return data
