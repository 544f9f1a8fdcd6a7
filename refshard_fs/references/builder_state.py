"""What has been taken in of a reference set so far: columns, and what is no column, each with its place in the order.

Nothing is decided here that a later member may change. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from refshard_fs.core.columns import ABSENT, Part, Row, UInt32s
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.strings import Texts
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Run, SideTable, Value
from refshard_fs.references.url_column import NotExpanded, Urls

__all__ = ["Aside", "Common", "Loose", "Taken", "has_odd"]

FEW: Final = 512  # arrays that may be forgotten,
ROWS_EACH: Final = 32  # and rows of each, on average


class Aside(NamedTuple):
    """Data and single references; ``settled``: none of them is a chunk whose place is not known."""

    sequence: int
    members: dict[str, Value]
    settled: bool


class Loose(NamedTuple):
    """Members as columns that are not placed before the end; ``settled``: no place is left for them to look for."""

    sequence: int
    run: Run
    settled: bool


class Common(NamedTuple):
    """References to chunks of small arrays, each with the number of its array."""

    sequence: int
    arrays: UInt32s
    part: Part


class Taken:
    """All of it; ``where`` names the set in errors."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.urls = Urls()
        self.grids: dict[str, ChunkGrid] = {}
        self.numbers: dict[str, int] = {}  # of arrays; one that gets another grid gets another number
        self.parts: dict[str, list[tuple[int, Part]]] = {}
        self.common: list[Common] = []
        self.side: list[Aside] = []
        self.loose: list[Loose] = []
        self.data = bytearray()  # of all runs in them
        self.hiding: set[str] = set()  # arrays with rows that stand for data kept aside
        self.unsettled = False  # whether places that were known no longer count
        self._numbers = count()

    def learn(self, path: str, grid: ChunkGrid) -> None:
        """Take note of an array. Where it had another grid before, its chunks are placed anew in the end."""
        old = self.grids.get(path)
        if old is None:
            self.grids[path], self.numbers[path] = grid, next(self._numbers)
            return
        if grid == old:
            return
        self.grids[path] = grid
        number, self.numbers[path] = self.numbers[path], next(self._numbers)
        self._take_out(path, old, number)

    def _take_out(self, path: str, grid: ChunkGrid, number: int) -> None:
        """Put the rows of an array aside, by the keys that they have in its ``grid``."""
        self.unsettled = True
        moved = self.parts.pop(path, [])
        for i, (sequence, arrays, part) in enumerate(self.common):
            there = arrays == number
            if there.any():
                moved.append((sequence, Part(*(column[there] for column in part))))
                self.common[i] = Common(sequence, arrays[~there], Part(*(column[~there] for column in part)))
        for sequence, part in moved:
            keys = (join(path, grid.tail(number)) for number in part.numbers.tolist())
            rows = dict(zip(keys, part.rows(), strict=True))  # of which the last one counts
            self.side.append(Aside(sequence, {k: row for k, row in rows.items() if row.target != ABSENT}, False))

    def in_order(self) -> list[Aside | Loose]:
        """Return what lies aside as it came; of one block, what was taken out of its columns is the last."""
        return sorted([*self.loose, *self.side], key=lambda item: item.sequence)

    def forget_arrays(self) -> bool:
        """Put all rows aside, and forget the arrays; False, and nothing is done, where they are many."""
        rows = sum(len(part.numbers) for parts in self.parts.values() for _, part in parts)
        rows += sum(len(common.arrays) for common in self.common)
        if max(len(self.grids), rows // ROWS_EACH) > FEW:
            return False
        for path, grid in self.grids.items():
            self._take_out(path, grid, self.numbers[path])
        self.grids.clear()
        self.numbers.clear()
        self.hiding.clear()
        return True

    def learn_all(self, paths: Sequence[str], grids: Sequence[ChunkGrid]) -> None:
        """Take note of many arrays."""
        if len(set(paths)) < len(paths) or not self.grids.keys().isdisjoint(paths):
            for path, grid in zip(paths, grids, strict=True):
                self.learn(path, grid)
            return
        self.grids.update(zip(paths, grids, strict=True))
        self.numbers.update(zip(paths, self._numbers))  # noqa: B905  # as many as there are paths

    def expand(self, expand: Callable[[str], str]) -> None:
        """Expand every URL, once each; where two become one, or change places, columns follow."""
        try:
            self._renumber(self.urls.expand(expand))
        except NotExpanded as e:
            raise ManifestError(f"{self._key_of(e.number)!r} of {self.where}: its URL {e.text!r}: {e.__cause__}") from e

    def settled_urls(self) -> Texts:
        """Return all URLs, each once; columns follow."""
        urls, numbers = self.urls.settled()
        self._renumber(numbers)
        return urls

    def _renumber(self, numbers: UInt32s | None) -> None:
        if numbers is None:
            return
        columns: tuple[Part | Run, ...] = (
            *(part for parts in self.parts.values() for _, part in parts),
            *(common.part for common in self.common),
            *(loose.run for loose in self.loose),
        )
        for part in columns:
            there = part.targets != ABSENT
            part.targets[there] = numbers[part.targets[there]]
        for _, members, _ in self.side:
            for key, value in members.items():
                if type(value) is Row:
                    members[key] = Row(int(numbers[value.target]), value.offset, value.length)

    def _key_of(self, target: int) -> str:
        """Return a key that refers to ``target``."""
        for path, parts in self.parts.items():
            for _, part in parts:
                for index in np.flatnonzero(part.targets == target)[:1]:
                    return join(path, self.grids[path].tail(int(part.numbers[index])))
        paths = {number: path for path, number in self.numbers.items()}
        for _, arrays, part in self.common:
            for index in np.flatnonzero(part.targets == target)[:1]:
                path = paths[int(arrays[index])]
                return join(path, self.grids[path].tail(int(part.numbers[index])))
        for _, run, _ in self.loose:
            for index in np.flatnonzero(run.targets == target)[:1]:
                return SideTable.of([run]).key(int(index))
        rows = (item for _, members, _ in self.side for item in members.items())
        return next((key for key, value in rows if type(value) is Row and value.target == target), "")


def has_odd(keys: bytes) -> bool:
    """Whether one of ``keys``, each of which has a quote behind it, may have another normal form, or none."""
    if b"\\" in keys or b"\0" in keys:
        return True
    characters = np.frombuffer(b'"' + keys, np.uint8)
    ends = (characters == ord("/")) | (characters == ord('"'))
    if (ends[1:] & ends[:-1]).any():
        return True
    first = ends[:-1] & (characters[1:] == ord("."))  # of a name
    if not first.any():
        return False
    dots = np.flatnonzero(first) + 1
    after = characters[dots + 1]
    return bool((ends[dots + 1] | ((after == ord(".")) & ends[np.minimum(dots + 2, len(ends) - 1)])).any())
