"""Reference sets that are spelled alike: the first is parsed, the others are read by comparing them with it.

A set is like another if it has the same keys in the same order, the same array metadata, and a byte range wherever
the other has one. Then its chunks have the numbers that the other's have, and only URLs, offsets and lengths are to be
put into columns. What differs is not read here, and left to who parses. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from refshard_fs.columns import ChunkTable, Part, UInt32s, UInt64s
from refshard_fs.keyspace import place
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.manifests.values import METADATA, Value
from refshard_fs.texts import Texts

__all__ = ["Members", "Pattern", "decoded", "members_of"]

_HEADER = frozenset(["version", "refs", "templates", "gen", "refshard"])
_NUMBERS = frozenset([int])
_TEXT = frozenset([str])
_LISTS = (frozenset([list]), frozenset([tuple]))


class Members(NamedTuple):
    """The members of a set without templates; ``checked``: each is text, or a `_Range`; ``pins`` as JSON has them."""

    values: Mapping[str, Any]
    checked: bool = False
    pins: Any = None


class _Range(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A reference as JSON has it; of so many the collector of garbage need not know."""

    url: str
    offset: int
    length: int


class _Ours(msgspec.Struct, forbid_unknown_fields=True):
    pins: dict[str, Any]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    refs: dict[str, str | _Range]
    refshard: _Ours | None = None


_RANGES = frozenset([_Range])
_regular = msgspec.json.Decoder(_Document)


def decoded(data: bytes) -> Members | None:
    """Return the members of a reference set in JSON; None where it takes more than a plain reader."""
    try:
        document = _regular.decode(data)
        return Members(document.refs, True, None if document.refshard is None else document.refshard.pins)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return members_of(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def members_of(document: Any) -> Members | None:
    """Return the members of a set that has no templates; None where it has, or is of no known version."""
    match document:
        case {"version": int(version), "refs": dict(members)} if version == 1 and document.keys() <= _HEADER:
            if document.get("templates") or document.get("gen"):
                return None
            match document.get("refshard"):
                case None:
                    return Members(members)
                case {"pins": dict(pins), **others} if not others:
                    return Members(members, pins=pins)
            return None
        case dict() if "version" not in document and "refs" not in document:
            return Members(document)
    return None


class _Table(msgspec.Struct, frozen=True):
    """The chunks of one array: their numbers, ascending, and the places of their references in the set."""

    path: str
    table: ChunkTable
    numbers: UInt64s
    rows: Any  # a slice, or an array of places
    is_full: bool  # whether there are all chunks of the grid


class Pattern(msgspec.Struct, frozen=True):
    """What sets have in common that are like one another."""

    keys: list[str]
    ranges: Callable[[list[Any]], tuple[Any, ...]]
    count: int
    tables: list[_Table]
    aside: list[tuple[int, str, Value | None]]  # place, key, and the value that it must have, if any

    @classmethod
    def of(cls, given: Members, refs: ReferenceSet) -> Pattern | None:
        """Return the pattern of members, of which ``refs`` was parsed; None where they are not that regular."""
        members = given.values
        keys = list(members)
        if len(refs) != len(keys) or any(type(key) is not str for key in keys):
            return None
        places: dict[str, tuple[list[int], list[int]]] = {path: ([], []) for path in refs.tables}
        chosen: list[int] = []
        aside: list[tuple[int, str, Value | None]] = []
        grids = refs.grids
        for number, (key, value) in enumerate(members.items()):
            is_range = isinstance(value, _Range) or (isinstance(value, list | tuple) and len(value) == 3)
            at = place(grids, key) if is_range else None
            if at is not None:
                numbers, rows = places[at.array]
                numbers.append(at.number)
                rows.append(len(chosen))
                chosen.append(number)
            elif key not in refs.side or not isinstance(value, str | bytes | dict):
                return None
            else:
                aside.append((number, key, value if key.endswith(METADATA) else None))
        tables = []
        for path, (numbers, rows) in places.items():
            order = np.argsort(np.array(numbers, np.uint64), kind="stable")
            at_rows = np.array(rows, np.int64)[order]
            if len(numbers) != len(refs.tables[path]):
                return None
            in_order = len(rows) > 0 and bool((np.diff(at_rows) == 1).all())
            where = slice(int(at_rows[0]), int(at_rows[-1]) + 1) if in_order else at_rows
            table = refs.tables[path]
            tables.append(
                _Table(path, table, np.array(numbers, np.uint64)[order], where, len(table) == table.grid.size)
            )
        if len(chosen) < 2:
            return None
        return cls(keys, itemgetter(*chosen), len(chosen), tables, aside)

    def read(self, given: Members) -> ReferenceSet | None:
        """Return the set that members are, as parsing them would; None if they are not like the others."""
        members = given.values
        if len(members) != len(self.keys) or list(members) != self.keys:
            return None
        values = list(members.values())
        side: dict[str, Value] = {}
        for number, key, expected in self.aside:
            value = values[number]
            if expected is not None and value != expected:
                return None
            match value:
                case str() | bytes():
                    side[key] = value
                case dict():
                    side[key] = dict(value)
                case _:
                    return None
        columns = self._columns(self.ranges(values), checked=given.checked)
        if columns is None:
            return None
        urls, targets, offsets, lengths = columns
        tables = {}
        for path, like, numbers, rows, is_full in map(msgspec.structs.astuple, self.tables):
            if is_full:
                tables[path] = ChunkTable(like.grid, targets[rows], offsets[rows], lengths[rows])
            elif len(numbers):
                part = Part(numbers, targets[rows], offsets[rows], lengths[rows])
                tables[path] = ChunkTable.from_parts(like.grid, [part])
            else:
                tables[path] = like
        return ReferenceSet(urls, tables, side)

    def _columns(self, rows: tuple[Any, ...], *, checked: bool) -> tuple[Texts, UInt32s, UInt64s, UInt64s] | None:
        kinds = frozenset(map(type, rows))
        urls: Sequence[Any]
        offsets: Sequence[Any]
        lengths: Sequence[Any]
        if checked:
            if kinds != _RANGES:
                return None
            urls = [row.url for row in rows]
            offsets, lengths = [row.offset for row in rows], [row.length for row in rows]
        elif kinds in _LISTS:
            try:
                urls, offsets, lengths = zip(*rows, strict=True)
            except ValueError:  # a whole file, or no reference at all
                return None
            if [frozenset(map(type, column)) for column in (urls, offsets, lengths)] != [_TEXT, _NUMBERS, _NUMBERS]:
                return None
        else:
            return None
        one = urls.count(urls[0]) == self.count  # as of most sets, and sooner seen than hashed
        known = {url: number for number, url in enumerate(urls[:1] if one else dict.fromkeys(urls))}
        if any("{{" in url for url in known):
            return None  # version 1 expands it, even without templates
        try:
            texts = Texts.of(url.encode() for url in known)
            begins = np.fromiter(offsets, np.int64, self.count)
            sizes = np.fromiter(lengths, np.int64, self.count)
        except (OverflowError, UnicodeEncodeError):
            return None
        if min(begins.min(), sizes.min()) < 0:
            return None
        if len(known) == 1:
            targets = np.zeros(self.count, np.uint32)
        else:
            targets = np.fromiter(map(known.__getitem__, urls), np.uint32, self.count)
        return texts, targets, begins.view(np.uint64), sizes.view(np.uint64)
