"""Survey a source: its groups, its arrays, and where each chunk lies. Metadata and indexes are read, chunks are not.

The references of a set are read as columns, millions at once. The chunks of other sources are listed and looked up; for
arrays in shards, the shards' indexes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, Contents, Numbers, make_column
from refshard_fs.core.columns import NO_TARGET, WHOLE, UInt64s
from refshard_fs.core.edits import unwrap_if_unedited
from refshard_fs.core.keys import ChunkGrid, find_nearest, join, make_relative, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Origin, Packed, Pin, Span, iterate_batches
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, ArrayMeta
from refshard_fs.errors import ManifestError, NotListable, RefShardError
from refshard_fs.reading.failures import name_key
from refshard_fs.reading.plan import PlannedRequest, Request
from refshard_fs.source.source import Source
from refshard_fs.tools.progress import show_progress

Positions = npt.NDArray[np.int64]

INLINE: Final = -1  # in the target column: the source itself holds the bytes
BATCH: Final = 4096  # keys that are looked up at a time
COLUMNS: Final = 1 << 16  # chunks that are looked up at a time: one shard may have many
LISTED: Final = "the key is listed, but cannot be found"


class SurveyedFileSystem(Protocol):
    """The members of a `RefShardFileSystem` that the tools use."""

    fo: Any
    source: Source

    @property
    def left_whole(self) -> dict[str, str]: ...
    def plan(self, paths: Sequence[str]) -> list[PlannedRequest]: ...
    @property
    def attribute_dtypes(self) -> Mapping[str, Mapping[str, str]]: ...

    def ls(self, path: str, *, detail: Literal[True]) -> list[dict[str, Any]]: ...
    def cat(self, path: list[str], *, on_error: Literal["omit"]) -> dict[str, bytes]: ...
    def isdir(self, path: str) -> bool: ...


class BytePlace(NamedTuple):
    """The place of one key's bytes: its target (or `INLINE`) and a range in it; ``stop`` is WHOLE for the target's end.

    ``derived`` bytes are made from the bytes of the range, which other keys may share. ``is_open`` ranges reach to the
    end of the target, even if their ``stop`` is known.
    """

    target: int
    start: int
    stop: int
    derived: bool = False
    is_open: bool = False


class PlacedChunks(NamedTuple):
    """The chunks of one array as columns: the number of each in the grid, and its `BytePlace`."""

    numbers: UInt64s
    targets: Positions
    starts: UInt64s
    stops: UInt64s
    derived: npt.NDArray[np.bool_]
    is_open: npt.NDArray[np.bool_]

    @classmethod
    def of_places(cls, places: Iterable[tuple[int, BytePlace]]) -> PlacedChunks:
        """Return the columns of (number, place) pairs."""
        rows = [(number, *place) for number, place in places]
        columns: Iterable[Any] = zip(*rows, strict=True) if rows else [()] * 6
        return cls(*map(np.array, columns, (np.uint64, np.int64, np.uint64, np.uint64, np.bool_, np.bool_)))

    @classmethod
    def join(cls, parts: Sequence[PlacedChunks]) -> PlacedChunks:
        """Return the chunks of all ``parts``, ascending by number; of chunks with equal numbers, the last is kept."""
        parts = [part for part in parts if len(part.numbers)] or parts[:1]
        found = cls(*map(np.concatenate, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]
        numbers = found.numbers
        if (numbers[1:] > numbers[:-1]).all():
            return found
        order = np.argsort(numbers, kind="stable")
        order = order[np.append(numbers[order[1:]] != numbers[order[:-1]], True)]
        return found.take(order)

    def take(self, rows: Positions) -> PlacedChunks:
        """Return the chunks in ``rows``."""
        return PlacedChunks(*(column[rows] for column in self))  # type: ignore[arg-type]  # of the same types


class Extents(msgspec.Struct, frozen=True, eq=False):
    """The ``chunks`` of one array that exist, ascending by their number in the grid.

    ``shards`` is the shape of a shard, counted in chunks. ``stray`` counts the keys below the array that are not chunks
    of it. Without a grid (``meta.grid``), chunks are numbered in the order of ``names``, their keys in the array.
    ``dimensions`` are names; empty if the metadata have none. If the source cannot list keys, ``listed`` is False, and
    no chunk is known.
    """

    path: str
    meta: ArrayMeta
    chunks: PlacedChunks
    shards: tuple[int, ...] = ()
    stray: int = 0
    names: tuple[str, ...] = ()
    listed: bool = True
    dimensions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.chunks.numbers)

    def make_key(self, position: int) -> str:
        """Return the key of the chunk at ``position``."""
        number, grid = int(self.chunks.numbers[position]), self.meta.grid
        return join(self.path, self.names[number] if grid is None else grid.tail(number))

    def make_keys(self, positions: Iterable[int]) -> tuple[str, ...]:
        """Return the keys of the chunks at ``positions``."""
        return tuple(map(self.make_key, positions))

    @property
    def possible(self) -> int | None:
        """The number of chunks in the grid, whether they exist or not; None without a grid."""
        return None if self.meta.grid is None else self.meta.grid.size

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of chunks along each dimension of the grid; empty without one."""
        return () if self.meta.grid is None else self.meta.grid.counts

    @property
    def shard_shape(self) -> tuple[int, ...] | None:
        """The number of elements along each dimension of a shard; None if chunks do not lie in shards."""
        if not self.shards or self.meta.chunks is None:
            return None
        return tuple(chunk * count for chunk, count in zip(self.meta.chunks, self.shards, strict=True))

    @property
    def sizes(self) -> UInt64s:
        """The size of each chunk in bytes; 0 if it is not known, for a range to the end of a target."""
        return np.where(self.chunks.stops == WHOLE, np.uint64(0), self.chunks.stops - self.chunks.starts)

    @property
    def unsized_count(self) -> int:
        """The number of chunks whose size is not known."""
        return int((self.chunks.stops == WHOLE).sum())


