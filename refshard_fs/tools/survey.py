"""Survey a source: its groups, its arrays, and where each chunk lies. Metadata and indexes are read, chunks are not.

The chunks of reference sets are taken in columns, millions at once; those of other sources, and inner chunks of
shards, are listed and looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from fsspec.asyn import get_loop, sync

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import WHOLE, ChunkTable, UInt64s
from refshard_fs.core.columns import Row as Reference
from refshard_fs.core.edited_keyspace import EditedKeySpace
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Listed, Packed, Span, Steps, together
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.errors import ManifestError, NotListable
from refshard_fs.formats.chunk_manifest.view import ManifestView
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import decode
from refshard_fs.session.recognition import beneath
from refshard_fs.sharding.view import ArrayRows, ShardRows, ShardView

__all__ = ["AT_HAND", "Extents", "Place", "Positions", "Row", "Survey", "Surveyed", "Urls", "contents", "survey"]

# ----------------------------------------------------------------------------------------------------
# Where the chunks of arrays lie, as columns: the number of each chunk, its target, and its byte range. No I/O here.


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


TOGETHER: Final = 4096  # look-ups that are made at a time
_DOCUMENTS: Final = ("zarr.json", ".zarray")
T = TypeVar("T")


class Surveyed(Protocol):
    """What is needed of a filesystem: `RefShardFileSystem`."""

    def _opened(self) -> KeySpace: ...
    def _look(self, key: str, steps: Callable[[], Steps[Any]]) -> Any: ...
    def collect(self) -> ReferenceSet: ...
    async def _cat(self, path: list[str], *, on_error: str) -> Any: ...
    @property
    def loop(self) -> Any: ...


class Survey(msgspec.Struct, frozen=True, eq=False):
    """What a source holds. ``documents`` are its metadata as shown, by key; ``urls`` are all targets, by number.

    ``at_hand`` and ``at_hand_bytes`` count the keys, metadata among them, whose bytes a reference set holds itself.
    ``rest`` are the keys that are neither chunks nor metadata.
    """

    urls: list[str]
    groups: tuple[str, ...]
    arrays: dict[str, Extents]
    documents: dict[str, bytes]
    rest: dict[str, Place]
    at_hand: int
    at_hand_bytes: int

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.documents) + len(self.rest) + sum(map(len, self.arrays.values()))


class _Found(msgspec.Struct):
    """The keys that are not in columns: where they lie, and how large they are."""

    entries: dict[str, Place]
    documents: list[str]


def survey(fs: Surveyed, array: str | None = None) -> Survey:
    """Return what ``fs`` holds, or of that only what the array at the path ``array`` holds.

    Raises ManifestError where metadata is no JSON object, FileNotFoundError if there is no such array, NotListable
    where neither a listing nor consolidated metadata tell which arrays there are. Of arrays whose chunks cannot be
    listed the metadata is told.
    """
    return _Surveying(fs, array).run()


def contents(fs: Surveyed, keys: list[str], on_error: str = "raise") -> dict[str, bytes]:
    """Return the bytes of ``keys``, also where ``fs`` was made for an event loop of its own."""
    found: dict[str, bytes] = sync(fs.loop or get_loop(), fs._cat, keys, on_error=on_error) if keys else {}
    return found


class _Surveying:
    def __init__(self, fs: Surveyed, only: str | None) -> None:
        self._fs, self._only = fs, only
        self._urls = Urls()
        self._at_hand = self._at_hand_bytes = 0
        self._tables: dict[str, ChunkTable] = {}
        self._target: Callable[[int], int] = int
        self._inner: dict[str, npt.NDArray[np.uint64]] = {}  # chunks of shards, by array
        self._unlisted: set[str] = set()  # arrays
        self._keyspace = fs._opened()

    def run(self) -> Survey:
        keyspace = self._keyspace
        found = _Found({}, [])
        references = _references(self._fs, keyspace)
        if references is None:
            self._list("" if self._only is None else self._only, found, count=True)
        else:
            refs, url = references
            self._target = lambda code: self._urls.id_of(url(code))
            sharded = [path for path, grid in self._within(refs.grids) if _shards(keyspace, path)]
            self._tables = {p: t for p, t in refs.tables.items() if p not in sharded and self._is_wanted(p)}
            self._take(refs, sharded, found)
            for path in sharded:
                self._list(path, found, count=False)
        texts = contents(self._fs, found.documents)
        groups, metas = _nodes(texts)
        if self._only is not None and self._only not in metas:
            raise FileNotFoundError(
                f"there is no array {self._only!r}: 'refshard tree SOURCE' shows those that there are"
            )
        rows, names, stray, rest = _placed(found.entries, metas)
        arrays = {}
        for path in sorted(metas):
            table, shards, inner = self._tables.get(path), _shards(keyspace, path), self._inner.get(path)
            extents = Extents.of(
                path,
                metas[path],
                table,
                rows.get(path, ()) if inner is None else inner,
                self._target,
                shards,
                stray.get(path, 0),
                tuple(names.get(path, ())),
            )
            arrays[path] = msgspec.structs.replace(
                extents, listed=path not in self._unlisted, plain=table is not None and path not in rows
            )
        return Survey(self._urls.all, tuple(sorted(groups)), arrays, texts, rest, self._at_hand, self._at_hand_bytes)

    def _is_wanted(self, key: str) -> bool:
        only = self._only
        return not only or key == only or key.startswith(only + "/")

    def _within(self, grids: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        return ((path, grid) for path, grid in grids.items() if self._is_wanted(path))

    def _take(self, refs: ReferenceSet, sharded: Iterable[str], found: _Found) -> None:
        """Take in the keys that a reference set has outside of its columns."""
        hidden = tuple(path + "/" if path else "" for path in sharded)
        for key, value in refs.side.items():
            if not self._is_wanted(key):
                continue
            size = None if type(value) is Reference else len(_decoded(key, value))
            if size is not None:
                self._at_hand += 1
                self._at_hand_bytes += size
            if hidden and key.startswith(hidden):
                continue  # it is listed
            if zarrmeta.is_metadata(key):
                found.documents.append(key)
            elif type(value) is Reference:
                stop = WHOLE if value.length is None else value.offset + value.length
                found.entries[key] = Place(self._target(value.target), value.offset, stop)
            else:
                found.entries[key] = Place(AT_HAND, 0, size or 0)

    def _list(self, prefix: str, found: _Found, *, count: bool) -> None:
        """Take in the keys below ``prefix`` as they are listed, and where they lie as they are looked up."""
        names: list[tuple[str, int | None]] = []
        level = [prefix]
        while level:
            known = self._look(prefix, partial(_all_chunks, self._keyspace, level))
            plain, below, unlisted = [], [], {}
            for path, rows in zip(level, known, strict=True):
                if rows is None:
                    plain.append(path)
                    continue
                if isinstance(rows, NotListable):
                    unlisted[path] = rows
                    continue
                self._inner[path] = self._columns(rows.shards, count=count)
                found.documents += [key for key, _ in rows.others if zarrmeta.is_metadata(key)]
                names += [(key, size) for key, size in rows.others if not zarrmeta.is_metadata(key)]
                below += rows.directories
            for path, listed in zip(plain, self._look(prefix, partial(_children, self._keyspace, plain)), strict=True):
                if isinstance(listed, NotListable):
                    unlisted[path] = listed
                    continue
                for child in listed or ():
                    key = join(path, child.name)
                    if child.is_directory:
                        below.append(key)
                    elif zarrmeta.is_metadata(key):
                        found.documents.append(key)
                    else:
                        names.append((key, child.size))
            found.documents += self._known_of(unlisted)
            level = below
        for first in range(0, len(names), TOGETHER):
            some = names[first : first + TOGETHER]
            entries: list[Entry | None] = self._look(prefix, partial(_looked_up, self._keyspace, [k for k, _ in some]))
            for (key, size), entry in zip(some, entries, strict=True):
                at = self._place(entry, size)
                if at is not None:
                    found.entries[key] = at
                    if count and at.target == AT_HAND:
                        self._at_hand += 1
                        self._at_hand_bytes += at.stop

    def _known_of(self, unlisted: Mapping[str, NotListable]) -> list[str]:
        """Return the metadata of directories that cannot be listed; the error itself where one is no array."""
        names = [join(path, name) for path in unlisted for name in (*_DOCUMENTS, ".zattrs")]
        texts = contents(self._fs, names, "omit")
        metas = _nodes(texts)[1]
        for path, error in unlisted.items():
            if path not in metas:
                raise error
            self._unlisted.add(path)
        return list(texts)

    def _look(self, key: str, steps: Callable[[], Steps[Any]]) -> Any:
        return self._fs._look(key, steps)

    def _columns(self, shards: list[ShardRows], *, count: bool) -> npt.NDArray[np.uint64]:
        """Return the chunks of shards as rows: number, target, start, stop."""
        parts = [np.empty((0, 4), np.uint64)]
        for entry, numbers, starts, lengths in shards:
            at = self._place(entry, entry.size)
            if at is None:
                continue
            target = np.full(len(numbers), at.target & (2**64 - 1), np.uint64)
            first = starts * np.uint64(at.target != AT_HAND) + np.uint64(at.start)
            parts.append(np.stack((numbers, target, first, first + lengths), axis=1))
            if count and at.target == AT_HAND:
                self._at_hand += len(numbers)
                self._at_hand_bytes += int(lengths.sum())
        return np.concatenate(parts)

    def _place(self, entry: Entry | None, size: int | None) -> Place | None:
        match entry:
            case None:
                return None
            case Inline(data):
                return Place(AT_HAND, 0, len(data))
            case Packed(Span(url, start, stop)) if start >= 0:
                return Place(self._urls.id_of(url), start, WHOLE if stop is None else stop)
            case Span(url, start, stop) if start >= 0:
                if stop is None or not entry.exact:
                    stop = WHOLE if size is None else start + size
                return Place(self._urls.id_of(url), start, stop)
            case Span(url) | Packed(Span(url)):
                return Place(self._urls.id_of(url), 0, WHOLE)


def _references(fs: Surveyed, keyspace: KeySpace) -> tuple[ReferenceSet, Callable[[int], str]] | None:
    """Return the references in columns and what their targets' URLs are, where the source is a set of them."""
    match keyspace:
        case EditedKeySpace(edits=edits) if len(edits):
            return None
        case EditedKeySpace(base=base):
            keyspace = base
    while isinstance(keyspace, ShardView):
        keyspace = keyspace.base
    match keyspace:
        case ManifestView(maps_anything=True):
            return None
    match beneath(keyspace):
        case FlatKeySpace(refs=refs) as flat:
            return refs, partial(_url, flat)
        case ParquetKeySpace():
            refs = fs.collect()
            return refs, lambda code: refs.urls[code] or ""
    return None


