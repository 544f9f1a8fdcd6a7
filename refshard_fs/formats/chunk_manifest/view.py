"""A view of any key space that resolves the chunk manifests of its arrays. No I/O here.

A manifest is read at the first look-up of a chunk in its array. All chunks of the array come from the manifest; other
keys below the array are ignored. Metadata are shown without the storage transformer. All other keys come from the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, Contents, Listing, Numbers, column_of
from refshard_fs.core.columns import ChunkTable, Part, Ranges, Row
from refshard_fs.core.documents import ArrayView, Documents
from refshard_fs.core.dtypes import LONG, check_length
from refshard_fs.core.edits import REMOVED, EditedKeySpace, Edits
from refshard_fs.core.format import OpenOptions, check_size
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, is_key, join
from refshard_fs.core.keyspace import KeySpace, has_chunks_below, list_chunks_below
from refshard_fs.core.model import Entry, Facts, Inline, Listed, Load, Names, Parsed, Span, Stat, Steps, add_origin
from refshard_fs.errors import ManifestError, NotListable, SourceNotReachable
from refshard_fs.formats.chunk_manifest.entries import MARK as DECLARED
from refshard_fs.formats.chunk_manifest.entries import Declaration, Key, PathResolver, StripManifests, Url, resolve_key
from refshard_fs.formats.chunk_manifest.manifest import ChunkManifest, Prefix, parse
from refshard_fs.formats.chunk_manifest.prefix_map import Composite, parse_key_map
from refshard_fs.security import policy

# Commits to a hierarchy that are complete but not yet written out: the root document has the new other documents.
# ``consolidated_metadata`` in the root's ``zarr.json`` may have a member ``refshard``: ``pending`` lists nodes whose
# documents are those in the consolidated metadata, ``gone`` lists nodes that are removed, whatever lies in their places
# (FORMATS.md). Every commit writes the member, perhaps empty, so that the next commit writes manifests, too. No I/O
# here.


_DOTTED = ChunkKeyEncoding("v2", ".")
COMMITTED = b'"refshard":{'
PENDING = COMMITTED + b'"'


class _PendingNodes(msgspec.Struct):
    """Paths of nodes."""

    pending: list[str]
    gone: list[str] = []


def read_pending_edits(data: bytes, where: str) -> Edits | None:
    """Return the edits of other documents that the root document called ``where`` holds; None if there are none."""
    try:
        doc = zarrmeta.loads(data)
    except ValueError:
        return None  # readers see the bytes unchanged
    match doc:
        case {"consolidated_metadata": {"metadata": dict(members), "refshard": {"pending": [*_]} as spelled}}:
            pass
        case _:
            return None
    try:
        ours = msgspec.convert(spelled, _PendingNodes)
    except msgspec.ValidationError as e:
        raise ManifestError(f"{where}: its 'refshard' is not valid: {e}") from None
    edits = Edits()
    for path in (*ours.pending, *ours.gone):
        if not is_key(path):
            raise ManifestError(f"{where}: {path!r} is not the path of a node")
        if path in ours.pending and not isinstance(members.get(path), dict):
            raise ManifestError(f"{where}: {path!r} is pending but not in the consolidated metadata")
        edit = Inline(zarrmeta.dumps(members[path])) if path in ours.pending else REMOVED
        edits.put(join(path, "zarr.json"), edit)
    return edits if len(edits) else None


class _Lookup(NamedTuple):
    """The load of an array's manifest, the resolver of its paths, and its name in errors."""

    load: Load
    origin: PathResolver
    where: str


