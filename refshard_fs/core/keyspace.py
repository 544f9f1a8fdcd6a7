"""`KeySpace`: the interface of a source's keys. No I/O here.

`KeySpace` is the only interface between formats and the engine. Key spaces wrap one another: for example, a view that
shows inner chunks looks up the shard in its base. Formats of arrays that zarr did not write return a
`core.array_group.ArrayGroup` and need no subclass.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, compress
from operator import attrgetter
from typing import Any, Final, NamedTuple, overload

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, ChunksBuilder, Contents, Numbers, make_column
from refshard_fs.core.chunks import Listing as ArrayListing
from refshard_fs.core.columns import WHOLE, ChunkTable, UInt64s
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, iterate_splits, join, make_relative
from refshard_fs.core.model import (
    Directories,
    Entry,
    Inline,
    Listed,
    Load,
    Raw,
    Span,
    Steps,
    answer_from_listing,
    iterate_batches,
    run_together,
)
from refshard_fs.core.node_documents import LeavesOut, read_node_documents
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS
from refshard_fs.errors import RefShardError
from refshard_fs.security.origins import NOTHING, Origins

# run(key, make): run the steps that ``make()`` returns, and return their result. A retry calls ``make`` again; errors
# name ``key``.
Run = Callable[[str, Callable[[], Steps[Any]]], Any]

# choose(documents, paths): returns some of the arrays at ``paths``; ``documents`` are their metadata by key.
Chooser = Callable[[Mapping[str, Any], Iterable[str]], Container[str]]

DIRECTORIES: Final = 64  # directories that are listed together


class ChunkPlace(NamedTuple):
    """A chunk: the path of its array (empty for the root), and its number in the array's grid."""

    array: str
    number: int


class Likeness(msgspec.Struct, frozen=True, eq=False):
    """A mark that key spaces of several files share if they differ only in the chunks of the arrays ``varying``."""

    varying: frozenset[str]


class LookUp(NamedTuple):
    """One look-up of several keys: their positions in the requested sequence, and steps that return their entries."""

    places: Sequence[int]
    steps: Steps[Sequence[Entry | None]]


