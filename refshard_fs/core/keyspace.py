"""The key space of a source: everything that may be asked about its keys. No I/O here.

`KeySpace` is the only interface between formats and the engine. Key spaces compose by wrapping one another: a view that
shows inner chunks asks its base for the entry of the shard, and so on. A format of arrays that zarr did not write
returns a `core.array_group.ArrayGroup`, and defines none.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Any, Final, NamedTuple, overload

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers, column_of
from refshard_fs.core.chunks import Listing as ArrayListing
from refshard_fs.core.columns import WHOLE, ChunkTable, UInt64s
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, join, relative, splits
from refshard_fs.core.model import (
    Directories,
    Entry,
    Inline,
    Listed,
    Load,
    Raw,
    Span,
    Steps,
    answered,
    batches,
    together,
)
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS
from refshard_fs.errors import RefShardError
from refshard_fs.security.origins import NOTHING, Origins

# Runs the look-up that a function makes (again for each try), on behalf of a key, and returns its answer.
Run = Callable[[str, Callable[[], Steps[Any]]], Any]

DIRECTORIES: Final = 64  # that are listed together


class Place(NamedTuple):
    """The chunk that a key names: the path of its array (empty for the root), and its number in the array's grid."""

    array: str
    number: int


class LookUp(NamedTuple):
    """One look-up of several keys: their places in what was asked for, and steps that return the entries."""

    places: Sequence[int]
    steps: Steps[Sequence[Entry | None]]


