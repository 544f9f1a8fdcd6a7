"""Base classes of views that rewrite the metadata of arrays, and find the chunks of some arrays. No I/O here.

For example, shards and chunk manifests are shown as ordinary arrays of chunks. A `Rewrite` defines how one array's
metadata is shown. A view registers arrays when their metadata documents are read: because a user requests them, or
because a requested key may belong to their array. A document in which nothing changes keeps its exact bytes.
"""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import compress, count
from operator import not_
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, Contents, Numbers
from refshard_fs.core.keys import ChunkGrid, find_nearest, join, make_relative, parent
from refshard_fs.core.keyspace import Grids, KeySpace, LookUp, View, make_lookups_of, merge_listings
from refshard_fs.core.model import Entry, Inline, Listed, Load, Span, Steps, run_together
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, CONSOLIDATED, is_array_document
from refshard_fs.errors import ManifestError

NAMES: Final = (*ARRAY_DOCUMENTS, CONSOLIDATED)

_views = count()  # numbers of views, as a part of cache keys: each view decodes documents in its own way
_NUMBERS = re.compile(r"\d+(?:\.\d+)*", re.ASCII)
_DOTTED = re.compile(r"c(?:\.\d+)+", re.ASCII)


class NodeInfo(Protocol):
    """Immutable facts about an array or a group, which a view keeps."""

    @property
    def grid(self) -> ChunkGrid | None:
        """The grid of an array's chunks as they are shown; None for groups, and if the grid is unknown."""


K = TypeVar("K", bound=NodeInfo)
K_co = TypeVar("K_co", bound=NodeInfo, covariant=True)

# A node's metadata as they are shown, and the facts about the node; most groups need none.
NodeView = tuple[Mapping[str, Any], K | None]


class Rewrite(Protocol[K_co], Hashable):
    """The rule by which a view rewrites metadata; frozen and hashable, because it is part of a cache key."""

    def make_rewriter(self, data: bytes) -> Callable[[Mapping[str, Any], str], NodeView[K_co]]:
        """Return a function of (metadata, path) that rewrites the metadata of one node in the document ``data``."""


class NodeDocument(NamedTuple, Generic[K]):
    """A metadata document as it is shown, and the facts about the arrays and groups in it, by path."""

    data: bytes
    arrays: Mapping[str, K]
    groups: Mapping[str, K]
    nodes: Mapping[str, Mapping[str, Any]] = {}  # the metadata of nodes as they are shown, by path

    @property
    def nbytes(self) -> int:
        return len(self.data) + 512 * (len(self.arrays) + len(self.groups))


class DocumentIndex(msgspec.Struct, Generic[K], frozen=True, cache_hash=True):
    """Decode the metadata document ``name`` of the node at ``path`` for one view."""

    path: str
    name: str
    view: int
    rewrite: Rewrite[K]

    def decode(self, data: bytes) -> NodeDocument[K]:
        try:
            doc = zarrmeta.object_in(data, self.name)
        except ValueError:
            return NodeDocument(data, {}, {})  # readers get the damaged bytes, and raise their own error
        reader = _Reader(self.rewrite.make_rewriter(data))
        shown = (
            reader.rewrite_consolidated(doc, self.path)
            if self.name == CONSOLIDATED
            else reader.rewrite_node(doc, self.path)
        )
        shown_data = data if shown is doc else zarrmeta.dumps(shown)
        return NodeDocument(shown_data, reader.arrays, reader.groups, reader.nodes)


