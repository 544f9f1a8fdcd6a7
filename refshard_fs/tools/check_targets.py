"""The objects that keys lie in, asked once each, and the ranges of them that keys take."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from fsspec.callbacks import Callback

from refshard_fs.core.columns import WHOLE, ChunkTable, UInt64s
from refshard_fs.core.formatting import count_text
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Inline, Listed, Packed, Pin, Span, Stat
from refshard_fs.errors import DamagedIndex, ManifestError, NotListable, TargetChanged
from refshard_fs.reading.engine import Engine
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.sharding.view import ShardView
from refshard_fs.targets import Versions
from refshard_fs.tools.findings import SHOWN, Findings
from refshard_fs.tools.survey import Positions, Urls

__all__ = ["CHUNK_NAME", "Keys", "Ranges", "Rows", "Targets", "list_all"]

# ----------------------------------------------------------------------------------------------------
# The byte ranges that many keys point to, as columns: which are shared, overlap, or reach beyond their target. No I/O.
#
# Millions of references are compared by sorting, not one by one.


class Keys(msgspec.Struct, frozen=True, eq=False):
    """Keys of one array, by their position: those of a table's chunks are spelled when they are asked for."""

    array: str
    table: ChunkTable | None
    names: list[str]
    numbers: UInt64s

    @classmethod
    def of_table(cls, array: str, table: ChunkTable) -> Keys:
        """Return the keys of the chunks that ``table`` has."""
        return cls(array, table, [], table.present())

    @classmethod
    def spelled(cls, array: str, names: list[str]) -> Keys:
        """Return whole keys that are at hand."""
        return cls(array, None, names, np.empty(0, np.uint64))

    def __len__(self) -> int:
        return len(self.names) if self.table is None else len(self.numbers)

    def key(self, position: int) -> str:
        """Return the key at ``position``."""
        if self.table is None:
            return self.names[position]
        return join(self.array, self.table.grid.tail(int(self.numbers[position])))


class Rows(NamedTuple):
    """Where some keys' bytes lie: ``stops`` are WHOLE where a range reaches to the end of its target."""

    keys: Keys
    targets: Positions
    starts: UInt64s
    stops: UInt64s


class Ranges:
    """Ranges of all keys, with the URLs that they point to; ``pins`` are what the source says of some of those."""

    def __init__(self) -> None:
        self.faults: dict[str, ManifestError] = {}  # of URLs that are none
        self.pins: dict[int, set[Pin]] = {}
        self._urls = Urls()
        self._rows: list[Rows] = []

    @property
    def urls(self) -> list[str]:
        """The URLs of all targets, by number."""
        return self._urls.all

    def add_flat(self, keyspace: FlatKeySpace) -> list[Keys]:
        """Take in the chunks that a reference set has in columns; the keys of each array."""
        resolved = np.fromiter((self._target(keyspace, i) for i in range(len(keyspace.urls))), np.int64)
        if keyspace.refs.pins is not None:
            for target, number in enumerate(resolved.tolist()):
                pin = keyspace.pin(target)
                if pin is not None:
                    self.pins.setdefault(number, set()).add(pin)
        found = []
        for array, table in keyspace.refs.tables.items():
            keys = Keys.of_table(array, table)
            found.append(keys)
            at = slice(None) if table.numbers is not None else keys.numbers
            lengths, starts = table.lengths[at], table.offsets[at]
            stops = np.where(lengths == WHOLE, np.uint64(WHOLE), starts + lengths)
            self._rows.append(Rows(keys, resolved[table.targets[at]], starts, stops))
        return found

    def add(self, entries: Iterable[tuple[str, Entry]]) -> None:
        """Take in the ranges of ``entries`` by key; what is inline, or made from ranges that others share, has none."""
        names, targets, starts, stops = [], [], [], []
        for key, entry in entries:
            match entry:
                case Span(url, start, stop, pin=pin) if start >= 0:
                    names.append(key)
                    targets.append(self._urls.id_of(url))
                    starts.append(start)
                    stops.append(WHOLE if stop is None or not entry.exact else stop)
                case Span(url, pin=pin) | Packed(Span(url, pin=pin)):
                    self._urls.id_of(url)
                case Inline():
                    continue
            if pin is not None:
                self.pins.setdefault(self._urls.id_of(url), set()).add(pin)
        columns = np.array(targets, np.int64), np.array(starts, np.uint64), np.array(stops, np.uint64)
        self._rows.append(Rows(Keys.spelled("", names), *columns))

    def settled(self) -> Columns:
        """Return all rows as columns."""
        rows = [row for row in self._rows if len(row.starts)]
        if not rows:
            rows = [Rows(Keys.spelled("", []), np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint64))]
        ends = list(accumulate(len(row.starts) for row in rows))
        return Columns(
            [row.keys for row in rows], ends, *map(np.concatenate, zip(*(row[1:] for row in rows), strict=True))
        )

    def _target(self, keyspace: FlatKeySpace, target: int) -> int:
        try:
            return self._urls.id_of(keyspace.url(target))
        except ManifestError as e:  # no URL, and no target= that it would stand for
            self.faults[""] = e
            return self._urls.id_of("")


