"""Read the directories (IFDs) of a TIFF or BigTIFF file, and the values of their tags, in few rounds. No I/O here.

IFDs are a chain: each points to the next. IFDs in the first bytes of the file cost no read. IFDs at equal distances, as
in files of uncompressed pages, are read many at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.chain import LAST_BLOCK, UNEVEN
from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Inline, Span, Steps, iterate_batches
from refshard_fs.errors import ManifestError

HEAD: Final = 1 << 16  # bytes that are read at the first IFD: a COG usually has all IFDs and their values there
WINDOW: Final = 1 << 14  # bytes that are read at each further IFD: the IFD, small values, often neighbouring IFDs
# Bytes that are read at once where IFDs lie close together, as in files of compressed pages: reading them takes about
# as long as a round of requests. Each further read takes twice as many. An OME-TIFF of 24 pages opens in 2 rounds, not
# in 21.
AROUND: Final = 1 << 20
AT_ONCE: Final = 64  # windows that are read in one round: 1 MiB
MOST_IFDS: Final = 1 << 16  # IFDs in a file; more would take minutes to open
MOST_TAGS: Final = 1 << 12  # tags in an IFD; about 30 are usual
# The values of all tags may have `SHARED` bytes, or `TIMES_SHARED` times the size of the file if that is more: several
# IFDs may point to the same values.
SHARED: Final = 1 << 20
TIMES_SHARED: Final = 16

# Data types by their number in a file; a fraction is a pair.
_NAMES = ("u1", "S1", "u2", "u4", "u4,u4", "i1", "u1", "i2", "i4", "i4,i4", "f4", "f8")
_ORDERS: Final[tuple[Literal["<", ">"], ...]] = ("<", ">")
_TYPES: Final = {
    order: {kind: np.dtype(name).newbyteorder(order) for kind, name in known}
    for known in [[*enumerate(_NAMES, 1), (13, "u4"), (16, "u8"), (17, "i8"), (18, "u8")]]
    for order in _ORDERS
}


class Tag(msgspec.Struct):
    """A tag with ``count`` values of ``dtype`` at byte ``start`` of the file; ``data`` is None until they are read."""

    dtype: np.dtype[Any]
    count: int
    start: int
    data: bytes | None = None

    @property
    def size(self) -> int:
        """Size of the values in bytes."""
        return self.count * self.dtype.itemsize

    @property
    def values(self) -> npt.NDArray[Any]:
        """The values; empty if they have not been read."""
        return np.frombuffer(self.data or b"", self.dtype)

    def part(self, first: int, count: int) -> Tag:
        """Return a tag with ``count`` of the values, beginning at index ``first``."""
        start, stop = first * self.dtype.itemsize, (first + count) * self.dtype.itemsize
        return Tag(self.dtype, count, self.start + start, None if self.data is None else self.data[start:stop])


class Ifd(msgspec.Struct):
    """An IFD: its tags by number, and the position of the ``following`` IFD, 0 if it is the last one.

    ``number`` is the index of the IFD in the file. ``lost`` are the numbers of tags whose values lie beyond the end of
    the file. ``problem`` is the reason why the IFD cannot be read.
    """

    following: int
    tags: dict[int, Tag]
    lost: list[int] = []
    problem: str | None = None
    number: int = 0

    def get_integers(self, number: int, *default: int) -> list[int]:
        """Return the values of a tag of integers; ``default`` if absent. Raise ValueError for other values."""
        tag = self.tags.get(number)
        if tag is None:
            return list(default)
        if tag.dtype.kind not in "iu" or not tag.count or tag.data is None:  # too many values are not read
            raise ValueError(f"its tag {number} has {tag.count} values of {tag.dtype}: expected one or a few integers")
        values: list[int] = tag.values.tolist()
        return values

    def get_integer(self, number: int, default: int) -> int:
        """Return the first value of a tag of integers; ``default`` if absent. Raise ValueError for other values."""
        return self.get_integers(number, default)[0]

    def get_numbers(self, number: int) -> list[float]:
        """Return the values of a tag of numbers; an empty list if it is absent or has other values."""
        tag = self.tags.get(number)
        return [] if tag is None or tag.dtype.kind not in "iuf" else list(map(float, tag.values.tolist()))

    def get_text(self, number: int) -> str:
        """Return the text of a tag up to its first NUL; "" if the tag is absent or was not read."""
        tag = self.tags.get(number)
        return "" if tag is None else (tag.data or b"").split(b"\0", 1)[0].decode("utf-8", "replace")


class Tiff(FileBytes):
    """A TIFF file: its header, and steps that read its IFDs and the values of their tags."""

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes) -> None:
        super().__init__(url, source, size, head)
        self._in_ifds = 0  # bytes of the IFDs that were read
        self._in_tags = 0  # bytes of the values that were kept
        self._shared = max(SHARED, TIMES_SHARED * size)  # the most bytes of values
        self.order: Literal["<", ">"] = "<" if head[:1] == b"I" else ">"
        self.is_big = head[2:4] in (b"+\0", b"\0+")
        short = 16 if self.is_big else 8
        if len(head) < short:
            raise ManifestError(f"{url} is cut short: expected a header of {short} bytes, found {len(head)}")
        if self.is_big and (sizes := struct.unpack_from(f"{self.order}HH", head, 4)) != (8, 0):
            raise ManifestError(
                f"{url}: bytes 4 to 8 of its header are the numbers {sizes}: expected (8, 0), as in any BigTIFF file"
            )
        # Formats of the pointer to an IFD, of the number of tags, and of a tag.
        forms = ("Q", "Q", "HHQQ") if self.is_big else ("I", "H", "HHII")
        self._link, self._count, self._tag = (struct.Struct(self.order + form) for form in forms)
        self.first: int = self._link.unpack_from(head, short - self._link.size)[0]

    def read_chain(self) -> Steps[list[Ifd]]:
        """Read the IFDs of all pages. If the chain loops or is damaged, the last IFD has a ``problem``.

        Raises ManifestError if the first IFD cannot be read.
        """
        ifds: dict[int, Ifd] = {}
        offset, gap, run = self.first, 0, 1  # the last ``run`` IFDs are at equal distances of ``gap`` bytes
        around = AROUND
        while offset:
            if len(ifds) == MOST_IFDS:
                raise ManifestError(
                    f"{self.url}: its chain has {len(ifds) + 1} IFDs or more: expected at most {MOST_IFDS}"
                )
            if offset in ifds:
                reason = f"expected a further IFD or the end of the chain, found the IFD at byte {offset} again"
                return [*ifds.values(), Ifd(0, {}, problem=reason)]
            ahead = range(offset + gap, self.size, gap)[: min(run, AT_ONCE) - 1] if gap > WINDOW else ()
            window = around if 0 < gap <= UNEVEN and not ahead else WINDOW
            if window == around and self.peek(offset, self._count.size) is None:
                around = min(2 * around, LAST_BLOCK)
            (ifds[offset],) = yield from self.read_ifds([offset], ahead, window if ifds else HEAD)
            problem, following = ifds[offset].problem, ifds[offset].following
            if problem is not None and len(ifds) == 1:
                raise ManifestError(f"{self.url}: {problem}")
            gap, run = following - offset, run + 1 if following - offset == gap else 1
            offset = following
        if not ifds:
            raise ManifestError(f"{self.url}: expected an IFD (an image), found none. Was the file written to the end?")
        return list(ifds.values())

    def read_ifds(self, offsets: Sequence[int], ahead: Sequence[int] = (), window: int = WINDOW) -> Steps[list[Ifd]]:
        """Read the IFDs at ``offsets``, and ``window`` bytes at each, which often hold values and further IFDs.

        ``window`` bytes are also read at the offsets ``ahead``, where the next IFDs are expected. A damaged IFD, and an
        IFD beyond the end of the file, have no tags and a ``problem``.
        """
        ifds: list[Ifd] = []
        for batch in iterate_batches(offsets, AT_ONCE):
            inside = [offset for offset in batch if offset + self._count.size <= self.size]
            heads = yield from self.load([(offset, self._count.size) for offset in inside], window, ahead)
            counts = dict(zip(inside, [self._count.unpack(head)[0] for head in heads], strict=True))
            sizes = {at: self._count.size + self._tag.size * count + self._link.size for at, count in counts.items()}
            valid = [at for at in inside if 0 < counts[at] <= MOST_TAGS and at + sizes[at] <= self.size]
            self._in_ifds += sum(sizes[at] for at in valid)
            self._check_overlap("IFDs have", self._in_ifds, self.size)
            found_data = dict(zip(valid, (yield from self.load([(at, sizes[at]) for at in valid])), strict=True))
            for offset in batch:
                if offset in found_data:
                    ifds.append(self._parse_ifd(offset, counts[offset], found_data[offset]))
                else:
                    found = f"an IFD of {counts[offset]} tags" if offset in counts else "nothing"
                    problem = (
                        f"expected an IFD of 1 to {MOST_TAGS} tags at byte {offset}, before the end of the file at "
                        f"byte {self.size}; found {found}. The file is damaged or cut short"
                    )
                    ifds.append(Ifd(0, {}, problem=problem))
        return ifds

    def read_values(self, tags: Iterable[Tag]) -> Steps[None]:
        """Set ``data`` of the ``tags`` that lack it, in one round of reads."""
        missing = [tag for tag in tags if tag.data is None]
        self._check_overlap("tags have values of", sum(tag.size for tag in missing), self._shared)
        ranges = {(tag.start, tag.size) for tag in missing}
        values = dict(zip(ranges, (yield from self.load(list(ranges))), strict=True))
        for tag in missing:
            tag.data = values[tag.start, tag.size]

    def _parse_ifd(self, offset: int, count: int, data: bytes) -> Ifd:
        ifd = Ifd(self._link.unpack_from(data, len(data) - self._link.size)[0], {})
        for at in range(self._count.size, self._count.size + self._tag.size * count, self._tag.size):
            number, kind, values, start = self._tag.unpack_from(data, at)
            dtype = _TYPES[self.order].get(kind)
            if dtype is None or number in ifd.tags:  # readers skip unknown and repeated tags
                continue
            tag = Tag(dtype, values, start)
            if tag.size <= self._link.size:  # small values are stored in place of their position
                start = at + self._tag.size - self._link.size
                tag.start, tag.data = offset + start, data[start : start + tag.size]
            elif tag.start + tag.size > self.size:
                ifd.lost.append(number)
                continue
            else:
                tag.data = self.peek(tag.start, tag.size)
                self._in_tags += len(tag.data or b"")
                self._check_overlap("tags have values of", self._in_tags, self._shared)
            ifd.tags[number] = tag
        return ifd

    def _check_overlap(self, label: str, total: int, most: int) -> None:
        """Raise ManifestError if ``total`` bytes are more than ``most``, which only overlapping parts can have."""
        if total > most:
            raise ManifestError(
                f"{self.url}: its {label} {total} bytes or more: expected at most {most} in a file of {self.size} "
                "bytes. They overlap, so the file is damaged"
            )
