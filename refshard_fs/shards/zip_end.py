"""The end of a ZIP: where its directory lies, and how many members it lists. No I/O here.

PKWARE's APPNOTE 6.3.10, sections 4.3.14 to 4.3.16. A record that contradicts the file, or two
that both fit (one may hide in the comment), are errors: no guess is made.
"""

from __future__ import annotations

import struct

import msgspec

from refshard_fs.shards.recognised import ZIP_END

__all__ = ["MAX_DIRECTORY", "TAIL", "End", "read_end"]

TAIL = 65 * 1024 + 512  # bytes: the longest comment, its record, and the zip64 records before it
MAX_DIRECTORY = 1 << 30  # bytes; a longer directory is taken for a forged one and never asked for
SMALLEST_ENTRY = 46

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
    at = tail.rfind(ZIP_END)
    while at >= 0:
        if len(tail) - at >= _END_SIZE:
            try:
                found.append(_end(tail, at, size))
            except ValueError as e:
                reason = str(e)
        at = tail.rfind(ZIP_END, 0, at)
    if not found:
        raise ValueError(reason)
    if len(found) > 1:
        raise ValueError("it has two end records that both fit, one in the other's comment")
    return found[0]


def _end(tail: bytes, at: int, size: int | None) -> tuple[End, int]:
    disk, first_disk, here, entries, length, offset, comment = _END_FIELDS.unpack_from(tail, at + 4)
    left = len(tail) - at - _END_SIZE
    if comment != left:
        raise ValueError(f"its end record is followed by {left} bytes, where a comment of {comment} is promised")
    stop, modulo, record = at, 1 << 16, None
    if at >= _LOCATOR_SIZE and tail.startswith(_LOCATOR, at - _LOCATOR_SIZE):
        short = disk, first_disk, here, entries, length, offset
        stop, record = _find_end64(tail, at - _LOCATOR_SIZE)
        disk, first_disk, here, entries, length, offset = _end64(tail, stop, at - _LOCATOR_SIZE, short)
        modulo = 1 << 64
    if disk or first_disk or here != entries:
        raise ValueError("it spans several disks, which is not read here: join its parts first")
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


def _find_end64(tail: bytes, locator: int) -> tuple[int, int]:
    """Return where in ``tail`` the zip64 record begins that ends at ``locator``, and where that says it begins."""
    disk, offset, disks = _LOCATOR_FIELDS.unpack_from(tail, locator + 4)
    if disk or disks > 1:
        raise ValueError("it spans several disks, which is not read here: join its parts first")
    at = tail.rfind(_END64, 0, locator)
    while at >= 0:
        if at + _END64_HEAD + int.from_bytes(tail[at + 4 : at + _END64_HEAD], "little") == locator:
            return at, offset
        at = tail.rfind(_END64, 0, at)
    raise ValueError("its zip64 locator does not follow a zip64 end record")


def _end64(tail: bytes, at: int, stop: int, short: tuple[int, ...]) -> tuple[int, ...]:
    if stop - at < _END64_HEAD + _END64_FIELDS.size:
        raise ValueError("its zip64 end record is too short")
    _, _, *found = _END64_FIELDS.unpack_from(tail, at + _END64_HEAD)
    limits = (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2
    for value, other, limit in zip(found, short, limits, strict=True):
        if other not in (limit, value):
            raise ValueError("its two end records contradict one another")
    return tuple(found)
