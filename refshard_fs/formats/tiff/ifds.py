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
from refshard_fs.core.model import Inline, Span, Steps, batches
from refshard_fs.errors import ManifestError

HEAD: Final = 1 << 16  # bytes of the file that are read first: a COG has its IFDs and their values there
WINDOW: Final = 1 << 14  # bytes that are read at each further IFD: the IFD, small values, often neighbouring IFDs
# Bytes that are read where IFDs lie close together, as those of compressed pages do: a round of requests takes about as
# long. An OME-TIFF of 24 pages then takes 2 rounds, not 21. Each time, twice as many are read.
AROUND: Final = 1 << 20
AT_ONCE: Final = 64  # windows that are read in one round: 1 MiB
MOST_IFDS: Final = 1 << 16  # IFDs in a file; more would take minutes to open
MOST_TAGS: Final = 1 << 12  # in an IFD; usual are about 30
SHARED: Final = 1 << 20  # bytes that the values of all tags in a file may take, or
TIMES_SHARED: Final = 16  # this many times the size of the file: pages may share one place of values

# Data types by their number in a file; a fraction is a pair.
_NAMES = ("u1", "S1", "u2", "u4", "u4,u4", "i1", "u1", "i2", "i4", "i4,i4", "f4", "f8")
_ORDERS: Final[tuple[Literal["<", ">"], ...]] = ("<", ">")
_TYPES: Final = {
    order: {kind: np.dtype(name).newbyteorder(order) for kind, name in known}
    for known in [[*enumerate(_NAMES, 1), (13, "u4"), (16, "u8"), (17, "i8"), (18, "u8")]]
    for order in _ORDERS
}


class Tag(msgspec.Struct):
    """A tag with ``count`` values of ``dtype`` at ``start`` in the file; ``data`` are their bytes once read."""

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
        """The values, which must have been read."""
        return np.frombuffer(self.data or b"", self.dtype)

    def part(self, first: int, count: int) -> Tag:
        """Return a tag with ``count`` of the values, beginning with the value number ``first``."""
        start, stop = first * self.dtype.itemsize, (first + count) * self.dtype.itemsize
        return Tag(self.dtype, count, self.start + start, None if self.data is None else self.data[start:stop])


class Ifd(msgspec.Struct):
    """One directory: its tags by number, and the position of the next directory.

    ``number`` counts the directories of the file. ``lost`` are the numbers of tags whose values lie beyond the end of
    the file. ``problem`` is the reason why the directory cannot be read.
    """

    following: int
    tags: dict[int, Tag]
    lost: list[int] = []
    problem: str | None = None
    number: int = 0

    def integers(self, number: int, *default: int) -> list[int]:
        """Return the values of a tag of integers; ``default`` if absent. Raise ValueError for other values."""
        tag = self.tags.get(number)
        if tag is None:
            return list(default)
        if tag.dtype.kind not in "iu" or not tag.count or tag.data is None:  # long values are not read
            raise ValueError(f"its tag {number} has {tag.count} values of {tag.dtype}: expected one or a few integers")
        found: list[int] = tag.values.tolist()
        return found

    def integer(self, number: int, default: int) -> int:
        """Return the first value of a tag of integers."""
        return self.integers(number, default)[0]

    def numbers(self, number: int) -> list[float]:
        """Return the values of a tag of numbers; an empty list if it is absent or has other values."""
        tag = self.tags.get(number)
        return [] if tag is None or tag.dtype.kind not in "iuf" else list(map(float, tag.values.tolist()))

    def text(self, number: int) -> str:
        """Return the text of a tag up to its first NUL; "" if it is absent."""
        tag = self.tags.get(number)
        return "" if tag is None else (tag.data or b"").split(b"\0", 1)[0].decode("utf-8", "replace")