class KeySpace(ABC):
    """An immutable set of keys and their entries, shared by threads and event loops.

    Keys are in normal form (`normalise`). A subclass has to define `lookup` and `children`. Everything else has a
    default that is right for any source, though perhaps not fast. Methods that return `Steps` are generators: they
    yield needs; a method without needs begins with ``yield from ()``. Attributes, too, have defaults for any source:
    see the comments beside them.
    """

    # The name of the source's format; "references" for references in memory.
    format = "references"
    # The chunk grids of arrays that are known without further reads, by the array's path.
    grids: Mapping[str, ChunkGrid] = {}
    # The key space that this one wraps, if any.
    base: KeySpace | None = None
    # The URLs of all targets that are known without reads.
    urls: Sequence[str | None] = ()
    # The URL of the document that a commit replaces last.
    document_url: str | None = None
    # The URL of the source's directory, if it is a directory.
    root_url: str | None = None
    # Returns the URL of a key's object, if each key is one object.
    url_of: Callable[[str], str] | None = None
    # The format in which a commit writes the source; None if it cannot be committed to.
    committed_as: str | None = None
    # The version of the document's format.
    version: int | None = None
    # The reason why an array or a group is not shown, or an array's shards are left whole, by path.
    reports: Mapping[str, str] = {}
    # dtypes of attributes, which JSON cannot express, by array path and name: xarray uses the dtype of scale_factor.
    attribute_dtypes: Mapping[str, Mapping[str, str]] = {}
    # The names of unlimited dimensions, by the path of their group.
    unlimited_dimensions: Mapping[str, Sequence[str]] = {}
    # The names of the codecs in the file, by the path of an array whose chunks are decoded before zarr sees them.
    file_codecs: Mapping[str, Sequence[str]] = {}
    # Whether look-ups never need a read, so that `find` may be called.
    in_memory = False
    # Whether the metadata of every array are known without reads.
    holds_all_metadata = False
    # Whether the root has consolidated metadata that can be used in place of the metadata of each array.
    consolidates = False
    # The key of a document with all metadata, which each commit writes again.
    consolidated_anew: str | None = None
    # Whether this shows the objects below a URL, each under its own key.
    is_hierarchy = False
    # Whether an attribute that is a list of one value is a scalar in xarray, as other readers of the format show it.
    unwraps_single_values = False
    # The protocol of fsspec that reads a member of the source, if the source is an archive.
    member_protocol: str | None = None
    # Whether this key space resolves the chunk manifests of its arrays itself.
    resolves_manifests = False
    # Whether this is a set of references: `contents` needs no listing, `chunks` needs no look-ups of single keys, and
    # URLs are spelled as in the set.
    is_reference_set: bool = False
    # Whether each chunk is a range of a target or inline, and the URLs of `chunks` are absolute.
    has_only_ranges: bool = False
    # The set of references in columns, if this key space shows one that is in memory.
    references: Any = None
    # The documents of the root that were read to recognise the source; None for an absent document.
    root_documents: Mapping[str, bytes | None] = {}
    # The cube that this key space is or shows, if any: a key space with a ``document`` that lists its sets.
    cube: Any = None
    # A mark that key spaces of other files by the same writer share, if it is known.
    likeness: Likeness | None = None
    # This key space, if it is the view that shows shards as their inner chunks.
    shard_view: Any = None
    # The uncommitted writes, if this key space shows any over ``base``.
    edits: Any = None

    @property
    def may_be_rewritten(self) -> bool:
        """Whether other processes may replace single chunks, since chunks are objects of their own."""
        return self.url_of is not None or (self.cube is not None and self.cube.has_hierarchies)

    @property
    def order(self) -> Iterable[str]:
        """The paths of arrays in the order of the source, as far as it is known without reads."""
        return self.grids

    def sort_paths(self, paths: Iterable[str]) -> list[str]:
        """Sort ``paths`` of arrays and groups by `order`; other paths come last, and keep their order."""
        ranks = self._ranks
        return sorted(paths, key=lambda path: ranks.get(path, len(ranks)))

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        nodes = ((*reversed([above for above, _ in iterate_splits(path)]), path) for path in self.order)
        return {node: rank for rank, node in enumerate(dict.fromkeys(chain.from_iterable(nodes)))}

    @property
    def origins(self) -> Origins:
        """The URLs that other people's sets named, as recorded in a set of references."""
        return NOTHING

    @property
    def strangers(self) -> frozenset[str]:
        """The servers of other people's sets that this source was made of, or whose metadata it shows, as recorded."""
        return frozenset()

    @abstractmethod
    def lookup(self, key: str) -> Steps[Entry | None]:
        """Return the entry of ``key``, or None if the key does not exist or is a directory."""

    @abstractmethod
    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        """List the directory ``prefix``, sorted by name; None if it is not a directory.

        Names are relative to ``prefix``. Sizes are the numbers of bytes that reads return.
        """

    def find_object_key(self, key: str) -> str:
        """Return the key of the stored object that holds ``key``; ``key`` itself if this is unknown without reads."""
        return key

    def is_directory(self, prefix: str) -> Steps[bool]:
        """Return whether ``prefix`` is a directory; the root always is."""
        return not prefix or (yield from self.children(prefix)) is not None

    def list_directories(self, prefix: str) -> Steps[Directories | None]:
        """List all directories of objects at and below ``prefix`` by one flat listing, for `answer_from_listing`.

        None if this is not possible: then directories are listed one by one.
        """
        yield from ()
        return None

    def find(self, key: str) -> Entry | None:
        """Return the entry of ``key``, or None if the key does not exist; only for key spaces with ``in_memory``."""
        try:
            need = next(self.lookup(key))
        except StopIteration as done:
            found: Entry | None = done.value
            return found
        raise TypeError(f"{type(self).__name__}.in_memory is true, but the look-up of {key!r} needs {need}")

    def read(self, key: str) -> Steps[bytes | None]:
        """Read the bytes of ``key``; None if the key does not exist."""
        match (yield from self.lookup(key)):
            case None:
                return None
            case Inline(data):
                return data
            case entry:
                found: bytes | None = yield Load(entry, Raw())
                return found

    def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        """Return look-ups for all ``keys``. If a look-up finds damage, its keys are looked up again, one by one.

        Keys in the same index should be in the same look-up.
        """
        return [self.make_single_lookup(place, key) for place, key in enumerate(keys)]

    def group_by_array(self, keys: Sequence[str]) -> tuple[list[int], dict[str, list[tuple[int, int]]]]:
        """Return the positions of ``keys`` that are not chunks, and (position, number) of each chunk by array."""
        others: list[int] = []
        chunks: dict[str, list[tuple[int, int]]] = {}
        for place, key in enumerate(keys):
            at = find_chunk(self.grids, key)
            if at is None:
                others.append(place)
            else:
                chunks.setdefault(at.array, []).append((place, at.number))
        return others, chunks

    def make_read_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        """Return look-ups like `make_lookups`, for keys that are read next: an entry may hold the bytes."""
        return self.make_lookups(keys)

    def find_likely_spans(self, keys: Sequence[str]) -> dict[int, Span]:
        """Return probable spans of some ``keys``, by their positions, if only a read can confirm them."""
        return {}

    def make_single_lookup(self, place: int, key: str) -> LookUp:
        """Return the look-up of one key, at position ``place`` of the requested sequence."""
        return LookUp((place,), _wrap_entry(self.lookup(key)))

    def is_empty(self, key: str) -> Steps[bool]:
        """Return whether a chunk manifest marks ``key``, which has no entry, as missing (`fs.info` calls it empty)."""
        yield from ()
        return False

    def is_inner(self, key: str) -> bool:
        """Return whether ``key`` is known to be an inner chunk of a shard."""
        return False

    def find_full_shards(self, keys: Iterable[str]) -> Steps[list[Span]]:
        """Return the ranges of shards to read whole, to save requests, if ``keys`` are read in their order."""
        yield from ()
        return []

    def list_keys_of_other_parts(self, key: str) -> Iterator[str]:
        """Yield one key for each part, or block of an index, that is not read yet, the nearest to ``key`` first.

        Looking up such a key reads the part or block. A cube has parts, for example: its pieces.
        """
        return iter(())

    def find_some_urls(self) -> Steps[Sequence[str | None]]:
        """Return the URLs of some targets, as they are written in the set; a set in parts has to read a part."""
        yield from ()
        return self.urls

    @property
    def source(self) -> KeySpace:
        """The source itself, without the views over it."""
        return self

    @property
    def whole_shards(self) -> KeySpace:
        """The same source with each shard as one chunk."""
        return self

    def resolve(self, url: str | None) -> str:
        """Make a URL of `chunks` absolute; ManifestError for None if there is no default target."""
        return url or ""

    def can_list(self) -> Steps[bool]:
        """Return whether `children` needs no request for each node that may exist."""
        yield from ()
        return True

    def documents(self, prefix: str = "", leaves_out: LeavesOut | None = None) -> Steps[dict[str, bytes]]:
        """Return the metadata documents of every array and group below ``prefix``, by key; no chunks are listed.

        Resolutions, labels and images of OME-Zarr for which ``leaves_out(path, is_group)`` is true may be missing.
        """
        if not (self.holds_all_metadata or self.is_reference_set):
            return (yield from read_node_documents(self, prefix, leaves_out))
        members = (yield from self.contents(prefix)).members
        found: dict[str, bytes] = {}
        for key, value in members.items():
            if zarrmeta.is_metadata(key):
                data = value if isinstance(value, bytes) else (yield from self.read(key))
                if data is not None:
                    found[key] = data
        return found

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        """Return the metadata below ``prefix``, and the chunks that each array may have.

        By default all directories are listed. If ``errors`` is a dict, the error of a directory or a document is stored
        in it by key, and not raised; in a directory that cannot be listed, documents are requested by name.
        """
        builder = _ContentsBuilder(self, errors)
        known = yield from self.list_directories(prefix)
        root = prefix if self.url_of is None else self.url_of(prefix)
        yield from answer_from_listing(builder.add_directory(prefix, None), root, known)
        return builder.finish()

    def contents_to_join(self, choose: Chooser) -> Steps[Contents]:
        """Return `contents`, perhaps with only the first chunk of the arrays that ``choose`` returns.

        ``choose`` takes the metadata documents by key, and the paths of all arrays.
        """
        return (yield from self.contents())

    def list_chunks(self, array: str) -> Steps[ArrayListing | None]:
        """Return the listing of ``array``, if there is a better way than listing its directories; else None."""
        yield from ()
        return None

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        """Return the locations of the chunks ``numbers`` of ``array``, a row for each; rows may be empty.

        ``grid`` is the grid of the array, if the caller knows it. By default the keys are looked up together.
        """
        if grid is None:
            grid = self.grids[array]
        column = make_column(numbers)
        builder = ChunksBuilder(len(column))
        entries = yield from self.find_entries([join(array, tail) for tail in make_tails(grid, column)])
        for row, entry in enumerate(entries):
            builder.put_entry(row, entry)
        return builder.finish()

    def snapshot(self, threshold: int, on_progress: Callable[[int], object]) -> Steps[Any]:
        """Return references to all keys, pinned to their versions, if a listing has the versions; else None.

        Metadata of up to ``threshold`` bytes become inline. ``on_progress(n)`` is called when n more keys are known.
        """
        yield from ()
        return None

    def find_entries(self, keys: Sequence[str]) -> Steps[list[Entry | None]]:
        """Look up all ``keys`` together; return their entries."""
        look_ups = self.make_lookups(keys)
        found: list[Entry | None] = [None] * len(keys)
        results = yield from run_together([look_up.steps for look_up in look_ups])
        for look_up, entries in zip(look_ups, results, strict=True):
            for place, entry in zip(look_up.places, entries, strict=True):
                found[place] = entry
        return found

    @property
    def inline_grids(self) -> Mapping[str, ChunkGrid]:
        """The grids of the arrays whose metadata documents need no read."""
        return self.grids

    def metadata_lacks(self, marks: tuple[bytes, ...]) -> bool:
        """Return whether it is known that no metadata of the root or of an array contain any of ``marks``."""
        return False


