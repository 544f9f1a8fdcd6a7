"""Read the boxes of a JP2 file: they locate its code stream, and hold metadata. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Steps
from refshard_fs.formats.jp2 import CODE_STREAM

MOST_BOXES: Final = 1 << 10  # the most boxes in a file or within a box: opening a file with more would take minutes
LONGEST: Final = 1 << 24  # the most bytes of all boxes with metadata
HEADER, PALETTE, STREAM, UUID, ASSOCIATION, XML = b"jp2h", b"pclr", b"jp2c", b"uuid", b"asoc", b"xml "
_NEEDED: Final = (HEADER, UUID, ASSOCIATION)  # the boxes with metadata that are read
_HEAD: Final = 16  # bytes of the longest header of a box
_DEEPEST: Final = 8  # the most boxes that are nested in each other


class Box(NamedTuple):
    """A box: its type, and the range of its contents in the file or in another box."""

    kind: bytes
    start: int
    stop: int


class Boxes(NamedTuple):
    """The range of the first code stream, types and contents of the boxes with metadata, and the number of streams."""

    start: int
    stop: int
    metadata: list[tuple[bytes, bytes]]
    streams: int = 1


def read_boxes(file: FileBytes) -> Steps[Boxes]:
    """Read the boxes of a file; none if the file is a bare code stream.

    Raises ValueError if a box ends after the end of the file, if no box contains a code stream, or if boxes or their
    metadata are too many.
    """
    (head,) = yield from file.load([(0, min(4, file.size))])
    if head == CODE_STREAM:
        return Boxes(0, file.size, [])
    boxes: list[Box] = []
    at = 0
    while at < file.size:
        if len(boxes) == MOST_BOXES:
            raise ValueError(f"it has {len(boxes)} boxes or more: expected at most {MOST_BOXES}")
        (head,) = yield from file.load([(at, min(_HEAD, file.size - at))])
        try:
            boxes.append(parse_box(head, at, file.size))
        except ValueError:
            if all(box.kind != STREAM for box in boxes):
                raise
            break  # some writers put other bytes after the code stream
        at = boxes[-1].stop
    streams = [box for box in boxes if box.kind == STREAM]
    if not streams:
        raise ValueError("it has no code stream: expected a box jp2c")
    needed = [box for box in boxes if box.kind in _NEEDED]
    if (total := sum(box.stop - box.start for box in needed)) > LONGEST:
        raise ValueError(f"its boxes with metadata have {total} bytes: expected at most {LONGEST}")
    contents = yield from file.load([(box.start, box.stop - box.start) for box in needed])
    metadata = [(box.kind, data) for box, data in zip(needed, contents, strict=True)]
    return Boxes(streams[0].start, streams[0].stop, metadata, len(streams))


def parse_box(head: bytes, at: int, end: int) -> Box:
    """Parse the header of a box at byte ``at`` of a file or an outer box, which ends at ``end``.

    Raises ValueError if the box ends after ``end``. Only the box of the code stream may: it is cut off there.
    """
    length, start = int.from_bytes(head[:4]), at + 8
    if length == 1:  # the length follows the type
        length, start = int.from_bytes(head[8:16]), at + 16
    elif not length:  # the box reaches the end
        length = end - at
    if head[4:8] == STREAM:  # if it is cut short, locating its tile parts raises an error
        length = min(length, end - at)
    if at + length < start or at + length > end or len(head) < start - at:
        raise ValueError(
            f"the box {head[4:8]!r} at byte {at} has {length} bytes: expected {start - at} to {end - at}. It is "
            "damaged or cut short"
        )
    return Box(head[4:8], start, at + length)


def iterate_boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and the contents of each box in ``data``; ValueError if a box ends after the end of ``data``."""
    at = count = 0
    while at < len(data):
        count += 1
        if count > MOST_BOXES:
            raise ValueError(f"a box contains {count} boxes or more: expected at most {MOST_BOXES}")
        box = parse_box(data[at : at + _HEAD], at, len(data))
        yield box.kind, data[box.start : box.stop]
        at = box.stop


def find_texts(data: bytes, depth: int = 0) -> Iterator[str]:
    """Yield the XML texts in ``data``, the contents of an association box, and in association boxes nested in it."""
    if depth == _DEEPEST:
        raise ValueError(f"its association boxes are nested too deeply: expected at most {_DEEPEST} levels")
    for kind, contents in iterate_boxes(data):
        if kind == XML:
            yield contents.decode("utf-8", "replace").strip("\0 \r\n\t\ufeff")
        elif kind == ASSOCIATION:
            yield from find_texts(contents, depth + 1)
