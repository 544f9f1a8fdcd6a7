"""Show arrays with chunk manifests as ordinary arrays: a view on top of any key space. No I/O here.

A manifest is read at the first look-up of a chunk in its array. All chunks of the array come from the manifest, even if
the base has chunk keys, too. Metadata are shown without the storage transformer that declares the manifest. All other
keys come from the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, Contents, Listing, Numbers, make_column
from refshard_fs.core.columns import ChunkTable, Part, Ranges, Row
from refshard_fs.core.documents import ArrayView, Documents
from refshard_fs.core.dtypes import LONG, check_length
from refshard_fs.core.edits import REMOVED, EditedKeySpace, Edits
from refshard_fs.core.format import OpenOptions, check_size
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, is_key, join
from refshard_fs.core.keyspace import KeySpace, has_chunks_below, list_chunks_below
from refshard_fs.core.model import Entry, Facts, Inline, Listed, Load, Names, ParsedIndex, Span, Stat, Steps, add_origin
from refshard_fs.errors import ManifestError, NotListable, SourceNotReachable
from refshard_fs.formats.chunk_manifest.entries import MARK as DECLARED
from refshard_fs.formats.chunk_manifest.entries import Declaration, Key, PathResolver, StripManifests, Url, resolve_key
from refshard_fs.formats.chunk_manifest.manifest import ChunkManifest, Prefix, parse
from refshard_fs.formats.chunk_manifest.prefix_map import Composite, parse_key_map
from refshard_fs.security import policy

# A commit to a hierarchy first puts the root document, which holds the new documents of other nodes, and then puts
# these documents. ``consolidated_metadata`` in the root's ``zarr.json`` may have a member ``refshard``: ``pending``
# lists nodes whose current documents are in the consolidated metadata, ``gone`` lists nodes that the commit removes,
# even if their documents still exist (FORMATS.md). Every commit writes the member, even if it is empty, so that the
# next commit writes manifests, too.


_DOTTED = ChunkKeyEncoding("v2", ".")
COMMITTED = b'"refshard":{'  # bytes in a root document that a commit has written
PENDING = COMMITTED + b'"'  # bytes in a root document with pending or removed nodes


class _PendingNodes(msgspec.Struct):
    """The paths of nodes in the member ``refshard`` of consolidated metadata."""

    pending: list[str]
    gone: list[str] = []


def read_pending_edits(data: bytes, where: str) -> Edits | None:
    """Return the edits that a commit has not put yet, from a root document named ``where``; None if there are none."""
    try:
        doc = zarrmeta.loads(data)
    except ValueError:
        return None  # the document is damaged: readers get it unchanged, and report that
    match doc:
        case {"consolidated_metadata": {"metadata": dict(members), "refshard": {"pending": [*_]} as extension}}:
            pass
        case _:
            return None
    try:
        nodes = msgspec.convert(extension, _PendingNodes)
    except msgspec.ValidationError as e:
        raise ManifestError(f"{where}: its member 'refshard' is not valid: {e}") from None
    edits = Edits()
    for path in (*nodes.pending, *nodes.gone):
        if not is_key(path):
            raise ManifestError(
                f"{where}: {path!r} is not the path of a node: expected names with a slash between them"
            )
        if path in nodes.pending and not isinstance(members.get(path), dict):
            raise ManifestError(f"{where}: {path!r} is pending: expected its document in the consolidated metadata")
        edit = Inline(zarrmeta.dumps(members[path])) if path in nodes.pending else REMOVED
        edits.put(join(path, "zarr.json"), edit)
    return edits if len(edits) else None


class _Manifest(NamedTuple):
    """The need for an array's manifest, the resolver of its paths, and its name in errors."""

    load: Load
    resolver: PathResolver
    where: str