class Grids(Mapping[str, ChunkGrid]):
    """A mapping of paths to chunk grids that finds each grid when it is requested.

    ``find`` returns the grid of one array, or None. ``paths`` returns the paths of all arrays that may have one.
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


class _ContentsBuilder:
    """Collect the `Contents` of a key space: list its directories, and read the metadata in them."""

    def __init__(self, keyspace: KeySpace, errors: dict[str, Exception] | None) -> None:
        self._keyspace = keyspace
        self._errors = errors
        self._members: dict[str, Any] = {}
        self._others: dict[str, int | None] = {}
        self._arrays: dict[str, ArrayChunks] = {}
        self._listed_arrays: set[str] = set()  # arrays whose chunks `list_chunks` returned
        self._indexes: frozenset[str] = frozenset()
        self._sizes: dict[str, dict[int, int]] = {}  # bytes of each chunk, by array and number

    def _run_all(self, parts: Sequence[Callable[[], Steps[None]]]) -> Steps[None]:
        """Run all ``parts`` together; if errors are collected, run smaller groups after an error."""
        if not parts:
            return
        try:
            yield from run_together([part() for part in parts]) if len(parts) > 1 else parts[0]()
        except (OSError, RefShardError):
            if self._errors is None or len(parts) == 1:
                raise
            yield from self._run_all(parts[: len(parts) // 2])
            yield from self._run_all(parts[len(parts) // 2 :])

    def add_directory(self, prefix: str, array: str | None) -> Steps[None]:
        """Add everything below ``prefix``, which is a directory of chunks of ``array`` unless ``array`` is None."""
        keyspace = self._keyspace
        try:
            names = (yield from keyspace.children(prefix)) or ()
        except (OSError, RefShardError) as e:
            if self._errors is None:
                raise
            self._errors[prefix] = e
            names = [] if array is not None else [Listed(name, None) for name in (*ARRAY_DOCUMENTS, ".zattrs")]
        documents = {n.name for n in names if not n.is_directory and zarrmeta.is_metadata(n.name)}
        yield from self._run_all([partial(self._add_document, prefix, n.name) for n in names if n.name in documents])
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
                self._listed_arrays.add(prefix)
                self._indexes |= listing.indexes
                self._others |= {k: size for k, size in listing.others.items() if not zarrmeta.is_metadata(k)}
                yield from self._run_all([partial(self.add_directory, path, None) for path in listing.directories])
                return
        self._add_files(prefix, [n for n in names if not n.is_directory and n.name not in documents], array)
        for paths in iterate_batches([join(prefix, n.name) for n in names if n.is_directory], DIRECTORIES):
            yield from self._run_all([partial(self.add_directory, path, array) for path in paths])

    def _add_document(self, prefix: str, name: str) -> Steps[None]:
        key = join(prefix, name)
        try:
            data = yield from self._keyspace.read(key)
            if data is None:
                return
            self._members[key] = data
            grid = _parse_grid(data, key) if name in ARRAY_DOCUMENTS else None
        except (OSError, RefShardError) as e:
            if self._errors is None:
                raise
            if str(self._errors.get(prefix)) == str(e):  # listing the directory failed because of this document
                if name not in ARRAY_DOCUMENTS:
                    return
                del self._errors[prefix]
            self._errors[key] = e
            return
        if grid is not None:
            self._arrays[prefix] = ArrayChunks(grid)

    def _add_files(self, prefix: str, files: Sequence[Listed], array: str | None) -> None:
        grid = None if array is None else self._arrays[array].grid
        stem = "" if array is None else make_relative(prefix, array)
        sizes = self._sizes.setdefault(array or "", {})
        for listed in files:
            number = None if grid is None else grid.number(join(stem, listed.name))
            if number is None:
                self._others[join(prefix, listed.name)] = listed.size
            else:
                sizes[number] = WHOLE if listed.size is None else listed.size

    def finish(self) -> Contents:
        """Return the contents that were added."""
        arrays = {
            path: array
            if path in self._listed_arrays
            else ArrayChunks(
                array.grid,
                np.array([*self._sizes.get(path, ())], np.uint64),
                np.array([*self._sizes.get(path, {}).values()], np.uint64),
            )
            for path, array in self._arrays.items()
        }
        return Contents(self._members, arrays, self._others, self._indexes)


def _parse_grid(data: bytes, key: str) -> ChunkGrid | None:
    """Return the grid of the array in the document ``key``; None if it does not describe an array with a grid."""
    try:
        document = zarrmeta.loads(data)
    except ValueError:
        return None  # readers get the damaged bytes, and raise their own error
    meta = zarrmeta.array_meta(document, repr(key)) if isinstance(document, dict) else None
    return None if meta is None else meta.grid


class View(KeySpace):
    """A key space that shows the keys of ``base``; subclasses change some of them.

    Single look-ups, listings and most properties come from the base; most other methods of `KeySpace` use these.
    """

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
            "is_hierarchy",
            "unwraps_single_values",
            "member_protocol",
        ):
            setattr(self, name, getattr(base, name))
        self.attribute_dtypes = base.attribute_dtypes
        self.unlimited_dimensions = base.unlimited_dimensions
        self.file_codecs = base.file_codecs

    @property
    def order(self) -> Iterable[str]:
        return self.base.order

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
    def cube(self) -> Any:  # the base of a view over several sources is the first source
        return self.base.cube

    @property
    def committed_as(self) -> str | None:  # type: ignore[override]  # a property, so that it follows the base
        return self.base.committed_as

    def resolve(self, url: str | None) -> str:
        return self.base.resolve(url)

    def snapshot(self, threshold: int, on_progress: Callable[[int], object]) -> Steps[Any]:
        return (yield from self.base.snapshot(threshold, on_progress))

    def lookup(self, key: str) -> Steps[Entry | None]:
        return (yield from self.base.lookup(key))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        return (yield from self.base.children(prefix))

    def is_directory(self, prefix: str) -> Steps[bool]:
        return (yield from self.base.is_directory(prefix))

    def find_object_key(self, key: str) -> str:
        return self.base.find_object_key(key)

    def is_empty(self, key: str) -> Steps[bool]:
        return (yield from self.base.is_empty(key))

    def list_directories(self, prefix: str) -> Steps[Directories | None]:
        return (yield from self.base.list_directories(prefix))

    def list_keys_of_other_parts(self, key: str) -> Iterator[str]:
        return self.base.list_keys_of_other_parts(key)

    def find_some_urls(self) -> Steps[Sequence[str | None]]:
        return (yield from self.base.find_some_urls())


def make_lookups_of(base: KeySpace, keys: Sequence[str], places: Sequence[int]) -> list[LookUp]:
    """Return look-ups in ``base`` for the ``keys`` at the positions ``places``."""
    found = base.make_lookups([keys[place] for place in places])
    return [LookUp([places[number] for number in numbers], steps) for numbers, steps in found]


def find_chunk(grids: Mapping[str, ChunkGrid], key: str) -> ChunkPlace | None:
    """Return the array and the number of the chunk ``key``; None if no array in ``grids`` has this chunk."""
    for path, rest in iterate_splits(key):
        grid = grids.get(path)
        number = None if grid is None else grid.number(rest)
        if number is not None:
            return ChunkPlace(path, number)
    return None


def _wrap_entry(steps: Steps[Entry | None]) -> Steps[Sequence[Entry | None]]:
    return ((yield from steps),)


FEW: Final = 64  # the most names that are inserted one by one into a long listing
_BARE: Final = ChunkKeyEncoding("v2", ".")

by_name: Callable[[Listed], Any] = attrgetter("name")


class Listing(Sequence[Listed]):
    """The sorted files of one directory, as two lists; each `Listed` is made when it is requested.

    ``paths`` are the names after ``stem``, the path of the directory with a slash ("" for the root).
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
        """Add ``file``; it replaces a file of the same name."""
        path = self.stem + file.name
        at = bisect.bisect_left(self.paths, path)
        if at < len(self.paths) and self.paths[at] == path:
            self.sizes[at] = file.size
        else:
            self.paths.insert(at, path)
            self.sizes.insert(at, file.size)


