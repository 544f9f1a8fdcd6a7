"""Where reading an array may well end, or turn elsewhere: after a row, half of one, a shard. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence

from refshard_fs.keys import ChunkGrid
from refshard_fs.reading.plan import MIB
from refshard_fs.reading.runs import Run

__all__ = ["Ends"]

HALVES = 64  # chunks in a line from which on its half is a natural end,
HALF = 8 * MIB  # and of a stride if it has so many bytes: to fetch fewer in vain costs less than to wait once more


class Ends:
    """The ends of one array's lines (rows, planes, ...) and shards; numbers are those of chunks."""

    def __init__(self, grid: ChunkGrid) -> None:
        self._grid = grid
        self._lines = _lines(grid.counts)
        self._bands = _bands(grid)

    def natural(self, run: Run, chunk: int) -> int | None:
        """Return the number before which (in the run's direction) reading may well end; None if nothing is special."""
        step, first, last = run.step, run.first, run.last
        found: int | None = None
        sparse = self.is_sparse(run)
        dense = abs(step) == 1 or bool(self._grid.shards)
        for line in self._lines:
            if line <= abs(step) or first // line != last // line:
                continue
            start = last // line * line
            half = start + line // 2
            steps = line // abs(step)
            halves = not sparse and steps >= HALVES and (dense or steps // 2 * chunk >= HALF)
            if step > 0:
                end = half if halves and last < half else start + line
                found = end if found is None else min(found, end)
            else:
                end = half if halves and last >= half else start
                found = end if found is None else max(found, end)
        return found

    def of_shards(self, run: Run) -> int | None:
        """Return where the row of shards ends that a run goes through line by line; None if it goes through none."""
        end = None
        for line, band, plane in self._bands:
            if run.step > 0 and run.last - run.first >= line:
                start = run.last // plane * plane
                first = start + (run.last - start) // band * band
                end = min(first + band, start + plane) if run.first >= first else None
        return end

    def is_sparse(self, run: Run) -> bool:
        """Whether ``run`` is a column that has gone on into a further shard.

        Little is lost if it ends, and each halt costs two waits.
        """
        return bool(self._grid.shards) and abs(run.step) > 1 and self._shard_of(run.first) != self._shard_of(run.last)

    def all_follow(self, run: Run, following: int) -> bool:
        """Whether ``following`` reads more can only be of ``run``, and not of lines of which it has read no end yet."""
        step, first, last = abs(run.step), run.first, run.last
        total = run.length + following
        for line in self._lines[:-1]:
            if line <= step or first // line != last // line:
                continue
            start, lines = first % line, self._lines[-1] // line - first // line
            if run.step < 0:
                start, lines = line - 1 - start, first // line + 1
            width = -(-(line - start) // step)
            fills = start < step and total % width == 0
            if not fills or any(total % w == 0 and total // w <= lines for w in range(run.length, width)):
                return False
        return self.edge(run) is None

    def edge(self, run: Run) -> int | None:
        """Return where the shard ends, within its line, that a run has not left yet; None if it is as long as its line.

        What follows may be the next line of the same shard as well as the next shard.
        """
        lower = 1
        for width, line in zip(reversed(self._grid.shards), self._lines[:-1], strict=False):
            if line > abs(run.step):
                start = run.last // line * line
                band = width * lower
                place = (run.last - start) // band
                if band >= line or run.first < start + place * band or run.first >= start + (place + 1) * band:
                    return None
                return min(start + (place + 1) * band, start + line) if run.step > 0 else start + place * band
            lower = line
        return None

    def _shard_of(self, number: int) -> tuple[int, ...]:
        grid = self._grid
        return tuple(c // s for c, s in zip(grid.coords(number), grid.shards, strict=True))


def _bands(grid: ChunkGrid) -> tuple[tuple[int, int, int], ...]:
    """Return, for each dimension that shards extend along, how many chunks a line has, a row of shards, and a plane."""
    lines = (1, *_lines(grid.counts))[::-1]  # lines[d] chunks have the same coordinates before dimension d
    dimensions = range(max(len(grid.shards) - 2, 0), -1, -1) if grid.shards else ()
    return tuple((lines[d + 1], lines[d + 1] * grid.shards[d], lines[d]) for d in dimensions)


def _lines(counts: Sequence[int]) -> tuple[int, ...]:
    """Return how many chunks a row has, a plane, and so on, up to the whole array."""
    lines, size = [], 1
    for count in reversed(counts):
        size *= count
        lines.append(size)
    return tuple(lines)
