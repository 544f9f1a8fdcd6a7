"""Any source as one reference set in columns: its URLs absolute, its metadata inline."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import PACKING, PACKING_TYPE
from refshard_fs.core.checksums import Checked
from refshard_fs.core.columns import ABSENT, ChunkTable, Part, Row, Texts
from refshard_fs.core.edits import EditedKeySpace, unedited
from refshard_fs.core.format import OpenOptions
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.core.keys import ChunkGrid, join, parent, relative
from refshard_fs.core.keyspace import KeySpace, tails
from refshard_fs.core.model import (
    Entry,
    Inline,
    Load,
    Origin,
    Packed,
    Pin,
    Raw,
    Span,
    Steps,
    answered,
    batches,
    together,
)
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest.view import ManifestView
from refshard_fs.formats.kerchunk_json.source import parse_document
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from refshard_fs.formats.kerchunk_parquet.writing import ParquetStream
from refshard_fs.formats.zarr_hierarchy.source import pinned, pinned_hierarchy
from refshard_fs.references.key_table import Value
from refshard_fs.references.keyspace import FlatKeySpace
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import References, ReferenceSet, with_edits
from refshard_fs.references.stream import Respell, Run
from refshard_fs.references.values import METADATA, grid_of
from refshard_fs.security.origins import Origins
from refshard_fs.session.recognition import beneath, references_in, stored
from refshard_fs.sharding.view import ShardView

# What only a chunk manifest can say of chunks (checksums, ETags), by array and number.
Extras = Mapping[str, Mapping[int, Mapping[str, str]]]

ROWS_AS_OBJECTS = 1 << 16  # references of one array that are kept as Python objects before they become columns
INLINED = 64 << 20  # bytes that a set may hold of chunks that are no ranges, such as the padded last ones of arrays
LARGE = 1 << 20  # bytes of such chunks of one array, more of which are not read to be compared
COPIED = 16 << 20  # bytes of such chunks that are in memory at a time
TOGETHER = 1 << 14  # keys that are looked up together,
DIRECTORIES = 64  # and directories that are gone through
ROWS = 1 << 17  # references of a parquet set that are read at a time


class Unread(NamedTuple):
    """Which arrays a joiner does not read: those along all ``dims``, and those in ``same``, the first set's."""

    dims: frozenset[str]
    same: frozenset[str] = frozenset()


class _Array:
    """The references to chunks of one array, found so far."""

    def __init__(self, grid: ChunkGrid) -> None:
        self.grid = grid
        self.extras: dict[int, dict[str, str]] = {}
        self._parts: list[Part] = []
        self._rows: list[tuple[int, Row]] = []

    def add(self, number: int, row: Row) -> None:
        self._rows.append((number, row))
        if len(self._rows) == ROWS_AS_OBJECTS:
            self._parts.append(Part.from_rows(self._rows))
            self._rows.clear()

    def table(self) -> ChunkTable:
        return ChunkTable.from_parts(self.grid, [*self._parts, Part.from_rows(self._rows)])


def gather(keyspace: KeySpace, prefix: str = "", unread: Unread | None = None) -> Steps[tuple[ReferenceSet, Extras]]:
    """Return references to all that ``keyspace`` holds below ``prefix``, by looking up each key.

    Bytes that are no range of an object are read and kept as data. ManifestError, which names the key, where these are
    more than `INLINED`. With ``unread``, chunks of arrays that are joined, that are taken from the first set, or that
    are large are references to what they are made from: a document that joins sets needs to know which chunks there
    are, and reads those alone that it compares.
    """
    walk = yield from walked(keyspace, prefix)
    if unread is not None:
        walk.leave(unread)
    if (key := walk.too_much()) is not None:
        raise ManifestError(
            f"{key!r} is made from other bytes: no reference can stand for it, and more than "
            f"{INLINED >> 20} MiB of such chunks are not copied into a set. Convert this source alone, to where an "
            "object can be written beside the set, and they go there; or read the source in place"
        )
    for batch in walk.batches():
        read: Sequence[bytes] = yield tuple(Load(made.entry, Raw()) for made in batch)
        for made, data in zip(batch, read, strict=True):
            walk.keep(made, data)
    return walk.found()


