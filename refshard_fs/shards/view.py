"""The unsharded view: any key space, its sharded arrays shown as ordinary arrays of their inner chunks. No I/O here.

An inner chunk is a part of whatever its base says the shard is: a range of a file, a member
of an archive, bytes at hand. Indexes are asked for one level at a time and remembered by
whoever reads them. Metadata is rewritten; everything else passes through byte for byte. An
array whose shards cannot be read in ranges passes through whole, and `ShardView.reports`
says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from refshard_fs.errors import DamagedIndex
from refshard_fs.keys import ChunkGrid, join, parent
from refshard_fs.keyspace import KeySpace
from refshard_fs.model import Entry, Inline, Listed, Load, Packed, Span, Steps
from refshard_fs.rounds import together
from refshard_fs.shards import inner_names
from refshard_fs.shards.documents import NAMES, Document, DocumentIndex, Seen
from refshard_fs.shards.layout import Level, ShardLayout, Step, Table, TableIndex, shard_formats

__all__ = ["ShardView"]

_NUMBERS = re.compile(r"\d+(?:\.\d+)*", re.ASCII)
_DOTTED = re.compile(r"c(?:\.\d+)+", re.ASCII)
_views = count()  # numbers of views: what one has read, another does not take for its own
_BATCH = 64  # shards whose indexes are asked for at a time when chunks are listed


class ShardView:
    """The keys of ``base``, inner chunks in place of shards; ``options`` are the user's ``shard_options``."""

    def __init__(self, base: KeySpace, options: tuple[tuple[str, Any], ...] = ()) -> None:
        self.base = base
        self.reports: dict[str, str] = dict(getattr(base, "reports", {}))
        self._number = next(_views)
        self._options = options
        self._known: dict[str, Seen] = {}
        self.grids: Mapping[str, ChunkGrid] = _Grids(self._known, base.grids)

    @property
    def urls(self) -> Sequence[str | None]:
        """The URLs of all targets, as far as the base knows them without reads."""
        found: Sequence[str | None] = getattr(self.base, "urls", ())
        return found

    @property
    def shards_anything(self) -> bool:
        """Whether any array that is known so far is shown as inner chunks, or should have been."""
        return bool(self.reports) or any(seen.layout is not None for seen in self._known.values())

    def learn(self) -> Steps[None]:
        """Take in the arrays that the base knows without further reads."""
        marks = [mark for known in shard_formats() for mark in known.marks]
        for path, grid in self.base.grids.items():
            for name in ("zarr.json", ".zarray"):
                match (yield from self.base.lookup(join(path, name))):
                    case Inline(data) if any(mark in data for mark in marks):
                        self._adopt(DocumentIndex(path, name, self._number, self._options).decode(data))
                    case Inline():
                        self._known[path] = Seen(grid)

    # ------------------------------------------------------------------ looking a key up

    def lookup(self, key: str) -> Steps[Entry | None]:
        if key.endswith(NAMES) and parent(key)[1] in NAMES:
            return (yield from self._metadata(key))
        path = self._array_of(key)
        if path is None:
            yield from self._discover(key)
            path = self._array_of(key)
        layout = None if path is None else self._known[path].layout
        if path is None or layout is None:
            return (yield from self.base.lookup(key))
        grid = layout.grid
        coords = grid.encoding.decode(key[len(path) + 1 :] if path else key, len(grid.counts))
        if coords is None:
            return (yield from self.base.lookup(key))
        if grid.number_of(coords) is None:
            return None
        shard, places, lengths = [], [], []
        for cut, coord in zip(layout.cuts, coords, strict=True):
            number, place, length = cut.shard(coord)
            shard.append(number)
            places.append(place)
            lengths.append(length)
        name = join(path, grid.encoding.encode(shard))
        entry = yield from self.base.lookup(name)
        for level, slot in layout.steps(places, lengths):
            if entry is None:
                return None
            table = yield self._load(entry, level, name, path)
            entry = None if table is None else _chunk(entry, table, slot, name, path)
        return entry

    def _load(self, entry: Entry, level: Level, shard: str, path: str) -> Load:
        """Return the need for the index of a shard (or of one inside of it) at ``entry``."""
        length, trailer, size = level.length, level.trailer, entry.size
        if size is None:  # only the target knows where it ends
            if level.at_end:
                return Load(entry.window(-length - trailer), TableIndex(level, shard, path, self._number, cut=trailer))
            return Load(entry.window(0, length), TableIndex(level, shard, path, self._number))
        if size < length + trailer:
            raise DamagedIndex(
                "", _where(entry), f"shard {shard!r} of array {path!r} has {size} bytes: its index takes more"
            )
        start = size - length - trailer if level.at_end else 0
        return Load(entry.part(start, length), TableIndex(level, shard, path, self._number, size - trailer))

    def _array_of(self, key: str) -> str | None:
        """Return the path of the known array that ``key`` lies below."""
        known = self._known
        end = key.rfind("/")
        while end > 0:
            path = key[:end]
            if path in known:
                return path
            end = key.rfind("/", 0, end)
        return "" if "" in known and key else None

    def _metadata(self, key: str) -> Steps[Entry | None]:
        entry = yield from self.base.lookup(key)
        index = DocumentIndex(*parent(key), self._number, self._options)
        match entry:
            case None:
                return None
            case Inline(data):
                document: Document | None = index.decode(data)
            case _:
                document = yield Load(entry, index)
        if document is None:
            return None
        self._adopt(document)
        return Inline(document.data)

    def _adopt(self, document: Document) -> None:
        self._known.update(document.arrays)
        for path, seen in document.arrays.items():
            if seen.reason is not None:
                self.reports[path] = seen.reason

    def _discover(self, key: str) -> Steps[None]:
        """Read the metadata of the arrays that ``key``, as it is spelled, may belong to, as a chunk or a directory."""
        for paths in _candidates(key):
            yield from together([self._metadata(join(path, name)) for path in paths for name in NAMES[:2]])
            if any(path in self._known for path in paths):
                return

    # ------------------------------------------------------------------ listing

    def children(self, prefix: str) -> Steps[list[Listed] | None]:
        at = yield from self._chunk_directory(prefix)
        if at is not None:
            path, layout, fixed = at
            outer = inner_names.outer_directory(layout, fixed)
            names = None if outer is None else (yield from self.base.children(join(path, outer)))
            return None if names is None else (yield from self._chunks(path, layout, fixed, names))
        names = yield from self.base.children(prefix)
        if names is None:
            return None
        names = yield from self._documents_sized(prefix, names)
        seen = self._known.get(prefix)
        if seen is None or seen.layout is None:
            return names
        others = [listed for listed in names if not inner_names.is_chunks(seen.layout, listed)]
        if inner_names.below_c(seen.layout):
            return others
        chunks = yield from self._chunks(prefix, seen.layout, (), names)
        return sorted(others + chunks, key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        at = yield from self._chunk_directory(prefix)
        if at is None:
            return (yield from self.base.is_directory(prefix))
        path, layout, fixed = at
        outer = inner_names.outer_directory(layout, fixed)
        return outer is not None and (yield from self.base.is_directory(join(path, outer)))

    def _chunk_directory(self, prefix: str) -> Steps[tuple[str, ShardLayout, tuple[int, ...]] | None]:
        """Return array, layout and leading coordinates, if ``prefix`` is a directory of inner chunks."""
        path = self._array_of(prefix)
        if path is None:
            yield from self._discover(prefix)
            path = self._array_of(prefix)
        layout = None if path is None else self._known[path].layout
        if path is None or layout is None:
            return None
        fixed = inner_names.leading(layout, prefix[len(path) + 1 :] if path else prefix)
        return None if fixed is None else (path, layout, fixed)

    def _documents_sized(self, prefix: str, names: Sequence[Listed]) -> Steps[list[Listed]]:
        """Return ``names`` with the sizes that metadata documents have when they are shown."""
        documents = [listed.name for listed in names if listed.name in NAMES and not listed.is_directory]
        entries = yield from together([self._metadata(join(prefix, name)) for name in documents])
        sizes = {n: e.size for n, e in zip(documents, entries, strict=True) if e is not None}
        return [Listed(n.name, sizes[n.name]) if n.name in sizes else n for n in names]

    def _chunks(
        self, path: str, layout: ShardLayout, fixed: tuple[int, ...], names: Sequence[Listed]
    ) -> Steps[list[Listed]]:
        """Return what lies in a directory of inner chunks, where the base has ``names`` in that of their shards."""
        directories, shards = inner_names.expand(layout, fixed, names)
        found = [Listed(name, None, True) for name in directories]
        for first in range(0, len(shards), _BATCH):
            steps = [self._in_shard(path, layout, *shard) for shard in shards[first : first + _BATCH]]
            for listed in (yield from together(steps)):
                found += listed
        return sorted(found, key=lambda listed: listed.name)

    def _in_shard(
        self, path: str, layout: ShardLayout, shard: tuple[int, ...], chunks: Iterator[tuple[str, tuple[int, ...]]]
    ) -> Steps[list[Listed]]:
        """Return those of ``chunks`` (name and coordinates) that ``shard`` holds, with their sizes."""
        name = join(path, layout.grid.encoding.encode(shard))
        entry = yield from self.base.lookup(name)
        if entry is None:
            return []
        wanted = []
        for chunk, coords in chunks:
            cut = [c.shard(coord) for c, coord in zip(layout.cuts, coords, strict=True)]
            wanted.append((chunk, layout.steps([place for _, place, _ in cut], [length for _, _, length in cut])))
        return (yield from self._in_level(entry, 0, wanted, name, path))

    def _in_level(
        self, entry: Entry, depth: int, wanted: Sequence[tuple[str, Sequence[Step]]], shard: str, path: str
    ) -> Steps[list[Listed]]:
        groups: dict[int, list[tuple[str, Sequence[Step]]]] = {}
        for item in wanted:
            groups.setdefault(item[1][depth].slot, []).append(item)
        if not groups:
            return []
        table = yield self._load(entry, wanted[0][1][depth].level, shard, path)
        if table is None:
            return []
        found: list[Listed] = []
        deeper = []
        for slot, items in groups.items():
            part = _chunk(entry, table, slot, shard, path)
            if part is None:
                continue
            for name, steps in items:
                if len(steps) == depth + 1:
                    found.append(Listed(name, part.size))
            if len(items[0][1]) > depth + 1:
                deeper.append(self._in_level(part, depth + 1, items, shard, path))
        for listed in (yield from together(deeper)):
            found += listed
        return found


class _Grids(Mapping[str, ChunkGrid]):
    """The grids of arrays seen so far, before those of the base; it grows as more are seen."""

    __slots__ = ("_base", "_known")

    def __init__(self, known: Mapping[str, Seen], base: Mapping[str, ChunkGrid]) -> None:
        self._known = known
        self._base = base

    def get(self, path: str, default: Any = None) -> Any:
        seen = self._known.get(path)
        return self._base.get(path, default) if seen is None or seen.grid is None else seen.grid

    def __getitem__(self, path: str) -> ChunkGrid:
        grid: ChunkGrid | None = self.get(path)
        if grid is None:
            raise KeyError(path)
        return grid

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self._base), **{p: None for p, seen in list(self._known.items()) if seen.grid}})

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _candidates(key: str) -> Iterator[list[str]]:
    """Yield groups of paths of arrays that ``key`` may be a chunk of, the likeliest first."""
    parts = key.split("/")
    first = len(parts)
    while first and _NUMBERS.fullmatch(parts[first - 1]):
        first -= 1
    if first and parts[first - 1] == "c":
        yield ["/".join(parts[: first - 1])]
    elif _DOTTED.fullmatch(parts[-1]):
        yield ["/".join(parts[:-1])]
    if first < len(parts):
        yield ["/".join(parts[:end]) for end in range(first, len(parts))]


def _chunk(entry: Entry, table: Table, slot: int, shard: str, path: str) -> Entry | None:
    """Return the entry of the chunk in ``slot``; its shard has been read, so that it can no longer be absent."""
    found = table.locate(slot)
    if found is None:
        return None
    if isinstance(entry, Span) and (entry.optional or not entry.dense):
        entry = msgspec.structs.replace(entry, optional=False, dense=True)
    try:
        return entry.part(*found)
    except ValueError as e:
        raise DamagedIndex("", _where(entry), f"shard {shard!r} of array {path!r}: {e}") from e


def _where(entry: Entry) -> str:
    match entry:
        case Span(url):
            return url
        case Packed(source):
            return source.url
        case Inline():
            return "the manifest itself"
