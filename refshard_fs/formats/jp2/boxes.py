"""The boxes of a JP2 file: where its code stream lies, and boxes with metadata. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Steps
from refshard_fs.formats.jp2 import CODE_STREAM

MOST_BOXES: Final = 1 << 10  # on one level of a file; more would take minutes to open
LONGEST: Final = 1 << 24  # bytes of all boxes with metadata
HEADER, PALETTE, STREAM, UUID, ASSOCIATION, XML = b"jp2h", b"pclr", b"jp2c", b"uuid", b"asoc", b"xml "
_NEEDED: Final = (HEADER, UUID, ASSOCIATION)
_HEAD: Final = 16  # bytes of the longest header of a box
_DEEPEST: Final = 8  # boxes within each other


class Box(NamedTuple):
    """A box: its type, and the range of its contents."""

    kind: bytes
    start: int
    stop: int


class Boxes(NamedTuple):
    """The range of the first of ``streams`` code streams, and types and contents of the boxes with metadata."""

    start: int
    stop: int
    metadata: list[tuple[bytes, bytes]]
    streams: int = 1


def read_boxes(file: FileBytes) -> Steps[Boxes]:
    """Read the boxes of a file, one after the other; ValueError if they do not fit it.

    A file that is a bare code stream has no boxes.
    """
    (head,) = yield from file.load([(0, min(4, file.size))])
    if head == CODE_STREAM:
        return Boxes(0, file.size, [])
    found: list[Box] = []
    at = 0
    while at < file.size:
        if len(found) == MOST_BOXES:
            raise ValueError(f"it has more than {MOST_BOXES} boxes")
        (head,) = yield from file.load([(at, min(_HEAD, file.size - at))])
        try:
            found.append(parse_box(head, at, file.size))
        except ValueError:
            if all(box.kind != STREAM for box in found):
                raise
            break  # some writers put other bytes after the code stream
        at = found[-1].stop
    streams = [box for box in found if box.kind == STREAM]
    if not streams:
        raise ValueError("it has no code stream (box jp2c)")
    needed = [box for box in found if box.kind in _NEEDED]
    if sum(box.stop - box.start for box in needed) > LONGEST:
        raise ValueError(f"its boxes with metadata have more than {LONGEST} bytes")
    contents = yield from file.load([(box.start, box.stop - box.start) for box in needed])
    metadata = [(box.kind, data) for box, data in zip(needed, contents, strict=True)]
    return Boxes(streams[0].start, streams[0].stop, metadata, len(streams))


def parse_box(head: bytes, at: int, end: int) -> Box:
    """Parse the header of the box at ``at``, of a file or a box that ends at ``end``; ValueError if it does not fit."""
    length, start = int.from_bytes(head[:4]), at + 8
    if length == 1:  # the length follows the type
        length, start = int.from_bytes(head[8:16]), at + 16
    elif not length:  # the box reaches the end
        length = end - at
    if head[4:8] == STREAM:  # its tile parts tell whether it is cut short
        length = min(length, end - at)
    if at + length < start or at + length > end or len(head) < start - at:
        raise ValueError(
            f"the box {head[4:8]!r} at byte {at} has {length} bytes, but {end - at} are left: "
            "it is damaged or cut short"
        )
    return Box(head[4:8], start, at + length)


def iterate_boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield type and contents of the boxes in ``data``; ValueError if they do not fit it."""
    at = count = 0
    while at < len(data):
        count += 1
        if count > MOST_BOXES:
            raise ValueError(f"a box has more than {MOST_BOXES} boxes")
        box = parse_box(data[at : at + _HEAD], at, len(data))
        yield box.kind, data[box.start : box.stop]
        at = box.stop


def find_texts(data: bytes, depth: int = 0) -> Iterator[str]:
    """Yield the XML texts in an association box, and in those within it."""
    if depth == _DEEPEST:
        raise ValueError(f"its boxes are nested more than {_DEEPEST} times")
    for kind, contents in iterate_boxes(data):
        if kind == XML:
            yield contents.decode("utf-8", "replace").strip("\0 \r\n\t\ufeff")
        elif kind == ASSOCIATION:
            yield from find_texts(contents, depth + 1)