class Blocks:
    """The chunks of one array of a reference set, which are read a block at a time, on demand."""

    def __init__(self, source: Source, keyspace: KeySpace, path: str, array: ArrayChunks) -> None:
        self._source = source
        self._keyspace = keyspace
        self._path = path
        self._array = array

    def find_blocks(self, size: int) -> Iterable[int]:
        """Return the numbers of the blocks of ``size`` chunks that may have chunks."""
        return self._array.list_blocks(size)

    def chunks(self, numbers: range, urls: dict[str, int]) -> PlacedChunks:
        """Return the chunks with ``numbers``. Targets are positions in ``urls``; new URLs are added to ``urls``."""
        grid = self._array.grid
        numbers = range(numbers.start, min(numbers.stop, grid.size))
        found = self._source.run(self._path, partial(self._keyspace.chunks, self._path, numbers, grid))
        resolve = partial(_resolve, self._keyspace)
        return _place_chunks(found, numbers, None, lambda url, *_: urls.setdefault(resolve(url), len(urls)))


Fault = tuple[str, Exception]  # a key or a directory, and why it could not be surveyed


class Survey(msgspec.Struct, frozen=True, eq=False):
    """The content of a source: its metadata ``documents`` by key, and the ``urls`` of its targets by number.

    ``inline_keys`` and ``inline_bytes`` count the keys, metadata included, whose bytes are inline in a reference set.
    ``rest`` has the keys that are neither chunks nor metadata, like chunks of an array without a grid. By target,
    ``pins`` are the versions that the source expects, and ``origins`` the sets of others that named the target; targets
    in ``optional`` need not exist. ``blocks`` has more chunks of ``arrays``, if the survey was made in blocks.
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
        """The number of keys."""
        return len(self.documents) + len(self.rest) + sum(map(len, self.arrays.values()))


def survey(
    fs: SurveyedFileSystem, array: str | None = None, faults: list[Fault] | None = None, *, in_blocks: bool = False
) -> Survey:
    """Survey all of ``fs``, or only the array at the path ``array``; ``in_blocks`` leaves columns of sets in `Blocks`.

    ManifestError if metadata is not a JSON object; FileNotFoundError if there is no such array; NotListable if arrays
    can be found neither by listing nor in consolidated metadata. Arrays whose chunks cannot be listed are included
    without chunks. With ``faults``, errors of single keys and directories are added to it, not raised.
    """
    return _SurveyBuilder(fs, array, faults, in_blocks=in_blocks).run()


def read_keys(
    fs: SurveyedFileSystem, keys: Sequence[str], on_progress: Callable[[int], object] | None = None
) -> list[Any]:
    """Return the bytes, or the error, of each of ``keys``, also of an asynchronous filesystem.

    ``on_progress(1)`` is called when a key has been read.
    """
    return fs.source.wait(fs.source.read_all, list(map(Request, keys)), on_progress)


def find_array(key: str, arrays: Mapping[str, object]) -> str:
    """Return the path of the array in which ``key`` lies; the root's path if it lies in none."""
    return find_nearest(key, arrays) or ""