def merge_listings(*parts: Sequence[Listed]) -> Sequence[Listed]:
    """Merge listings of one directory; the result is sorted.

    Of several members with the same name, the last one is kept; but members of short listings always replace those of
    the longest one, if this is a `Listing`. The result is a `Listing` if only a few files are added to a `Listing`, or
    if all ``parts`` are `Listing`s of the same directory.
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
        # This takes half the time, because no `Listed` is made.
        sizes = {path: size for part in listings for path, size in zip(part.paths, part.sizes, strict=True)}
        paths = sorted(sizes)
        return Listing(listings[0].stem, paths, [sizes[path] for path in paths])
    found = {listed.name: listed for part in parts for listed in part}
    return [found[name] for name in sorted(found)]


def make_tails(grid: ChunkGrid, numbers: UInt64s) -> Iterable[str]:
    """Return the keys of many chunks, relative to their array, as `ChunkGrid.tail` does for one."""
    if not grid.counts:
        return map(grid.tail, numbers.tolist())
    rest, columns = numbers, list[Iterable[str]]()
    for count in reversed(grid.counts):
        rest, coords = np.divmod(rest, np.uint64(count))
        known = [*map(str, range(count))] if count <= len(numbers) else None
        columns.append(map(str if known is None else known.__getitem__, coords.tolist()))
    if grid.encoding.name == "default":
        columns.append(["c"] * len(numbers))
    return map(grid.encoding.separator.join, zip(*reversed(columns), strict=True))


def sort_chunk_names(grid: ChunkGrid, numbers: UInt64s, stem: str = "") -> tuple[list[str], UInt64s]:
    """Return the sorted keys of the chunks ``numbers``, each with ``stem`` before it, and the numbers in this order.

    Separators sort before digits, so keys sort like tuples of the texts of their coordinates. If most chunks of the
    grid exist, all keys of the grid are made in sorted order, which is faster than sorting.
    """
    if grid.counts and grid.size <= 2 * len(numbers):
        head = "c" + grid.encoding.separator if grid.encoding.name == "default" else ""
        return _make_most_names(grid, numbers, stem + head)
    names = [stem + tail for tail in make_tails(grid, numbers)]
    order = sorted(range(len(names)), key=names.__getitem__)
    return [names[i] for i in order], numbers[order]


def _make_most_names(grid: ChunkGrid, numbers: UInt64s, stem: str) -> tuple[list[str], UInt64s]:
    """Return the result of `sort_chunk_names` by making all keys of the grid in order."""
    names, places = [stem], np.zeros(1, np.int64)
    for dimension, count in enumerate(grid.counts):
        labels = np.array([str(i) for i in range(count)])
        order = np.argsort(labels, kind="stable")
        separator = grid.encoding.separator if dimension < len(grid.counts) - 1 else ""
        spelled = [label + separator for label in labels[order].tolist()]
        names = [before + label for before in names for label in spelled]
        places = (places[:, None] * count + order).ravel()
    if len(numbers) < grid.size:
        exists = np.zeros(grid.size, np.bool_)
        exists[numbers] = True
        exists = exists[places]
        names, places = list(compress(names, exists.tolist())), places[exists]
    return names, places.view(np.uint64)


def list_chunks_below(table: ChunkTable, path: str, stem: str = "") -> Listing | list[Listed]:
    """List the directory ``path``, relative to the array, of the chunks in a table, sorted.

    ``stem`` is the directory's full path with a slash, for the `Listing`.
    """
    directory = table.grid.find_directory(path)
    if directory is None:
        return []
    start, stop, step = directory.numbers.start, directory.numbers.stop, directory.numbers.step
    present = table.list_present(start, stop)
    if not directory.is_leaf:
        children = (present - np.uint64(start)) // np.uint64(step)  # ascending, as the numbers are
        firsts = present[np.flatnonzero(np.diff(children, prepend=children[:1] + np.uint64(1)))]
        return [Listed(name, None, True) for name in sorted(map(directory.name_child, firsts.tolist()))]
    if not table.grid.is_nested:
        paths, numbers = sort_chunk_names(table.grid, present, stem)
        return Listing(stem, paths, table.get_sizes(numbers))
    paths, places = sort_chunk_names(ChunkGrid((len(directory.numbers),), _BARE), present - np.uint64(start), stem)
    return Listing(stem, paths, table.get_sizes(places + np.uint64(start)))


def has_chunks_below(table: ChunkTable, path: str) -> bool:
    """Return whether a table has chunks in the directory ``path``, relative to the array."""
    directory = table.grid.find_directory(path)
    return directory is not None and len(table.list_present(directory.numbers.start, directory.numbers.stop)) > 0
