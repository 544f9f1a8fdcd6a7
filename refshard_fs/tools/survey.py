"""Survey a source: its groups, its arrays, and where each chunk lies. Metadata and indexes are read, chunks are not.

The chunks of a reference set are read as columns, millions at once. Those of other sources are listed and looked up;
of arrays in shards, the shards' indexes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT, WHOLE, ChunkTable, Ranges, UInt64s
from refshard_fs.core.edits import unedited
from refshard_fs.core.keys import is_within, join, nearest, parent, relative
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Listed, Origin, Packed, Pin, Span, Steps, answered, batches, together
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, ArrayMeta
from refshard_fs.errors import DamagedIndex, ManifestError, NotListable, RefShardError
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from refshard_fs.formats.kerchunk_parquet.writing import ParquetStream
from refshard_fs.reading.engine import Request
from refshard_fs.reading.failures import blame
from refshard_fs.reading.plan import Planned
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.stream import Respell
from refshard_fs.session.recognition import manifests_of, references_in
from refshard_fs.session.session import Session
from refshard_fs.sharding.view import ArrayRows, ShardRows, ShardView
from refshard_fs.tools.views import progress

Positions = npt.NDArray[np.int64]

INLINE: Final = -1  # in the target column: the source itself holds the bytes
BATCH: Final = 4096  # keys that are looked up, or read, at a time
LOOKED_FOR: Final = 1_000_000  # chunks of an array, at most, that are looked up one by one if a shard index is damaged


class Surveyed(Protocol):
    """What the tools use of a `RefShardFileSystem`."""

    fo: Any
    _session: Session

    @property
    def left_whole(self) -> dict[str, str]: ...
    def plan(self, paths: Sequence[str]) -> list[Planned]: ...
    @property
    def attribute_dtypes(self) -> Mapping[str, Mapping[str, str]]: ...

    def _collect(self) -> ReferenceSet: ...
    def _respelling(self) -> Respell: ...
    def ls(self, path: str, *, detail: Literal[True]) -> list[dict[str, Any]]: ...
    def cat(self, path: list[str], *, on_error: Literal["omit"]) -> dict[str, bytes]: ...
    def isdir(self, path: str) -> bool: ...


class Place(NamedTuple):
    """Where one key's bytes lie: its target (or `INLINE`) and a range of it; ``stop`` is WHOLE for the target's end.

    ``derived`` bytes are made from those of the range, which other keys may share. ``is_open`` ranges reach to the end
    of the target, even if their ``stop`` is known.
    """

    target: int
    start: int
    stop: int
    derived: bool = False
    is_open: bool = False


class Chunks(NamedTuple):
    """Chunks of one array as columns: the number of each in the grid, and where it lies (see `Place`)."""

    numbers: UInt64s
    targets: Positions
    starts: UInt64s
    stops: UInt64s
    derived: npt.NDArray[np.bool_]
    is_open: npt.NDArray[np.bool_]

    @classmethod
    def of_places(cls, places: Iterable[tuple[int, Place]]) -> Chunks:
        """Return the columns of (number, place) pairs."""
        rows = [(number, *place) for number, place in places]
        columns: Iterable[Any] = zip(*rows, strict=True) if rows else [()] * 6
        return cls(*map(np.array, columns, (np.uint64, np.int64, np.uint64, np.uint64, np.bool_, np.bool_)))

    @classmethod
    def of_rows(cls, numbers: UInt64s, rows: Ranges, target: Callable[[int], int]) -> Chunks:
        """Return the chunks of ``rows`` of a table; ``target`` returns the number here of a target of the table."""
        codes, starts, lengths = rows
        known = np.unique(codes)
        renumbered = np.fromiter((target(int(code)) for code in known), np.int64, len(known))
        is_open = lengths == WHOLE
        stops = np.where(is_open, lengths, starts + lengths)
        derived = np.zeros(len(numbers), bool)
        return cls(numbers, renumbered[np.searchsorted(known, codes)], starts, stops, derived, is_open)

    @classmethod
    def joined(cls, parts: Sequence[Chunks]) -> Chunks:
        """Return the chunks of all ``parts``, ascending by number; of one number, that of the last part counts."""
        parts = [part for part in parts if len(part.numbers)] or parts[:1]
        found = cls(*map(np.concatenate, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]
        numbers = found.numbers
        if (numbers[1:] > numbers[:-1]).all():
            return found
        order = np.argsort(numbers, kind="stable")
        order = order[np.append(numbers[order[1:]] != numbers[order[:-1]], True)]
        return found.at(order)

    def at(self, rows: Positions) -> Chunks:
        """Return some of the chunks."""
        return Chunks(*(column[rows] for column in self))  # type: ignore[arg-type]  # of the same types


class Extents(msgspec.Struct, frozen=True, eq=False):
    """The ``chunks`` of one array that exist, ascending by their number in the grid.

    ``shards`` is the shape of a shard, counted in chunks. ``stray`` counts the keys below the array that are none of
    its chunks. Without a grid (``meta.grid``), chunks are numbered in the order of ``names``, their keys in the array.
    ``dimensions`` are names, empty where the metadata has none. ``listed`` is False where the source cannot list keys:
    then no chunk is known.
    """

    path: str
    meta: ArrayMeta
    chunks: Chunks
    shards: tuple[int, ...] = ()
    stray: int = 0
    names: tuple[str, ...] = ()
    listed: bool = True
    dimensions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.chunks.numbers)

    def key(self, position: int) -> str:
        """Return the key of the chunk at ``position``."""
        number, grid = int(self.chunks.numbers[position]), self.meta.grid
        return join(self.path, self.names[number] if grid is None else grid.tail(number))

    def keys(self, positions: Iterable[int]) -> tuple[str, ...]:
        """Return the keys of the chunks at ``positions``."""
        return tuple(map(self.key, positions))

    @property
    def possible(self) -> int | None:
        """Chunks of the grid, whether they exist or not; None without a grid."""
        return None if self.meta.grid is None else self.meta.grid.size

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks along each dimension of the grid; empty without one."""
        return () if self.meta.grid is None else self.meta.grid.counts

    @property
    def shard_shape(self) -> tuple[int, ...] | None:
        """Elements along each dimension of a shard; None where chunks do not lie in shards."""
        if not self.shards or self.meta.chunks is None:
            return None
        return tuple(chunk * count for chunk, count in zip(self.meta.chunks, self.shards, strict=True))

    @property
    def sizes(self) -> UInt64s:
        """Bytes of each chunk; 0 where only its target knows."""
        return np.where(self.chunks.stops == WHOLE, np.uint64(0), self.chunks.stops - self.chunks.starts)

    @property
    def unsized(self) -> int:
        """Chunks of which only the target knows the size."""
        return int((self.chunks.stops == WHOLE).sum())


