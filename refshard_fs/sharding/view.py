"""The unsharded view: any key space, its sharded arrays shown as ordinary arrays of their inner chunks. No I/O here.

An inner chunk is a part of whatever its base says the shard is: a range of a file, a member
of an archive, bytes in memory. Indexes are asked for one level at a time and remembered by
whoever reads them. Metadata is rewritten; everything else passes through byte for byte. An
array whose shards cannot be read in ranges passes through whole, and `ShardView.reports`
says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from refshard_fs.core.documents import Documents, Shown
from refshard_fs.core.keys import ChunkGrid, join, relative
from refshard_fs.core.keyspace import KeySpace, LookUp, View
from refshard_fs.core.model import Entry, Inline, Listed, Load, Packed, Span, Steps, together
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, grid_of
from refshard_fs.errors import DamagedIndex
from refshard_fs.sharding.layout import Level, ShardLayout, Step, Table, TableIndex, shard_formats
from refshard_fs.sharding.places import (
    ArrayRows,
    ShardRows,
    chunk_coords,
    expand,
    in_shard,
    places_of,
    room_of,
    rows_of,
    shard_directory,
    split,
)

T = TypeVar("T")

_FULL = 0.75  # of the chunks of a shard: from here on its other bytes are not worth telling apart
_BATCH = 64  # shards whose indexes are asked for at a time when chunks are listed


class ArrayInfo(NamedTuple):
    """What is known of one array: its grid as shown, its shards if inner chunks are, and what is in the way.

    ``stored`` is the metadata of an array whose inner chunks are shown, as the source has it.
    """

    grid: ChunkGrid | None
    layout: ShardLayout | None = None
    reason: str | None = None
    stored: Mapping[str, Any] | None = None


class Unshard(msgspec.Struct, frozen=True, cache_hash=True):
    """Shows sharded arrays, but for ``whole``, as arrays of inner chunks; ``options``: the user's ``shard_options``."""

    options: tuple[tuple[str, Any], ...] = ()
    whole: frozenset[str] = frozenset()

    def over(self, data: bytes) -> Callable[[Mapping[str, Any], str], Shown[ArrayInfo]]:
        fitting = [known for known in shard_formats() if any(mark in data for mark in known.marks)]
        options = dict(self.options)

        def rewrite(doc: Mapping[str, Any], path: str) -> Shown[ArrayInfo]:
            if doc.get("node_type") == "group":
                return doc, None
            for known in () if path in self.whole else fitting:
                try:
                    found = known.unshard(doc, options)
                except ValueError as e:
                    return doc, ArrayInfo(grid_of(doc), None, str(e))
                if found is not None:
                    grid = grid_of(doc) if found.layout is None else found.layout.grid
                    return found.document, ArrayInfo(grid, found.layout, found.reason, doc if found.layout else None)
            return doc, ArrayInfo(grid_of(doc))

        return rewrite