class KeySpace(ABC):
    """An immutable set of keys and their entries, shared by threads and event loops. Keys are normal (`normalise`).

    A format has to define `lookup` and `children`. Everything else has a default that is right for any source, though
    perhaps not fast. What returns `Steps` is a generator: it yields needs, and one that has none begins with
    ``yield from ()``.
    """

    # The name of the format as which the source was recognised; references in memory have this one.
    format = "references"
    # The chunk grids of the arrays that are known without further reads, by array path.
    grids: Mapping[str, ChunkGrid] = {}
    # The key space that this one wraps, if any.
    base: KeySpace | None = None
    # The URLs of all targets, as far as they are known without reads.
    urls: Sequence[str | None] = ()
    # The URL of the document that a commit replaces last.
    document_url: str | None = None
    # The URL of the directory that the source is, if it is one.
    root_url: str | None = None
    # Returns the URL of a key's object, if each key is one object.
    url_of: Callable[[str], str] | None = None
    # The format in which a commit writes the source; None where it takes no commits.
    committed_as: str | None = None
    # The version of the document that it was read from.
    version: int | None = None
    # Why an array is not shown, or its shards are left whole, by the array's path.
    reports: Mapping[str, str] = {}
    # dtypes of attributes, which JSON cannot express, by array path and name: xarray decodes by that of scale_factor.
    attribute_dtypes: Mapping[str, Mapping[str, str]] = {}
    # The names of unlimited dimensions, by the path of their group.
    unlimited_dimensions: Mapping[str, Sequence[str]] = {}
    # Whether look-ups never need a read, so that `find` may be called.
    in_memory = False
    # Whether the metadata of every array is known without reads: reading never reveals another array.
    holds_all_metadata = False
    # Whether the root has consolidated metadata that this key space made itself.
    consolidates = False
    # The key of a document with all metadata that a commit makes anew.
    consolidated_anew: str | None = None
    # Whether the chunk manifests of its arrays are resolved already.
    resolves_manifests = False
    # Whether it is a set of references: `contents` needs no listing, `chunks` no look-up of single keys, and URLs are
    # as the set spells them.
    is_reference_set: bool = False
    # The set that it shows, where that is in memory as columns; then nothing has to be collected.
    references: Any = None
    # The documents of the root that recognising the source has read; None where one is absent.
    root_documents: Mapping[str, bytes | None] = {}
    # The cube that it is or shows, if any: a key space with a ``document``, of which each set is a line.
    cube: Any = None
    # Uncommitted writes over ``base``.
    edits: Any = None

    @property
    def origins(self) -> Origins:
        """Which URLs sets of others named, as far as a set of references records it."""
        return NOTHING

    @property
    def strangers(self) -> frozenset[str]:
        """The servers of sets of others that this one was made of, or whose metadata it shows, as far as it says."""
        return frozenset()

    @abstractmethod
    def lookup(self, key: str) -> Steps[Entry | None]:
        """Return the entry of ``key``, or None if there is no such key; directories are no keys."""

    @abstractmethod
    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        """Return what lies directly below ``prefix``, sorted by name, or None if it is no directory.

        Names are relative to ``prefix``. Sizes are those of the bytes a read would return.
        """

    def object_of(self, key: str) -> str:
        """Return the key of the stored object that holds ``key``, as far as that is known without reads."""
        return key

    def is_directory(self, prefix: str) -> Steps[bool]:
        """Return whether ``prefix`` is a directory; the root always is."""
        return not prefix or (yield from self.children(prefix)) is not None

    def directories(self, prefix: str) -> Steps[Directories | None]:
        """Return what all directories of objects at and below ``prefix`` hold, for `answered`, of one flat listing.

        None where that is not to be had: then they are listed one by one.
        """
        yield from ()
        return None

    def find(self, key: str) -> Entry | None:
        """Return the entry of ``key``, or None if there is no such key; only of key spaces that are ``in_memory``."""
        try:
            need = next(self.lookup(key))
        except StopIteration as done:
            found: Entry | None = done.value
            return found
        raise TypeError(f"{type(self).__name__} says that it is in memory, and needs {need} for {key!r}")

    def read(self, key: str) -> Steps[bytes | None]:
        """Return the bytes of ``key``, or None if there is no such key."""
        match (yield from self.lookup(key)):
            case None:
                return None
            case Inline(data):
                return data
            case entry:
                found: bytes | None = yield Load(entry, Raw())
                return found

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        """Return look-ups that together find all of ``keys``. An error of one of them is that of all its keys.

        Keys that are found by the same index are worth finding in one look-up.
        """
        return [self.single_lookup(place, key) for place, key in enumerate(keys)]

    def reads(self, keys: Sequence[str]) -> list[LookUp]:
        """Return the same look-ups for keys that are read at once: some may find bytes, where others find ranges."""
        return self.lookups(keys)

    def likely(self, keys: Sequence[str]) -> dict[int, Span]:
        """Return where some of ``keys`` probably lie, by their places, if looking them up takes a read to be sure."""
        return {}

    def single_lookup(self, place: int, key: str) -> LookUp:
        """Return the look-up of one key, which is the one at ``place`` in the sequence that was asked for."""
        return LookUp((place,), _as_sequence(self.lookup(key)))

    def is_empty(self, key: str) -> Steps[bool]:
        """Return whether ``key``, which has no entry, is empty on purpose: chunk manifests can declare that."""
        yield from ()
        return False

    def is_inner(self, key: str) -> bool:
        """Return whether ``key`` is known to be that of an inner chunk of a shard."""
        return False

    def full_shards(self, keys: Iterable[str]) -> Steps[list[Span]]:
        """Return the ranges of the shards that are worth reading whole if ``keys`` are read in this order."""
        yield from ()
        return []

    def keys_of_other_parts(self, key: str) -> Iterator[str]:
        """Yield a key of each part, or block of an index, that was not read yet, those nearest to ``key`` first.

        A look-up of such a key reads it. Sources that consist of others have parts.
        """
        return iter(())

    def some_urls(self) -> Steps[Sequence[str | None]]:
        """Return the URLs of some targets, as they are written; a set that is read lazily has to look for them."""
        yield from ()
        return self.urls

    # ------------------------------------------------------------------ whole arrays

    @property
    def source(self) -> KeySpace:
        """The source itself, without the views that are put over it."""
        return self

    @property
    def whole_shards(self) -> KeySpace:
        """The same source with each shard as one chunk, as it is stored."""
        return self

    def resolve(self, url: str | None) -> str:
        """Return a URL of `chunks` as an absolute one; ManifestError for None where there is no default target."""
        return url or ""

    def as_mapping(self, run: Run) -> Mapping[str, Any] | None:
        """Return the set of references as the mapping that its JSON is, where it is one; ``run`` runs look-ups."""
        return None

    def documents(self, prefix: str = "") -> Steps[dict[str, bytes]]:
        """Return the metadata documents of every array and group below ``prefix``, by key."""
        members = (yield from self.contents(prefix)).members
        found: dict[str, bytes] = {}
        for key, value in members.items():
            if zarrmeta.is_metadata(key):
                data = value if isinstance(value, bytes) else (yield from self.read(key))
                if data is not None:
                    found[key] = data
        return found

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        """Return what lies below ``prefix``: the metadata, and which chunks each array may have.

        By default all directories are listed. With ``errors``, the error of a directory or a document is added to it,
        by its key, and not raised; of a directory that cannot be listed, the documents are asked for by name.
        """
        walk = _Walk(self, errors)
        known = yield from self.directories(prefix)
        root = prefix if self.url_of is None else self.url_of(prefix)
        yield from answered(walk.directory(prefix, None), root, known)
        return walk.contents()

    def list_chunks(self, array: str) -> Steps[ArrayListing | None]:
        """Return what lies below ``array``, if the key space knows a better way than to list its own directories."""
        yield from ()
        return None

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        """Return where the chunks ``numbers`` of ``array`` lie, a row for each; of those that do not exist, nothing.

        ``grid`` is that of the array, if the caller knows it. By default the keys are looked up together.
        """
        if grid is None:
            grid = self.grids[array]
        column = column_of(numbers)
        builder = ChunksBuilder(len(column))
        entries = yield from self.entries([join(array, tail) for tail in tails(grid, column)])
        for row, entry in enumerate(entries):
            builder.put_entry(row, entry)
        return builder.finish()

    def snapshot(self, threshold: int, tell: Callable[[int], object]) -> Steps[Any]:
        """Return the set of references to all keys, pinned to their versions, if a listing states these; else None.

        Metadata of up to ``threshold`` bytes are inline. ``tell`` is called with how many more keys are known.
        """
        yield from ()
        return None

    def entries(self, keys: Sequence[str]) -> Steps[list[Entry | None]]:
        """Return the entries of ``keys``, which are looked up together."""
        look_ups = self.lookups(keys)
        found: list[Entry | None] = [None] * len(keys)
        for look_up, entries in zip(look_ups, (yield from together([one.steps for one in look_ups])), strict=True):
            for place, entry in zip(look_up.places, entries, strict=True):
                found[place] = entry
        return found

    @property
    def inline_grids(self) -> Mapping[str, ChunkGrid]:
        """The grids of those arrays whose metadata documents need no read either."""
        return self.grids

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        """Return whether it is known that none of ``marks`` occurs in the metadata of the root or of any array."""
        return False