class ManifestView(ArrayView[Declaration]):
    """The keys of ``base``, with chunks where the chunk manifests of their arrays place them."""

    def __init__(self, base: KeySpace, options: OpenOptions) -> None:
        self._options = options
        self._lookups: dict[str, _Lookup] = {}
        self._is_committed = False
        self._compose(base)

    @property
    def inline_grids(self) -> Mapping[str, ChunkGrid]:
        return self.base.inline_grids

    @property
    def maps_anything(self) -> bool:
        """Whether any node known so far has a manifest, or commits write manifests for new nodes."""
        arrays = self._documents.arrays.values()
        return (
            self._is_committed
            or isinstance(self.base, Composite)
            or any(a.manifest is not None or a.problem is not None for a in arrays)
        )

    def register_arrays(self, *, has_root: bool) -> Steps[None]:
        """Register the arrays that the base knows without further reads, and the root's metadata if it has some.

        If the root is a group with a manifest, the manifest maps the keys of the whole source.
        """
        yield from self._documents.register_arrays((DECLARED,), Declaration)
        if not has_root:
            return
        document = yield from self._documents.read("zarr.json")
        self._is_committed = document is not None and COMMITTED in document.data
        if document is not None and PENDING in document.data:
            entry = yield from self.base.lookup("zarr.json")
            pending = None if entry is None else (yield Load(entry, Parsed(read_pending_edits, ("zarr.json",))))
            if pending is not None:
                self._compose(EditedKeySpace(self.base, pending))
                document = yield from self._documents.read("zarr.json")
        root = None if document is None else document.groups.get("")
        if root is None:
            return
        if root.problem is not None:
            raise ManifestError(f"the root group: {root.problem}")
        if root.manifest is not None:
            load, origin, where = yield from self._locate("", root.manifest, None)
            keys = load.index.decode(load.entry.data) if isinstance(load.entry, Inline) else (yield load)
            self._compose(Composite(self.base, keys, origin, where))

    def _compose(self, base: KeySpace) -> None:
        super().__init__(base)
        self._documents = Documents(base, StripManifests())
        self.grids = self._documents.grids

    @property
    def strangers(self) -> frozenset[str]:
        found = (declared.origins.servers for declared in self._documents.arrays.values() if declared.origins)
        return self.base.strangers.union(*found)

    def own_grid(self, path: str) -> ChunkGrid | None:
        declared = self._documents.arrays.get(path)
        if declared is None:
            return None
        if declared.problem is not None:
            raise ManifestError(f"array {path!r}: {declared.problem}")
        return None if declared.manifest is None else declared.grid

    def chunk(self, key: str, path: str, coords: tuple[int, ...]) -> Steps[Entry | None]:
        manifest, origin, where = yield from self._load_manifest(path)
        origins = self._documents.arrays[path].origins
        number = manifest.table.grid.number_of(coords)
        source = None if number is None else manifest.source(number)
        if source is not None:
            entry: Entry | None = yield from origin.entry(source, self.base, where, key)
            if origins and entry is not None and entry.spans:
                entry = add_origin(entry, origins.of(entry.spans[0].url))
            if isinstance(entry, Span) and (entry.size or 0) > LONG:
                document = join(path, "zarr.json")
                data = yield from self.base.read(document)
                meta = None if data is None else zarrmeta.array_meta(zarrmeta.object_in(data, document), document)
                check_length(key, entry.size, meta)
            return entry
        prefix = None if number is None or manifest.is_empty(number) else manifest.prefix(coords)
        if prefix is None:
            return None
        match origin.place(prefix.url(coords), where, key):
            case Url(url):
                return Span(url, optional=True, origin=origins.of(url))
            case Key(name):
                return (yield from self.base.lookup(name))

    def is_empty(self, key: str) -> Steps[bool]:
        at = yield from self.chunk_of(key)
        if at is None:
            return (yield from self.base.is_empty(key))
        path, coords, _ = at
        manifest, _, _ = yield from self._load_manifest(path)
        number = manifest.table.grid.number_of(coords)
        return number is not None and manifest.is_empty(number)

    def _load_manifest(self, path: str) -> Steps[tuple[ChunkManifest, PathResolver, str]]:
        """Load the manifest of the array ``path``; return it with the resolver of its paths and its name."""
        found = self._lookups.get(path)
        if found is None:
            declared = self._documents.arrays[path]
            assert declared.manifest is not None
            found = self._lookups[path] = yield from self._locate(path, declared.manifest, declared.grid)
        manifest = yield found.load
        if manifest is None:
            raise SourceNotReachable(f"array {path!r} has its manifest at {found.where}, which does not exist")
        return manifest, found.origin, found.where

    def _locate(self, path: str, manifest: str | bytes, grid: ChunkGrid | None) -> Steps[_Lookup]:
        """Return how to load the manifest of the node ``path``; without a ``grid``, it is a key map."""
        match manifest:
            case bytes(data):
                key = join(path, "zarr.json")
                origin = PathResolver(key, (yield from self.base.lookup(key)), self._options)
                entry: Entry | None = Inline(data)
                where = f"the manifest in {key!r}"
            case str(spelled) if policy.protocol_of(spelled) is not None:
                entry, where = Span(spelled), spelled
                origin = PathResolver("", entry, self._options)
            case str(spelled):
                key = resolve_key(path, spelled)
                entry = yield from self.base.lookup(key)
                origin = PathResolver(key, entry, self._options)
                where = repr(key) if not isinstance(entry, Span) else entry.url
        entry = yield from _pin_entry(entry)
        if entry is None:
            raise SourceNotReachable(f"{path or 'the root'!r} has its manifest at {where}, which does not exist")
        pinned = entry.pin.size if isinstance(entry, Span) and entry.pin is not None else None
        check_size(entry.size if pinned is None else pinned, self._options.max_manifest_bytes, where)
        index = Parsed(parse_key_map, (where,)) if grid is None else Parsed(parse, (grid, where))
        return _Lookup(Load(entry, index), origin, where)

    @property
    def committed_as(self) -> str | None:  # type: ignore[override]  # chunk manifests are saved as new ones
        return None if self.maps_anything else self.base.committed_as

    @property
    def is_reference_set(self) -> bool:  # type: ignore[override]  # a manifest is not a reference set
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
        if self.own_grid(array) is None:
            return (yield from self.base.list_chunks(array))
        table = yield from self._build_table(array, ())
        manifest, _, _ = yield from self._load_manifest(array)
        numbers = np.union1d(table.present(), manifest.empty).astype(np.uint64)
        grid = table.grid
        names = [
            n for n in (yield from self.children(array)) or () if not grid.has_name(n.name, is_directory=n.is_directory)
        ]
        others = {join(array, n.name): n.size for n in names if not n.is_directory}
        directories = [join(array, n.name) for n in names if n.is_directory]
        key = self.manifest_key(array)
        indexes = frozenset(() if key is None else (key,))
        return Listing(ArrayChunks(grid, numbers, pins_chunks=True), others, directories, indexes)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        found = yield from super().chunks(array, numbers, grid)
        if self.own_grid(array) is None:
            return found
        manifest, _, _ = yield from self._load_manifest(array)
        rows = np.flatnonzero(np.isin(column_of(numbers), manifest.empty)).tolist()
        return msgspec.structs.replace(found, checks={**found.checks, **{row: {} for row in rows}})

    def manifest_key(self, path: str) -> str | None:
        """Return the key of the manifest of the array ``path``, if it lies in this source."""
        declared = self._documents.arrays.get(path)
        match declared.manifest if declared is not None else None:
            case str(spelled) if policy.protocol_of(spelled) is None:
                return resolve_key(path, spelled)
        return None

    def chunks_in(
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
        """Return a table of at least all chunks that begin with ``leading``, with correct keys and sizes."""
        manifest, origin, where = yield from self._load_manifest(path)
        table = manifest.table
        grid = table.grid
        if not manifest.prefixes:
            return table
        parts = []
        for prefix in reversed(manifest.prefixes):  # the longest prefix last: it counts
            found = yield from self._walk(origin, prefix, grid, leading, where)
            rows = [(grid.number_of(coords), size) for coords, size in found]
            parts.append(Part.from_rows((number, Row(0, 0, size)) for number, size in rows if number is not None))
        empty = Part(manifest.empty, Ranges.absent(len(manifest.empty)))
        return ChunkTable.from_parts(grid, [*parts, table.part(), empty])

    def _walk(
        self, origin: PathResolver, prefix: Prefix, grid: ChunkGrid, leading: tuple[int, ...], where: str
    ) -> Steps[list[tuple[tuple[int, ...], int | None]]]:
        """Return coordinates and sizes of the objects below ``prefix`` whose coordinates begin with ``leading``."""
        ndim, depth = len(grid.counts), len(prefix.leading)
        if prefix.leading[: len(leading)] != leading[:depth]:
            return []
        if depth == ndim or not ndim:  # the prefix is one object
            return [(prefix.leading, None)] if (yield from self._exists(origin, prefix.path, where)) else []
        found: list[tuple[tuple[int, ...], str, int | None]] = [(prefix.leading, prefix.path, None)]
        steps = [ndim - depth] if prefix.separator == "." else [1] * (ndim - depth)
        for step in steps:
            level, found = found, []
            for coords, path, _ in level:
                at = len(coords)
                is_last = at + step == ndim
                if at < len(leading) and step == 1:
                    found.append(((*coords, leading[at]), f"{path}{leading[at]}/", None))
                    continue
                folder, _, stem = path.rpartition("/")
                for listed in (yield from self._list_names(origin, folder + "/", where)):
                    fits = listed.name.startswith(stem) and listed.is_directory != is_last
                    more = _DOTTED.decode(listed.name[len(stem) :], step) if fits else None
                    if more is not None:
                        found.append(((*coords, *more), f"{folder}/{listed.name}/", listed.size))
        return [(coords, size) for coords, _, size in found if coords[: len(leading)] == leading]

    def _list_names(self, origin: PathResolver, folder: str, where: str) -> Steps[Sequence[Listed]]:
        match origin.place(folder, where):
            case Key(name):
                return (yield from self.base.children(name.rstrip("/"))) or ()
            case Url(url):
                names: Sequence[Listed] | None = yield Names(url)
                if names is None and policy.protocol_of(url) in ("http", "https"):
                    raise NotListable(f"{url}, where {where} maps keys to, cannot be listed; chunks can still be read")
                return names or ()

    def _exists(self, origin: PathResolver, path: str, where: str) -> Steps[bool]:
        match origin.place(path, where):
            case Key(name):
                return (yield from self.base.lookup(name)) is not None
            case Url(url):
                return (yield Stat(url)) is not None


def _pin_entry(entry: Entry | None) -> Steps[Entry | None]:
    """Pin ``entry`` to the current version of its object: a cached manifest must not serve another version."""
    match entry:
        case Span(url, 0, None, pin=None):
            facts: Facts | None = yield Stat(url, fresh=True)
            if facts is None:
                return None
            return msgspec.structs.replace(entry, optional=False, pin=facts.pin)
    return entry