def _url(flat: FlatKeySpace, code: int) -> str:
    try:
        return flat.url(code)
    except ManifestError:  # no URL, and no target= that it would stand for
        return ""


def _all_chunks(keyspace: KeySpace, paths: Sequence[str]) -> Steps[list[ArrayRows | NotListable | None]]:
    """Return, for each of ``paths`` that is an array of shards, its inner chunks; None for the others."""
    keys = [join(path, name) for path in paths for name in _DOCUMENTS]
    yield from together([keyspace.lookup(key) for key in keys])  # so that arrays are known
    match keyspace:
        case EditedKeySpace(base=ShardView() as view, edits=edits) if not len(edits):
            pass
        case ShardView() as view:
            pass
        case _:
            return [None] * len(paths)
    return (yield from together([_listable(view.all_chunks(path)) for path in paths]))


def _children(keyspace: KeySpace, paths: Sequence[str]) -> Steps[list[Sequence[Listed] | NotListable | None]]:
    return (yield from together([_listable(keyspace.children(path)) for path in paths]))


def _listable(steps: Steps[T]) -> Steps[T | NotListable]:
    """Return what ``steps`` do, or why that cannot be listed, so that the others of one round are not lost."""
    try:
        return (yield from steps)
    except NotListable as e:
        return e