class _Found(NamedTuple):
    """What a key is, and which chunk of an array it is, if it is one."""

    key: str
    entry: Entry
    array: _Array | None
    number: int | None

    @property
    def size(self) -> int:
        """How many bytes it has; those of its source, where that is only known once it was made."""
        return self.entry.size if self.entry.size is not None else sum(span.size or 0 for span in self.entry.spans)


def walked(keyspace: KeySpace, prefix: str = "") -> Steps[Walk]:
    """Return what all keys of ``keyspace`` below ``prefix`` refer to, without the bytes of those that are `made`."""
    walk = Walk(keyspace)
    known = yield from keyspace.directories(prefix)
    root = prefix if keyspace.url_of is None else keyspace.url_of(prefix)
    yield from answered(walk.directory(prefix, None), root, known)
    return walk


class Walk:
    """Goes through all directories of a key space, and keeps what its keys refer to."""

    def __init__(self, keyspace: KeySpace) -> None:
        self.urls: dict[str, int] = {}
        self.pins: dict[str, Pin] = {}
        self.named: dict[str, Origin] = {}  # by the sets that named the URLs
        self.side: dict[str, Value] = {}
        self.arrays: dict[str, _Array] = {}
        self._keyspace = keyspace
        self._manifests: set[str] = set()
        self.made: list[_Found] = []  # whose bytes are made from others: no reference can stand for them

    def directory(self, prefix: str, within: str | None) -> Steps[None]:
        """Keep all keys below ``prefix``, which lies in the array ``within``, if in one."""
        names = (yield from self._keyspace.children(prefix)) or ()
        documents = [n.name for n in names if not n.is_directory and zarrmeta.is_metadata(n.name)]
        for name in documents:
            yield from self._document(prefix, name)
        if prefix in self.arrays:
            within = prefix
            if (yield from self._manifest(prefix)):
                return
        files = [join(prefix, n.name) for n in names if not n.is_directory and n.name not in documents]
        yield from self._files(files, within)
        for some in batches([join(prefix, n.name) for n in names if n.is_directory], DIRECTORIES):
            yield from together([self.directory(path, within) for path in some])

    def _document(self, prefix: str, name: str) -> Steps[None]:
        key = join(prefix, name)
        data = yield from self._keyspace.read(key)
        if data is None:
            return
        self.side[key] = with_packing_type(data, key, self._keyspace.attribute_dtypes)
        grid = grid_of(key, data, "the source") if name in METADATA else None
        if grid is not None:
            self.arrays[prefix] = _Array(grid)

    def _manifest(self, path: str) -> Steps[bool]:
        """Keep the chunks of the array ``path`` if it has a manifest: nothing else that lies in it is a chunk."""
        view = self._keyspace
        if not isinstance(view, ManifestView):
            return False
        found = yield from view.chunks(path)
        if found is None:
            return False
        manifest = view.manifest_key(path)
        if manifest is not None:
            self._manifests.add(manifest)
            self.side.pop(manifest, None)
        present, empty = found
        array = self.arrays[path]
        yield from self._files([join(path, tail) for tail in tails(array.grid, present)], path, with_pins=True)
        array.extras.update((number, {}) for number in empty.tolist())
        return True

    def _files(self, keys: Sequence[str], within: str | None, *, with_pins: bool = False) -> Steps[None]:
        """Keep ``keys``, which lie in the array ``within``, if in one."""
        array = None if within is None else self.arrays[within]
        for batch in batches(keys, TOGETHER):
            some = [key for key in batch if key not in self._manifests]
            for key, entry in zip(some, (yield from self._entries(some)), strict=True):
                if entry is None:
                    continue
                number = None if array is None else array.grid.number(relative(key, within or ""))
                found = _Found(key, entry, array, number)
                if _is_made(entry):
                    self.made.append(found)
                    continue
                value, extras = self._value(key, entry, with_pins=with_pins and number is not None)
                self.keep(found, value)
                if array is not None and number is not None and extras:
                    array.extras[number] = extras

    def _entries(self, keys: Sequence[str]) -> Steps[list[Entry | None]]:
        """Return the entries of ``keys``, which are looked up together."""
        look_ups = self._keyspace.lookups(keys)
        found: list[Entry | None] = [None] * len(keys)
        for look_up, some in zip(look_ups, (yield from together([one.steps for one in look_ups])), strict=True):
            for place, entry in zip(look_up.places, some, strict=True):
                found[place] = entry
        return found

    def keep(self, found: _Found, value: Row | bytes) -> None:
        """Keep what a key holds."""
        if found.array is None or found.number is None or not isinstance(value, Row):
            self.side[found.key] = value
        else:
            found.array.add(found.number, value)

    def too_much(self) -> str | None:
        """Return the first key with which there is more to copy than a set should hold; None where all of it fits."""
        ends = itertools.accumulate(made.size for made in self.made)
        return next((made.key for made, end in zip(self.made, ends, strict=True) if end > INLINED), None)

    def batches(self) -> Iterator[list[_Found]]:
        """Yield what no reference can stand for, about `COPIED` bytes at a time."""
        ends = itertools.accumulate(made.size for made in self.made)
        for _, group in itertools.groupby(zip(self.made, ends, strict=True), lambda pair: pair[1] // COPIED):
            yield [made for made, _ in group]

    def leave(self, unread: Unread) -> None:
        """Keep what chunks are made from in place of the chunks, but for those that a joiner compares."""
        sizes: dict[int, int] = {}
        for made in self.made:
            sizes[id(made.array)] = sizes.get(id(made.array), 0) + made.size
        stated = {path: _attributes(self.side, path) for path in self.arrays}
        known = unread.dims.intersection(itertools.chain.from_iterable(own.dims for own in stated.values()))
        named = {join(parent(path)[0], name) for path, own in stated.items() for name in own.coordinates}
        left: dict[int, bool] = {}
        for path, array in self.arrays.items():
            dims = stated[path].dims
            if dims == [parent(path)[1]]:  # a coordinate
                continue
            is_data = len(dims) > 0 and path not in named
            is_joined = known.issubset(dims) if known else is_data  # where a set has none of them, data get them
            is_large = sizes.get(id(array), 0) > LARGE
            left[id(array)] = is_joined or is_large or (is_data and path in unread.same)
        every, self.made = self.made, []
        for made in every:
            spans = made.entry.spans
            if spans and made.number is not None and left.get(id(made.array)):
                target = self.urls.setdefault(spans[0].url, len(self.urls))
                self.named.setdefault(spans[0].url, spans[0].origin)
                self.keep(made, Row(target, max(spans[0].start, 0), made.size))
            else:
                self.made.append(made)

    def found(self) -> tuple[ReferenceSet, Extras]:
        """Return all that was kept."""
        tables = {path: array.table() for path, array in self.arrays.items()}
        urls = Texts.of(self.urls)
        origins = Origins.made([*self.named.items()], self._keyspace.strangers)
        refs = ReferenceSet(urls, tables, self.side, pins=Pins.matched(self.pins, urls), origins=origins)
        return refs, {path: array.extras for path, array in self.arrays.items() if array.extras}

    def _value(self, key: str, entry: Entry, *, with_pins: bool) -> tuple[Row | bytes, dict[str, str]]:
        extras: dict[str, str] = {}
        if isinstance(entry, Packed) and isinstance(entry.recipe, Checked):
            extras["checksum"] = entry.recipe.checksum
            entry = entry.source
        match entry:
            case Inline(data):
                return data, extras
            case Span(url, start, stop, pin=pin, origin=origin) if start >= 0:
                self.named[url] = self.named.get(url, origin) and origin
                if pin is not None and pin.exact:
                    self.pins[url] = pin
                elif with_pins and pin is not None:
                    extras |= pin.version
                target = self.urls.setdefault(url, len(self.urls))
                return Row(target, start, None if stop is None else stop - start), extras
        raise ManifestError(f"{key!r} is counted from the end of its target: no reference can stand for it")


class _Attributes(NamedTuple):
    """The names of an array's dimensions, and of its auxiliary coordinates, as far as its documents have them."""

    dims: Sequence[str | None] = ()
    coordinates: Sequence[str] = ()


def _attributes(side: Mapping[str, Value], path: str) -> _Attributes:
    for name in ("zarr.json", ".zattrs"):
        data = side.get(join(path, name))
        if isinstance(data, bytes):
            doc = zarrmeta.object_in(data, join(path, name))
            attributes = doc.get("attributes") if name == "zarr.json" else doc
            dims = doc.get("dimension_names" if name == "zarr.json" else "_ARRAY_DIMENSIONS")
            names = attributes.get("coordinates") if isinstance(attributes, dict) else None
            return _Attributes(
                [dim if isinstance(dim, str) else None for dim in dims] if isinstance(dims, list) else (),
                names.split() if isinstance(names, str) else (),
            )
    return _Attributes()


def with_packing_type(data: bytes, key: str, by_array: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return a document with an attribute, if the array's scale_factor and add_offset are 32-bit numbers.

    xarray decodes by their type, and JSON has one kind of numbers. Types are ``by_array`` and attribute.
    """
    path, name = parent(key)
    dtypes = by_array.get(path, {})
    if name not in ("zarr.json", ".zattrs") or {
        np.dtype(dtypes[name]).newbyteorder("=") for name in PACKING if name in dtypes
    } != {np.dtype("f4")}:
        return data
    doc = zarrmeta.object_in(data, key)
    own = {PACKING_TYPE: "float32"}
    added = {"attributes": {**(doc.get("attributes") or {}), **own}} if "node_type" in doc else own
    return zarrmeta.dumps({**doc, **added})


def _is_made(entry: Entry) -> bool:
    """Whether no reference can stand for ``entry``; one with a checksum is a range."""
    is_checked = isinstance(entry, Packed) and isinstance(entry.recipe, Checked)
    return isinstance(entry, Packed) and not (is_checked and entry.start is None and entry.stop is None)


def collect(keyspace: KeySpace, run: Run, respell: Respell, unread: Unread | None = None) -> ReferenceSet:
    """Return all references of ``keyspace``, their URLs respelled; ``run`` runs the look-ups.

    ``unread`` is as `gather` takes it. Raises ManifestError where a reference set cannot hold what there is.
    """
    keyspace = stored(keyspace)
    if isinstance(keyspace, EditedKeySpace):
        assert not isinstance(keyspace.base, ShardView), "edits are of keys that are stored: `shard_edits` makes them"
        return with_edits(collect(keyspace.base, run, respell), keyspace.edits.loaded(), "what was written")
    lazy = references_in(keyspace)
    if isinstance(lazy, ParquetKeySpace):
        return columns_of(lazy, run, respell)
    found: ReferenceSet = run("", partial(collected, keyspace, unread))
    return respelled(found, respell)


def collected(keyspace: KeySpace, unread: Unread | None = None) -> Steps[ReferenceSet]:
    """Return all references of ``keyspace``, which is no parquet set, as `collect` does but for their URLs."""
    flat = references_in(keyspace)
    if isinstance(flat, FlatKeySpace):
        return (yield from _with_metadata(flat))
    refs, extras = yield from gather(stored(keyspace), unread=unread)
    if extras:
        raise ManifestError(
            f"the chunk manifest of {next(iter(extras))!r} says more of chunks than where they are: "
            "a set of references cannot hold that"
        )
    return refs


def pin(
    keyspace: KeySpace,
    run: Run,
    respell: Respell,
    threshold: int,
    shard_options: tuple[tuple[str, Any], ...] | None,
    tell: Callable[[int], object],
) -> ReferenceSet:
    """Return all references of ``keyspace`` pinned to what their targets are now, as `snapshots` does.

    ``tell`` is called with how many more objects are known. ``shard_options`` has sharded arrays become arrays of
    their inner chunks.
    """
    found: ReferenceSet
    keyspace = unedited(keyspace)
    hierarchy = keyspace if isinstance(keyspace, EditedKeySpace) else beneath(keyspace)
    if isinstance(hierarchy, Hierarchy):
        found = respelled(run("", partial(pinned_hierarchy, hierarchy, threshold, tell)), respell)
    else:
        found = run("", partial(pinned, collect(keyspace, run, respell), tell))
    return found if shard_options is None else run("", partial(_flattened, found, shard_options))


def _flattened(refs: ReferenceSet, shard_options: tuple[tuple[str, Any], ...]) -> Steps[ReferenceSet]:
    """Return ``refs`` with references to inner chunks in place of those to shards."""
    base = FlatKeySpace(refs, str, "the snapshot")
    mapped = ManifestView(base, OpenOptions())
    yield from mapped.register_arrays(has_root=True)
    if mapped.maps_anything:
        raise ManifestError("chunk manifests are among the keys: their shards cannot be flattened; use shards='whole'")
    view = ShardView(base, shard_options)
    yield from view.register_arrays()
    if not view.shards_anything:
        return refs
    flat, _ = yield from gather(view)
    return flat


def respelled(refs: ReferenceSet, respell: Respell) -> ReferenceSet:
    """Return ``refs`` with other URLs; the columns are shared."""
    urls = list(refs.urls)
    new = list(map(respell, urls))
    return refs if new == urls else msgspec.structs.replace(refs, urls=Texts.of(new))


def _with_metadata(keyspace: FlatKeySpace) -> Steps[ReferenceSet]:
    """Return the references; documents that are references themselves are read, and made inline."""
    refs = keyspace.refs
    missing = [key for key, value in refs.side.items() if type(value) is Row and zarrmeta.is_metadata(key)]
    if not missing:
        return refs
    found: dict[str, Any] = {}
    for key in missing:
        data = yield from keyspace.read(key)
        if data is not None:
            found[key] = data
    inline = parse_document(dict(References(refs)) | found, keyspace.where, {})
    pins = None if refs.pins is None else Pins.matched(refs.pins.by_url(refs.urls), inline.urls)
    return msgspec.structs.replace(inline, pins=pins, origins=refs.origins)


def columns_of(keyspace: ParquetKeySpace, run: Run, respell: Respell, array: str | None = None) -> ReferenceSet:
    """Return the references of a parquet set in columns; or those of one array."""
    stream = ParquetStream(keyspace, respell, run)
    side: dict[str, Any] = dict(stream.documents())
    urls: dict[str | None, int] = {}
    tables = {}
    for path, grid in stream.grids.items():
        if array is not None and path != array:
            continue
        parts = []
        for numbers, partition in stream.partitions(path, ROWS):
            codes = np.array([urls.setdefault(url, len(urls)) for url in partition.urls], np.uint32)
            rows = np.flatnonzero(partition.ranges.targets != ABSENT)
            ranges = partition.ranges.take(rows)
            ranges = ranges._replace(targets=codes[ranges.targets])
            parts.append(Part((rows + numbers.start).astype(np.uint64), ranges))
            side.update((join(path, grid.tail(numbers.start + row)), data) for row, data in partition.inline.items())
        tables[path] = ChunkTable.from_parts(grid, parts)
    return ReferenceSet(Texts.of(urls), tables, side, origins=keyspace.layout.origins)