class Tiff(FileBytes):
    """The header of a file, and a reader of its IFDs."""

    def __init__(self, url: str, source: Span | Inline, size: int, head: bytes) -> None:
        super().__init__(url, source, size, head)
        self._in_ifds = 0  # bytes of all IFDs so far
        self._in_tags = 0  # bytes of values that are kept so far
        self._shared = max(SHARED, TIMES_SHARED * size)  # most bytes of values
        self.order: Literal["<", ">"] = "<" if head[:1] == b"I" else ">"
        self.is_big = head[2:4] in (b"+\0", b"\0+")
        short = 16 if self.is_big else 8
        if len(head) < short:
            raise ManifestError(f"{url} is cut short: it has {len(head)} bytes, the header of a TIFF has {short}")
        if self.is_big and struct.unpack_from(f"{self.order}HH", head, 4) != (8, 0):
            raise ManifestError(f"{url}: its offsets do not have 8 bytes, as BigTIFF defines")
        # Formats of the pointer to an IFD, of the number of tags, and of a tag.
        forms = ("Q", "Q", "HHQQ") if self.is_big else ("I", "H", "HHII")
        self._link, self._count, self._tag = (struct.Struct(self.order + form) for form in forms)
        self.first: int = self._link.unpack_from(head, short - self._link.size)[0]

    def chain(self) -> Steps[list[Ifd]]:
        """Return the IFDs of all pages. If the chain loops or is damaged, the last IFD has a problem.

        Raises ManifestError if the first IFD cannot be read.
        """
        found: dict[int, Ifd] = {}
        offset, gap, run = self.first, 0, 1  # the last ``run`` IFDs are ``gap`` bytes apart
        around = AROUND
        while offset:
            if len(found) == MOST_IFDS:
                raise ManifestError(f"{self.url}: its chain of IFDs is damaged: it has more than {MOST_IFDS}")
            if offset in found:
                reason = f"the chain of IFDs loops at byte {offset}: further pages cannot be found"
                return [*found.values(), Ifd(0, {}, problem=reason)]
            ahead = range(offset + gap, self.size, gap)[: min(run, AT_ONCE) - 1] if gap > WINDOW else ()
            window = around if 0 < gap <= UNEVEN and not ahead else WINDOW
            if window == around and self.peek(offset, self._count.size) is None:
                around = min(2 * around, LAST_BLOCK)
            (found[offset],) = yield from self.at([offset], ahead, window if found else HEAD)
            problem, following = found[offset].problem, found[offset].following
            if problem is not None and len(found) == 1:
                raise ManifestError(f"{self.url}: {problem}")
            gap, run = following - offset, run + 1 if following - offset == gap else 1
            offset = following
        if not found:
            raise ManifestError(f"{self.url}: it has no IFD and no image. Was it written to the end?")
        return list(found.values())

    def at(self, offsets: Sequence[int], ahead: Sequence[int] = (), window: int = WINDOW) -> Steps[list[Ifd]]:
        """Return the IFDs at ``offsets``. Read a ``window`` of bytes at each of them, and at the positions ``ahead``.

        A damaged IFD, or one beyond the end of the file, has no tags and a problem.
        """
        found: list[Ifd] = []
        for some in batches(offsets, AT_ONCE):
            inside = [offset for offset in some if offset + self._count.size <= self.size]
            heads = yield from self.load([(offset, self._count.size) for offset in inside], window, ahead)
            counts = dict(zip(inside, [self._count.unpack(head)[0] for head in heads], strict=True))
            sizes = {offset: self._count.size + self._tag.size * n + self._link.size for offset, n in counts.items()}
            good = [o for o in inside if 0 < counts[o] <= MOST_TAGS and o + sizes[o] <= self.size]
            self._in_ifds += sum(sizes[offset] for offset in good)
            self._check("IFDs have", self._in_ifds, self.size)
            whole = dict(zip(good, (yield from self.load([(o, sizes[o]) for o in good])), strict=True))
            for offset in some:
                if offset in whole:
                    found.append(self._parse_ifd(offset, counts[offset], whole[offset]))
                else:
                    where = f"its IFD at byte {offset}, of {counts.get(offset, 'no')} tags, ends after byte {self.size}"
                    found.append(Ifd(0, {}, problem=f"{where}: it is damaged or cut short"))
        return found

    def fill(self, wanted: Iterable[Tag]) -> Steps[None]:
        """Read the values of the ``wanted`` tags that are not known yet, all at once."""
        missing = [tag for tag in wanted if tag.data is None]
        self._check("tags have values of", sum(tag.size for tag in missing), self._shared)
        ranges = {(tag.start, tag.size) for tag in missing}
        known = dict(zip(ranges, (yield from self.load(list(ranges))), strict=True))
        for tag in missing:
            tag.data = known[tag.start, tag.size]

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
                self._check("tags have values of", self._in_tags, self._shared)
            ifd.tags[number] = tag
        return ifd

    def _check(self, what: str, total: int, most: int) -> None:
        if total > most:
            raise ManifestError(f"{self.url}: its {what} {total} bytes, in a file of {self.size}: they overlap")
