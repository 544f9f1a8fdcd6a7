"""Where the chunks of arrays lie, as columns: the number of each chunk, its target, and its byte range. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.columns import WHOLE, ChunkTable, UInt64s
from refshard_fs.keys import join
from refshard_fs.zarrmeta import ArrayMeta

__all__ = ["AT_HAND", "Extents", "Place", "Positions", "Row", "Urls"]

Positions = npt.NDArray[np.int64]

AT_HAND: Final = -1  # in the target column: the manifest itself holds the bytes
_UNKNOWN = np.uint64(WHOLE)


class Place(NamedTuple):
    """Where one key's bytes lie: its target (`AT_HAND`: none), and a range of it; ``stop`` is WHOLE for its end."""

    target: int
    start: int
    stop: int

    @property
    def size(self) -> int | None:
        """Number of bytes; None where only the target knows."""
        return None if self.stop == WHOLE else self.stop - self.start


class Row(NamedTuple):
    """One chunk: its number in the grid, its target (`AT_HAND`: none), and where its bytes lie there."""

    number: int
    target: int
    start: int
    stop: int  # WHOLE: the end of the target


class Urls:
    """URLs by number, each once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._ids: dict[str, int] = {}

    def id_of(self, url: str) -> int:
        """Return the number of ``url``, a new one if it has none."""
        found = self._ids.get(url)
        if found is None:
            found = self._ids[url] = len(self.all)
            self.all.append(url)
        return found


class Extents(msgspec.Struct, frozen=True, eq=False):
    """The chunks of one array that exist, ascending by their number in the grid.

    ``targets`` are places in the survey's URLs, or `AT_HAND`; ``stops`` are WHOLE where only the target knows.
    ``shards`` is the size, in chunks, of the boxes that lie together. ``stray`` keys below the array are no chunks
    of it. Without a grid (``meta.grid``), chunks are numbered in the order of ``names``, their keys in the array.
    Of an array that is not ``listed``, because its source cannot list, nothing is known of any chunk. Chunks that are
    ``plain`` are references, read as the ranges that they are.
    """

    path: str
    meta: ArrayMeta
    numbers: UInt64s
    targets: Positions
    starts: UInt64s
    stops: UInt64s
    shards: tuple[int, ...] = ()
    stray: int = 0
    names: tuple[str, ...] = ()
    listed: bool = True
    plain: bool = False

    @classmethod
    def of(
        cls,
        path: str,
        meta: ArrayMeta,
        table: ChunkTable | None,
        rows: Iterable[Row] | npt.NDArray[np.uint64],
        target: Callable[[int], int],
        shards: tuple[int, ...] = (),
        stray: int = 0,
        names: tuple[str, ...] = (),
    ) -> Extents:
        """Return the chunks of ``table``, whose targets ``target`` renumbers, and ``rows``, which hide those."""
        aside = rows if isinstance(rows, np.ndarray) else np.array(list(rows), np.uint64).reshape(-1, 4)
        numbers, starts, stops = aside[:, 0], aside[:, 2], aside[:, 3]
        targets = aside[:, 1].astype(np.int64)
        if table is not None:
            present = table.present()
            at = slice(None) if table.numbers is not None else present
            codes, first, lengths = table.targets[at], table.offsets[at], table.lengths[at]
            if len(numbers):
                kept = ~np.isin(present, numbers)
                present, codes, first, lengths = present[kept], codes[kept], first[kept], lengths[kept]
            known = np.unique(codes)
            renumbered = np.fromiter((target(int(code)) for code in known), np.int64, len(known))
            numbers = np.concatenate((present, numbers))
            targets = np.concatenate((renumbered[np.searchsorted(known, codes)], targets))
            starts = np.concatenate((first, starts))
            stops = np.concatenate((np.where(lengths == _UNKNOWN, _UNKNOWN, first + lengths), stops))
        if len(numbers) > 1 and not (numbers[1:] > numbers[:-1]).all():
            order = np.argsort(numbers, kind="stable")
            numbers, targets, starts, stops = numbers[order], targets[order], starts[order], stops[order]
        return cls(path, meta, numbers, targets, starts, stops, shards, stray, names)

    def __len__(self) -> int:
        return len(self.numbers)

    def key(self, position: int) -> str:
        """Return the key of the chunk at ``position``."""
        number, grid = int(self.numbers[position]), self.meta.grid
        return join(self.path, self.names[number] if grid is None else grid.tail(number))

    @property
    def possible(self) -> int | None:
        """Chunks of the grid, whether they exist or not; None without a grid."""
        return None if self.meta.grid is None else self.meta.grid.size

    @property
    def sizes(self) -> UInt64s:
        """Bytes of each chunk; 0 where only its target knows."""
        return np.where(self.stops == _UNKNOWN, np.uint64(0), self.stops - self.starts)

    @property
    def unsized(self) -> int:
        """Chunks of which only the target knows the size."""
        return int((self.stops == _UNKNOWN).sum())