class ManifestView(ArrayView[Declaration]):
    """The keys of ``base``, with the chunks that chunk manifests locate."""

    def __init__(self, base: KeySpace, options: OpenOptions) -> None:
        self._options = options
        self._manifests: dict[str, _Manifest] = {}
        self._is_committed = False
        self._show_base(base)

    @property
    def inline_grids(self) -> Mapping[str, ChunkGrid]:
        return self.base.inline_grids

    @property
    def maps_anything(self) -> bool:
        """Whether a node that was read has a manifest, or a commit would write manifests."""
        arrays = self._documents.arrays.values()
        return (
            self._is_committed
            or isinstance(self.base, Composite)
            or any(array.manifest is not None or array.problem is not None for array in arrays)
        )

    def register_arrays(self, *, has_root: bool) -> Steps[None]:
        """Read the declarations of arrays whose metadata the base has in memory, and of the root if ``has_root``.

        If the root is a group with a manifest, the manifest maps the keys of the whole source.
        """
        yield from self._documents.register_arrays((DECLARED,), Declaration)
        if not has_root:
            return
        document = yield from self._documents.read("zarr.json")
        self._is_committed = document is not None and COMMITTED in document.data
        if document is not None and PENDING in document.data:
            entry = yield from self.base.lookup("zarr.json")
            pending = None if entry is None else (yield Load(entry, ParsedIndex(read_pending_edits, ("zarr.json",))))
            if pending is not None:
                self._show_base(EditedKeySpace(self.base, pending))
                document = yield from self._documents.read("zarr.json")
        root = None if document is None else document.groups.get("")
        if root is None:
            return
        if root.problem is not None:
            raise ManifestError(f"'zarr.json': {root.problem}")
        if root.manifest is not None:
            load, resolver, where = yield from self._locate_manifest("", root.manifest, None)
            keys = load.index.decode(load.entry.data) if isinstance(load.entry, Inline) else (yield load)
            self._show_base(Composite(self.base, keys, resolver, where))

    def _show_base(self, base: KeySpace) -> None:
        """Show ``base``: the source, or a view on top of it."""
        super().__init__(base)
        self._documents = Documents(base, StripManifests())
        self.grids = self._documents.grids

    @property
    def strangers(self) -> frozenset[str]:
        found = (declared.origins.servers for declared in self._documents.arrays.values() if declared.origins)
        return self.base.strangers.union(*found)

    def find_own_grid(self, path: str) -> ChunkGrid | None:
        declared = self._documents.arrays.get(path)
        if declared is None:
            return None
        if declared.problem is not None:
            raise ManifestError(f"{join(path, 'zarr.json')!r}: {declared.problem}")
        return None if declared.manifest is None else declared.grid

    def find_chunk_entry(self, key: str, path: str, coords: tuple[int, ...]) -> Steps[Entry | None]:
        manifest, resolver, where = yield from self._load_manifest(path)
        origins = self._documents.arrays[path].origins
        number = manifest.table.grid.number_of(coords)
        value = None if number is None else manifest.locate(number)
        if value is not None:
            entry: Entry | None = yield from resolver.make_entry(value, self.base, where, key)
            if origins and entry is not None and entry.spans:
                entry = add_origin(entry, origins.of(entry.spans[0].url))
            if isinstance(entry, Span) and (entry.size or 0) > LONG:
                document = join(path, "zarr.json")
                data = yield from self.base.read(document)
                meta = None if data is None else zarrmeta.array_meta(zarrmeta.object_in(data, document), document)
                check_length(key, entry.size, meta)
            return entry
        prefix = None if number is None or manifest.is_empty(number) else manifest.find_prefix(coords)
        if prefix is None:
            return None
        match resolver.resolve(prefix.make_url(coords), where, key):
            case Url(url):
                return Span(url, optional=True, origin=origins.of(url))
            case Key(name):
                return (yield from self.base.lookup(name))

    def is_empty(self, key: str) -> Steps[bool]:
        at = yield from self.locate_chunk(key)
        if at is None:
            return (yield from self.base.is_empty(key))
        path, coords, _ = at
        manifest, _, _ = yield from self._load_manifest(path)
        number = manifest.table.grid.number_of(coords)
        return number is not None and manifest.is_empty(number)

    def _load_manifest(self, path: str) -> Steps[tuple[ChunkManifest, PathResolver, str]]:
        """Return the manifest of the array ``path``, the resolver of its paths, and its name in errors."""
        located = self._manifests.get(path)
        if located is None:
            declared = self._documents.arrays[path]
            assert declared.manifest is not None
            located = yield from self._locate_manifest(path, declared.manifest, declared.grid)
            self._manifests[path] = located
        manifest = yield located.load
        if manifest is None:
            raise SourceNotReachable(f"expected the manifest of {_name_node(path)} at {located.where}, found nothing")
        return manifest, located.resolver, located.where

    def _locate_manifest(self, path: str, manifest: str | bytes, grid: ChunkGrid | None) -> Steps[_Manifest]:
        """Return the need for the manifest of the node ``path``, which declares it as a path or as JSON.

        Without a ``grid``, the node is the root group, whose manifest maps keys.
        """
        match manifest:
            case bytes(data):
                key = join(path, "zarr.json")
                resolver = PathResolver(key, (yield from self.base.lookup(key)), self._options)
                entry: Entry | None = Inline(data)
                where = f"the manifest in {key!r}"
            case str(url) if policy.protocol_of(url) is not None:
                entry, where = Span(url), url
                resolver = PathResolver("", entry, self._options)
            case str(relative):
                key = resolve_key(path, relative)
                entry = yield from self.base.lookup(key)
                resolver = PathResolver(key, entry, self._options)
                where = repr(key) if not isinstance(entry, Span) else entry.url
        entry = yield from _pin_entry(entry)
        if entry is None:
            raise SourceNotReachable(f"expected the manifest of {_name_node(path)} at {where}, found nothing")
        pinned = entry.pin.size if isinstance(entry, Span) and entry.pin is not None else None
        check_size(entry.size if pinned is None else pinned, self._options.max_manifest_bytes, where)
        index = ParsedIndex(parse_key_map, (where,)) if grid is None else ParsedIndex(parse, (grid, where))
        return _Manifest(Load(entry, index), resolver, where)

    @property
    def committed_as(self) -> str | None:  # type: ignore[override]  # a property, because it depends on documents
        return None if self.maps_anything else self.base.committed_as

    @property
    def is_reference_set(self) -> bool:  # type: ignore[override]  # a property, because it depends on documents
        return self.base.is_reference_set and not self.maps_anything

    @property
    def references(self) -> Any:
        return None if self.maps_anything else self.base.references

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        if self.is_reference_set:
            return (yield from self.base.contents(prefix, errors))
        return (yield from super().contents(prefix, errors))

    def list_chunks(self, array: str) -> Steps[Listing | None]:
        if array not in self._documents.arrays:
            yield from self._documents.lookup(join(array, "zarr.json"))
        if self.find_own_grid(array) is None:
            return (yield from self.base.list_chunks(array))
        table = yield from self._build_table(array, ())
        manifest, _, _ = yield from self._load_manifest(array)
        numbers = np.union1d(table.list_present(), manifest.empty).astype(np.uint64)
        grid = table.grid
        children = (yield from self.children(array)) or ()
        others = [child for child in children if not grid.has_name(child.name, is_directory=child.is_directory)]
        keys = {join(array, child.name): child.size for child in others if not child.is_directory}
        directories = [join(array, child.name) for child in others if child.is_directory]
        key = self.find_manifest_key(array)
        indexes = frozenset(() if key is None else (key,))
        return Listing(ArrayChunks(grid, numbers, pins_chunks=True), keys, directories, indexes)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        chunks = yield from super().chunks(array, numbers, grid)
        if self.find_own_grid(array) is None:
            return chunks
        manifest, _, _ = yield from self._load_manifest(array)
        rows = np.flatnonzero(np.isin(make_column(numbers), manifest.empty)).tolist()
        return msgspec.structs.replace(chunks, checks={**chunks.checks, **{row: {} for row in rows}})

    def find_manifest_key(self, path: str) -> str | None:
        """Return the key of the manifest of the array ``path``, if it lies in this source."""
        declared = self._documents.arrays.get(path)
        match declared.manifest if declared is not None else None:
            case str(relative) if policy.protocol_of(relative) is None:
                return resolve_key(path, relative)
        return None

    def list_chunks_in(
        self, path: str, leading: tuple[int, ...] | None, names: Sequence[Listed] | None
    ) -> Steps[Sequence[Listed] | None]:
        table = yield from self._build_table(path, leading or ())
        below = "" if leading is None else table.grid.directory_of(leading)
        directory = join(path, below)
        return list_chunks_below(table, below, directory + "/" if directory else "") or None

    def has_chunks_in(self, path: str, leading: tuple[int, ...]) -> Steps[bool]:
        table = yield from self._build_table(path, leading)
        return has_chunks_below(table, table.grid.directory_of(leading))

    def _build_table(self, path: str, leading: tuple[int, ...]) -> Steps[ChunkTable]:
        """Return a table with the keys and sizes of all chunks that begin with ``leading``, and perhaps more chunks."""
        manifest, resolver, where = yield from self._load_manifest(path)
        table = manifest.table
        grid = table.grid
        if not manifest.prefixes:
            return table
        parts = []
        for prefix in reversed(manifest.prefixes):  # the longest prefix last: a later part replaces earlier ones
            objects = yield from self._list_prefix(resolver, prefix, grid, leading, where)
            rows = [(grid.number_of(coords), size) for coords, size in objects]
            parts.append(Part.from_rows((number, Row(0, 0, size)) for number, size in rows if number is not None))
        empty = Part(manifest.empty, Ranges.make_absent(len(manifest.empty)))
        return ChunkTable.from_parts(grid, [*parts, table.make_part(), empty])

    def _list_prefix(
        self, resolver: PathResolver, prefix: Prefix, grid: ChunkGrid, leading: tuple[int, ...], where: str
    ) -> Steps[list[tuple[tuple[int, ...], int | None]]]:
        """Return coordinates and sizes of the objects below ``prefix`` whose coordinates begin with ``leading``."""
        ndim, depth = len(grid.counts), len(prefix.leading)
        if prefix.leading[: len(leading)] != leading[:depth]:
            return []
        if depth == ndim or not ndim:  # the prefix is one object
            return [(prefix.leading, None)] if (yield from self._has_object(resolver, prefix.path, where)) else []
        # With "/" between coordinates, each level of directories has one coordinate; with ".", names have all of them.
        level: list[tuple[tuple[int, ...], str, int | None]] = [(prefix.leading, prefix.path, None)]
        steps = [ndim - depth] if prefix.separator == "." else [1] * (ndim - depth)
        for step in steps:
            above, level = level, []
            for coords, path, _ in above:
                at = len(coords)
                is_last = at + step == ndim
                if at < len(leading) and step == 1:
                    level.append(((*coords, leading[at]), f"{path}{leading[at]}/", None))
                    continue
                folder, _, stem = path.rpartition("/")
                for listed in (yield from self._list_names(resolver, folder + "/", where)):
                    is_candidate = listed.name.startswith(stem) and listed.is_directory != is_last
                    more = _DOTTED.decode(listed.name[len(stem) :], step) if is_candidate else None
                    if more is not None:
                        level.append(((*coords, *more), f"{folder}/{listed.name}/", listed.size))
        return [(coords, size) for coords, _, size in level if coords[: len(leading)] == leading]

    def _list_names(self, resolver: PathResolver, folder: str, where: str) -> Steps[Sequence[Listed]]:
        """List the directory to which ``folder`` resolves. Raise NotListable if its web server cannot list it."""
        match resolver.resolve(folder, where):
            case Key(name):
                return (yield from self.base.children(name.rstrip("/"))) or ()
            case Url(url):
                names: Sequence[Listed] | None = yield Names(url)
                if names is None and policy.protocol_of(url) in ("http", "https"):
                    raise NotListable(f"{url}, to which {where} maps keys, cannot be listed; chunks can still be read")
                return names or ()

    def _has_object(self, resolver: PathResolver, path: str, where: str) -> Steps[bool]:
        """Return whether the object to which ``path`` resolves exists."""
        match resolver.resolve(path, where):
            case Key(name):
                return (yield from self.base.lookup(name)) is not None
            case Url(url):
                return (yield Stat(url)) is not None


def _name_node(path: str) -> str:
    """Return the name of a node at the beginning of an error."""
    return repr(path) if path else "the root"


def _pin_entry(entry: Entry | None) -> Steps[Entry | None]:
    """Pin ``entry`` to the current version of its object: a cached manifest must not serve another version."""
    match entry:
        case Span(url, 0, None, pin=None):
            facts: Facts | None = yield Stat(url, fresh=True)
            if facts is None:
                return None
            return msgspec.structs.replace(entry, optional=False, pin=facts.pin)
    return entry
