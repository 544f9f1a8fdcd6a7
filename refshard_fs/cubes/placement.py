"""The places of a piece's elements along a dimension of a cube. No I/O here."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate

import msgspec
import numpy as np
import numpy.typing as npt


class Placement(msgspec.Struct, frozen=True, dict=True):
    """The places of a piece's elements along a dimension where the piece has only some elements.

    A run of elements has the place of its first element, and its length; ``runs`` are in the order of the piece. If
    ``shown`` is not None, only elements at the first ``shown`` places are shown.
    """

    runs: tuple[tuple[int, int], ...]
    shown: int | None = None

    @classmethod
    def of_slice(cls, start: int, length: int, total: int) -> Placement:
        """Return the places of a piece's elements ``[start, start + length)``; the piece has ``total`` elements."""
        return cls(((-start, total),), length)

    @classmethod
    def of(cls, places: npt.NDArray[np.int64]) -> Placement:
        """Return the placement of elements, given the place of each."""
        starts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        return cls(tuple((int(places[a]), b - a) for a, b in itertools.pairwise(starts) if b > a))

    @cached_property
    def starts(self) -> list[int]:
        """The number of the first element of each run, and at the end the number of all elements."""
        return list(accumulate((length for _, length in self.runs), initial=0))

    @property
    def length(self) -> int:
        return self.starts[-1]

    @cached_property
    def _sorted_runs(self) -> list[tuple[int, int, int]]:
        """All runs, sorted by place: the place, the number of the first element, and the length."""
        return sorted((at, start, length) for (at, length), start in zip(self.runs, self.starts, strict=False))

    def find_runs(self, begin: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs within the places ``[begin, stop)``, cut to them: place, first element and length."""
        if self.shown is not None:
            begin, stop = max(begin, 0), min(stop, self.shown)
        first = max(bisect_right(self._sorted_runs, (begin, stop, 0)) - 1, 0)
        for number in range(first, len(self._sorted_runs)):
            at, start, length = self._sorted_runs[number]
            low, high = max(at, begin), min(at + length, stop)
            if at >= stop:
                return
            if low < high:
                yield low, start + low - at, high - low

    def find_element(self, place: int) -> int | None:
        """Return the number of the element at a place; None if the piece has no element there."""
        return next((start for _, start, _ in self.find_runs(place, place + 1)), None)

    def find_place(self, element: int) -> int | None:
        """Return the place of an element; None if the piece has no such element, or does not show it."""
        run = bisect_right(self.starts, element) - 1
        at = self.runs[run][0] + element - self.starts[run] if element < self.length else -1
        return at if at >= 0 and (self.shown is None or at < self.shown) else None

    def find_places(self, elements: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places of elements that the piece has; -1 for elements that it does not show."""
        run = np.searchsorted(self.starts, elements, side="right") - 1
        at = np.array([at for at, _ in self.runs], np.int64)[run] + elements - np.array(self.starts, np.int64)[run]
        return at if self.shown is None else np.where(at < self.shown, np.maximum(at, -1), -1)

    def find_elements(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of the elements at ``places``; -1 for places without an element."""
        if not self.runs:
            return np.full(len(places), -1)
        at, first, length = np.array(self._sorted_runs, np.int64).T
        run = np.searchsorted(at, places, side="right") - 1
        return np.where((run >= 0) & (places < at[run] + length[run]), first[run] + places - at[run], -1)

    def convert_to_chunks(self, size: int, total: int) -> Placement | None:
        """Return the places of chunks of ``size`` in an array of length ``total``; None if a chunk would be divided."""
        if self.shown is not None:  # only the last piece may end within a chunk: readers cut it there
            ((at, length),) = self.runs
            is_divided = size < 1 or at % size
            return None if is_divided else Placement(((at // size, -(-length // size)),), -(-self.shown // size))
        runs: list[tuple[int, int]] = []
        for (at, length), start in zip(self.runs, self.starts, strict=False):
            is_end = at + length == total and start + length == self.length
            if size < 1 or at % size or start % size or (length % size and not is_end):
                return None
            runs.append((at // size, -(-length // size)))
        return Placement(tuple(runs))

    def check(self, total: int) -> None:
        """Raise ValueError if runs overlap, are empty, or lie outside of the ``total`` places."""
        ends = [0, *(at + length for at, _, length in self._sorted_runs)]
        begins = [*(at for at, _, _ in self._sorted_runs), total]
        are_apart = all(end <= begin for end, begin in zip(ends, begins, strict=True))
        if not are_apart or min((length for _, length in self.runs), default=1) < 1:
            raise ValueError(
                "expected runs (first place, length) that are not empty, do not overlap, and end at most at "
                f"{total:,}, got {list(self.runs)!r:.100}"
            )
