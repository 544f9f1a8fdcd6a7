"""The objects that keys lie in, asked once each, and the byte ranges of them that keys take."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

import numpy as np
from fsspec.callbacks import Callback

from refshard_fs.core.columns import WHOLE, UInt64s
from refshard_fs.core.formatting import count_text
from refshard_fs.core.model import Facts, Stat
from refshard_fs.errors import TargetChanged
from refshard_fs.session.session import Session
from refshard_fs.targets import Versions
from refshard_fs.tools.findings import SHOWN, Findings
from refshard_fs.tools.survey import INLINE, Chunks, Positions, Survey, batches

__all__ = ["Ranges", "check_targets"]

TOGETHER: Final = 1024  # targets that are asked at a time
_END: Final = np.uint64(WHOLE)


class Ranges:
    """The byte ranges of all keys as columns; bytes that are made from others are left out. No I/O.

    Millions of references are compared by sorting, not one by one.
    """

    def __init__(self, source: Survey) -> None:
        self.source = source
        arrays, rest = list(source.arrays.values()), list(source.rest)
        self._keys: list[Callable[[int], str]] = [rest.__getitem__, *(extents.key for extents in arrays)]
        parts = [Chunks.of_places(enumerate(source.rest.values())), *(extents.chunks for extents in arrays)]
        self._ends = list(accumulate(len(part.numbers) for part in parts))
        _, targets, starts, stops, derived = map(np.concatenate, zip(*parts, strict=True))
        self._rows = np.flatnonzero((targets != INLINE) & ~derived)
        self.targets, self.starts, self.stops = targets[self._rows], starts[self._rows], stops[self._rows]

    def key(self, row: int) -> str:
        """Return the key of a row."""
        place = int(self._rows[row])
        part = bisect_right(self._ends, place)
        return self._keys[part](place - (self._ends[part - 1] if part else 0))

    def url(self, row: int) -> str:
        """Return the target of a row."""
        return self.source.urls[int(self.targets[row])]

    def text(self, row: int) -> str:
        """Return the range of a row in words."""
        stop = self.stops[row]
        return f"bytes [{self.starts[row]}, {'end' if stop == _END else stop})"

    def mean_size(self, default: int) -> int:
        """Return how many bytes a range has on average, as far as that is known."""
        known = self.stops != _END
        return max(1, int((self.stops - self.starts)[known].astype(float).mean())) if known.any() else default

    def users(self) -> tuple[Positions, Positions]:
        """Return the first row of each target (-1: none), and how many rows each has."""
        first = np.full(len(self.source.urls), -1, np.int64)
        first[self.targets[::-1]] = np.arange(len(self.targets) - 1, -1, -1)
        return first, np.bincount(self.targets, minlength=len(first)).astype(np.int64)

    def beyond(self, sizes: UInt64s) -> Positions:
        """Return the rows that reach beyond their target; ``sizes`` are WHOLE where unknown."""
        size = sizes[self.targets]
        over = np.where(self.stops == _END, self.starts > size, self.stops > size)
        return np.flatnonzero(over & (size != _END))

    def shared(self, sizes: UInt64s) -> tuple[Positions, Positions, Positions, Positions]:
        """Return the rows of the range of another row, and those that begin within another; each with that other row.

        Of rows that begin within several others, the one that begins last before counts.
        """
        stops = np.where(self.stops == _END, sizes[self.targets], self.stops)
        known = np.flatnonzero((stops != _END) & (stops > self.starts))
        order = known[np.lexsort((stops[known], self.starts[known], self.targets[known]))]
        targets, starts, ends = self.targets[order], self.starts[order], stops[order]
        same = (targets[1:] == targets[:-1]) & (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
        again = np.flatnonzero(same) + 1
        distinct = np.flatnonzero(np.append(True, ~same)) if len(order) else order
        near = (targets[distinct[1:]] == targets[distinct[:-1]]) & (starts[distinct[1:]] < ends[distinct[:-1]])
        within = np.flatnonzero(near)
        return order[again], order[again - 1], order[distinct[within + 1]], order[distinct[within]]


async def check_targets(session: Session, ranges: Ranges, found: Findings, callback: Callback) -> None:
    """Ask each target once, and compare ``ranges`` with the answers; ``callback`` counts the targets."""
    urls = ranges.source.urls
    sizes = np.full(len(urls), WHOLE, np.uint64)
    first, uses = ranges.users()
    for some in batches(range(len(urls)), TOGETHER):
        answers = await asyncio.gather(*(_ask(session, urls[i], callback) for i in some))
        for i, answer in zip(some, answers, strict=True):
            key = ranges.key(int(first[i])) if first[i] >= 0 else ""
            match answer:
                case Facts(size):
                    if size is None:
                        found.add("warning", "unsized", key, urls[i], "its target does not tell its size")
                    else:
                        sizes[i] = size
                    _check_pins(ranges.source, i, answer, key, found)
                case None:
                    text = f"there is no such object; {count_text(int(uses[i]), 'reference')} to it"
                    found.add("error", "unreachable", key, urls[i], text)
                case error:
                    found.add_error(key, error, "unreachable", urls[i])
    _compare(ranges, sizes, found)


async def _ask(session: Session, url: str, callback: Callback) -> Facts | Exception | None:
    try:
        if not url:
            return ValueError("a reference without a URL needs target=, the URL it stands for")
        answer: Facts | None = await session.engine().need(Stat(url, fresh=True))
        return answer
    except Exception as e:  # noqa: BLE001  # whatever the target's library raises, it becomes a finding
        return e
    finally:
        callback.relative_update()


def _check_pins(source: Survey, target: int, facts: Facts, key: str, found: Findings) -> None:
    for pin in source.pins.get(target, ()):
        try:
            Versions().of(source.urls[target]).observe(facts.etag, facts.last_modified, facts.size, pin)
        except TargetChanged as e:
            found.add("error", "changed", key, source.urls[target], e.reason)
            return


def _compare(ranges: Ranges, sizes: UInt64s, found: Findings) -> None:
    beyond = ranges.beyond(sizes)
    for row in beyond[:SHOWN].tolist():
        text = f"{ranges.text(row)} reaches beyond the {sizes[ranges.targets[row]]:,} bytes there are"
        found.add("error", "beyond-target", ranges.key(row), ranges.url(row), text)
    found.count("beyond-target", len(beyond) - SHOWN)
    again, before, within, outer = ranges.shared(sizes)
    for kind, rows, others, verb in (
        ("duplicate-range", again, before, "are also those of"),
        ("overlapping-range", within, outer, "begin within those of"),
    ):
        for row, other in zip(rows[:SHOWN].tolist(), others[:SHOWN].tolist(), strict=True):
            text = f"{ranges.text(row)} {verb} {ranges.key(other)!r}"
            found.add("warning", kind, ranges.key(row), ranges.url(row), text)
        found.count(kind, len(rows) - SHOWN)