def _looked_up(keyspace: KeySpace, keys: Sequence[str]) -> Steps[list[Entry | None]]:
    return (yield from together([keyspace.lookup(key) for key in keys]))


def _shards(keyspace: KeySpace, path: str) -> tuple[int, ...]:
    """Return how many chunks along each dimension lie together in a shard that is shown as its inner chunks."""
    grid = keyspace.grids.get(path)
    return () if grid is None else grid.shards


def _decoded(key: str, value: Any) -> bytes:
    try:
        return decode(value)
    except ValueError as e:
        raise ManifestError(f"{key!r}: {e}") from e


def _nodes(texts: Mapping[str, bytes]) -> tuple[list[str], dict[str, ArrayMeta]]:
    """Return the paths of groups, and the metadata of arrays."""
    groups: set[str] = set()
    metas: dict[str, ArrayMeta] = {}
    for key, text in texts.items():
        path, name = parent(key)
        if name == ".zgroup":
            groups.add(path)
        if name not in _DOCUMENTS:
            continue
        document = zarrmeta.object_in(text, repr(key))
        meta = zarrmeta.array_meta(document, repr(key))
        if meta is not None:
            metas[path] = meta
        elif name == ".zarray":
            raise ManifestError(f"{key!r} lacks an array's zarr_format, shape or chunks")
        elif document.get("node_type") == "group":
            groups.add(path)
    return sorted(groups - metas.keys()), metas


def _placed(
    entries: Mapping[str, Place], metas: Mapping[str, ArrayMeta]
) -> tuple[dict[str, list[Row]], dict[str, list[str]], dict[str, int], dict[str, Place]]:
    """Sort keys into the grids of their arrays: chunks, names of those without a grid, how many are stray, the rest."""
    rows: dict[str, list[Row]] = {}
    names: dict[str, list[str]] = {}
    stray: dict[str, int] = {}
    rest: dict[str, Place] = {}
    for key, place in entries.items():
        path = parent(key)[0]
        while path and path not in metas:
            path = parent(path)[0]
        meta = metas.get(path)
        if meta is None:
            rest[key] = place
            continue
        tail = key[len(path) + 1 :] if path else key
        if meta.grid is None:
            known = names.setdefault(path, [])
            number: int | None = len(known)
            known.append(tail)
        else:
            number = meta.grid.number(tail)
        if number is None:
            rest[key] = place
            stray[path] = stray.get(path, 0) + 1
        else:
            rows.setdefault(path, []).append(Row(number, place.target & (2**64 - 1), place.start, place.stop))
    return rows, names, stray, rest
