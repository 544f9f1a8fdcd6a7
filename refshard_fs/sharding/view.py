"""Show sharded arrays of any key space as ordinary arrays of their inner chunks. No I/O here.

An inner chunk is a part of the shard's entry: of a range of a file, a member of an archive, or bytes in memory. The
index of each level is a need, and the engine keeps the decoded index in memory. The view rewrites the metadata of
sharded arrays, and shows all other keys unchanged. If the shards of an array cannot be read in ranges, the view shows
the shards, and `ShardView.reports` has the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Listing, Numbers, make_column
from refshard_fs.core.columns import Ranges, UInt64s
from refshard_fs.core.documents import ArrayView, Documents, NodeView
from refshard_fs.core.keys import ChunkGrid, join, make_relative
from refshard_fs.core.keyspace import KeySpace, LookUp, by_name, make_lookups_of
from refshard_fs.core.model import (
    Entry,
    Head,
    Inline,
    Listed,
    Load,
    Need,
    Packed,
    Span,
    Steps,
    iterate_batches,
    run_together,
)
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, array_meta, grid_of
from refshard_fs.errors import DamagedIndex, RefShardError
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.sharding.index import Level, Table, TableIndex
from refshard_fs.sharding.known_shard_formats import load_shard_formats, unshard_metadata
from refshard_fs.sharding.layout import Coords, ShardLayout

_FULL = 0.75  # a shard is read whole if at least this share of its chunks is needed
_SMALL = 1 << 18  # the most elements of a shard that is read whole before its index is known
_WHOLE = 1 << 20  # the most bytes of a shard that is read whole before its index is known
_BATCH = 64  # the most indexes that are loaded in one round of reads when chunks are listed


class ArrayInfo(NamedTuple):
    """The facts about one array: the grid that the view shows, and the layout of its shards if it shows inner chunks.

    ``reason`` says why the shards, or shards within them, cannot be opened; None if they can. ``stored`` is the array's
    metadata in the source if the view shows inner chunks.
    """

    grid: ChunkGrid | None
    layout: ShardLayout | None = None
    reason: str | None = None
    stored: Mapping[str, Any] | None = None


class Unshard(msgspec.Struct, frozen=True, cache_hash=True):
    """Rewrite metadata of sharded arrays, except the arrays ``whole``, so that they describe inner chunks.

    ``options`` are the user's ``shard_options``.
    """

    options: tuple[tuple[str, Any], ...] = ()
    whole: frozenset[str] = frozenset()

    def make_rewriter(self, data: bytes) -> Callable[[Mapping[str, Any], str], NodeView[ArrayInfo]]:
        fitting = [known for known in load_shard_formats() if any(mark in data for mark in known.marks)]
        options = dict(self.options)

        def rewrite(doc: Mapping[str, Any], path: str) -> NodeView[ArrayInfo]:
            if doc.get("node_type") == "group":
                return doc, None
            try:
                found = unshard_metadata(doc, options, () if path in self.whole else fitting)
            except ValueError as e:
                return doc, ArrayInfo(grid_of(doc), None, str(e))
            if found is None or found.layout is None:
                return doc, ArrayInfo(grid_of(doc), None, None if found is None else found.reason)
            return found.document, ArrayInfo(found.layout.grid, found.layout, found.reason, doc)

        return rewrite


class ShardView(ArrayView[ArrayInfo]):
    """The keys of ``base``, with inner chunks in place of shards, except for the arrays ``whole``.

    ``options`` are the user's ``shard_options``.
    """

    def __init__(
        self, base: KeySpace, options: tuple[tuple[str, Any], ...] = (), whole: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(base)
        reports = dict(base.reports)

        def report(path: str, seen: ArrayInfo) -> None:  # a method would make a cycle of references to the view
            if seen.reason is not None:
                reports[path] = seen.reason

        self.reports = reports
        self.options = options
        self._documents = Documents(base, Unshard(options, whole), report)
        self._begun: set[str] = set()  # paths of sharded arrays whose chunks were looked up before
        self.grids = self._documents.grids

    @property
    def shards_anything(self) -> bool:
        """Whether any known array has shards, also if its inner chunks cannot be shown."""
        return bool(self.reports) or any(seen.layout is not None for seen in self._documents.arrays.values())

    def is_inner(self, key: str) -> bool:
        path = self._documents.find_array(key)
        return path is not None and self.find_own_grid(path) is not None

    def find_object_key(self, key: str) -> str:
        path = self._documents.find_array(key)
        at = None if path is None or self.find_own_grid(path) is None else self._get_layout(path).find_shard(path, key)
        return self.base.find_object_key(key if at is None else at.shard)

    def register_arrays(self) -> Steps[None]:
        """Add the arrays whose metadata are inline in the base, so that no reads are needed."""
        marks = tuple(mark for known in load_shard_formats() for mark in known.marks)
        yield from self._documents.register_arrays(marks, ArrayInfo)

    def find_array_info(self, path: str) -> Steps[ArrayInfo | None]:
        """Return the facts about the array ``path``, whose metadata are read if needed; None without such an array."""
        if path not in self._documents.arrays:
            yield from run_together([self._documents.lookup(join(path, name)) for name in ARRAY_DOCUMENTS])
        return self._documents.arrays.get(path)

    def find_own_grid(self, path: str) -> ChunkGrid | None:
        seen = self._documents.arrays.get(path)
        return None if seen is None or seen.layout is None else seen.layout.grid

    def _get_layout(self, path: str) -> ShardLayout:
        layout = self._documents.arrays[path].layout
        assert layout is not None
        return layout

    def find_chunk_entry(self, key: str, path: str, coords: Coords) -> Steps[Entry | None]:
        layout = self._get_layout(path)
        shard, lengths, place = layout.split(coords)
        (entry,) = yield from self._find_chunks(
            [key], path, shard, lengths, [layout.find_slots(place, lengths)], reads=False
        )
        return entry

    def make_certain_lookups(self, keys: Sequence[str], *, reads: bool) -> list[LookUp]:
        """Return look-ups for all ``keys``: one look-up for the keys that need the same indexes."""
        found: list[LookUp] = []
        of_base: list[int] = []
        shards: dict[tuple[str, Coords, Coords, Coords], list[tuple[int, Coords]]] = {}
        for number, key in enumerate(keys):
            path = self._documents.find_array(key)
            layout = None if path is None else self._documents.arrays[path].layout
            coords = None if layout is None or path is None else layout.grid.decode(make_relative(key, path))
            if path is not None and layout is None and not self._documents.is_document(key):
                of_base.append(number)
                continue
            if layout is None or path is None or coords is None or not layout.grid.contains(coords):
                found.append(self.make_single_lookup(number, key))
                continue
            shard, lengths, place = layout.split(coords)
            try:
                slots = layout.find_slots(place, lengths)
            except Exception:  # noqa: BLE001  # an error in another package's `Level` fails only this key
                found.append(self.make_single_lookup(number, key))
                continue
            inner_shard = slots[:-1]
            shards.setdefault((path, shard, lengths, inner_shard), []).append((number, slots))
        for (path, shard, lengths, _), wanted in shards.items():
            numbers, all_slots = zip(*wanted, strict=True)
            of_shard = [keys[number] for number in numbers]
            found.append(LookUp(numbers, self._find_chunks(of_shard, path, shard, lengths, all_slots, reads=reads)))
        return found + make_lookups_of(self.base, keys, of_base)

    def find_full_shards(self, keys: Iterable[str]) -> Steps[list[Span]]:
        """Return the ranges of the shards that are worth reading whole, because most of their chunks are in ``keys``.

        ``keys`` are in the order of reading. If all other shards are read whole, the last shard is, too: keys of more
        of its chunks may follow.
        """
        wanted: Counter[tuple[str, int]] = Counter()
        for key in keys:
            path = yield from self.discover_array(key)
            if path is not None and self.find_own_grid(path) is not None:
                at = self._get_layout(path).find_shard(path, key)
                wanted.update([] if at is None else [(at.shard, math.prod(at.lengths))])
        full = [count >= _FULL * size for (_, size), count in wanted.items()]
        if len(full) > 1 and all(full[:-1]):
            full[-1] = True
        found = yield from run_together(
            [self.base.lookup(name) for (name, _), is_full in zip(wanted, full, strict=True) if is_full]
        )
        return [entry for entry in found if isinstance(entry, Span)]

    def is_empty(self, key: str) -> Steps[bool]:
        at = yield from self.locate_chunk(key)
        if at is not None:
            path, coords, is_inside = at
            if not is_inside:
                return False
            layout = self._get_layout(path)
            key = layout.make_key(path, layout.split(coords)[0])
        return (yield from self.base.is_empty(key))

    def _find_chunks(
        self, keys: Sequence[str], path: str, shard: Coords, lengths: Coords, wanted: Sequence[Coords], *, reads: bool
    ) -> Steps[Sequence[Entry | None]]:
        """Return the entries of the chunks ``keys``, which are in the slots ``wanted`` of ``shard``.

        If only consolidated metadata have described the array so far, its own document is read in the same round as the
        index. If the bytes of ``keys`` are read next (``reads``), and the first read of an array needs most of a small
        shard, the shard is read by one request.
        """
        is_unconfirmed = self.confirms and self._documents.is_unconfirmed(path)
        if not is_unconfirmed and (path in self._begun or not reads):
            return (yield from self._find_in_shard(path, shard, lengths, wanted))
        layout = self._get_layout(path)
        name, levels = layout.make_key(path, shard), layout.get_levels(lengths)
        entry = yield from self.base.lookup(name)
        try:
            if not isinstance(entry, Span) or entry != Span(entry.url, optional=True):
                yield from self._documents.confirm(path)
            else:
                is_whole = reads and len(wanted) >= _FULL * math.prod(lengths) and self._is_small(path, entry.url)
                need = Head(entry.url, _WHOLE) if is_whole else self._make_load(entry, levels[0], name, path)
                if is_whole or is_unconfirmed:
                    _, answer = yield from run_together([self._documents.confirm(path), _answer(need)])
                    now = self._get_layout(path)
                    if now.grid.shards == layout.grid.shards and now.get_levels(lengths) == levels:
                        if answer is None:  # a further look-up would request the missing shard again
                            self._begun.add(path)
                            return [None] * len(wanted)
                        if is_whole and answer[0].size == len(answer[1]):
                            self._begun.add(path)
                            whole = Inline(answer[1])
                            return (yield from self._find_in_level(whole, levels, 0, wanted, name, path))
        except (OSError, RefShardError):  # the look-up below raises the error, for this shard only
            pass
        self._begun.add(path)
        return (yield from self._confirm_then_find(path, keys))

    def _is_small(self, path: str, url: str) -> bool:
        """Return whether a shard of the array ``path`` at ``url`` costs no more to read whole than in parts."""
        meta = array_meta(self._documents.arrays[path].stored or {}, path)
        is_near = protocol_of(url) in (None, *LOCAL)
        return not is_near and meta is not None and meta.chunks is not None and math.prod(meta.chunks) <= _SMALL

    def _find_in_shard(
        self, path: str, shard: Coords, lengths: Coords, wanted: Sequence[Coords]
    ) -> Steps[Sequence[Entry | None]]:
        """Return the entries of the chunks of ``shard`` in the slots ``wanted``; None for a missing chunk."""
        layout = self._get_layout(path)
        name = layout.make_key(path, shard)
        entry = yield from self.base.lookup(name)
        if entry is None or not wanted:
            return [None] * len(wanted)
        return (yield from self._find_in_level(entry, layout.get_levels(lengths), 0, wanted, name, path))

    def _find_in_level(
        self, entry: Entry, levels: Sequence[Level], depth: int, wanted: Sequence[Coords], shard: str, path: str
    ) -> Steps[Sequence[Entry | None]]:
        """Return the result of `_find_in_shard`; ``entry`` is the shard, or a shard in it at the level ``depth``."""
        found: list[Entry | None] = [None] * len(wanted)
        table = yield self._make_load(entry, levels[depth], shard, path)
        if table is None:
            return found
        entry = _mark_existing(entry)
        if depth + 1 == len(levels):
            return [_cut_chunk(entry, table, slots[depth], shard, path) for slots in wanted]
        below: dict[int, list[int]] = {}
        for place, slots in enumerate(wanted):
            below.setdefault(slots[depth], []).append(place)
        parts = {slot: _cut_chunk(entry, table, slot, shard, path) for slot in below}
        inner = [(part, below[slot]) for slot, part in parts.items() if part is not None]
        steps = [
            self._find_in_level(part, levels, depth + 1, [wanted[place] for place in places], shard, path)
            for part, places in inner
        ]
        # A single look-up yields its needs one by one, so that a known answer costs no round.
        answers = [(yield from steps[0])] if len(steps) == 1 else (yield from run_together(steps))
        for (_, places), entries in zip(inner, answers, strict=True):
            for place, chunk in zip(places, entries, strict=True):
                found[place] = chunk
        return found

    def _make_load(self, entry: Entry, level: Level, shard: str, path: str) -> Load:
        """Return the need for the index of a shard, or of a shard within it, at ``entry``."""
        length, trailer, size, view = level.length, level.trailer, entry.size, self._documents.view
        if size is None:  # the shard ends where its target ends
            if not isinstance(entry, Span):  # decoded bytes are only available as a whole
                return Load(entry, TableIndex(level, shard, path, view, cut=None))
            index = TableIndex(level, shard, path, view, cut=trailer if level.at_end else 0, first=entry.start)
            return Load(entry.suffix(length + trailer) if level.at_end else entry.take_window(0, length), index)
        if size < length + trailer:
            raise DamagedIndex(
                "",
                _describe_place(entry),
                f"shard {shard!r} of array {path!r}: expected an index of {length + trailer} bytes, found a shard of "
                f"{size} bytes",
            )
        start = size - length - trailer if level.at_end else 0
        return Load(entry.part(start, length), TableIndex(level, shard, path, view, size - trailer))

    @property
    def shard_view(self) -> ShardView:
        return self

    @property
    def whole_shards(self) -> KeySpace:
        return self.base.whole_shards

    @property
    def is_reference_set(self) -> bool:  # type: ignore[override]  # a property, since the answer of the base may change
        return self.base.is_reference_set

    def list_chunks(self, array: str) -> Steps[Listing | None]:
        stored = yield from self.base.list_chunks(array)
        if self.find_own_grid(array) is None:
            return stored
        layout = self._get_layout(array)
        shards, others, directories = yield from self._list_shards(array, layout.grid)
        inside = [
            ranges for ranges in map(layout.find_chunks, shards) if all(ranges)
        ]  # without shards outside of the grid
        columns = [_number_chunks(ranges, layout.grid.counts) for ranges in inside]
        numbers = np.concatenate([np.zeros(0, np.uint64), *columns])
        indexes = frozenset() if stored is None else stored.indexes
        return Listing(ArrayChunks(layout.grid, numbers), dict(others), directories, indexes)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if self.find_own_grid(array) is None or not len(numbers) or not self._get_layout(array).grid.counts:
            return (yield from super().chunks(array, numbers, grid))
        layout = self._get_layout(array)
        column = make_column(numbers)
        coords = np.array(np.unravel_index(column.astype(np.int64), layout.grid.counts)).reshape(-1, len(column))
        shards = dict.fromkeys(layout.split(of_chunk)[0] for of_chunk in zip(*coords.tolist(), strict=True))
        sizes = {shard: tuple(map(len, layout.find_slot_ranges(shard))) for shard in shards}
        levels = {lengths: layout.get_levels(lengths) for lengths in set(sizes.values())}
        if any(len(nested) > 1 for nested in levels.values()):  # shards of shards
            return (yield from super().chunks(array, numbers, grid))
        builder = ChunksBuilder(len(column))
        order = np.argsort(column)
        cells = {lengths: _list_cells(layout, lengths) for lengths in levels}
        for batch in iterate_batches(list(sizes), _BATCH):
            steps = [self._load_table(array, layout.make_key(array, shard), levels[sizes[shard]][0]) for shard in batch]
            for shard, loaded in zip(batch, (yield from run_together(steps)), strict=True):
                if loaded is None:
                    continue
                found, ranges = _list_ranges(layout, shard, cells[sizes[shard]], loaded[1])
                places = np.minimum(np.searchsorted(column, found, sorter=order), len(order) - 1)
                is_wanted = column[order[places]] == found
                _put_parts(builder, order[places[is_wanted]], loaded[0], ranges[is_wanted])
        return builder.finish()

    def _load_table(self, path: str, name: str, level: Level) -> Steps[tuple[Entry, Table] | None]:
        entry = yield from self.base.lookup(name)
        table = None if entry is None else (yield self._make_load(entry, level, name, path))
        return None if entry is None or table is None else (entry, table)

    def _list_shards(
        self, path: str, grid: ChunkGrid
    ) -> Steps[tuple[list[Coords], list[tuple[str, int | None]], list[str]]]:
        """Return the coordinates of an array's shards, the keys that are not chunks, and the other directories."""
        found: list[Coords] = []
        others: list[tuple[str, int | None]] = []
        directories: list[str] = []
        level = [""]
        while level:
            lists = yield from run_together([self.base.children(join(path, prefix)) for prefix in level])
            below: list[str] = []
            for prefix, names in zip(level, lists, strict=True):
                for listed in names or ():
                    tail = join(prefix, listed.name)
                    coords = grid.decode(tail)
                    if listed.is_directory:
                        (directories if grid.parse_leading(tail) is None else below).append(tail)
                    elif coords is None:
                        others.append((join(path, tail), listed.size))
                    else:
                        found.append(coords)
            level = below
        return found, others, [join(path, tail) for tail in directories]

    def list_chunks_in(
        self, path: str, leading: Coords | None, names: Sequence[Listed] | None
    ) -> Steps[list[Listed] | None]:
        layout = self._get_layout(path)
        grid = layout.grid
        if leading is None:
            return [n for n in names or () if grid.has_name(n.name, is_directory=n.is_directory)]
        directory = layout.find_shard_directory(leading)
        if directory is None:
            return None
        if names is None:
            names = yield from self.base.children(join(path, directory))
            if names is None:
                return None
        directories, shards = layout.expand(leading, names)
        found = [Listed(name, None, True) for name in directories]
        for of_batch in iterate_batches(shards, _BATCH):
            batch = [(tuple(map(len, layout.find_slot_ranges(shard))), shard, [*chunks]) for shard, chunks in of_batch]
            steps = [
                self._find_in_shard(
                    path, shard, lengths, [layout.find_slots(layout.split(c)[2], lengths) for c in chunks]
                )
                for lengths, shard, chunks in batch
            ]
            for (_, _, chunks), entries in zip(batch, (yield from run_together(steps)), strict=True):
                present = [(coords, entry) for coords, entry in zip(chunks, entries, strict=True) if entry is not None]
                found += [Listed(grid.encoding.encode(coords).rpartition("/")[2], e.size) for coords, e in present]
        return sorted(found, key=by_name)

    def has_chunks_in(self, path: str, leading: Coords) -> Steps[bool]:
        directory = self._get_layout(path).find_shard_directory(leading)
        return directory is not None and (yield from self.base.is_directory(join(path, directory)))