class _Reader(Generic[K]):
    """Rewrite one document, and collect its nodes. Methods return their argument itself if nothing in it changes."""

    def __init__(self, rewrite: Callable[[Mapping[str, Any], str], NodeView[K]]) -> None:
        self.arrays: dict[str, K] = {}
        self.groups: dict[str, K] = {}
        self.nodes: dict[str, Mapping[str, Any]] = {}
        self._rewrite = rewrite

    def rewrite_node(self, doc: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        match doc:
            case {"node_type": "group"}:
                shown, known = self._rewrite(self._rewrite_members(doc, path), path)
                if known is not None:
                    self.groups[path] = known
                return shown
            case {"zarr_format": 2, "shape": _} | {"node_type": "array"}:
                shown, known = self._rewrite(doc, path)
                if known is not None:
                    self.arrays[path] = known
                    self.nodes[path] = shown
                return shown
        return doc

    def rewrite_consolidated(self, doc: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        match doc:
            case {"metadata": dict(members)}:
                paths = {key: join(path, parent(key)[0]) for key in members if is_array_document(key)}
                shown = self._rewrite_nodes(members, paths)
                return doc if shown is None else {**doc, "metadata": shown}
        return doc

    def _rewrite_members(self, doc: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        match doc:
            case {"consolidated_metadata": {"metadata": dict(members)} as inline}:
                shown = self._rewrite_nodes(members, {name: join(path, name) for name in members})
                return doc if shown is None else {**doc, "consolidated_metadata": {**inline, "metadata": shown}}
        return doc

    def _rewrite_nodes(self, members: Mapping[str, Any], paths: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Return ``members`` with the nodes at ``paths`` rewritten; None if nothing changes."""
        found = {
            key: self.rewrite_node(members[key], path) for key, path in paths.items() if isinstance(members[key], dict)
        }
        return {**members, **found} if any(node is not members[key] for key, node in found.items()) else None


class Documents(Generic[K]):
    """The metadata documents of ``base``, rewritten by ``rewrite``; ``arrays`` are all arrays that are known so far.

    ``on_array(path, facts)`` is called for each array that becomes known.
    """

    def __init__(
        self, base: KeySpace, rewrite: Rewrite[K], on_array: Callable[[str, K], None] = lambda path, known: None
    ) -> None:
        self.base = base
        self.view = next(_views)
        arrays: dict[str, K] = {}

        def find_grid(
            path: str,
        ) -> ChunkGrid | None:  # not a method: a reference cycle would delay freeing these documents
            known = arrays.get(path)
            return base.grids.get(path) if known is None or known.grid is None else known.grid

        self.arrays = arrays
        self._own: set[str] = set()  # paths of arrays whose own documents are known
        # Arrays that are known only from consolidated metadata: the key of their own document, and these metadata.
        self._unconfirmed: dict[str, tuple[str, Mapping[str, Any]]] = {}
        # Arrays for which consolidated metadata are outdated: the key of their own document.
        self._outdated: dict[str, str] = {}
        self.grids: Mapping[str, ChunkGrid] = Grids(find_grid, lambda: dict.fromkeys([*base.grids, *list(arrays)]))
        self._rewrite = rewrite
        self._on_array = on_array

    def register_arrays(self, marks: tuple[bytes, ...], plain: Callable[[ChunkGrid], K]) -> Steps[None]:
        """Add the arrays whose metadata are inline in the base, so that no reads are needed.

        ``plain`` makes the facts of arrays whose metadata contain none of ``marks``, which need no rewriting.
        """
        grids = self.base.inline_grids
        self._own.update(grids)
        if self.base.metadata_lacks(marks):
            self.arrays.update((path, plain(grid)) for path, grid in grids.items())
            return
        for path, grid in grids.items():
            for name in ARRAY_DOCUMENTS:
                match (yield from self.base.lookup(join(path, name))):
                    case Inline(data) if any(mark in data for mark in marks):
                        index = DocumentIndex(path, name, self.view, self._rewrite)
                        self._adopt(index, index.decode(data))
                    case Inline():
                        self.arrays[path] = plain(grid)

    def is_document(self, key: str) -> bool:
        """Return whether ``key`` names a metadata document."""
        return key.endswith(NAMES) and parent(key)[1] in NAMES

    def read(self, key: str) -> Steps[NodeDocument[K] | None]:
        """Return the document ``key``, or None if the key does not exist."""
        entry = yield from self.base.lookup(key)
        index = DocumentIndex(*parent(key), self.view, self._rewrite)
        match entry:
            case None:
                return None
            case Inline(data):
                document: NodeDocument[K] | None = index.decode(data)
            case _:
                document = yield Load(entry, index)
        if document is not None:
            self._adopt(index, document)
        return document

    def lookup(self, key: str) -> Steps[Entry | None]:
        """Return the entry of the document ``key`` as it is shown, or None if the key does not exist."""
        document = yield from self.read(key)
        if document is not None:
            self._outdated.pop(parent(key)[0], None)  # the reader now has the array's own document, which is current
        return None if document is None else Inline(document.data)

    def discover_array(self, key: str) -> Steps[str | None]:
        """Return the path of the array that contains ``key``; read metadata to find it, if necessary."""
        path = self.find_array(key)
        if path is None:
            yield from self._discover(key)
            path = self.find_array(key)
        return path

    def correct_sizes(self, prefix: str, names: Sequence[Listed]) -> Steps[list[Listed]]:
        """Return ``names``, a listing of ``prefix``; metadata documents get the sizes of the rewritten documents."""
        documents = [listed.name for listed in names if listed.name in NAMES and not listed.is_directory]
        entries = yield from run_together([self.lookup(join(prefix, name)) for name in documents])
        sizes = {n: e.size for n, e in zip(documents, entries, strict=True) if e is not None}
        return [Listed(n.name, sizes[n.name]) if n.name in sizes else n for n in names]

    def find_array(self, key: str) -> str | None:
        """Return the path of the known array that contains ``key``; None if no known array does."""
        return find_nearest(key, self.arrays)

    def is_unconfirmed(self, path: str) -> bool:
        """Return whether the array ``path`` is known only from consolidated metadata."""
        return path in self._unconfirmed

    def is_outdated(self, path: str) -> bool:
        """Return whether consolidated metadata are outdated for the array ``path``."""
        return path in self._outdated

    def find_doubtful_arrays(self, keys: Sequence[str]) -> dict[str, list[int]]:
        """Return the arrays whose consolidated metadata may be outdated, and the positions of their ``keys``.

        Arrays of one chunk that are not confirmed are left out: if their metadata are outdated, decoding fails.
        """
        found: dict[str, list[int]] = {}
        if self._unconfirmed or self._outdated:
            for number, key in enumerate(keys):
                path = self.find_array(key)
                if path is None or zarrmeta.is_metadata(key):
                    continue
                grid = self.arrays[path].grid if path in self._unconfirmed else None
                if path in self._outdated or (grid is not None and grid.size > 1):
                    found.setdefault(path, []).append(number)
        return found

    def confirm(self, path: str) -> Steps[None]:
        """Compare the consolidated metadata of an array with its own document; ManifestError if chunks differ.

        The shape may differ: then the array has grown, and its chunks are stored in the same way.
        """
        if path in self._unconfirmed:
            key, consolidated = self._unconfirmed[path]
            document = yield from self.read(key)
            self._unconfirmed.pop(path, None)
            if document is not None and path in document.arrays:
                if zarrmeta.describe_chunking(document.nodes[path]) != zarrmeta.describe_chunking(consolidated):
                    self._outdated[path] = key
        if path in self._outdated:
            raise ManifestError(
                f"the consolidated metadata of the array {path!r} are outdated: {self._outdated[path]!r} describes "
                "other chunks. Open the source with consolidated=False, and consolidate its metadata again "
                "(zarr.consolidate_metadata)"
            )

    def _adopt(self, index: DocumentIndex[K], document: NodeDocument[K]) -> None:
        """Add the arrays of a document; consolidated metadata do not replace an array's own document."""
        for path, facts in document.arrays.items():
            if path == index.path and index.name != CONSOLIDATED:
                self._own.add(path)
                self._unconfirmed.pop(path, None)
            elif path in self._own:
                continue
            else:
                name = ".zarray" if index.name == CONSOLIDATED else "zarr.json"
                self._unconfirmed[path] = join(path, name), document.nodes[path]
            self.arrays[path] = facts
            self._on_array(path, facts)

    def _discover(self, key: str) -> Steps[None]:
        """Read the metadata of the arrays that ``key`` may belong to, as a chunk or as a directory of chunks."""
        for paths in _list_candidates(key):
            yield from run_together([self.lookup(join(path, name)) for path in paths for name in ARRAY_DOCUMENTS])
            if any(path in self.arrays for path in paths):
                return


class ArrayView(View, Generic[K]):
    """A view that finds the chunks of some arrays itself, and rewrites the metadata of these arrays."""

    _documents: Documents[K]
    confirms = True  # whether arrays that are known only from consolidated metadata are confirmed before look-ups

    @abstractmethod
    def find_own_grid(self, path: str) -> ChunkGrid | None:
        """Return the grid of the array ``path`` if this view finds its chunks; None if the base finds them."""

    @abstractmethod
    def find_chunk_entry(self, key: str, path: str, coords: tuple[int, ...]) -> Steps[Entry | None]:
        """Return the entry of ``key``, the chunk at ``coords`` in the result of `find_own_grid` for ``path``."""

    @abstractmethod
    def list_chunks_in(
        self, path: str, leading: tuple[int, ...] | None, names: Sequence[Listed] | None
    ) -> Steps[Sequence[Listed] | None]:
        """List the chunks of the array ``path``, and the directories of chunks, in one directory.

        This is the directory of the chunks whose coordinates begin with ``leading``; None stands for the array's own
        directory if all chunks lie in its directory ``c``. ``names`` is the base's listing of the directory, if known.
        """

    @abstractmethod
    def has_chunks_in(self, path: str, leading: tuple[int, ...]) -> Steps[bool]:
        """Return whether the directory of the chunks that begin with ``leading`` exists."""

    def discover_array(self, key: str) -> Steps[str | None]:
        """Return the path of the array that contains ``key``; read metadata to find it, if necessary."""
        return (yield from self._documents.discover_array(key))

    def locate_chunk(self, key: str) -> Steps[tuple[str, tuple[int, ...], bool] | None]:
        """Return the array and the coordinates of the chunk ``key``, and whether these lie in the array's grid.

        Return None if the base finds ``key``.
        """
        path, grid = yield from self._find_grid_above(key)
        coords = None if grid is None else grid.decode(make_relative(key, path))
        return None if grid is None or coords is None else (path, coords, grid.contains(coords))

    def lookup(self, key: str) -> Steps[Entry | None]:
        if self._documents.is_document(key):
            return (yield from self._documents.lookup(key))
        for path in self._separate_doubtful([key]):
            yield from self._documents.confirm(path)
        at = yield from self.locate_chunk(key)
        if at is None:
            return (yield from self.base.lookup(key))
        path, coords, is_inside = at
        return (yield from self.find_chunk_entry(key, path, coords)) if is_inside else None

    def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        return self._look_all_up(keys, reads=False)

    def make_read_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        return self._look_all_up(keys, reads=True)

    def _look_all_up(self, keys: Sequence[str], *, reads: bool) -> list[LookUp]:
        doubtful = self._separate_doubtful(keys)
        if not doubtful:
            return self.make_certain_lookups(keys, reads=reads)
        places = {number for numbers in doubtful.values() for number in numbers}
        rest = [number for number in range(len(keys)) if number not in places]
        found = [
            LookUp(numbers, self._confirm_then_find(path, [keys[n] for n in numbers]))
            for path, numbers in doubtful.items()
        ]
        certain = self.make_certain_lookups([keys[number] for number in rest], reads=reads)
        return found + [LookUp([rest[number] for number in numbers], steps) for numbers, steps in certain]

    def make_certain_lookups(self, keys: Sequence[str], *, reads: bool) -> list[LookUp]:
        """Return look-ups for all ``keys``; none of them belongs to an array that has to be confirmed."""
        paths = [None if self._documents.is_document(key) else self._documents.find_array(key) for key in keys]
        are_base = [path is not None and self.find_own_grid(path) is None for path in paths]
        found = [self.make_single_lookup(number, keys[number]) for number in compress(count(), map(not_, are_base))]
        return found + make_lookups_of(self.base, keys, [*compress(count(), are_base)])

    def find_likely_spans(self, keys: Sequence[str]) -> dict[int, Span]:
        found: dict[int, Span] = {}
        for numbers in self._separate_doubtful(keys).values():
            for number, (_, steps) in zip(numbers, self.base.make_lookups([keys[n] for n in numbers]), strict=False):
                with contextlib.suppress(Exception):  # the later look-up of the key raises the error again
                    try:
                        next(steps)
                    except StopIteration as stop:
                        (entry,) = stop.value
                        found |= {number: entry} if isinstance(entry, Span) else {}
        return found

    def _separate_doubtful(self, keys: Sequence[str]) -> dict[str, list[int]]:
        """Return the arrays that have to be confirmed before look-ups, and the positions of their ``keys``."""
        if not self.confirms:
            return {}
        found, documents = self._documents.find_doubtful_arrays(keys), self._documents
        return {
            p: numbers
            for p, numbers in found.items()
            if not documents.is_unconfirmed(p) or self.find_own_grid(p) is None
        }

    def _is_doubtful(self, path: str) -> bool:
        """Return whether the consolidated metadata of an array are outdated, or may be."""
        return self.confirms and (self._documents.is_unconfirmed(path) or self._documents.is_outdated(path))

    def _confirm_then_find(self, path: str, keys: Sequence[str]) -> Steps[Sequence[Entry | None]]:
        """Confirm the array ``path``, then return the entries of its ``keys``."""
        yield from self._documents.confirm(path)
        found: list[Entry | None] = [None] * len(keys)
        look_ups = self.make_lookups(keys)
        results = yield from run_together([steps for _, steps in look_ups])
        for (places, _), entries in zip(look_ups, results, strict=True):
            for place, entry in zip(places, entries, strict=True):
                found[place] = entry
        return found

    def can_list(self) -> Steps[bool]:
        return (yield from self.base.can_list())

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        at = yield from self._parse_chunk_directory(prefix)
        if at is not None:
            return (yield from self.list_chunks_in(*at, None))
        found = yield from self.base.children(prefix)
        if found is None:
            return None
        names = yield from self._documents.correct_sizes(prefix, found)
        grid = self.find_own_grid(prefix)
        if grid is None:
            return names
        others = [listed for listed in names if not grid.has_name(listed.name, is_directory=listed.is_directory)]
        chunks = yield from self.list_chunks_in(prefix, grid.parse_leading(""), names)
        return merge_listings(chunks or (), others)

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        if not self.base.holds_all_metadata:
            return (yield from super().contents(prefix, errors))
        found = yield from self.base.contents(prefix, errors)
        own = [path for path in found.arrays if self.find_own_grid(path) is not None]
        if not own:
            return found
        members, arrays, indexes = dict(found.members), dict(found.arrays), found.indexes
        for key in filter(self._documents.is_document, found.members):
            document = yield from self._documents.read(key)
            if document is not None and document.arrays:
                members[key] = document.data
        for path in own:
            listing = yield from self.list_chunks(path)
            if listing is not None:
                arrays[path] = listing.chunks
                indexes |= listing.indexes
        return Contents(members, arrays, found.others, indexes)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        is_known = self.base.is_reference_set or (array in self._documents.arrays and not self._is_doubtful(array))
        if is_known and self.find_own_grid(array) is None:
            return (yield from self.base.chunks(array, numbers, self.grids[array] if grid is None else grid))
        return (yield from super().chunks(array, numbers, grid))

    def is_directory(self, prefix: str) -> Steps[bool]:
        at = yield from self._parse_chunk_directory(prefix)
        return (yield from (self.base.is_directory(prefix) if at is None else self.has_chunks_in(*at)))

    def _find_grid_above(self, key: str) -> Steps[tuple[str, ChunkGrid | None]]:
        """Return the array that contains ``key``, and the result of `find_own_grid` for this array."""
        path = yield from self._documents.discover_array(key)
        return ("", None) if path is None else (path, self.find_own_grid(path))

    def _parse_chunk_directory(self, prefix: str) -> Steps[tuple[str, tuple[int, ...]] | None]:
        """Return array and leading coordinates if this view looks up the chunks in ``prefix`` itself; else None."""
        path, grid = yield from self._find_grid_above(prefix)
        leading = None if grid is None else grid.parse_leading(make_relative(prefix, path))
        return None if leading is None else (path, leading)


def _list_candidates(key: str) -> Iterator[list[str]]:
    """Yield groups of paths of arrays that ``key`` may be a chunk of, the most likely group first."""
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