class Blocks(Protocol):
    """The chunks of one array of a reference set, some of which are read at a time."""

    def places(self, size: int) -> Iterable[int]:
        """Return which blocks of ``size`` chunk numbers may hold chunks."""

    def chunks(self, numbers: range, urls: dict[str, int]) -> Chunks:
        """Return the chunks with ``numbers``; their targets are places in ``urls``, to which new ones are added."""


class _TableBlocks:
    """The blocks of a table in memory."""

    def __init__(self, flat: FlatKeySpace, table: ChunkTable) -> None:
        self._flat = flat
        self._table = table

    def places(self, size: int) -> Iterable[int]:
        numbers = self._table.numbers
        if numbers is None:
            return range(-(-self._table.grid.size // size))
        found: list[int] = np.unique(numbers // np.uint64(size)).tolist()
        return found

    def chunks(self, numbers: range, urls: dict[str, int]) -> Chunks:
        part = self._table.part(self._table.present(numbers.start, numbers.stop))
        return Chunks.of_rows(
            part.numbers, part.ranges, lambda code: urls.setdefault(_url(self._flat, code), len(urls))
        )


class _PartitionBlocks:
    """The blocks of an array of a parquet set, whose partitions are loaded."""

    def __init__(self, stream: ParquetStream, array: str) -> None:
        self._stream = stream
        self._array = array

    def places(self, size: int) -> Iterable[int]:
        return self._stream.places(self._array, size)

    def chunks(self, numbers: range, urls: dict[str, int]) -> Chunks:
        partition = self._stream.partition(self._array, numbers)
        rows = np.flatnonzero(partition.ranges.targets != ABSENT)
        codes = [urls.setdefault(url or "", len(urls)) for url in partition.urls]
        first = np.uint64(numbers.start)
        found = Chunks.of_rows(rows.astype(np.uint64) + first, partition.ranges.take(rows), codes.__getitem__)
        inline = [(numbers.start + row, Place(INLINE, 0, len(data))) for row, data in partition.inline.items()]
        return Chunks.joined([found, Chunks.of_places(inline)]) if inline else found


Fault = tuple[str, Exception]  # a key or a directory, and why it could not be surveyed


class Survey(msgspec.Struct, frozen=True, eq=False):
    """What a source contains: its metadata ``documents`` by key, and the ``urls`` of its targets by number.

    ``inline_keys`` and ``inline_bytes`` count the keys, metadata included, whose bytes are inline in a reference set.
    ``rest`` are the keys that are neither chunks nor metadata, as if they were chunks of an array without a grid.
    ``pins`` are the versions that the source expects of its targets, ``origins`` the sets of others that named them;
    those in ``optional`` need not exist. ``blocks`` hold the chunks of arrays that were surveyed in blocks, in addition
    to those of ``arrays``.
    """

    urls: list[str]
    groups: tuple[str, ...]
    arrays: dict[str, Extents]
    documents: dict[str, bytes]
    rest: Extents
    inline_keys: int
    inline_bytes: int
    pins: dict[int, set[Pin]]
    origins: dict[int, Origin]
    optional: frozenset[int]
    blocks: Mapping[str, Blocks] = {}

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.documents) + len(self.rest) + sum(map(len, self.arrays.values()))


def survey(
    fs: Surveyed, array: str | None = None, faults: list[Fault] | None = None, *, in_blocks: bool = False
) -> Survey:
    """Survey all of ``fs``, or only the array at the path ``array``; ``in_blocks`` leaves columns where they are.

    Raises ManifestError if metadata is no JSON object, FileNotFoundError if there is no such array, NotListable if
    neither a listing nor consolidated metadata say which arrays there are. Arrays whose chunks cannot be listed are
    included without chunks. With ``faults``, errors of single keys and directories are added to it and not raised.
    """
    return _Surveying(fs, array, faults, in_blocks=in_blocks).run()


def contents(fs: Surveyed, keys: Sequence[str], tell: Callable[[int], object] | None = None) -> list[Any]:
    """Return the bytes, or the error, of each of ``keys``. It works for asynchronous filesystems too.

    ``tell(1)`` is called as each is read.
    """
    return fs._session.wait(fs._session.read_all, list(map(Request, keys)), tell)


def array_of(key: str, arrays: Mapping[str, object]) -> str:
    """Return the path of the array that ``key`` lies in; the root's, if in none."""
    return nearest(key, arrays) or ""


class _Surveying:
    def __init__(self, fs: Surveyed, only: str | None, faults: list[Fault] | None, *, in_blocks: bool) -> None:
        self._fs, self._only, self._faults = fs, only, faults
        self._in_blocks = in_blocks
        self._blocks: dict[str, Blocks] = {}
        self._keyspace = fs._session.open()
        self._urls: dict[str, int] = {}
        self._pins: dict[int, set[Pin]] = {}
        self._origins: dict[int, Origin] = {}
        self._optional: set[int] = set()  # targets of which keys are made that exist without them, too
        self._chunks: dict[str, list[Chunks]] = {}  # by array, as columns
        self._places: dict[str, Place] = {}  # of keys that are in no columns
        self._documents: list[str] = []
        self._inline: set[str] = set()  # documents that a reference set holds
        self._unlisted: dict[str, NotListable] = {}  # directories
        self._damaged: dict[str, DamagedIndex] = {}  # directories of chunks whose shards cannot all be read

    def run(self) -> Survey:
        lazy = references_in(unedited(self._keyspace)) if self._in_blocks else None
        references = None if isinstance(lazy, ParquetKeySpace) else self._references()
        if isinstance(lazy, ParquetKeySpace):
            self._add_partitions(lazy)
        elif references is None:
            self._list(self._only or "")
        else:
            self._add_references(references)
        texts = self._read(self._documents)
        hidden = [join(p, name) for p in (*self._unlisted, *self._damaged) for name in (*ARRAY_DOCUMENTS, ".zattrs")]
        texts |= self._read(hidden, omit=True)
        groups, metas = self._nodes(texts)
        if self._only is not None and self._only not in metas:
            raise FileNotFoundError(
                f"there is no array {self._only!r}: 'refshard tree SOURCE' shows those that there are"
            )
        for path, error in self._unlisted.items():
            if path not in metas:
                self._fail(path, error)
            elif self._faults is not None:
                self._faults.append((path, error))
        for path, damage in self._damaged.items():
            self._look_for_chunks(path, metas, damage)
        arrays, rest = self._arrays(metas, texts)
        inline = [len(texts[key]) for key in self._inline]
        for extents in (*arrays.values(), rest):
            inline += extents.sizes[extents.chunks.targets == INLINE].tolist()
        urls = list(self._urls)
        return Survey(
            urls,
            tuple(groups),
            arrays,
            texts,
            rest,
            len(inline),
            sum(inline),
            self._pins,
            self._origins,
            frozenset(self._optional),
            self._blocks,
        )

    def _fail(self, key: str, error: Exception) -> None:
        """Add to the faults that ``key`` could not be surveyed; raise that if none are collected, or for the root."""
        if self._faults is None or not key:
            raise blame(key, error)
        self._faults.append((key, error))

    async def _run_all(self, steps: Sequence[Steps[Any]]) -> list[Any]:
        return await self._fs._session.engine().run_all(steps)

    async def _find_all(self, keys: Sequence[str]) -> list[Any]:
        return await self._fs._session.engine().find_all(self._keyspace, keys)

    # ------------------------------------------------------------------ reference sets

    def _references(self) -> FlatKeySpace | None:
        """Return the references of the source; None if it is no reference set, or one with uncommitted writes."""
        found = references_in(unedited(self._keyspace))
        if not isinstance(found, ParquetKeySpace):
            return found
        try:
            return FlatKeySpace(self._fs._collect(), lambda url: url or "", "")
        except RefShardError:
            if self._faults is None:
                raise
        return None  # looking up each key finds the damaged partitions

    def _add_references(self, flat: FlatKeySpace) -> None:
        """Add all of a reference set."""
        refs = flat.refs

        def target(code: int) -> int:
            url = _url(flat, code)
            return self._target(url, flat.pin(code), refs.origins.of(url))

        sharded = [path for path in refs.grids if self._is_wanted(path) and self._shards(path)]
        tables = {p: t for p, t in refs.tables.items() if self._is_wanted(p) and p not in sharded}
        if self._in_blocks:
            self._blocks = {path: _TableBlocks(flat, table) for path, table in tables.items()}
        else:
            parts = {path: table.part() for path, table in tables.items()}
            self._chunks = {path: [Chunks.of_rows(*part, target)] for path, part in parts.items()}
        hidden = tuple(path + "/" if path else "" for path in sharded)
        for key in filter(self._is_wanted, refs.side):
            if hidden and key.startswith(hidden):
                continue  # it is listed below
            try:
                entry = flat.find(key)
            except RefShardError as e:
                self._fail(key, e)
                continue
            if zarrmeta.is_metadata(key):
                self._documents.append(key)
                if isinstance(entry, Inline):
                    self._inline.add(key)
            else:
                self._add(key, entry)
        for path in sharded:
            self._list(path)

    def _add_partitions(self, lazy: ParquetKeySpace) -> None:
        """Add all of a parquet set, whose partitions are loaded when their chunks are asked for."""
        stream = ParquetStream(lazy, self._fs._respelling(), self._fs._session.run)
        self._documents += [key for key, _ in stream.documents()]
        for path in lazy.grids:
            if self._shards(path):
                self._list(path)
            else:
                self._blocks[path] = _PartitionBlocks(stream, path)

    def _is_wanted(self, key: str) -> bool:
        return is_within(key, self._only or "")

    # ------------------------------------------------------------------ other sources

    def _list(self, prefix: str) -> None:
        """List all keys below ``prefix``, and look up where they lie."""
        names: dict[str, int | None] = {}  # with sizes
        known = self._fs._session.run(prefix, partial(self._keyspace.directories, prefix))
        root = prefix if self._keyspace.url_of is None else self._keyspace.url_of(prefix)
        level = [prefix]
        while level:
            below: list[str] = []
            listings = self._fs._session.wait(
                self._run_all, [answered(_below(self._keyspace, path), root, known) for path in level]
            )
            for path, found in zip(level, listings, strict=True):
                match found:
                    case NotListable():
                        self._unlisted[path] = found
                    case DamagedIndex() if self._faults is not None:
                        self._damaged[path] = found
                    case Exception():
                        self._fail(path, found)
                    case ArrayRows(shards, others, directories):
                        self._chunks[path] = list(map(self._in_shard, shards))
                        names |= dict(others)
                        below += directories
                    case _:
                        children: Sequence[Listed] = found or ()
                        names |= {join(path, child.name): child.size for child in children if not child.is_directory}
                        below += [join(path, child.name) for child in children if child.is_directory]
            level = below
        self._documents += filter(zarrmeta.is_metadata, names)
        self._look_up({key: size for key, size in names.items() if not zarrmeta.is_metadata(key)}, listed=True)

    def _look_up(self, names: Mapping[str, int | None], *, listed: bool) -> None:
        with progress("look up") as shown:
            shown.set_size(len(names))
            for keys in batches(list(names), BATCH):
                entries = self._fs._session.wait(self._find_all, keys)
                for key, entry in zip(keys, entries, strict=True):
                    match entry:
                        case Exception():
                            self._fail(key, entry)
                        case None if listed and self._faults is not None:
                            self._fail(key, FileNotFoundError("it is listed, and there is no such key"))
                        case _:
                            self._add(key, entry, names[key])
                shown.relative_update(len(keys))

    def _look_for_chunks(self, prefix: str, metas: Mapping[str, ArrayMeta], error: DamagedIndex) -> None:
        """Look up each chunk in a directory: its shard index is damaged, so that the chunks cannot be listed."""
        path = array_of(join(prefix, "0"), metas)
        meta = metas.get(path)
        if meta is None or meta.grid is None or meta.grid.size > LOOKED_FOR:
            self._fail(prefix, error)
        else:
            keys = (join(path, tail) for tail in meta.grid.tails())
            self._look_up(dict.fromkeys(key for key in keys if is_within(key, prefix)), listed=False)

    def _add(self, key: str, entry: Entry | None, size: int | None = None) -> None:
        if entry is not None:
            self._places[key] = self._place(entry, size)

    def _place(self, entry: Entry, size: int | None) -> Place:
        match entry:
            case Inline(data):
                return Place(INLINE, 0, len(data))
            case Packed(Span(url, start, stop, optional=is_optional, pin=pin, origin=origin)):
                target = self._target(url, pin, origin)
                if is_optional:
                    self._optional.add(target)
                return Place(target, max(start, 0), WHOLE if stop is None or start < 0 else stop, derived=True)
            case Span(url, start, stop, pin=pin, origin=origin):
                target = self._target(url, pin, origin)
                if start < 0:
                    return Place(target, 0, WHOLE, derived=True)
                is_open = stop is None or not entry.exact
                if stop is None or is_open:
                    stop = WHOLE if size is None else start + size
                return Place(target, start, stop, is_open=is_open)

    def _target(self, url: str, pin: Pin | None, origin: Origin) -> int:
        target = self._urls.setdefault(url, len(self._urls))
        self._origins[target] = self._origins.get(target, origin) and origin
        if pin is not None:
            self._pins.setdefault(target, set()).add(pin)
        return target

    def _in_shard(self, rows: ShardRows) -> Chunks:
        shard = self._place(rows.entry, rows.entry.size)
        derived = np.full(len(rows.numbers), shard.derived)
        is_open = np.zeros(len(rows.numbers), bool)
        targets = np.full(len(rows.numbers), shard.target, np.int64)
        if shard.derived:
            starts, stops = (np.full(len(targets), bound, np.uint64) for bound in (shard.start, shard.stop))
            return Chunks(rows.numbers, targets, starts, stops, derived, is_open)
        starts = np.zeros(len(targets), np.uint64) if shard.target == INLINE else rows.starts + np.uint64(shard.start)
        return Chunks(rows.numbers, targets, starts, starts + rows.lengths, derived, is_open)

    def _shards(self, path: str) -> tuple[int, ...]:
        """Return how many chunks along each dimension lie together in a shard that is shown as its inner chunks."""
        grid = self._keyspace.grids.get(path)
        return () if grid is None else grid.shards

    # ------------------------------------------------------------------ metadata

    def _read(self, keys: Sequence[str], *, omit: bool = False) -> dict[str, bytes]:
        texts: dict[str, bytes] = {}
        for key, data in zip(keys, contents(self._fs, keys) if keys else (), strict=True):
            match data:
                case FileNotFoundError() if omit:
                    continue
                case Exception():
                    self._fail(key, data)
                case _:
                    texts[key] = data
        return texts

    def _nodes(self, texts: Mapping[str, bytes]) -> tuple[list[str], dict[str, ArrayMeta]]:
        """Return the paths of groups, and the metadata of arrays, without damaged documents if faults are collected."""
        groups: set[str] = set()
        metas: dict[str, ArrayMeta] = {}
        for key, text in texts.items():
            path, name = parent(key)
            if name == ".zgroup":
                groups.add(path)
            if name not in ARRAY_DOCUMENTS:
                continue
            try:
                document = zarrmeta.object_in(text, repr(key))
                meta = zarrmeta.array_meta(document, repr(key))
                if meta is not None:
                    metas[path] = meta
                elif name == ".zarray":
                    raise ManifestError(f"{key!r} lacks an array's zarr_format, shape or chunks")
                elif document.get("node_type") == "group":
                    groups.add(path)
            except ManifestError:
                if self._faults is None:
                    raise
        return sorted(groups - metas.keys()), metas

    def _arrays(self, metas: Mapping[str, ArrayMeta], texts: Mapping[str, bytes]) -> tuple[dict[str, Extents], Extents]:
        """Return the arrays with their chunks, and the keys that are no chunks."""
        placed: dict[str, list[tuple[int, Place]]] = {path: [] for path in metas}
        names: dict[str, list[str]] = {path: [] for path in metas}
        stray = dict.fromkeys(metas, 0)
        rest: dict[str, Place] = {}
        manifests = manifests_of(unedited(self._keyspace))
        for key, place in self._places.items():
            path = array_of(key, metas)
            if path not in metas:
                rest[key] = place
                continue
            grid, tail = metas[path].grid, relative(key, path)
            number = len(names[path]) if grid is None else grid.number(tail)
            if number is None:
                is_stray = manifests is None or key != manifests.manifest_key(path)
                stray[path] += is_stray
                if is_stray or not self._in_blocks:  # to compare chunks, manifests are read, and are no keys
                    rest[key] = place
            else:
                names[path] += [tail] if grid is None else []
                placed[path].append((number, place))
        arrays = {
            path: Extents(
                path,
                metas[path],
                Chunks.joined([*self._chunks.get(path, ()), Chunks.of_places(placed[path])]),
                self._shards(path),
                stray[path],
                tuple(names[path]),
                listed=path not in self._unlisted,
                dimensions=zarrmeta.dimension_names(metas[path], texts.get(join(path, ".zattrs"))),
            )
            for path in sorted(metas)
        }
        chunks = Chunks.of_places((number, rest[name]) for number, name in enumerate(sorted(rest)))
        return arrays, Extents("", ArrayMeta(2, (), None, None, "", "C", {}), chunks, names=tuple(sorted(rest)))


def _url(flat: FlatKeySpace, code: int) -> str:
    try:
        return flat.url(code)
    except ManifestError:  # no URL, and no target= that it would stand for
        return ""


def _below(keyspace: KeySpace, path: str) -> Steps[ArrayRows | Sequence[Listed] | None]:
    """Return all chunks of the array at ``path`` if it is sharded, or else the names directly below ``path``."""
    view = unedited(keyspace)
    if isinstance(view, ShardView):
        yield from together([view.lookup(join(path, name)) for name in ARRAY_DOCUMENTS])  # so that the array is known
        rows = yield from view.all_chunks(path)
        if rows is not None:
            return rows
    return (yield from keyspace.children(path))