def _answer(need: Need) -> Steps[Any]:
    return (yield need)


def _list_cells(layout: ShardLayout, lengths: Coords) -> npt.NDArray[np.int64]:
    """Return the places of the chunks in a shard with one index: a column for each slot, in the order of slots.

    ``lengths`` are the shard's numbers of chunks along each dimension.
    """
    places = np.indices(lengths).reshape(len(lengths), math.prod(lengths))
    (slots,) = layout.find_slots([*places], lengths)
    return places[:, np.argsort(np.zeros(math.prod(lengths), np.int64) + slots)]


def _number_chunks(ranges: Sequence[range], counts: Sequence[int]) -> UInt64s:
    """Return the numbers of the chunks in ``ranges``, one for each dimension, in a grid of ``counts`` chunks."""
    coords = np.ix_(*(np.arange(part.start, part.stop) for part in ranges))
    found = np.zeros((1,) * len(counts), np.int64)
    for coord, count in zip(coords, counts, strict=True):
        found = found * count + coord
    return found.ravel().astype(np.uint64)


def _list_ranges(
    layout: ShardLayout, shard: Coords, cells: npt.NDArray[np.int64], table: Table
) -> tuple[UInt64s, npt.NDArray[np.uint64]]:
    """Return the numbers of the chunks in the index ``table`` of ``shard``, and offset and length of each."""
    slots = np.array(table.list_present(), np.int64)
    begins = np.array([slot_range.start for slot_range in layout.find_slot_ranges(shard)], np.int64)
    counts = np.array(layout.grid.counts, np.int64)
    coords = cells[:, slots] + begins[:, None]
    inside = (coords < counts[:, None]).all(axis=0)
    numbers = np.zeros(len(slots), np.int64)
    for coord, count in zip(coords, counts, strict=True):
        numbers = numbers * count + coord
    found = [table.locate(slot) or (0, 0) for slot in slots[inside].tolist()]
    return numbers[inside].astype(np.uint64), np.array(found, np.uint64).reshape(-1, 2)