class _SurveyBuilder:
    """Collect the documents, the targets and the places of chunks for one survey."""

    def __init__(
        self, fs: SurveyedFileSystem, only: str | None, faults: list[Fault] | None, *, in_blocks: bool
    ) -> None:
        self._fs, self._only, self._faults = fs, only, faults
        self._source = fs.source
        self._in_blocks = in_blocks
        self._blocks: dict[str, Blocks] = {}
        self._keyspace = unwrap_if_unedited(self._source.open())
        self._urls: dict[str, int] = {}
        self._pins: dict[int, set[Pin]] = {}
        self._origins: dict[int, Origin] = {}
        self._optional: set[int] = set()  # targets of keys that exist even without the target
        self._chunks: dict[str, list[PlacedChunks]] = {}  # by array, as columns
        self._places: dict[str, BytePlace] = {}  # of keys that are in no columns

    def run(self) -> Survey:
        errors: dict[str, Exception] = {}
        prefix = self._only or ""
        contents: Contents = self._source.run(prefix, partial(self._keyspace.contents, prefix, errors))
        documents = {key: value for key, value in contents.members.items() if zarrmeta.is_metadata(key)}
        texts = {key: value for key, value in documents.items() if isinstance(value, bytes)}
        texts |= self._read_documents([key for key in documents if key not in texts])
        groups, metas = self._parse_nodes(texts)
        if self._only is not None and self._only not in metas:
            raise FileNotFoundError(f"there is no array {self._only!r}: 'refshard tree SOURCE' lists the arrays")
        unlisted = {path for path, error in errors.items() if isinstance(error, NotListable) and path in metas}
        of_cube = {
            path: grid for path in errors if (grid := self._find_grid_in_cube(path, metas, unlisted)) is not None
        }
        # Errors of unreadable documents come first: they explain more than chunks that cannot be listed.
        for path, error in sorted(errors.items(), key=lambda item: isinstance(item[1], NotListable)):
            if path in texts or path in of_cube:  # a document that was read, and is invalid; or an array
                continue
            if path not in unlisted:
                self._fail(path, error)
            elif self._faults is not None:
                self._faults.append((path, error))
        self._add_arrays({path: array for path, array in contents.arrays.items() if path not in of_cube})
        for path, grid in of_cube.items():
            self._look_up_in_pieces(path, grid)
        others = {key: None for key in contents.members if not zarrmeta.is_metadata(key)}
        self._look_up({**others, **contents.others}, listed=True)
        arrays, rest = self._make_arrays(metas, texts, unlisted, contents.indexes)
        is_set = self._keyspace.is_reference_set
        documents_inline = [key for key in texts if is_set and not isinstance(documents[key], list)]
        inline = [len(texts[key]) for key in documents_inline]
        for extents in (*arrays.values(), rest):
            inline += extents.sizes[extents.chunks.targets == INLINE].tolist()
        return Survey(
            list(self._urls),
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

    def _find_grid_in_cube(
        self, path: str, metas: Mapping[str, ArrayMeta], unlisted: Collection[str]
    ) -> ChunkGrid | None:
        """Return the grid of an array of a cube, if its chunks are to be looked up one by one; else None."""
        is_cube = self._keyspace.cube is not None and self._faults is not None
        return metas[path].grid if is_cube and path in metas and path not in unlisted else None

    def _look_up_in_pieces(self, path: str, grid: ChunkGrid) -> None:
        """Add the chunks of an array of a cube that has unreadable pieces; the fault of each piece is added once."""
        known: set[str] = set()
        with show_progress("look up") as shown:
            shown.set_size(grid.size)
            for numbers in iterate_batches(range(grid.size), BATCH):
                keys = [join(path, grid.tail(number)) for number in numbers]
                for key, entry in zip(keys, self._source.wait(self._find_all, keys), strict=True):
                    if not isinstance(entry, Exception):
                        self._add(key, entry)
                    elif str(entry) not in known:
                        known.add(str(entry))
                        self._fail(key, entry)
                shown.relative_update(len(keys))

    def _fail(self, key: str, error: Exception) -> None:
        """Add the ``error`` of looking up ``key`` to the list of faults; raise it without a list, and for the root."""
        if self._faults is None or not key:
            raise name_key(key, error)
        self._faults.append((key, error))

    async def _find_all(self, keys: Sequence[str]) -> list[Any]:
        return await self._source.engine().find_all(self._keyspace, keys)

    def _add_arrays(self, arrays: Mapping[str, ArrayChunks]) -> None:
        """Add the chunks of all arrays; if a survey ``in_blocks`` is wanted, arrays of reference sets as `Blocks`."""
        count = sum(
            sum(map(len, array.numbers)) if isinstance(array.numbers, Sequence) else len(array.numbers)
            for array in arrays.values()
        )
        with show_progress("look up") as shown:
            shown.set_size(count)
            for path, array in arrays.items():
                if self._in_blocks and self._keyspace.is_reference_set and not array.grid.shards:
                    self._blocks[path] = Blocks(self._source, self._keyspace, path, array)
                    continue
                for numbers, sizes in array.iterate_batches(COLUMNS):
                    self._add_chunks(path, array.grid, numbers, sizes)
                    shown.relative_update(len(numbers))

    def _add_chunks(self, path: str, grid: ChunkGrid, numbers: Numbers, sizes: UInt64s | None) -> None:
        try:
            found: Chunks = self._source.run(path, partial(self._keyspace.chunks, path, numbers, grid))
        except (OSError, RefShardError, ValueError):
            keys = [join(path, grid.tail(number)) for number in make_column(numbers).tolist()]
            known = [None] * len(keys) if sizes is None else sizes.tolist()
            names = {key: None if size == WHOLE else size for key, size in zip(keys, known, strict=True)}
            self._look_up(names, listed=sizes is not None)  # by key: then each chunk has its own entry or error
            return
        if sizes is not None and self._faults is not None:
            existing = {*found.list_present(), *found.packed, *found.checks}
            for row in range(len(found)) if len(existing) < len(found) else ():
                if row not in existing:
                    self._fail(join(path, grid.tail(int(numbers[row]))), FileNotFoundError(LISTED))

        def add_target(url: str | None, pin: Pin | None, origin: Origin) -> int:
            return self._add_target(_resolve(self._keyspace, url), pin, origin)

        placed = _place_chunks(found, numbers, sizes, add_target)
        packed = [
            (
                int(numbers[row]),
                self._make_place(entry, None if sizes is None or sizes[row] == WHOLE else int(sizes[row])),
            )
            for row, entry in found.packed.items()
        ]
        self._chunks.setdefault(path, []).append(placed)
        if packed:
            self._chunks[path].append(PlacedChunks.of_places(packed))

    def _look_up(self, names: Mapping[str, int | None], *, listed: bool) -> None:
        with show_progress("look up") as shown:
            shown.set_size(len(names))
            for keys in iterate_batches(list(names), BATCH):
                entries = self._fs.source.wait(self._find_all, keys)
                for key, entry in zip(keys, entries, strict=True):
                    match entry:
                        case Exception():
                            self._fail(key, entry)
                        case None if listed and self._faults is not None:
                            self._fail(key, FileNotFoundError(LISTED))
                        case _:
                            self._add(key, entry, names[key])
                shown.relative_update(len(keys))

    def _add(self, key: str, entry: Entry | None, size: int | None = None) -> None:
        if entry is not None:
            self._places[key] = self._make_place(entry, size)

    def _make_place(self, entry: Entry, size: int | None) -> BytePlace:
        """Return the place of an entry; ``size`` is the size of its bytes, if a listing has it."""
        match entry:
            case Inline(data):
                return BytePlace(INLINE, 0, len(data))
            case Packed(Span(url, start, stop, optional=is_optional, pin=pin, origin=origin)):
                target = self._add_target(url, pin, origin)
                if is_optional:
                    self._optional.add(target)
                return BytePlace(target, max(start, 0), WHOLE if stop is None or start < 0 else stop, derived=True)
            case Span(url, start, stop, pin=pin, origin=origin):
                target = self._add_target(url, pin, origin)
                if start < 0:
                    return BytePlace(target, 0, WHOLE, derived=True)
                is_open = stop is None or not entry.exact
                if stop is None or is_open:
                    stop = WHOLE if size is None else start + size
                return BytePlace(target, start, stop, is_open=is_open)

    def _add_target(self, url: str, pin: Pin | None, origin: Origin) -> int:
        """Add a target with its pin and its origin, and return its number."""
        target = self._urls.setdefault(url, len(self._urls))
        self._origins[target] = self._origins.get(target, origin) and origin
        if pin is not None:
            self._pins.setdefault(target, set()).add(pin)
        return target

    def _read_documents(self, keys: Sequence[str]) -> dict[str, bytes]:
        texts: dict[str, bytes] = {}
        for key, data in zip(keys, read_keys(self._fs, keys) if keys else (), strict=True):
            match data:
                case Exception():
                    self._fail(key, data)
                case _:
                    texts[key] = data
        return texts

    def _parse_nodes(self, texts: Mapping[str, bytes]) -> tuple[list[str], dict[str, ArrayMeta]]:
        """Return the paths of groups, and the metadata of arrays; with faults, damaged documents are left out."""
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
                    missing = [name for name in ("zarr_format", "shape", "chunks") if name not in document]
                    found = (
                        f"missing {', '.join(missing)}" if missing else f"zarr_format {document['zarr_format']!r:.80}"
                    )
                    raise ManifestError(
                        f"{key!r}: expected an array of zarr_format 2 with shape and chunks, found {found}"
                    )
                elif document.get("node_type") == "group":
                    groups.add(path)
            except ManifestError:
                if self._faults is None:
                    raise
        return sorted(groups - metas.keys()), metas

    def _make_arrays(
        self,
        metas: Mapping[str, ArrayMeta],
        texts: Mapping[str, bytes],
        unlisted: Collection[str],
        indexes: Collection[str],
    ) -> tuple[dict[str, Extents], Extents]:
        """Return the arrays with their chunks, and the keys that are not chunks."""
        placed: dict[str, list[tuple[int, BytePlace]]] = {path: [] for path in metas}
        names: dict[str, list[str]] = {path: [] for path in metas}
        stray = dict.fromkeys(metas, 0)
        rest: dict[str, BytePlace] = {}
        for key, place in self._places.items():
            path = find_array(key, metas)
            if path not in metas:
                rest[key] = place
                continue
            grid, tail = metas[path].grid, make_relative(key, path)
            number = len(names[path]) if grid is None else grid.number(tail)
            if number is None:
                stray[path] += key not in indexes
                if key not in indexes or not self._in_blocks:  # a manifest is left out where its chunks are compared
                    rest[key] = place
            else:
                names[path] += [tail] if grid is None else []
                placed[path].append((number, place))
        grids = self._keyspace.grids
        arrays = {
            path: Extents(
                path,
                metas[path],
                PlacedChunks.join([*self._chunks.get(path, ()), PlacedChunks.of_places(placed[path])]),
                grids[path].shards if path in grids else (),
                stray[path],
                tuple(names[path]),
                listed=path not in unlisted,
                dimensions=zarrmeta.dimension_names(metas[path], texts.get(join(path, ".zattrs"))),
            )
            for path in self._keyspace.sort_paths(sorted(metas))
        }
        chunks = PlacedChunks.of_places((number, rest[name]) for number, name in enumerate(sorted(rest)))
        return arrays, Extents("", ArrayMeta(2, (), None, None, "", "C", {}), chunks, names=tuple(sorted(rest)))


def _resolve(keyspace: KeySpace, url: str | None) -> str:
    try:
        return keyspace.resolve(url)
    except ManifestError:  # the reference has no URL, and target= is not given
        return ""


def _place_chunks(
    found: Chunks,
    numbers: Numbers,
    sizes: UInt64s | None,
    add_target: Callable[[str | None, Pin | None, Origin], int],
) -> PlacedChunks:
    """Return the chunks that are ranges or inline; ``add_target`` returns the number of a target."""
    column = make_column(numbers)
    rows = np.flatnonzero(found.ranges.targets != NO_TARGET)
    targets, starts, lengths = found.ranges.take(rows)
    pins = found.pins or [None] * len(found.urls)
    origins = found.origins or [()] * len(found.urls)
    codes = np.array([add_target(*row) for row in zip(found.urls, pins, origins, strict=True)], np.int64)
    is_open = lengths == WHOLE
    if sizes is not None:
        lengths = np.where(is_open, sizes[rows], lengths)
    stops = np.where(lengths == WHOLE, lengths, starts + lengths)
    derived = np.zeros(len(rows), bool)
    placed = PlacedChunks(column[rows], codes[targets], starts, stops, derived, is_open)
    inline = [(int(column[row]), BytePlace(INLINE, 0, len(data))) for row, data in found.inline.items()]
    return PlacedChunks.join([placed, PlacedChunks.of_places(inline)]) if inline else placed