class Columns(NamedTuple):
    """All rows, by position."""

    keys: list[Keys]
    ends: list[int]
    targets: Positions
    starts: UInt64s
    stops: UInt64s

    def key(self, position: int) -> str:
        """Return the key of the row at ``position``."""
        part = bisect_right(self.ends, position)
        return self.keys[part].key(position - (self.ends[part - 1] if part else 0))

    def users(self, targets: int) -> tuple[Positions, Positions]:
        """Return, for each of ``targets`` URLs, its first row (-1: none) and the number of its rows."""
        first = np.full(targets, -1, np.int64)
        first[self.targets[::-1]] = np.arange(len(self.targets) - 1, -1, -1)
        return first, np.bincount(self.targets, minlength=targets).astype(np.int64)

    def beyond(self, sizes: UInt64s) -> Positions:
        """Return the rows that reach beyond their target; ``sizes`` are WHOLE where unknown."""
        size = sizes[self.targets]
        over = np.where(self.stops == WHOLE, self.starts > size, self.stops > size)
        return np.flatnonzero(over & (size != WHOLE))

    def alike(self, sizes: UInt64s) -> tuple[Positions, Positions, Positions, Positions]:
        """Return the rows of the range of another row, and those that begin within another; each with that other row.

        Of rows that begin within several others, the one that begins last before counts.
        """
        stops = np.where(self.stops == WHOLE, sizes[self.targets], self.stops)
        there = np.flatnonzero((stops != WHOLE) & (stops > self.starts))
        order = there[np.lexsort((stops[there], self.starts[there], self.targets[there]))]
        targets, starts, ends = self.targets[order], self.starts[order], stops[order]
        same = (targets[1:] == targets[:-1]) & (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
        again = np.flatnonzero(same) + 1
        distinct = np.flatnonzero(np.concatenate(([True], ~same))) if len(order) else np.empty(0, np.int64)
        near = (targets[distinct[1:]] == targets[distinct[:-1]]) & (starts[distinct[1:]] < ends[distinct[:-1]])
        within = np.flatnonzero(near)
        return order[again], order[again - 1], order[distinct[within + 1]], order[distinct[within]]


TOGETHER: Final = 1024  # targets that are asked at a time


class Targets:
    """The targets of ``ranges``; what is wrong goes to ``found``, and ``callback`` counts those that have answered."""

    def __init__(self, ranges: Ranges, found: Findings, callback: Callback) -> None:
        self._ranges, self._found, self._callback = ranges, found, callback

    async def check(self, columns: Columns, need: Callable[[Stat], Awaitable[Any]]) -> None:
        """Ask each target once, by ``need``, and compare ``columns``, the ranges that are settled, with the answers."""
        self._compare(columns, await self._sizes(columns, need))

    async def _sizes(self, columns: Columns, need: Callable[[Stat], Awaitable[Any]]) -> UInt64s:
        """Return the size of each target, WHOLE where there is none to be had."""
        urls = self._ranges.urls
        sizes = np.full(len(urls), WHOLE, np.uint64)
        first, uses = columns.users(len(urls))
        for start in range(0, len(urls), TOGETHER):
            some = range(start, min(start + TOGETHER, len(urls)))
            answers = await asyncio.gather(*(self._ask(need, urls[i]) for i in some))
            for i, answer in zip(some, answers, strict=True):
                key = columns.key(int(first[i])) if first[i] >= 0 else ""
                match answer:
                    case Facts(size):
                        if size is None:
                            self._found.add("warning", "unsized", key, urls[i], "its target does not tell its size")
                        else:
                            sizes[i] = size
                        self._check_pins(key, urls[i], answer, self._ranges.pins.get(i, ()))
                    case None:
                        text = f"there is no such object; {count_text(int(uses[i]), 'reference')} to it"
                        self._found.add("error", "unreachable", key, urls[i], text)
                    case error:
                        self._found.add_error(key, error, "unreachable", urls[i])
        return sizes

    async def _ask(self, need: Callable[[Stat], Awaitable[Any]], url: str) -> Facts | Exception | None:
        try:
            if url in self._ranges.faults:
                return self._ranges.faults[url]
            answer: Facts | None = await need(Stat(url, fresh=True))
            return answer
        except Exception as e:  # noqa: BLE001  # whatever the target's library raises, it becomes a finding
            return e
        finally:
            self._callback.relative_update()

    def _check_pins(self, key: str, url: str, facts: Facts, pins: Iterable[Pin]) -> None:
        for pin in pins:
            try:
                Versions().of(url).observe(facts.etag, facts.last_modified, facts.size, pin)
            except TargetChanged as e:
                self._found.add("error", "changed", key, url, e.reason)
                return

    def _compare(self, columns: Columns, sizes: UInt64s) -> None:
        beyond = columns.beyond(sizes)
        for i in beyond[:SHOWN].tolist():
            text = f"{_range(columns, i)} reaches beyond the {sizes[columns.targets[i]]:,} bytes there are"
            self._found.add("error", "beyond-target", columns.key(i), self._ranges.urls[columns.targets[i]], text)
        self._found.count("beyond-target", len(beyond) - SHOWN)
        again, before, within, outer = columns.alike(sizes)
        for kind, rows, others, verb in (
            ("duplicate-range", again, before, "are also those of"),
            ("overlapping-range", within, outer, "begin within those of"),
        ):
            for i, other in zip(rows[:SHOWN].tolist(), others[:SHOWN].tolist(), strict=True):
                text = f"{_range(columns, i)} {verb} {columns.key(other)!r}"
                self._found.add("warning", kind, columns.key(i), self._ranges.urls[columns.targets[i]], text)
            self._found.count(kind, len(rows) - SHOWN)


def _range(columns: Columns, i: int) -> str:
    stop = columns.stops[i]
    return f"bytes [{columns.starts[i]}, {'end' if stop == np.uint64(WHOLE) else stop})"


# ----------------------------------------------------------------------------------------------------
# All keys of a source that can be listed, also where the indexes of some of its shards are damaged.


DOCUMENTS: Final = ("zarr.json", ".zarray", ".zgroup", ".zattrs")
CHUNK_NAME: Final = re.compile(r"c|(?:c[/.])?\d+(?:[/.]\d+)*")


async def list_all(
    keyspace: KeySpace,
    engine: Engine,
    findings: Findings,
    unlisted: MutableMapping[str, Exception],
    exists: Callable[[list[str]], Awaitable[list[str]]],
) -> list[str]:
    """Return all keys. A directory of chunks whose shards are damaged goes to ``unlisted``; others to ``findings``.

    Of directories that cannot be listed, there are those keys of metadata that ``exists`` returns of those it is given.

    Raises what the listing of the root raises, unless there is metadata in it.
    """
    names: list[str] = []
    level = [""]
    while level:
        below: list[str] = []
        lists = await engine.run_all([keyspace.children(prefix) for prefix in level])
        for prefix, listed in zip(level, lists, strict=True):
            children: Sequence[Listed] | Exception | None = listed
            leave_out: re.Pattern[str] | None = None
            match keyspace, listed:
                case ShardView(base=base), DamagedIndex() as error:
                    unlisted[prefix] = error
                    (children,) = await engine.run_all([base.children(prefix)])
                    leave_out = CHUNK_NAME  # names of shards, not of the chunks in them
            if isinstance(children, Exception):
                is_closed = isinstance(children, NotListable)
                known = await exists([join(prefix, name) for name in DOCUMENTS]) if is_closed else []
                if not prefix and not known:
                    raise children
                names += known
                findings.add_error(prefix, children)
                continue
            for child in children or ():
                if leave_out is None or not leave_out.fullmatch(child.name):
                    (below if child.is_directory else names).append(join(prefix, child.name))
        level = below
    return names