def _put_parts(
    builder: ChunksBuilder, rows: npt.NDArray[np.int64], shard: Entry, ranges: npt.NDArray[np.uint64]
) -> None:
    """Set ``rows`` to the ``ranges`` (offset and length) of a shard."""
    if isinstance(shard, Span) and shard.start >= 0:
        offsets, lengths = ranges[:, 0] + np.uint64(shard.start), ranges[:, 1]
        targets = np.zeros(len(rows), np.uint32)
        builder.put(rows, [shard.url], Ranges(targets, offsets, lengths), [shard.pin], [shard.origin])
        return
    for row, (offset, length) in zip(rows.tolist(), ranges.tolist(), strict=True):
        builder.put_entry(row, shard.part(offset, length))


def _cut_chunk(entry: Entry, table: Table, slot: int, shard: str, path: str) -> Entry | None:
    """Return the entry of the chunk in ``slot`` of a shard; None if the chunk is missing."""
    found = table.locate(slot)
    if found is None:
        return None
    try:
        return entry.part(*found)
    except ValueError as e:
        raise DamagedIndex("", _describe_place(entry), f"shard {shard!r} of array {path!r}: {e}") from e


def _mark_existing(entry: Entry) -> Entry:
    """Mark the entry of a shard whose index was read: the shard exists, and its chunks are close together."""
    if isinstance(entry, Span) and (entry.optional or not entry.dense):
        return msgspec.structs.replace(entry, optional=False, dense=True)
    return entry


def _describe_place(entry: Entry) -> str:
    match entry:
        case Span(url):
            return url
        case Packed(source):
            return source.url
        case Inline():
            return "the manifest itself"