class Grids(Mapping[str, ChunkGrid]):
    """The chunk grids of arrays, found as they are asked for.

    ``find`` returns the grid of one array, if it is known. ``paths`` returns the paths of all arrays that may be known.
    """

    def __init__(self, find: Callable[[str], ChunkGrid | None], paths: Callable[[], Iterable[str]]) -> None:
        self.find = find
        self.paths = paths

    def get(self, path: str, default: Any = None) -> Any:
        found = self.find(path)
        return default if found is None else found

    def __getitem__(self, path: str) -> ChunkGrid:
        found = self.find(path)
        if found is None:
            raise KeyError(path)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter([path for path in self.paths() if self.find(path) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Walk:
    """Lists all directories of a key space, and reads the metadata in them."""

    def __init__(self, keyspace: KeySpace, errors: dict[str, Exception] | None) -> None:
        self._keyspace = keyspace
        self._errors = errors
        self._members: dict[str, Any] = {}
        self._others: dict[str, int | None] = {}
        self._arrays: dict[str, ArrayChunks] = {}
        self._is_known: set[str] = set()  # arrays whose chunks are not listed here
        self._indexes: frozenset[str] = frozenset()
        self._sizes: dict[str, dict[int, int]] = {}  # by array and number

    def _all(self, parts: Sequence[Callable[[], Steps[None]]]) -> Steps[None]:
        """Go through all ``parts`` together. Each of them notes its own errors, if it is gone through alone."""
        if not parts:
            return
        try:
            yield from together([part() for part in parts]) if len(parts) > 1 else parts[0]()
        except (OSError, RefShardError):
            if self._errors is None or len(parts) == 1:
                raise
            yield from self._all(parts[: len(parts) // 2])
            yield from self._all(parts[len(parts) // 2 :])

    def directory(self, prefix: str, array: str | None) -> Steps[None]:
        """Add all that lies below ``prefix``, which is a directory of chunks of ``array``, if of one."""
        keyspace = self._keyspace
        try:
            names = (yield from keyspace.children(prefix)) or ()
        except (OSError, RefShardError) as e:
            if self._errors is None:
                raise
            self._errors[prefix] = e
            names = [] if array is not None else [Listed(name, None) for name in (*ARRAY_DOCUMENTS, ".zattrs")]
        documents = {n.name for n in names if not n.is_directory and zarrmeta.is_metadata(n.name)}
        yield from self._all([partial(self._document, prefix, n.name) for n in names if n.name in documents])
        if prefix in self._arrays:
            array = prefix
            listing = None
            try:
                listing = yield from keyspace.list_chunks(prefix)
            except (OSError, RefShardError) as e:
                if self._errors is None:
                    raise
                self._errors[prefix] = e
            if listing is not None:
                self._arrays[prefix] = listing.chunks
                self._is_known.add(prefix)
                self._indexes |= listing.indexes
                self._others |= {k: size for k, size in listing.others.items() if not zarrmeta.is_metadata(k)}
                yield from self._all([partial(self.directory, path, None) for path in listing.directories])
                return
        self._files(prefix, [n for n in names if not n.is_directory and n.name not in documents], array)
        for some in batches([join(prefix, n.name) for n in names if n.is_directory], DIRECTORIES):
            yield from self._all([partial(self.directory, path, array) for path in some])

    def _document(self, prefix: str, name: str) -> Steps[None]:
        key = join(prefix, name)
        try:
            data = yield from self._keyspace.read(key)
            if data is None:
                return
            self._members[key] = data
            grid = _grid_of(data, key) if name in ARRAY_DOCUMENTS else None
        except (OSError, RefShardError) as e:
            if self._errors is None:
                raise
            if str(self._errors.get(prefix)) == str(e):  # the directory cannot be listed because of the document
                if name not in ARRAY_DOCUMENTS:
                    return
                del self._errors[prefix]
            self._errors[key] = e
            return
        if grid is not None:
            self._arrays[prefix] = ArrayChunks(grid)

    def _files(self, prefix: str, files: Sequence[Listed], array: str | None) -> None:
        grid = None if array is None else self._arrays[array].grid
        stem = "" if array is None else relative(prefix, array)
        sizes = self._sizes.setdefault(array or "", {})
        for listed in files:
            number = None if grid is None else grid.number(join(stem, listed.name))
            if number is None:
                self._others[join(prefix, listed.name)] = listed.size
            else:
                sizes[number] = WHOLE if listed.size is None else listed.size

    def contents(self) -> Contents:
        """Return all that was added."""
        arrays = {
            path: array
            if path in self._is_known
            else ArrayChunks(
                array.grid,
                np.array([*self._sizes.get(path, ())], np.uint64),
                np.array([*self._sizes.get(path, {}).values()], np.uint64),
            )
            for path, array in self._arrays.items()
        }
        return Contents(self._members, arrays, self._others, self._indexes)


def _grid_of(data: bytes, key: str) -> ChunkGrid | None:
    """Return the grid of the array that the document ``key`` describes; None where it describes none."""
    try:
        document = zarrmeta.loads(data)
    except ValueError:
        return None  # readers see the bytes as they are
    meta = zarrmeta.array_meta(document, repr(key)) if isinstance(document, dict) else None
    return None if meta is None else meta.grid


class View(KeySpace):
    """The keys of ``base``, some of which a subclass shows otherwise. All other answers are those of the base."""

    base: KeySpace

    def __init__(self, base: KeySpace) -> None:
        self.base = base
        for name in (
            "format",
            "grids",
            "urls",
            "document_url",
            "root_url",
            "url_of",
            "reports",
            "consolidated_anew",
            "consolidates",
        ):
            setattr(self, name, getattr(base, name))
        self.attribute_dtypes = base.attribute_dtypes
        self.unlimited_dimensions = base.unlimited_dimensions

    @property
    def strangers(self) -> frozenset[str]:
        return self.base.strangers

    @property
    def origins(self) -> Origins:
        return self.base.origins

    @property
    def source(self) -> KeySpace:
        return self.base.source

    @property
    def cube(self) -> Any:  # of several sources together, the first one's
        return self.base.cube

    @property
    def committed_as(self) -> str | None:  # type: ignore[override]  # a view that maps chunks takes no commits
        return self.base.committed_as

    def resolve(self, url: str | None) -> str:
        return self.base.resolve(url)

    def snapshot(self, threshold: int, tell: Callable[[int], object]) -> Steps[Any]:
        return (yield from self.base.snapshot(threshold, tell))

    def lookup(self, key: str) -> Steps[Entry | None]:
        return (yield from self.base.lookup(key))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        return (yield from self.base.children(prefix))

    def is_directory(self, prefix: str) -> Steps[bool]:
        return (yield from self.base.is_directory(prefix))

    def object_of(self, key: str) -> str:
        return self.base.object_of(key)

    def is_empty(self, key: str) -> Steps[bool]:
        return (yield from self.base.is_empty(key))

    def directories(self, prefix: str) -> Steps[Directories | None]:
        return (yield from self.base.directories(prefix))

    def keys_of_other_parts(self, key: str) -> Iterator[str]:
        return self.base.keys_of_other_parts(key)

    def some_urls(self) -> Steps[Sequence[str | None]]:
        return (yield from self.base.some_urls())


def lookups_of(base: KeySpace, keys: Sequence[str], places: Sequence[int]) -> list[LookUp]:
    """Return look-ups in ``base`` of those of ``keys`` that are at ``places``."""
    found = base.lookups([keys[place] for place in places])
    return [LookUp([places[number] for number in numbers], steps) for numbers, steps in found]


def place(grids: Mapping[str, ChunkGrid], key: str) -> Place | None:
    """Return which chunk of the arrays with ``grids`` has the key ``key``; None if it is no chunk key of any."""
    for path, rest in splits(key):
        grid = grids.get(path)
        number = None if grid is None else grid.number(rest)
        if number is not None:
            return Place(path, number)
    return None


def _as_sequence(steps: Steps[Entry | None]) -> Steps[Sequence[Entry | None]]:
    return ((yield from steps),)


# ----------------------------------------------------------------------------------------------------
# Listings of hundreds of thousands of chunk keys, made of the columns of a table.


FEW: Final = 64  # names that are inserted one by one into a long listing
_BARE: Final = ChunkKeyEncoding("v2", ".")

by_name: Callable[[Listed], Any] = attrgetter("name")


class Listing(Sequence[Listed]):
    """The files of one directory, sorted, as two lists; each `Listed` is made when it is asked for.

    ``paths`` are the names with ``stem`` before them: the path of the directory and a slash, or nothing for the root.
    """

    __slots__ = ("paths", "sizes", "stem")

    def __init__(self, stem: str, paths: list[str], sizes: list[int | None]) -> None:
        self.stem = stem
        self.paths = paths
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Listed: ...
    @overload
    def __getitem__(self, index: slice) -> list[Listed]: ...
    def __getitem__(self, index: int | slice) -> Listed | list[Listed]:
        if isinstance(index, slice):
            return list(map(self.__getitem__, range(len(self))[index]))
        return Listed(self.paths[index][len(self.stem) :], self.sizes[index])

    def insert(self, file: Listed) -> None:
        """Add ``file``, in place of one of the same name."""
        path = self.stem + file.name
        at = bisect.bisect_left(self.paths, path)
        if at < len(self.paths) and self.paths[at] == path:
            self.sizes[at] = file.size
        else:
            self.paths.insert(at, path)
            self.sizes.insert(at, file.size)


def merged(*parts: Sequence[Listed]) -> Sequence[Listed]:
    """Return all that ``parts`` list of one directory, sorted; of two with the same name, the one that comes last.

    A long `Listing` and a few files are a `Listing` again, and so are several long ones.
    """
    most = max(parts, key=len)
    others = [listed for part in parts if part is not most for listed in part if len(part) <= FEW]
    if isinstance(most, Listing) and sum(map(len, parts)) == len(most) + len(others):
        if not any(listed.is_directory for listed in others):
            for listed in others:
                most.insert(listed)
            return most
    listings = [part for part in parts if isinstance(part, Listing)]
    if sum(map(len, listings)) == sum(map(len, parts)) and len({part.stem for part in listings}) == 1:
        # In half the time: no file becomes a `Listed`.
        sizes = {path: size for part in listings for path, size in zip(part.paths, part.sizes, strict=True)}
        paths = sorted(sizes)
        return Listing(listings[0].stem, paths, [sizes[path] for path in paths])
    found = {listed.name: listed for part in parts for listed in part}
    return [found[name] for name in sorted(found)]


def tails(grid: ChunkGrid, numbers: UInt64s) -> Iterable[str]:
    """Return the keys, relative to their array, of many chunks: the same as `ChunkGrid.tail` of each."""
    if not grid.counts:
        return map(grid.tail, numbers.tolist())
    left, columns = numbers, list[Iterable[str]]()
    for count in reversed(grid.counts):
        left, coords = np.divmod(left, np.uint64(count))
        known = [*map(str, range(count))] if count <= len(numbers) else None
        columns.append(map(str if known is None else known.__getitem__, coords.tolist()))
    if grid.encoding.name == "default":
        columns.append(["c"] * len(numbers))
    return map(grid.encoding.separator.join, zip(*reversed(columns), strict=True))


def chunk_names(grid: ChunkGrid, numbers: UInt64s, stem: str = "") -> tuple[list[str], UInt64s]:
    """Return the keys, with ``stem`` before each, of the chunks ``numbers``, sorted, and the numbers in the same order.

    Separators sort before digits, so keys sort like tuples of the texts of their coordinates. Where most chunks of the
    grid exist, all of its keys are made in that order, which is faster than sorting.
    """
    if grid.counts and grid.size <= 2 * len(numbers):
        head = "c" + grid.encoding.separator if grid.encoding.name == "default" else ""
        return _most_names(grid, numbers, stem + head)
    names = [stem + tail for tail in tails(grid, numbers)]
    order = sorted(range(len(names)), key=names.__getitem__)
    return [names[i] for i in order], numbers[order]


def _most_names(grid: ChunkGrid, numbers: UInt64s, stem: str) -> tuple[list[str], UInt64s]:
    """Return the same as `chunk_names`, by making all keys of the grid in order."""
    names, places = [stem], np.zeros(1, np.int64)
    for dimension, count in enumerate(grid.counts):
        labels = np.array([str(i) for i in range(count)])
        order = np.argsort(labels, kind="stable")
        separator = grid.encoding.separator if dimension < len(grid.counts) - 1 else ""
        spelled = [label + separator for label in labels[order].tolist()]
        names = [before + label for before in names for label in spelled]
        places = (places[:, None] * count + order).ravel()
    if len(numbers) < grid.size:
        there = np.zeros(grid.size, np.bool_)
        there[numbers] = True
        there = there[places]
        names, places = list(compress(names, there.tolist())), places[there]
    return names, places.view(np.uint64)


def chunks_below(table: ChunkTable, path: str, stem: str = "") -> Listing | list[Listed]:
    """Return what a table has directly below the directory ``path``, which is relative to the array, sorted.

    ``stem`` is the directory's full path and a slash, for the `Listing`.
    """
    directory = table.grid.directory(path)
    if directory is None:
        return []
    start, stop, step = directory.numbers.start, directory.numbers.stop, directory.numbers.step
    present = table.present(start, stop)
    if not directory.is_leaf:
        children = (present - np.uint64(start)) // np.uint64(step)  # ascending, as the numbers are
        firsts = present[np.flatnonzero(np.diff(children, prepend=children[:1] + np.uint64(1)))]
        return [Listed(name, None, True) for name in sorted(map(directory.child, firsts.tolist()))]
    if not table.grid.is_nested:
        paths, numbers = chunk_names(table.grid, present, stem)
        return Listing(stem, paths, table.sizes(numbers))
    paths, places = chunk_names(ChunkGrid((len(directory.numbers),), _BARE), present - np.uint64(start), stem)
    return Listing(stem, paths, table.sizes(places + np.uint64(start)))


def has_chunks_below(table: ChunkTable, path: str) -> bool:
    """Whether a table has chunks in the directory ``path``, which is relative to the array."""
    directory = table.grid.directory(path)
    return directory is not None and len(table.present(directory.numbers.start, directory.numbers.stop)) > 0