class ShardView(View):
    """The keys of ``base``, inner chunks in place of shards, but for the arrays ``whole``.

    ``options`` are the user's ``shard_options``.
    """

    def __init__(
        self, base: KeySpace, options: tuple[tuple[str, Any], ...] = (), whole: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(base)
        self.reports: dict[str, str] = dict(base.reports)
        self.options = options
        self._documents = Documents(base, Unshard(options, whole), self._report)
        self.grids = self._documents.grids

    @property
    def shards_anything(self) -> bool:
        """Whether any array that is known so far is shown as inner chunks, or should have been."""
        return bool(self.reports) or any(seen.layout is not None for seen in self._documents.arrays.values())

    def is_inner(self, key: str) -> bool:
        path = self._documents.known(key)
        return path is not None and self._documents.arrays[path].layout is not None

    def register_arrays(self) -> Steps[None]:
        """Take in the arrays that the base knows without further reads."""
        marks = tuple(mark for known in shard_formats() for mark in known.marks)
        yield from self._documents.register_arrays(marks, ArrayInfo)

    def array_info(self, path: str) -> Steps[ArrayInfo | None]:
        """Return what is known of the array at ``path``, reading its metadata if need be; None if there is none."""
        if path not in self._documents.arrays:
            yield from together([self._documents.lookup(join(path, name)) for name in ARRAY_DOCUMENTS])
        return self._documents.arrays.get(path)

    def array_of(self, key: str) -> Steps[str | None]:
        """Return the path of the array that ``key`` lies below, reading the metadata that may tell."""
        return (yield from self._documents.array_of(key))

    def _report(self, path: str, seen: ArrayInfo) -> None:
        if seen.reason is not None:
            self.reports[path] = seen.reason

    # ------------------------------------------------------------------ looking a key up

    def lookup(self, key: str) -> Steps[Entry | None]:
        if self._documents.is_document(key):
            return (yield from self._documents.lookup(key))
        path, layout = yield from self._array_of(key)
        coords = None if layout is None else chunk_coords(layout, path, key)
        if layout is None or coords is None:
            return (yield from self.base.lookup(key))
        if not layout.grid.contains(coords):
            return None
        shard, lengths, places = split(layout, coords)
        found = yield from self._in_shard(path, layout, shard, [(key, layout.steps(places, lengths))])
        return found[0][1] if found else None

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        """Return look-ups that find all of ``keys``: together those that the same indexes, damaged or not, tell of."""
        found: list[LookUp] = []
        shards: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[tuple[int, Sequence[Step]]]] = {}
        for number, key in enumerate(keys):
            path = self._documents.known(key)
            layout = None if path is None else self._documents.arrays[path].layout
            coords = None if layout is None or path is None else chunk_coords(layout, path, key)
            if layout is None or path is None or coords is None or not layout.grid.contains(coords):
                found.append(self.single_lookup(number, key))
                continue
            try:
                shard, lengths, places = split(layout, coords)
                steps = layout.steps(places, lengths)
            except Exception:  # noqa: BLE001  # of a format's own: whoever looks this one key up is told
                found.append(self.single_lookup(number, key))
                continue
            within = tuple([step.slot for step in steps[:-1]])  # of which shard in the shard
            shards.setdefault((path, shard, within), []).append((number, steps))
        for (path, shard, _), wanted in shards.items():
            found.append(LookUp([number for number, _ in wanted], self._all_in_shard(path, shard, wanted)))
        return found

    def _all_in_shard(
        self, path: str, shard: tuple[int, ...], wanted: Sequence[tuple[int, Sequence[Step]]]
    ) -> Steps[list[Entry | None]]:
        layout = self._documents.arrays[path].layout
        found = {} if layout is None else dict((yield from self._in_shard(path, layout, shard, wanted)))
        return [found.get(number) for number, _ in wanted]

    def full_shards(self, keys: Iterable[str]) -> Steps[list[Span]]:
        """Return where those shards lie of whose chunks ``keys``, which are read in this order, are most.

        They are worth reading whole; so is one that is begun after others that are.
        """
        wanted: dict[tuple[str, int], int] = {}
        for key in keys:
            path, layout = yield from self._array_of(key)
            at = None if layout is None else in_shard(layout, path, key)
            if at is not None:
                shard = at.shard, math.prod(at.lengths)
                wanted[shard] = wanted.get(shard, 0) + 1
        full = [count >= _FULL * size for (_, size), count in wanted.items()]
        if len(full) > 1 and all(full[:-1]):
            full[-1] = True
        found = yield from together(
            [self.base.lookup(name) for (name, _), yes in zip(wanted, full, strict=True) if yes]
        )
        return [entry for entry in found if isinstance(entry, Span)]

    def is_empty(self, key: str) -> Steps[bool]:
        path, layout = yield from self._array_of(key)
        coords = None if layout is None else chunk_coords(layout, path, key)
        if layout is not None and coords is not None:
            if not layout.grid.contains(coords):
                return False
            key = join(path, layout.grid.encoding.encode(split(layout, coords)[0]))
        return (yield from self.base.is_empty(key))

    def _load(self, entry: Entry, level: Level, shard: str, path: str) -> Load:
        """Return the need for the index of a shard (or of one inside of it) at ``entry``."""
        length, trailer, size, view = level.length, level.trailer, entry.size, self._documents.view
        if size is None:  # only the target knows where it ends
            if not isinstance(entry, Span):  # what is made is made whole
                return Load(entry, TableIndex(level, shard, path, view, cut=None))
            index = TableIndex(level, shard, path, view, cut=trailer if level.at_end else 0, first=entry.start)
            return Load(entry.suffix(length + trailer) if level.at_end else entry.window(0, length), index)
        if size < length + trailer:
            raise DamagedIndex(
                "", _where(entry), f"shard {shard!r} of array {path!r} has {size} bytes: its index takes more"
            )
        start = size - length - trailer if level.at_end else 0
        return Load(entry.part(start, length), TableIndex(level, shard, path, view, size - trailer))

    def _array_of(self, key: str) -> Steps[tuple[str, ShardLayout | None]]:
        """Return the array that ``key`` lies below, and its layout if it is shown as inner chunks."""
        path = yield from self._documents.array_of(key)
        return ("", None) if path is None else (path, self._documents.arrays[path].layout)

    # ------------------------------------------------------------------ all of an array

    def all_chunks(self, path: str) -> Steps[ArrayRows | None]:
        """Return all chunks of the array ``path``, which is known, a shard at a time, and what else is there.

        None where it is not shown as inner chunks, or these lie in shards of shards.
        """
        seen = self._documents.arrays.get(path)
        if seen is None or seen.layout is None:
            return None
        layout = seen.layout
        names, others, directories = yield from self._shards_below(path, layout)
        places: dict[tuple[int, ...], Any] = {}
        found: list[ShardRows] = []
        for first in range(0, len(names), _BATCH):
            batch = names[first : first + _BATCH]
            rooms = [room for shard in batch if (room := room_of(layout, shard)) is not None]
            if len(rooms) < len(batch):
                return None
            steps = [self._table(path, layout, shard, room.level) for shard, room in zip(batch, rooms, strict=True)]
            for room, loaded in zip(rooms, (yield from together(steps)), strict=True):
                if loaded is None:
                    continue
                if room.lengths not in places:
                    places[room.lengths] = places_of(layout, room.lengths)
                found.append(rows_of(layout, room, places[room.lengths], *loaded))
        return ArrayRows(found, others, directories)

    def _table(
        self, path: str, layout: ShardLayout, shard: Sequence[int], level: Level
    ) -> Steps[tuple[Entry, Table] | None]:
        name = join(path, layout.grid.encoding.encode(shard))
        entry = yield from self.base.lookup(name)
        if entry is None:
            return None
        table = yield self._load(entry, level, name, path)
        return None if table is None else (entry, table)

    def _shards_below(
        self, path: str, layout: ShardLayout
    ) -> Steps[tuple[list[tuple[int, ...]], list[tuple[str, int | None]], list[str]]]:
        """Return the coordinates of the shards of the array ``path``, the keys that are none, and other directories."""
        found: list[tuple[int, ...]] = []
        others: list[tuple[str, int | None]] = []
        directories: list[str] = []
        level = [""]
        while level:
            lists = yield from together([self.base.children(join(path, prefix)) for prefix in level])
            below: list[str] = []
            for prefix, names in zip(level, lists, strict=True):
                for listed in names or ():
                    tail = join(prefix, listed.name)
                    coords = layout.grid.encoding.decode(tail, len(layout.grid.counts))
                    if listed.is_directory:
                        (directories if layout.grid.leading(tail) is None else below).append(tail)
                    elif coords is None:
                        others.append((join(path, tail), listed.size))
                    else:
                        found.append(coords)
            level = below
        return found, others, [join(path, tail) for tail in directories]

    # ------------------------------------------------------------------ listing

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        at = yield from self._chunk_directory(prefix)
        if at is not None:
            path, layout, leading = at
            outer = shard_directory(layout, leading)
            names = None if outer is None else (yield from self.base.children(join(path, outer)))
            return None if names is None else (yield from self._chunks(path, layout, leading, names))
        names = yield from self.base.children(prefix)
        if names is None:
            return None
        names = yield from self._documents.sized(prefix, names)
        seen = self._documents.arrays.get(prefix)
        if seen is None or seen.layout is None:
            return names
        grid = seen.layout.grid
        if grid.leading("") is None:  # all chunks lie in "c"
            return names
        others = [n for n in names if not grid.has_name(n.name, is_directory=n.is_directory)]
        chunks = yield from self._chunks(prefix, seen.layout, (), names)
        return sorted(others + chunks, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        at = yield from self._chunk_directory(prefix)
        if at is None:
            return (yield from self.base.is_directory(prefix))
        path, layout, leading = at
        outer = shard_directory(layout, leading)
        return outer is not None and (yield from self.base.is_directory(join(path, outer)))

    def _chunk_directory(self, prefix: str) -> Steps[tuple[str, ShardLayout, tuple[int, ...]] | None]:
        """Return array, layout and leading coordinates, if ``prefix`` is a directory of inner chunks."""
        path, layout = yield from self._array_of(prefix)
        if layout is None:
            return None
        below = relative(prefix, path)
        leading = layout.grid.leading(below) if below else None
        return None if leading is None else (path, layout, leading)

    def _chunks(
        self, path: str, layout: ShardLayout, leading: tuple[int, ...], names: Sequence[Listed]
    ) -> Steps[list[Listed]]:
        """Return what lies in a directory of inner chunks, where the base has ``names`` in that of their shards."""
        directories, shards = expand(layout, leading, names)
        found = [Listed(name, None, True) for name in directories]
        for first in range(0, len(shards), _BATCH):
            steps = []
            for shard, chunks in shards[first : first + _BATCH]:
                ways = [(name, split(layout, coords)) for name, coords in chunks]
                wanted = [(name, layout.steps(places, lengths)) for name, (_, lengths, places) in ways]
                steps.append(self._in_shard(path, layout, shard, wanted))
            for some in (yield from together(steps)):
                found += [Listed(name, entry.size) for name, entry in some]
        return sorted(found, key=lambda listed: listed.name)

    def _in_shard(
        self, path: str, layout: ShardLayout, shard: tuple[int, ...], wanted: Sequence[tuple[T, Sequence[Step]]]
    ) -> Steps[list[tuple[T, Entry]]]:
        """Return the entries of those of ``wanted``, chunks by whatever they are called, that ``shard`` holds."""
        name = join(path, layout.grid.encoding.encode(shard))
        entry = yield from self.base.lookup(name)
        return [] if entry is None else (yield from self._in_level(entry, 0, wanted, name, path))

    def _in_level(
        self, entry: Entry, depth: int, wanted: Sequence[tuple[T, Sequence[Step]]], shard: str, path: str
    ) -> Steps[list[tuple[T, Entry]]]:
        if not wanted:
            return []
        table = yield self._load(entry, wanted[0][1][depth].level, shard, path)
        if table is None:
            return []
        entry = _read(entry)
        found: list[tuple[T, Entry]] = []
        below: dict[int, list[tuple[T, Sequence[Step]]]] = {}
        for name, steps in wanted:
            slot = steps[depth].slot
            if len(steps) > depth + 1:
                below.setdefault(slot, []).append((name, steps))
            elif (part := _chunk(entry, table, slot, shard, path)) is not None:
                found.append((name, part))
        deeper = []
        for slot, items in below.items():
            part = _chunk(entry, table, slot, shard, path)
            if part is not None:
                deeper.append(self._in_level(part, depth + 1, items, shard, path))
        if len(deeper) == 1:  # asks for one thing at a time, which may be remembered
            return found + (yield from deeper[0])
        for some in (yield from together(deeper)):
            found += some
        return found


def _chunk(entry: Entry, table: Table, slot: int, shard: str, path: str) -> Entry | None:
    """Return the entry of the chunk in ``slot`` of a shard that has been read."""
    found = table.locate(slot)
    if found is None:
        return None
    try:
        return entry.part(*found)
    except ValueError as e:
        raise DamagedIndex("", _where(entry), f"shard {shard!r} of array {path!r}: {e}") from e


def _read(entry: Entry) -> Entry:
    """Return ``entry``, a shard whose index was read: it can no longer be absent, and its chunks lie together."""
    if isinstance(entry, Span) and (entry.optional or not entry.dense):
        return msgspec.structs.replace(entry, optional=False, dense=True)
    return entry


def _where(entry: Entry) -> str:
    match entry:
        case Span(url):
            return url
        case Packed(source):
            return source.url
        case Inline():
            return "the manifest itself"
