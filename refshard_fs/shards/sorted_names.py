"""Many names in byte order, held as one blob and three columns: found by bisection, no object for each. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import numpy.typing as npt

__all__ = ["SortedNames"]

_WORD = 8
_AFTER_SLASH = b"0"  # the byte that follows "/": what begins with "a/" ends before "a0"

Offsets = npt.NDArray[np.uint64]


class SortedNames:
    """Distinct UTF-8 names without NUL, ascending by their bytes; a name's place is its number in that order."""

    __slots__ = ("_blob", "_lengths", "_starts", "nbytes")

    def __init__(self, blob: bytes, starts: Offsets, lengths: npt.NDArray[np.uint32]) -> None:
        self._blob = blob
        self.nbytes = len(blob) + starts.nbytes + lengths.nbytes
        self._starts, self._lengths = starts.data, lengths.data  # a memoryview gives Python ints

    @classmethod
    def sort(
        cls, blob: bytes, starts: Offsets, lengths: npt.NDArray[np.uint32]
    ) -> tuple[SortedNames, npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Return the names at ``starts`` of ``blob``, which of them each place holds, and which of those come twice.

        Of equal names the last one stays.
        """
        order, begins = _order(blob, starts, lengths)
        last = np.append(begins[1:], True)[: len(order)]
        return cls(blob, starts[order[last]], lengths[order[last]]), order[last], ~begins[last]

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, place: int) -> bytes:
        """Return the name at ``place``."""
        start = self._starts[place]
        return self._blob[start : start + self._lengths[place]]

    def find(self, name: bytes) -> int | None:
        """Return the place of ``name``, or None if it is not among these."""
        place = self._bisect(name, 0, len(self))
        return place if place < len(self) and self.name(place) == name else None

    def below(self, directory: bytes) -> range:
        """Return the places of what begins with ``directory``, which is empty or ends with a slash."""
        if not directory:
            return range(len(self))
        first = self._bisect(directory, 0, len(self))
        return range(first, self._after(directory, first, len(self)))

    def children(self, directory: bytes) -> Iterator[tuple[bytes, int | None]]:
        """Yield name and place of what lies directly below ``directory``; a directory has no place."""
        places = self.below(directory)
        place, stop, cut = places.start, places.stop, len(directory)
        while place < stop:
            head, slash, _ = self.name(place)[cut:].partition(b"/")
            if head:
                yield head, None if slash else place
            place = self._after(directory + head + slash, place, stop) if slash else place + 1

    def _after(self, directory: bytes, low: int, high: int) -> int:
        return self._bisect(directory[:-1] + _AFTER_SLASH, low, high)

    def _bisect(self, name: bytes, low: int, high: int) -> int:
        """Return the first place in ``[low, high)`` whose name is not before ``name``; ``high`` if there is none."""
        while low < high:
            middle = (low + high) // 2
            if self.name(middle) < name:
                low = middle + 1
            else:
                high = middle
        return low


def _order(
    blob: bytes, starts: Offsets, lengths: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the stable order of names, and for each place whether its name differs from the one before.

    Sorts by the first eight bytes of all, then by the next eight of those that are still equal,
    and so on. Beyond its end a name counts as NULs, which no name holds.
    """
    total = len(starts)
    order = np.arange(total)
    begins = np.zeros(total, bool)
    begins[:1] = True
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(blob + bytes(_WORD), np.uint8), _WORD)
    equal = np.arange(total)  # the places of names that are equal so far to one beside them
    for at in count(step=_WORD):
        if not len(equal):
            return order, begins
        members = order[equal]
        words = _words(windows, starts[members] + np.uint64(at), lengths[members].astype(np.int64) - at)
        ranks = np.lexsort((words, np.cumsum(begins[equal])))
        members, words = members[ranks], words[ranks]
        order[equal] = members
        differs = begins[equal]
        differs[1:] |= words[1:] != words[:-1]
        begins[equal] = differs
        alone = differs & np.append(differs[1:], True)
        equal = equal[~alone & (lengths[members] >= at + _WORD)]
    raise AssertionError("counting does not end")


def _words(windows: npt.NDArray[np.uint8], starts: Offsets, left: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return eight bytes from each of ``starts`` as a number that sorts like them, NUL after ``left`` bytes."""
    words = np.ascontiguousarray(windows[starts]).view(">u8")[:, 0].astype(np.uint64)
    spare = np.uint64(8) * (_WORD - np.clip(left, 0, _WORD)).astype(np.uint64)
    half = spare // np.uint64(2)  # a shift by 64 at once would be none
    words >>= half
    words >>= spare - half
    words <<= half
    words <<= spare - half
    return words
